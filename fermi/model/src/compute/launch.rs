//! The parameters of a launch of class 90c0, checked once.

use fermi_spec::graphics::surface;

use super::{surface::Surface, texture::Textures, trap::WarpError};

/// Constant banks that can be bound.
pub(crate) const BANKS: usize = 18;
/// Bytes of a constant bank at most.
pub(crate) const BANK_BYTES_MAX: usize = 64 << 10;
/// Surfaces that can be set.
pub(crate) const SURFACES: usize = surface::COUNT as usize;
/// Threads of a block at most (compute capability 2.0).
const THREADS_MAX: u32 = 1024;
/// Registers of a lane at most.
const REGISTERS_MAX: u32 = 63;
/// Bytes of shared memory of a block at most.
const SHARED_BYTES_MAX: u32 = 48 << 10;
/// Barriers of a block at most.
const BARRIERS_MAX: u32 = 16;
/// Bytes of the windows of shared and local memory in generic addresses.
pub(crate) const WINDOW_BYTES: u64 = 16 << 20;
/// Local addresses have 24 bits.
const LOCAL_END: u32 = 1 << 24;
/// Warps have their local memory in multiples of this.
const TEMP_UNIT: u64 = 0x200;

/// Why a launch runs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LaunchError {
    /// A block cannot have this many threads.
    Threads,
    Registers,
    Shared,
    Barriers,
    Local,
}

/// The window that a generic address lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Window {
    Shared,
    Local,
}

/// A constant bank as it is when the grid starts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bank {
    words: Box<[u32]>,
}

impl Bank {
    /// A bank with these bytes, at most [`BANK_BYTES_MAX`]; a rest of less than a word is not there.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(BANK_BYTES_MAX)];
        Self {
            words: bytes
                .as_chunks()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect(),
        }
    }
}

/// A grid to run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Launch {
    /// Where the code is; program counters and absolute targets count from here.
    pub(crate) code: u64,
    /// Program counter at the start.
    pub(crate) entry: u32,
    /// Blocks in x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads in x, y, z.
    pub(crate) block: [u32; 3],
    /// Registers of a lane.
    pub(crate) registers: u32,
    /// Shared memory of a block in bytes.
    pub(crate) shared_bytes: u32,
    /// Barriers of a block.
    pub(crate) barriers: u32,
    /// Control stack of a warp in bytes.
    pub(crate) stack_bytes: u32,
    /// Generic address of the shared window.
    pub(crate) shared_base: u64,
    /// Generic address of the local window.
    pub(crate) local_base: u64,
    /// Local memory of a lane in bytes: from address 0 up, and below the end of its addresses.
    pub(crate) local_positive: u32,
    pub(crate) local_negative: u32,
    /// Memory behind local memory.
    pub(crate) temp: u64,
    /// Bytes of it for each warp; 0: as much as the warp needs.
    pub(crate) temp_per_warp: u64,
    /// Value that GRIDID reads.
    pub(crate) grid_id: u32,
    /// Operand of the launch.
    pub(crate) argument: u32,
    /// Constant banks, by number.
    pub(crate) banks: [Bank; BANKS],
    /// Textures and samplers.
    pub(crate) textures: Textures,
    /// Surfaces, by number.
    pub(crate) surfaces: [Surface; SURFACES],
}

impl Launch {
    /// Whether the hardware could run it.
    pub(crate) fn check(&self) -> Result<(), LaunchError> {
        let threads = self.block.iter().try_fold(1u32, |all, one| all.checked_mul(*one));
        if !threads.is_some_and(|threads| (1..=THREADS_MAX).contains(&threads)) {
            return Err(LaunchError::Threads);
        }
        if self.registers > REGISTERS_MAX {
            return Err(LaunchError::Registers);
        }
        if self.shared_bytes > SHARED_BYTES_MAX {
            return Err(LaunchError::Shared);
        }
        if self.barriers > BARRIERS_MAX {
            return Err(LaunchError::Barriers);
        }
        let local = u64::from(self.local_positive) + u64::from(self.local_negative);
        if local > u64::from(LOCAL_END) {
            return Err(LaunchError::Local);
        }
        Ok(())
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Warps of a block.
    pub(crate) fn warps(&self) -> u32 {
        self.threads().div_ceil(32)
    }

    /// Blocks of the grid.
    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().map(|n| u64::from(*n)).product()
    }

    /// A word of a constant bank. Words of a bank that is not bound, or beyond its end, are zero: it is open
    /// whether silicon reports an error.
    #[inline(always)]
    pub(crate) fn constant(&self, bank: u8, offset: u32) -> u32 {
        let words = self.constants(bank.into());
        words.get(offset as usize / 4).map_or(0, |word| *word)
    }

    /// The words of a constant bank; none if it is not bound.
    #[inline(always)]
    pub(crate) fn constants(&self, bank: u32) -> &[u32] {
        self.banks.get(bank as usize).map_or(&[], |bank| &bank.words[..])
    }

    /// The window that a generic address is in.
    #[inline(always)]
    pub(crate) fn window(&self, address: u64) -> Option<Window> {
        if address.wrapping_sub(self.shared_base) < WINDOW_BYTES {
            Some(Window::Shared)
        } else if address.wrapping_sub(self.local_base) < WINDOW_BYTES {
            Some(Window::Local)
        } else {
            None
        }
    }

    /// Byte of a lane's local memory behind a local address.
    pub(crate) fn local_offset(&self, address: u32, bytes: u32) -> Result<u32, WarpError> {
        let address = address & (LOCAL_END - 1);
        let end = address.saturating_add(bytes);
        let negative_start = LOCAL_END - self.local_negative;
        if end <= self.local_positive {
            Ok(address)
        } else if address >= negative_start && end <= LOCAL_END {
            Ok(self.local_positive + (address - negative_start))
        } else {
            Err(WarpError::MemoryOutOfBounds)
        }
    }

    /// Bytes of local memory of a warp, its stack included.
    pub(crate) fn warp_temp_bytes(&self) -> u64 {
        if self.temp_per_warp != 0 {
            return self.temp_per_warp;
        }
        let local = u64::from(self.local_positive) + u64::from(self.local_negative);
        (32 * local + u64::from(self.stack_bytes)).next_multiple_of(TEMP_UNIT)
    }
}
