//! Times of operations on the GPU's own clock.
//!
//! Data rates are shared: each link serves its transfers one after the other, so two copy engines together are no
//! faster than the link between them.

use fermi_spec::board::Board;

/// A board's speeds. Data rates in bytes per microsecond (= MB/s), times in nanoseconds of GPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// VRAM, reads and writes together. GTX 480: about 161 GB/s measured with copy kernels, of 177.4 GB/s peak.
    pub vram_mb_per_s: u64,
    /// PCIe 2.0 x16 in each direction: about 6 GB/s by DMA (NVIDIA FAQ), of 8 GB/s raw.
    pub pcie_mb_per_s: u64,
    /// From EXEC or LAUNCH to the first byte. assumed: 5–10 µs is what a copy through PCOPY costs before it moves
    /// data (direction measured in Gdev, USENIX ATC '12).
    pub copy_startup_ns: u64,
    /// Components that a copy engine puts in their places, in a microsecond. assumed: one in a core clock of 700 MHz.
    pub copy_components_per_us: u64,
    /// A method in the PBDMA. assumed: about three core clocks of 700 MHz.
    pub method_ns: u64,
    /// Fetch of a GPFIFO entry with the first words of its segment. assumed: a read across PCIe takes 1–1.5 µs.
    pub fetch_ns: u64,
    /// From a GP_PUT store until the host starts on it. assumed.
    pub doorbell_ns: u64,
    /// RAMFC save and load when a PBDMA changes channels. assumed.
    pub channel_switch_ns: u64,
    /// PGRAPH changes channels: less than 25 µs (NVIDIA Fermi white paper).
    pub graph_switch_ns: u64,
    /// A copy engine changes channels: its microcode moves 256 bytes. assumed.
    pub copy_switch_ns: u64,
    /// A runlist is fetched and taken over. assumed.
    pub runlist_ns: u64,
    /// The shader cores.
    pub shaders: ShaderTiming,
}

/// Speeds of the shader cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShaderTiming {
    /// Shader clock: data sheets.
    pub mhz: u64,
    /// SMs of the board.
    pub sms: u32,
    /// Shader clocks in which an SM issues a warp instruction of 32-bit integer multiply, shift, conversion, ...
    /// (vendor's throughput table of compute capability 2.0: 16 results in a clock).
    pub half_rate: u64,
    /// Shader clocks of an f64 instruction: 16 results in a clock on compute boards, 4 on GeForce.
    pub double: u64,
    /// Shader clocks of a special function: 4 results in a clock.
    pub special: u64,
    /// Shader clocks of a load or store: 16 lanes in a clock.
    pub memory: u64,
    /// Shader clocks of a control instruction: one in each of the scheduler's clocks.
    pub control: u64,
    /// Clocks before a dependent instruction of the same warp: about 22 (vendor's programming guide).
    pub dependent: u64,
    /// Clocks of a load from VRAM: 400 to 800 (vendor's programming guide).
    pub memory_latency: u64,
    /// Clocks of a load that L2 answers: 35 of L1 and 120 more, in core clocks (GPGPU-Sim's GTX 480), each two of these.
    pub l2_latency: u64,
    /// Clocks of a load from system memory: a read across PCIe takes 1–1.5 µs. assumed.
    pub system_latency: u64,
    /// Between the SMs and L2: 12 slices of 32 bytes in a core clock (GPGPU-Sim's GTX 480). Bytes per microsecond.
    pub l2_mb_per_s: u64,
    /// Loads of a warp that are under way at once. assumed: compilers put two or more before the first use.
    pub overlapping_accesses: u64,
    /// Clocks in which L2 does one of the atomic operations on a word: they are done one after the other. 9 core clocks
    /// on Fermi, as GK110 does one in each and "9x" as many (NVIDIA Kepler GK110 white paper).
    pub atomic_same_word: u64,
    /// Clocks of a pass through shared memory: each bank serves a word in two.
    pub shared_pass: u64,
    /// From LAUNCH to the first instruction, and from the last one to the next method. assumed, of the 3 µs at least
    /// that launches were measured apart.
    pub launch_ns: u64,
    /// GPU time after which a grid is given up. assumed: longer than any driver waits.
    pub watchdog_ns: u64,
}

impl ShaderTiming {
    const fn of(board: Board) -> Self {
        let (mhz, core_mhz, sms, double) = match board {
            Board::Gtx480 => (1401, 700, 15, 8),
            Board::TeslaC2050 | Board::Quadro6000 => (1150, 575, 14, 2),
        };
        Self {
            mhz,
            sms,
            half_rate: 2,
            double,
            special: 8,
            memory: 2,
            control: 2,
            dependent: 22,
            memory_latency: 600,
            l2_latency: 310,
            // 1.2 µs.
            system_latency: 12 * mhz / 10,
            l2_mb_per_s: 12 * 32 * core_mhz,
            overlapping_accesses: 2,
            atomic_same_word: 2 * 9,
            shared_pass: 2,
            launch_ns: 3_000,
            watchdog_ns: 20_000_000_000,
        }
    }
}

impl Timing {
    /// Speeds of a board. A speed that is not known for it is the GTX 480's.
    pub const fn of(board: Board) -> Self {
        let vram_mb_per_s = match board {
            Board::Gtx480 => 161_000,
            // 144 GB/s peak, the same share of it achieved (ECC off).
            Board::TeslaC2050 | Board::Quadro6000 => 131_000,
        };
        Self {
            vram_mb_per_s,
            pcie_mb_per_s: 6_000,
            copy_startup_ns: 7_000,
            copy_components_per_us: 700,
            method_ns: 4,
            fetch_ns: 1_000,
            doorbell_ns: 500,
            channel_switch_ns: 2_000,
            graph_switch_ns: 25_000,
            copy_switch_ns: 3_000,
            runlist_ns: 2_000,
            shaders: ShaderTiming::of(board),
        }
    }
}

impl Timing {
    /// How long a copy engine takes to put so many components in their places.
    pub(crate) const fn copy_components_ns(&self, components: u64) -> u64 {
        components.saturating_mul(1_000) / self.copy_components_per_us
    }
}

/// When the shared links are free again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    vram_free_at: u64,
    upstream_free_at: u64,
    downstream_free_at: u64,
    l2_free_at: u64,
}

/// Bytes that one piece of a copy moves over each link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// VRAM, read or written.
    pub(crate) vram: u64,
    /// From the card to system memory.
    pub(crate) upstream: u64,
    /// From system memory to the card.
    pub(crate) downstream: u64,
}

impl Links {
    /// Queues `traffic` at `now`; when the last byte is through.
    pub(crate) fn reserve(&mut self, timing: &Timing, traffic: Traffic, now: u64) -> u64 {
        let vram = queue(&mut self.vram_free_at, traffic.vram, timing.vram_mb_per_s, now);
        let up = queue(
            &mut self.upstream_free_at,
            traffic.upstream,
            timing.pcie_mb_per_s,
            now,
        );
        let down = queue(
            &mut self.downstream_free_at,
            traffic.downstream,
            timing.pcie_mb_per_s,
            now,
        );
        vram.max(up).max(down)
    }

    /// The same for bytes between the shader cores and L2.
    pub(crate) fn reserve_l2(&mut self, timing: &Timing, bytes: u64, now: u64) -> u64 {
        queue(&mut self.l2_free_at, bytes, timing.shaders.l2_mb_per_s, now)
    }
}

fn queue(free_at: &mut u64, bytes: u64, mb_per_s: u64, now: u64) -> u64 {
    if bytes == 0 {
        return now;
    }
    // Bytes at MB/s are microseconds; times 1000 gives nanoseconds. A piece is at most a few hundred KiB.
    let duration = bytes.saturating_mul(1_000).div_ceil(mb_per_s.max(1));
    *free_at = (*free_at).max(now).saturating_add(duration);
    *free_at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_transfer_on_a_link_waits_for_the_first() {
        let timing = Timing::of(Board::Gtx480);
        let mut links = Links::default();
        let traffic = Traffic {
            upstream: 6_000_000,
            ..Traffic::default()
        };
        assert_eq!(links.reserve(&timing, traffic, 0), 1_000_000);
        assert_eq!(links.reserve(&timing, traffic, 0), 2_000_000);
    }

    #[test]
    fn directions_do_not_wait_for_each_other() {
        let timing = Timing::of(Board::Gtx480);
        let mut links = Links::default();
        let up = Traffic {
            upstream: 6_000_000,
            ..Traffic::default()
        };
        let down = Traffic {
            downstream: 6_000_000,
            ..Traffic::default()
        };
        assert_eq!(links.reserve(&timing, up, 0), 1_000_000);
        assert_eq!(links.reserve(&timing, down, 0), 1_000_000);
    }
}
