//! A launch on the software card: a channel submits the methods of class 90c0 as a driver does.

use fermi_model::{CopyMicrocode, Counters, Timing, WarpWatcher, Worker};
use fermi_spec::board::Board;
use fermi_spec::graphics::{BindConstants, compute, shader};
use fermi_spec::methods::{class, host};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::{PfifoReg, PgraphReg};

use super::Launch;
use super::memory::{Memory, Region};
use crate::card::{
    Card, CardSetup, DATA, DATA_BYTES, DATA_VA, DIRECTORY, LARGE_VA, RAM_BYTES, RAM_VA, SMALL_TABLE, UNUSED,
    VRAM_BYTES, small_pde,
};

/// The only channel, and where it has the class.
const CHANNEL: u16 = 0;
const SUBCHANNEL: u8 = 1;
/// The first 128 MiB of the address space are seen here too, beyond 32 bits.
pub(crate) const HIGH: u64 = 0x12_0000_0000;
/// Bytes of address space under a directory entry.
const DIRECTORY_ENTRY_BYTES: u64 = 128 << 20;
/// Code, constant banks and the word that tells the end.
const CODE: u64 = UNUSED;
const CODE_VA: u64 = 0x340_0000;
const CODE_BYTES: u64 = 0x1_0000;
const BANKS_AT: u64 = CODE_BYTES;
/// Bytes between two constant banks.
pub(crate) const BANK_BYTES: u64 = 0x400;
const DONE_AT: u64 = BANKS_AT + 32 * BANK_BYTES;
const CONTROL_BYTES: u64 = 0x2_0000;
/// Memory behind local memory, in VRAM.
const TEMP: u64 = CODE + CONTROL_BYTES;
const TEMP_VA: u64 = CODE_VA + CONTROL_BYTES;
/// What a bench brings beyond the card's usual VRAM, seen here.
pub const MORE_VA: u64 = 0x380_0000;
/// Work of a step, and steps after which a grid does not end.
const WORK: u32 = 20_000;
const STEPS_MAX: u32 = 200_000;

/// How a grid ended that did not end well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Failure {
    /// Interrupts of PGRAPH (400100) at the end.
    pub graph_intr: u32,
    /// Error of the first MP's warp.
    pub warp_error: u32,
    /// Units with an MMU fault.
    pub fault_units: u32,
    /// Address of PGRAPH's fault, in pages.
    pub fault_page: u32,
}

/// A card with a channel that launches.
pub struct Runner {
    card: Card,
    launches: u32,
}

impl Default for Runner {
    fn default() -> Self {
        Self::new(0)
    }
}

/// The memory that launches see, full of zeros: VRAM by small pages, by large ones and beyond 32 bits; system memory.
pub fn memory() -> Memory {
    Memory {
        regions: vec![
            Region {
                addresses: vec![DATA_VA, LARGE_VA, HIGH + DATA_VA],
                bytes: vec![0; DATA_BYTES as usize],
            },
            Region {
                addresses: vec![RAM_VA, HIGH + RAM_VA],
                bytes: vec![0; RAM_BYTES as usize],
            },
        ],
    }
}

/// Shows the first 128 MiB of the address space at [`HIGH`] as well.
pub(crate) fn map_high(card: &mut Card) {
    let entry = HIGH / DIRECTORY_ENTRY_BYTES;
    card.set_u64(DIRECTORY + 8 * entry, small_pde(SMALL_TABLE).into_bits());
}

/// Generic address of a place in VRAM, mapped by small pages.
pub(crate) const fn vram_va(offset: u64) -> u64 {
    DATA_VA + offset
}

/// Generic address of a place in VRAM, mapped by large pages.
pub(crate) const fn large_va(offset: u64) -> u64 {
    LARGE_VA + offset
}

/// Generic address of a place in system memory.
pub(crate) const fn ram_va(offset: u64) -> u64 {
    RAM_VA + offset
}

impl Runner {
    /// A card with `more` bytes of VRAM at [`MORE_VA`], a multiple of 2 MiB.
    pub fn new(more: u64) -> Self {
        Self::with(
            CardSetup {
                copy_microcode: CopyMicrocode::Nouveau,
                strict: false,
                vram_bytes: VRAM_BYTES + more,
                timing: Timing::of(Board::Gtx480),
            },
            more,
        )
    }

    /// A card on which every grid ends soon: by the watchdog if not by itself.
    pub(crate) fn impatient() -> Self {
        Self::with(CardSetup::fuzzed(CopyMicrocode::Nouveau), 0)
    }

    fn with(setup: CardSetup, more: u64) -> Self {
        let mut card = Card::with_channels(CHANNEL + 1, setup);
        map_high(&mut card);
        card.map_small(SMALL_TABLE, CODE_VA, CODE, VRAM_BYTES - CODE);
        card.map_small(SMALL_TABLE, MORE_VA, VRAM_BYTES, more);
        card.push(
            CHANNEL,
            &[
                incrementing(SUBCHANNEL, host::SET_OBJECT, 1),
                u32::from(class::COMPUTE),
            ],
            0,
        );
        card.ring(CHANNEL);
        Self { card, launches: 0 }
    }

    /// Gives the card threads that run blocks ahead of their turn; each is one's to run.
    pub fn set_workers(&mut self, count: usize) -> Vec<Worker> {
        self.card.model.set_workers(count)
    }

    /// GPU time in nanoseconds, and blocks that workers ran.
    pub fn time_and_played(&self) -> (u64, u64) {
        (self.card.model.gpu_time(), self.card.model.played_blocks())
    }

    /// Stores bytes into the VRAM at [`MORE_VA`].
    pub fn store_more(&mut self, offset: u64, data: &[u8]) {
        self.card.vram_write(VRAM_BYTES + offset, data);
    }

    /// Copies bytes of it out.
    pub fn load_more(&self, offset: u64, data: &mut [u8]) {
        assert!(self.card.vram_read(VRAM_BYTES + offset, data), "in VRAM");
    }

    /// Lets `watcher` see what launches execute, until another takes its place.
    pub(crate) fn watch(&mut self, watcher: Box<dyn WarpWatcher>) {
        self.card.model.watch_warps(Some(watcher));
    }

    /// What the card has counted.
    pub fn counters(&self) -> Counters {
        *self.card.model.counters()
    }

    /// Runs a launch on `memory`, which is copied there and back.
    pub fn run(&mut self, launch: &Launch, memory: &mut Memory) -> Result<(), Failure> {
        let [vram, ram] = &mut memory.regions[..] else {
            panic!("the memory is that of `memory()`");
        };
        self.card.vram_write(DATA, &vram.bytes);
        self.card.ram_write(0, &ram.bytes);
        self.card.vram_write(TEMP, &vec![0; (VRAM_BYTES - TEMP) as usize]);
        self.prepare(launch);
        self.launch(launch)?;
        assert!(self.card.vram_read(DATA, &mut vram.bytes), "in VRAM");
        self.card.ram_read(0, &mut ram.bytes);
        Ok(())
    }

    /// Stores code and constants of a launch.
    pub fn prepare(&mut self, launch: &Launch) {
        let code: Vec<u8> = launch.code.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(code.len() as u64 <= CODE_BYTES, "the code has room");
        self.card.vram_write(CODE, &vec![0; CONTROL_BYTES as usize]);
        self.card.vram_write(CODE, &code);
        for (bank, words) in &launch.banks {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert!(bytes.len() as u64 <= BANK_BYTES, "the bank has room");
            let at = CODE + BANKS_AT + u64::from(*bank) * BANK_BYTES;
            self.card.vram_write(at, &bytes);
        }
    }

    /// Launches what was prepared, and waits for its end.
    pub fn launch(&mut self, launch: &Launch) -> Result<(), Failure> {
        self.launches += 1;
        let mut words = state(launch, ADDRESSES);
        words.extend(start(SUBCHANNEL, launch.argument));
        words.extend(release(SUBCHANNEL, CODE_VA + DONE_AT, self.launches));
        self.card.push(CHANNEL, &words, 0);
        self.card.ring(CHANNEL);
        for _ in 0..STEPS_MAX {
            if self.card.vram_u32(CODE + DONE_AT) == self.launches {
                return Ok(());
            }
            let failure = Failure {
                graph_intr: self.card.read(PgraphReg::GraphIntr),
                warp_error: self.card.read(PgraphReg::MpWarpError(0)),
                fault_units: self.card.read(PfifoReg::FaultUnits),
                fault_page: self.card.read(PfifoReg::FaultRecord(1)) >> 12,
            };
            if failure.graph_intr != 0 || failure.fault_units != 0 {
                return Err(failure);
            }
            self.card.step(WORK);
        }
        Err(Failure::default())
    }
}

/// Where the parts of a launch are, as methods say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) subchannel: u8,
    pub(crate) code: u64,
    /// The constant banks, [`BANK_BYTES`] apart.
    pub(crate) banks: u64,
    pub(crate) temp: u64,
    pub(crate) temp_bytes: u32,
}

const ADDRESSES: Addresses = Addresses {
    subchannel: SUBCHANNEL,
    code: CODE_VA,
    banks: CODE_VA + BANKS_AT,
    temp: TEMP_VA,
    temp_bytes: (VRAM_BYTES - TEMP) as u32,
};

fn split(address: u64) -> [u32; 2] {
    [(address >> 32) as u32, address as u32]
}

/// Methods that say what is launched.
pub(crate) fn state(launch: &Launch, addresses: Addresses) -> Vec<u32> {
    let mut words = Vec::new();
    let mut to = |method: u16, operands: &[u32]| {
        words.push(incrementing(addresses.subchannel, method, operands.len() as u16));
        words.extend_from_slice(operands);
    };
    let [gx, gy, gz] = launch.grid;
    let [bx, by, bz] = launch.block;
    let [temp_high, temp_low] = split(addresses.temp);
    to(compute::CODE_HIGH, &split(addresses.code));
    to(compute::ENTRY, &[launch.entry]);
    to(
        compute::LOCAL_POSITIVE,
        &[launch.local_positive, launch.local_negative, launch.stack_bytes],
    );
    to(
        compute::TEMP_HIGH,
        &[temp_high, temp_low, 0, addresses.temp_bytes, 0],
    );
    to(compute::SHARED_WINDOW, &[launch.shared_window]);
    to(compute::LOCAL_WINDOW, &[launch.local_window]);
    to(compute::REGISTERS, &[launch.registers]);
    to(compute::SHARED_BYTES, &[launch.shared_bytes]);
    to(compute::BARRIERS, &[launch.barriers]);
    to(compute::GRID_ID, &[launch.grid_id]);
    to(compute::GRID_XY, &[gx & 0xffff | gy << 16, gz]);
    to(compute::BLOCK_XY, &[bx & 0xffff | by << 16, bz]);
    for bank in 0..18 {
        let bind = BindConstants::new().with_bank(bank);
        let Some(constants) = launch.banks.get(&bank.into()) else {
            to(compute::BIND_CONSTANTS, &[bind.into_bits()]);
            continue;
        };
        let [high, low] = split(addresses.banks + u64::from(bank) * BANK_BYTES);
        to(shader::CONSTANT_BYTES, &[4 * constants.len() as u32, high, low]);
        to(compute::BIND_CONSTANTS, &[bind.with_valid(true).into_bits()]);
    }
    words
}

/// Methods that launch the prepared grid.
pub(crate) fn start(subchannel: u8, argument: u32) -> [u32; 2] {
    [incrementing(subchannel, compute::LAUNCH, 1), argument]
}

/// A release of one word behind it.
pub(crate) fn release(subchannel: u8, address: u64, payload: u32) -> [u32; 5] {
    const RELEASE_WORD: u32 = 1 << 28;
    let [header, high, low, payload, _] = release_with_time(subchannel, address, payload);
    [header, high, low, payload, RELEASE_WORD]
}

/// A release of 16 bytes behind it: the payload, zeros, and from byte 8 on the card's time in nanoseconds.
pub(crate) fn release_with_time(subchannel: u8, address: u64, payload: u32) -> [u32; 5] {
    let [high, low] = split(address);
    let header = incrementing(subchannel, shader::REPORT_HIGH, 4);
    [header, high, low, payload, 0]
}
