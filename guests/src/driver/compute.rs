//! Grids of class 90c0 on a channel of their own.
//!
//! Order of methods and values are those of Mesa's nvc0 driver (`nvc0_compute.c`); `cl90c0.h` names them. A launch
//! starts when everything before it in the channel has ended, and sees what that has written.
//!
//! ```text
//! ComputeMemory ─► constants of bank 0 │ memory behind local memory and control stacks
//!                  64 KiB              │ the rest
//! ```
//!
//! The windows of shared and local memory hide the generic addresses 0xfe000000 to 0xffffffff: map nothing there
//! that a grid must reach.

use super::{ChannelId, Driver, DriverError, Fence, Object};
use crate::GuestBus;
use fermi_spec::engine::Engine;
use fermi_spec::graphics::{
    BindConstants, GlobalEntry, ReportSemaphore, ShaderCaches, compute, front_end, shader,
};
use fermi_spec::methods::class;
use fermi_spec::pushbuffer::{incrementing, non_incrementing};

/// Bytes of [`ComputeMemory`] that suffice for grids with [`STACK_BYTES`] and 16 bytes of local memory.
pub const COMPUTE_BYTES: u64 = 2 << 20;
/// Bytes of control stack of a warp, as Mesa has it: 192 entries.
pub const STACK_BYTES: u32 = 0x800;
/// Bytes of a [`Stamp`] in memory.
pub const STAMP_BYTES: u64 = 16;
/// Bytes of constant bank 0; the rest of its 64 KiB is not bound.
const CONSTANT_BYTES: u32 = 4 << 10;
/// Most words of constants of a launch: what the method header counts in one submission.
const CONSTANT_WORDS_MAX: usize = CONSTANT_BYTES as usize / 4;
const TEMP_OFFSET: u64 = 64 << 10;
/// Warps that can be on the card at once: 48 on each of 16 SMs.
const WARPS_MAX: u64 = 48 * 16;
/// Generic address of the window of shared memory, as Mesa has it.
pub const SHARED_WINDOW: u32 = 0xfe << 24;
/// Generic address of the window of local memory, as Mesa has it.
pub const LOCAL_WINDOW: u32 = 0xff << 24;
const SUBCHANNEL: u8 = 1;
const BANKS: u8 = 18;
const BANK_BYTES_MAX: u32 = 64 << 10;
/// Most blocks of a grid in each direction (compute capability 2.0).
const BLOCKS_MAX: u32 = 0xffff;
const THREADS_MAX: u32 = 1024;
/// Number of CONSTANT_DATA methods in a row.
const DATA_METHODS: usize = (shader::CONSTANT_DATA_LAST - shader::CONSTANT_DATA) as usize / 4 + 1;

/// Mapped memory that grids need besides their own, VRAM or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComputeMemory {
    /// Virtual address that it is mapped at, a multiple of 256.
    pub va: u64,
    /// Length in bytes, 192 KiB at least.
    pub bytes: u64,
}

impl ComputeMemory {
    /// Bytes that suffice for grids with this much local memory of a lane and control stack of a warp.
    pub const fn bytes_for(local_bytes: u32, stack_bytes: u32) -> u64 {
        let temp = WARPS_MAX * warp_bytes(local_bytes as u64, stack_bytes);
        TEMP_OFFSET + temp.next_multiple_of(compute::TEMP_BYTES_UNIT)
    }

    /// Bytes behind local memory and control stacks.
    fn temp_bytes(self) -> u64 {
        let rest = self.bytes.saturating_sub(TEMP_OFFSET);
        rest - rest % compute::TEMP_BYTES_UNIT
    }
}

/// Memory behind the local memory and the control stack of a warp.
const fn warp_bytes(local_bytes: u64, stack_bytes: u32) -> u64 {
    (32 * local_bytes + stack_bytes as u64).next_multiple_of(0x200)
}

/// A constant bank of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConstantBank {
    /// Its number, 0 to 17.
    pub number: u8,
    /// Virtual address of its bytes, a multiple of 256.
    pub va: u64,
    /// Their count, at most 64 KiB.
    pub bytes: u32,
}

/// The parameters of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid<'a> {
    /// Virtual address of the code, a multiple of 256.
    pub code: u64,
    /// First instruction, bytes from `code`.
    pub entry: u32,
    /// Registers of a lane.
    pub registers: u32,
    /// Shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Control stack of a warp in bytes, a multiple of 512; [`STACK_BYTES`] is plenty.
    pub stack_bytes: u32,
    /// Local memory of a lane in bytes, multiples of 16: from address 0 up, and below the end of its addresses.
    pub local_bytes: [u32; 2],
    /// Barriers of a block.
    pub barriers: u32,
    /// Blocks in x, y, z: 1 to 65,535 each.
    pub blocks: [u32; 3],
    /// Threads of a block in x, y, z: at most 1024 together.
    pub threads: [u32; 3],
    /// Constant bank 0 from its first word on, at most 4 KiB. Words beyond keep the values of an earlier launch.
    pub constants: &'a [u32],
    /// Other banks; they stay bound. Number 0 here takes the place of `constants`.
    pub banks: &'a [ConstantBank],
}

impl Grid<'_> {
    fn check(&self, memory: ComputeMemory) -> Result<(), DriverError> {
        let bad = |what| Err(DriverError::BadGrid { what });
        let threads = self
            .threads
            .iter()
            .try_fold(1u32, |all, one| all.checked_mul(*one));
        if !threads.is_some_and(|threads| (1..=THREADS_MAX).contains(&threads)) {
            return bad("a block has 1 to 1024 threads");
        }
        if !self.blocks.iter().all(|blocks| (1..=BLOCKS_MAX).contains(blocks)) {
            return bad("1 to 65535 blocks lie in a direction");
        }
        let local: u64 = self.local_bytes.iter().map(|bytes| u64::from(*bytes)).sum();
        if warp_bytes(local, self.stack_bytes) * WARPS_MAX > memory.temp_bytes() {
            return bad("local memory and stacks of 768 warps do not fit the memory for them");
        }
        if self.constants.len() > CONSTANT_WORDS_MAX {
            return bad("a launch has at most 4096 bytes of constants");
        }
        if self
            .banks
            .iter()
            .any(|bank| bank.number >= BANKS || bank.bytes > BANK_BYTES_MAX)
        {
            return bad("constant banks are 0 to 17 and have at most 65536 bytes");
        }
        if !self.code.is_multiple_of(0x100) {
            return bad("code lies at multiples of 256");
        }
        Ok(())
    }
}

/// A release of four words: it marks that the channel came here, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Payload that was given to [`Compute::stamp`].
    pub payload: u32,
    /// GPU time in nanoseconds (PTIMER).
    pub time_ns: u64,
}

impl Stamp {
    /// The stamp in RAM at `gpa`.
    pub fn read(bus: &mut dyn GuestBus, gpa: u64) -> Self {
        let mut bytes = [0; STAMP_BYTES as usize];
        bus.ram_read(gpa, &mut bytes);
        let [payload, _, low, high] = core::array::from_fn(|word| {
            let mut value = [0; 4];
            value.copy_from_slice(&bytes[word * 4..word * 4 + 4]);
            u32::from_le_bytes(value)
        });
        Self {
            payload,
            time_ns: u64::from(high) << 32 | u64::from(low),
        }
    }
}

/// A channel that runs grids.
pub struct Compute {
    channel: ChannelId,
    memory: ComputeMemory,
}

impl Compute {
    /// Creates the channel and sets the state that all launches share. The caller leaves `memory`
    /// alone from now on.
    pub fn new(
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        memory: ComputeMemory,
    ) -> Result<Self, DriverError> {
        let object = Object {
            subchannel: SUBCHANNEL,
            class: class::COMPUTE,
            engine: Engine::Graph,
        };
        let channel = driver.create_channel(bus, &[object])?;
        let this = Self { channel, memory };
        this.set(driver, bus, compute::CALL_LIMIT, &[15])?;
        this.set(driver, bus, compute::GLOBAL_TABLE, &[0])?;
        let mut table = [0; 257];
        table[0] = non_incrementing(SUBCHANNEL, compute::GLOBAL_ENTRY, 256);
        for (index, word) in table[1..].iter_mut().enumerate() {
            let entry = GlobalEntry::new()
                .with_index(index as u8)
                .with_high(index as u8)
                .with_readable(true)
                .with_writable(true);
            *word = entry.into_bits();
        }
        driver.queue(bus, channel, &table)?;
        this.set(driver, bus, compute::GLOBAL_TABLE, &[1])?;
        let high_low = |value: u64| [(value >> 32) as u32, value as u32];
        this.set(
            driver,
            bus,
            compute::TEMP_HIGH,
            &high_low(memory.va + TEMP_OFFSET),
        )?;
        this.set(
            driver,
            bus,
            compute::TEMP_BYTES_HIGH,
            &high_low(memory.temp_bytes()),
        )?;
        this.set(driver, bus, compute::TEMP_PER_WARP, &[0])?;
        this.set(driver, bus, compute::LOCAL_WINDOW, &[LOCAL_WINDOW])?;
        this.set(
            driver,
            bus,
            compute::CACHE_SPLIT,
            &[compute::CACHE_SPLIT_48K_SHARED],
        )?;
        this.set(driver, bus, compute::SHARED_WINDOW, &[SHARED_WINDOW])?;
        // Code that was uploaded before the channel existed.
        let caches = ShaderCaches::new()
            .with_code(true)
            .with_data(true)
            .with_constants(true);
        this.set(driver, bus, compute::FLUSH_CACHES, &[caches.into_bits()])?;
        Ok(this)
    }

    /// Queues a launch; it starts at the latest with [`Self::submit`].
    pub fn launch(
        &self,
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        grid: &Grid<'_>,
    ) -> Result<(), DriverError> {
        grid.check(self.memory)?;
        self.upload_constants(driver, bus, grid)?;
        let [block_x, block_y, block_z] = grid.threads;
        let [grid_x, grid_y, grid_z] = grid.blocks;
        let settings: [(u16, &[u32]); 10] = [
            (compute::CODE_HIGH, &[(grid.code >> 32) as u32, grid.code as u32]),
            (compute::ENTRY, &[grid.entry]),
            (
                compute::LOCAL_POSITIVE,
                &[grid.local_bytes[0], grid.local_bytes[1], grid.stack_bytes],
            ),
            (
                compute::SHARED_BYTES,
                &[
                    grid.shared_bytes.next_multiple_of(0x100),
                    block_x * block_y * block_z,
                    grid.barriers,
                ],
            ),
            (compute::REGISTERS, &[grid.registers.max(4)]),
            (compute::BLOCK_XY, &[block_x | block_y << 16, block_z]),
            (compute::GRID_XY, &[grid_x | grid_y << 16, grid_z]),
            (compute::GRID_BEGIN, &[0]),
            (compute::GRID_READY, &[0]),
            (compute::LAUNCH, &[compute::LAUNCH_OPERAND]),
        ];
        for (method, words) in settings {
            self.set(driver, bus, method, words)?;
        }
        self.set(driver, bus, compute::GRID_END, &[0])?;
        self.set(driver, bus, compute::GRID_DONE, &[1])?;
        // The next launch, and the reader of a release behind it, sees the writes of this one.
        self.set(driver, bus, front_end::WAIT_FOR_IDLE, &[0])?;
        let caches = ShaderCaches::new().with_data(true);
        self.set(driver, bus, compute::FLUSH_CACHES, &[caches.into_bits()])
    }

    /// Queues a [`Stamp`] into memory at `va`, a multiple of 16, when everything queued before has ended.
    pub fn stamp(
        &self,
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        va: u64,
        payload: u32,
    ) -> Result<(), DriverError> {
        let words = [
            (va >> 32) as u32,
            va as u32,
            payload,
            ReportSemaphore::new().into_bits(),
        ];
        self.set(driver, bus, shader::REPORT_HIGH, &words)
    }

    /// Submits the queued launches.
    pub fn submit(&self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<Fence, DriverError> {
        driver.submit(bus, self.channel)
    }

    /// Submits the queued launches and waits until they have ended.
    pub fn finish(&self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        let fence = self.submit(driver, bus)?;
        driver.wait(bus, fence)
    }

    /// Destroys the channel.
    pub fn destroy(self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        driver.destroy_channel(bus, self.channel)
    }

    /// Channel that the grids run on.
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Words for methods in a row, at most as many as CONSTANT_DATA has.
    fn set(
        &self,
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        method: u16,
        words: &[u32],
    ) -> Result<(), DriverError> {
        let mut run = [0; DATA_METHODS + 1];
        let count = words.len().min(DATA_METHODS);
        run[0] = incrementing(SUBCHANNEL, method, count as u16);
        run[1..=count].copy_from_slice(&words[..count]);
        driver.queue(bus, self.channel, &run[..=count])
    }

    fn upload_constants(
        &self,
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        grid: &Grid<'_>,
    ) -> Result<(), DriverError> {
        let own = ConstantBank {
            number: 0,
            va: self.memory.va,
            bytes: CONSTANT_BYTES,
        };
        self.bind(driver, bus, own)?;
        for (index, words) in grid.constants.chunks(DATA_METHODS).enumerate() {
            let offset = (index * DATA_METHODS * 4) as u32;
            self.set(driver, bus, shader::CONSTANT_OFFSET, &[offset])?;
            self.set(driver, bus, shader::CONSTANT_DATA, words)?;
        }
        for bank in grid.banks {
            self.bind(driver, bus, *bank)?;
        }
        let caches = ShaderCaches::new().with_constants(true);
        self.set(driver, bus, compute::FLUSH_CACHES, &[caches.into_bits()])
    }

    /// Selects and binds a constant buffer.
    fn bind(
        &self,
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        bank: ConstantBank,
    ) -> Result<(), DriverError> {
        let buffer = [bank.bytes, (bank.va >> 32) as u32, bank.va as u32];
        self.set(driver, bus, shader::CONSTANT_BYTES, &buffer)?;
        let operand = BindConstants::new().with_valid(true).with_bank(bank.number);
        self.set(driver, bus, compute::BIND_CONSTANTS, &[operand.into_bits()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid<'static> {
        Grid {
            code: 0x1_0000_0000,
            registers: 8,
            shared_bytes: 0,
            entry: 0,
            stack_bytes: STACK_BYTES,
            local_bytes: [0, 0],
            barriers: 0,
            blocks: [1, 1, 1],
            threads: [32, 1, 1],
            constants: &[],
            banks: &[],
        }
    }

    const MEMORY: ComputeMemory = ComputeMemory {
        va: 1 << 32,
        bytes: COMPUTE_BYTES,
    };

    #[test]
    fn grids_that_no_launch_can_have_are_refused() {
        let constants = [0; CONSTANT_WORDS_MAX + 1];
        let bad = [
            Grid {
                threads: [1024, 2, 1],
                ..grid()
            },
            Grid {
                threads: [u32::MAX, u32::MAX, 1],
                ..grid()
            },
            Grid {
                blocks: [65_536, 1, 1],
                ..grid()
            },
            Grid {
                blocks: [0, 1, 1],
                ..grid()
            },
            Grid {
                local_bytes: [16, 16],
                ..grid()
            },
            Grid {
                constants: &constants,
                ..grid()
            },
            Grid { code: 0x80, ..grid() },
        ];
        assert!(bad.iter().all(|grid| grid.check(MEMORY).is_err()));
        let most = Grid {
            local_bytes: [16, 0],
            ..grid()
        };
        assert_eq!(most.check(MEMORY), Ok(()));
    }

    #[test]
    fn memory_for_a_grid_is_enough_and_not_much_more() {
        let grid = Grid {
            local_bytes: [1024, 0],
            ..grid()
        };
        let memory = |bytes| ComputeMemory { bytes, ..MEMORY };
        let bytes = ComputeMemory::bytes_for(1024, STACK_BYTES);
        assert_eq!(grid.check(memory(bytes)), Ok(()));
        assert!(grid.check(memory(bytes - 2 * compute::TEMP_BYTES_UNIT)).is_err());
    }
}
