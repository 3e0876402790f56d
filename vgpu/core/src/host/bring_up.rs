//! Bring-up of the card, from whatever state it was left in (fermi-hardware Appendix A.1, from nouveau).
//!
//! ```text
//! Identifying ─all values in─► Programming ─Job::BringUp─► up
//!      └ not a GF100, no VRAM ─► failed       └ a poll timed out ─► failed
//! ```
//!
//! BAR3 shows the arena, BAR1 the USERD array; channel 0 becomes the broker's copy channel. A copy engine without
//! microcode is given some, if there is; else memory is moved by the CPU ([`Card::copies_by_window`]).

use fermi_spec::addr::{FRAME, FrameNo, Iova, SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::board::is_gf100;
use fermi_spec::engine::{Engine, PBDMAS, PBDMAS_PRESENT, pmc_enable, pmc_intr};
use fermi_spec::instance::{AddressSpacePointer, CHANNELS, INSTANCE_BYTES, USERD_BYTES, offset};
use fermi_spec::pte::{LARGE_PT_BYTES, LARGE_PT_ENTRIES, PD_BYTES, SMALL_PT_BYTES, pde_index};
use fermi_spec::regs::windows::{PraminBase, WindowBlock};
use fermi_spec::regs::{
    Bar0Reg, PRAMIN_BASE, PbdmaReg, PbusReg, PffbReg, PfifoReg, PflushReg, PgraphReg, PmcReg, PpciReg,
    PunitsReg, PunitsWord, pfifo, pmc,
};
use fermi_spec::regs::{pbdma, pffb, ppci};
use serde::{Deserialize, Serialize};

use super::arena::Arena;
use super::card::{Card, OwnTables, host_flushed, linear_tables, pde};
use super::copy::{OWN_BYTES, OWN_VA, VRAM_VA, WINDOW_VA, sysram_pte, vram_pte};
use super::graph::{Graph, SCRATCH_BYTES};
use super::lane::{Op, Tokens};
use crate::config::GpuConfig;
use crate::event::{Action, Actions, FrameOwner, Place, Token};
use crate::inspect::{Inspect, Space, Tree};
use crate::reason::StartFailure;
use crate::saved::Unsound;

/// Frames at the bottom that the VBIOS and VGA use (256 KiB, nouveau `ramgf100.c`).
const RESERVED_LOW: u32 = (256 << 10) / FRAME as u32;
/// Frames at the top that the VBIOS uses (1 MiB).
const RESERVED_HIGH: u32 = (1 << 20) / FRAME as u32;
/// Least VRAM of a card that can be shared.
const VRAM_MIN: u64 = 16 << 20;
/// Most VRAM of a card.
const VRAM_MAX: u64 = 64 << 30;
const FRAMES_MAX: u32 = (VRAM_MAX / FRAME) as u32;
const PARTITIONS_MAX: usize = 8;

/// Registers read first, in this order.
fn identity_registers() -> Vec<Bar0Reg> {
    let mut registers: Vec<Bar0Reg> = vec![
        PmcReg::Boot0.into(),
        PunitsReg::DesignPartitions.into(),
        PunitsWord::FusePartitions.into(),
    ];
    registers.extend((0..PARTITIONS_MAX as u16).map(|i| Bar0Reg::from(PffbReg::PartitionMebibytes(i))));
    registers.push(PfifoReg::PfifoEnable.into());
    registers.extend((0..PBDMAS as u16).map(|i| Bar0Reg::from(PbdmaReg::PbdmaStall(i))));
    registers
}

/// The first phase: values on their way.
#[derive(Debug)]
pub(crate) struct Identifying {
    tokens: Vec<Token>,
    values: Vec<Option<u32>>,
}

/// Answers of the card.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) boot0: u32,
    pub(crate) vram_bytes: u64,
    pfifo_enable: u32,
    pbdma_stall: [u32; PBDMAS],
}

impl Identifying {
    pub(crate) fn start(tokens: &mut Tokens, actions: &mut Actions) -> Self {
        let registers = identity_registers();
        let tokens: Vec<Token> = registers
            .iter()
            .map(|reg| {
                let token = tokens.next();
                let offset = u64::from(reg.offset());
                actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar0,
                    offset,
                    bytes: 4,
                });
                token
            })
            .collect();
        Self {
            values: vec![None; tokens.len()],
            tokens,
        }
    }

    /// Takes a value; `Some` when it was the last.
    pub(crate) fn value(&mut self, token: Token, data: &[u8]) -> Option<Result<Identity, StartFailure>> {
        let index = self.tokens.iter().position(|&t| t == token)?;
        self.values[index] = Some(u32::from_le_bytes(data.try_into().unwrap_or([0xff; 4])));
        let values: Option<Vec<u32>> = self.values.iter().copied().collect();
        values.map(|values| identify(&values))
    }
}

fn identify(values: &[u32]) -> Result<Identity, StartFailure> {
    let (boot0, partitions, fused) = (values[0], values[1], values[2]);
    if boot0 == !0 {
        return Err(StartFailure::NoAnswer);
    }
    if !is_gf100(boot0) {
        return Err(StartFailure::NotGf100 { boot0 });
    }
    if partitions == 0 || partitions as usize > PARTITIONS_MAX {
        return Err(StartFailure::Partitions { partitions });
    }
    let sizes = (0..partitions as usize)
        .filter(|p| fused & 1 << p == 0)
        .map(|p| u64::from(values[3 + p]) << 20);
    let vram_bytes: u64 = sizes.sum();
    if !(VRAM_MIN..=VRAM_MAX).contains(&vram_bytes) {
        return Err(StartFailure::Vram { bytes: vram_bytes });
    }
    let rest = &values[3 + PARTITIONS_MAX..];
    Ok(Identity {
        boot0,
        vram_bytes,
        pfifo_enable: rest[0],
        pbdma_stall: [rest[1], rest[2], rest[3]],
    })
}

/// How VRAM is divided.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Layout {
    pub(crate) frames: u32,
    /// Frames that guests may hold: `RESERVED_LOW..arena_first`.
    pub(crate) usable: u32,
    pub(crate) arena_first: u32,
    pub(crate) arena_frames: u32,
}

impl Layout {
    /// A 24th for the arena, at least 8 MiB (a quarter of a tiny card), at most what BAR3 shows: the broker's own tables
    /// take 1.2 MiB, what a VM is promised for shadows 0.5 MiB and 0.2 % of its VRAM.
    ///
    /// `shadow_bytes_min` asks for more, for guests whose programs have many address spaces: half of the card at most.
    ///
    /// Guests get no more than `guest_bytes_max`; what is left then lies behind the arena and is nobody's.
    pub(crate) fn of(
        vram_bytes: u64,
        bar3_bytes: u64,
        shadow_bytes_min: u64,
        guest_bytes_max: Option<u64>,
    ) -> Self {
        let frames = (vram_bytes / FRAME) as u32;
        let arena = (vram_bytes / 24)
            .max((vram_bytes / 4).min(8 << 20))
            .max(shadow_bytes_min.min(vram_bytes / 2))
            .min(bar3_bytes.min(128 << 20));
        let arena_frames = (arena / FRAME) as u32;
        let most = frames - RESERVED_HIGH - arena_frames;
        let arena_first = guest_bytes_max.map_or(most, |bytes| {
            let usable = u32::try_from(bytes / FRAME).unwrap_or(u32::MAX).max(1);
            most.min(RESERVED_LOW.saturating_add(usable))
        });
        Self {
            frames,
            usable: arena_first - RESERVED_LOW,
            arena_first,
            arena_frames,
        }
    }

    /// Checks a layout that was read. The parts of the card are in order, and none is empty.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let end = self.arena_first.checked_add(self.arena_frames);
        let fits = self.arena_first > RESERVED_LOW
            && self.arena_frames > 0
            && end.is_some_and(|end| end <= self.frames)
            && self.frames <= FRAMES_MAX
            && self.usable == self.arena_first - RESERVED_LOW;
        Unsound::unless(fits, "the layout of VRAM")
    }

    /// Frames that guests may hold.
    pub(crate) fn is_usable(&self, frame: u32) -> bool {
        (RESERVED_LOW..self.arena_first).contains(&frame)
    }
}

/// The second phase: programs everything in one group of the flush lane. The broker's DMA memory is at `own_iova`.
pub(crate) fn program(
    identity: &Identity,
    layout: Layout,
    config: &GpuConfig,
    own_iova: Iova,
    tokens: Tokens,
    actions: &mut Actions,
) -> Card {
    let base = FrameNo(layout.arena_first).base();
    let arena = layout.arena_first..layout.arena_first + layout.arena_frames;
    actions.push(Action::PlaceFrames {
        frames: arena.map(FrameNo).collect(),
        owner: FrameOwner::Broker,
    });
    actions.push(Action::MapDma {
        iova: own_iova,
        bytes: OWN_BYTES,
        memory: Place::Own { offset: 0 },
        writable: true,
        refusable: false,
    });
    let mut arena = Arena::new(base, u64::from(layout.arena_frames) * FRAME);
    let mut take = |bytes, align| {
        arena
            .allocate(bytes, align, None)
            .expect("the least arena holds the broker's tables")
    };
    let own = OwnTables {
        userd: take(CHANNELS as u64 * USERD_BYTES, FRAME),
        runlists: [take(SMALL_PAGE, SMALL_PAGE), take(SMALL_PAGE, SMALL_PAGE)],
        directory: take(PD_BYTES, SMALL_PAGE),
        instance: take(INSTANCE_BYTES, SMALL_PAGE),
        window: take(SMALL_PT_BYTES, SMALL_PAGE),
        bar1_table: take(LARGE_PT_BYTES, SMALL_PAGE),
    };
    let mut ops = reset_steps();
    ops.extend(bar3_steps(&mut take, base, layout, config.bar3_bytes));
    let window = |at: VramAddr| at.0 - base.0;
    ops.extend(bar1_steps(&mut take, &window, &own));
    ops.extend(pfifo_steps(identity));
    ops.extend(copy_channel_steps(
        &mut take,
        &window,
        &own,
        identity.vram_bytes,
        own_iova,
    ));
    let microcode = config.graph.clone();
    let scratch = microcode.is_some().then(|| take(SCRATCH_BYTES, FRAME));
    let graph = Graph::new(microcode, scratch.unwrap_or_default());
    let mut card = Card::new(arena, own, graph, tokens);
    card.bring_up(ops);
    card
}

fn reset_steps() -> Vec<Op> {
    let engines = Engine::ALL
        .iter()
        .fold(pmc_enable::PFIFO, |mask, engine| mask | 1 << engine.enable_bit());
    vec![
        Op::Write(PmcReg::PmcIntrEnable(0).into(), 0),
        Op::Write(PmcReg::PmcIntrEnable(1).into(), 0),
        Op::Write(PmcReg::PmcEnable.into(), !engines),
        Op::Write(PmcReg::PmcEnable.into(), !0),
        // Another driver's windows may show the pages that are filled through PRAMIN from here on (decision 0008).
        Op::Write(PbusReg::Bar1Block.into(), 0),
        Op::Write(PbusReg::Bar3Block.into(), 0),
    ]
}

fn words(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn pointer_words(directory: VramAddr, limit: u64) -> Vec<u8> {
    let pointer = AddressSpacePointer {
        aperture: fermi_spec::addr::Aperture::Vram,
        directory: fermi_spec::addr::PhysAddr(directory.0),
        limit,
    };
    pointer
        .into_words()
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect()
}

fn block(instance: VramAddr) -> u32 {
    WindowBlock::new()
        .with_frame((instance.0 >> 12) as u32)
        .with_enable(true)
        .into_bits()
}

fn flush_steps() -> [Op; 2] {
    [Op::Write(PflushReg::HostFlush.into(), 1), host_flushed()]
}

/// BAR3 = the arena, built through PRAMIN. Its limit keeps the hardware to the first directory entry, so one page of
/// directory is enough.
fn bar3_steps(
    take: &mut impl FnMut(u64, u64) -> VramAddr,
    base: VramAddr,
    layout: Layout,
    bar3_bytes: u64,
) -> Vec<Op> {
    let [instance, directory] = [(); 2].map(|()| take(SMALL_PAGE, SMALL_PAGE));
    let table = take(LARGE_PT_BYTES, SMALL_PAGE);
    let entries = (0..LARGE_PT_ENTRIES as u64).map(|i| {
        let mapped = i < u64::from(layout.arena_frames);
        if mapped {
            vram_pte(base.offset(i * FRAME)).into_bits()
        } else {
            0
        }
    });
    let limit = bar3_bytes.min(fermi_spec::addr::PDE_SPAN) - 1;
    let mut ops = Vec::new();
    for (at, data) in [
        (table, words(entries)),
        (directory, words([pde(Some(table), None).into_bits()])),
        (instance.offset(offset::PD_LO), pointer_words(directory, limit)),
    ] {
        for (i, part) in data.chunks(SMALL_PAGE as usize).enumerate() {
            let at = at.offset(i as u64 * SMALL_PAGE);
            ops.push(Op::Write(
                PbusReg::PraminBase.into(),
                (at.0 / PraminBase::UNIT) as u32,
            ));
            let window = u64::from(PRAMIN_BASE) + at.0 % PraminBase::UNIT;
            ops.push(Op::Block(Bar::Bar0, window, part.to_vec()));
        }
    }
    ops.push(Op::Write(PbusReg::Bar3Block.into(), block(instance)));
    // nouveau flushes twice after this write.
    ops.extend(flush_steps());
    ops.extend(flush_steps());
    ops
}

/// BAR1 = the USERD array, at offset 0; what the CPU copies comes behind it when there is something.
fn bar1_steps(
    take: &mut impl FnMut(u64, u64) -> VramAddr,
    window: &impl Fn(VramAddr) -> u64,
    own: &OwnTables,
) -> Vec<Op> {
    let [instance, directory] = [(); 2].map(|()| take(SMALL_PAGE, SMALL_PAGE));
    let table = own.bar1_table;
    let userd_bytes = CHANNELS as u64 * USERD_BYTES;
    let entries = (0..LARGE_PT_ENTRIES as u64).map(|i| {
        let mapped = i < userd_bytes / FRAME;
        if mapped {
            vram_pte(own.userd.offset(i * FRAME)).into_bits()
        } else {
            0
        }
    });
    let limit = fermi_spec::addr::PDE_SPAN - 1;
    let mut ops = vec![
        Op::Block(Bar::Bar3, window(own.userd), vec![0; userd_bytes as usize]),
        Op::Block(Bar::Bar3, window(table), words(entries)),
        Op::Block(
            Bar::Bar3,
            window(directory),
            words([pde(Some(table), None).into_bits()]),
        ),
        Op::Block(
            Bar::Bar3,
            window(instance) + offset::PD_LO,
            pointer_words(directory, limit),
        ),
        Op::Write(PbusReg::Bar1Block.into(), block(instance)),
    ];
    ops.extend(flush_steps());
    ops.extend(flush_steps());
    ops
}

fn pfifo_steps(identity: &Identity) -> Vec<Op> {
    let mut ops = vec![
        Op::Write(PmcReg::PbdmaEnable.into(), PBDMAS_PRESENT),
        Op::Write(PfifoReg::PfifoPbdmas.into(), PBDMAS_PRESENT),
    ];
    for engine in Engine::ALL {
        let mask = !(1u32 << engine.pbdma());
        ops.push(Op::Write(
            PfifoReg::EnginePbdmaMask(u16::from(engine.number())).into(),
            mask,
        ));
    }
    for (i, stall) in (0..).zip(identity.pbdma_stall) {
        ops.extend([
            Op::Write(PbdmaReg::PbdmaStall(i).into(), stall & !pbdma::STALL_CLEARED),
            Op::Write(PbdmaReg::PbdmaIntr(i).into(), !0),
            Op::Write(PbdmaReg::PbdmaIntrEnable(i).into(), pbdma::INTR_USUAL),
        ]);
    }
    let sources = pmc_intr::PFIFO
        | 1 << Engine::Copy0.interrupt_bit()
        | 1 << Engine::Copy1.interrupt_bit()
        | 1 << Engine::Graph.interrupt_bit();
    ops.extend([
        Op::Write(
            PfifoReg::PfifoEnable.into(),
            identity.pfifo_enable | pfifo::ENABLED,
        ),
        Op::Write(PfifoReg::UserdBase.into(), pfifo::USERD_BASE_VALID),
        Op::Write(PfifoReg::PfifoIntr.into(), !0),
        // The runlist is polled; everything else interrupts.
        Op::Write(PfifoReg::PfifoIntrEnable.into(), !pfifo::intr::RUNLIST),
        Op::Write(PfifoReg::EngineIntrEnable.into(), pfifo::ENGINE_NOTIFY),
        Op::Write(PgraphReg::GraphIntr.into(), !0),
        Op::Write(PgraphReg::GraphIntrEnable.into(), !0),
        Op::Write(PmcReg::PmcIntrMask(0).into(), sources),
        Op::Write(PmcReg::PmcIntrMask(1).into(), 0),
        Op::Write(PmcReg::PmcIntrEnable(0).into(), pmc::LINE_HARDWARE),
        Op::Write(PpciReg::PciMsiRearm.into(), ppci::MSI_REARM),
    ]);
    ops
}

/// The broker's own channel: linear VRAM, copy window, its DMA memory.
fn copy_channel_steps(
    take: &mut impl FnMut(u64, u64) -> VramAddr,
    window: &impl Fn(VramAddr) -> u64,
    own: &OwnTables,
    vram_bytes: u64,
    own_iova: Iova,
) -> Vec<Op> {
    let mut directory = vec![0u64; (PD_BYTES / 8) as usize];
    let mut ops = Vec::new();
    for span in 0..linear_tables(vram_bytes) {
        let table = take(LARGE_PT_BYTES, SMALL_PAGE);
        let entries = (0..LARGE_PT_ENTRIES as u64).map(|i| {
            let at = (span * LARGE_PT_ENTRIES as u64 + i) * FRAME;
            if at < vram_bytes {
                vram_pte(VramAddr(at)).into_bits()
            } else {
                0
            }
        });
        directory[pde_index(VRAM_VA) + span as usize] = pde(Some(table), None).into_bits();
        ops.push(Op::Block(Bar::Bar3, window(table), words(entries)));
    }
    let own_table = take(SMALL_PT_BYTES, SMALL_PAGE);
    let mut entries = vec![0u64; (SMALL_PT_BYTES / 8) as usize];
    for (page, entry) in (0..).zip(&mut entries).take((OWN_BYTES / SMALL_PAGE) as usize) {
        *entry = sysram_pte(own_iova.offset(page * SMALL_PAGE)).into_bits();
    }
    directory[pde_index(OWN_VA)] = pde(None, Some(own_table)).into_bits();
    directory[pde_index(WINDOW_VA)] = pde(None, Some(own.window)).into_bits();
    ops.extend([
        Op::Block(Bar::Bar3, window(own_table), words(entries)),
        Op::Block(Bar::Bar3, window(own.window), vec![0; SMALL_PT_BYTES as usize]),
        Op::Block(Bar::Bar3, window(own.directory), words(directory)),
        Op::Write(
            PffbReg::TlbInvalidate.into(),
            pffb::TLB_GO | pffb::TLB_ALL_PAGES | pffb::TLB_ALL_DIRECTORIES,
        ),
    ]);
    ops.extend(Card::own_channel_steps(own, window));
    ops
}

impl Inspect for Layout {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bytes("vram", u64::from(self.frames) * FRAME);
        tree.bytes("usable", u64::from(self.usable) * FRAME);
        tree.bytes("frame", FRAME);
        tree.address(
            "arena_base",
            u64::from(self.arena_first) * FRAME,
            Space::VramAddress,
        );
        tree.bytes("arena", u64::from(self.arena_frames) * FRAME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_leaves_the_reserved_ends_alone() {
        let layout = Layout::of(256 << 20, 64 << 20, 0, None);
        assert!(!layout.is_usable(0) && layout.is_usable(2) && !layout.is_usable(layout.arena_first));
        assert_eq!(layout.frames, 2048);
        assert!(u64::from(layout.usable) * FRAME > 230 << 20);
    }

    #[test]
    fn guests_get_as_little_as_is_said_and_never_more_than_there_is() {
        let usable = |bytes| Layout::of(256 << 20, 64 << 20, 0, bytes).usable;
        let limited = Layout::of(256 << 20, 64 << 20, 0, Some(5 << 18));
        assert_eq!((limited.usable, limited.frames), (10, 2048));
        assert!(limited.check().is_ok());
        assert_eq!(usable(Some(u64::MAX)), usable(None));
        assert_eq!(usable(Some(0)), 1);
    }

    #[test]
    fn shadow_tables_get_what_is_asked_for_up_to_half_of_the_card_and_what_bar3_shows() {
        let mebibytes = |layout: Layout| (u64::from(layout.arena_frames) * FRAME) >> 20;
        let arena = |bytes| mebibytes(Layout::of(256 << 20, 64 << 20, bytes, None));
        assert_eq!([0, 4 << 20, 32 << 20, u64::MAX].map(arena), [10, 10, 32, 64]);
        let tiny = Layout::of(16 << 20, 64 << 20, u64::MAX, None);
        assert_eq!(mebibytes(tiny), 8);
        assert!(tiny.check().is_ok());
    }

    #[test]
    fn card_that_reads_all_ones_is_named() {
        assert!(
            identify(&[!0; 15])
                .unwrap_err()
                .to_string()
                .contains("does not answer")
        );
    }

    #[test]
    fn other_chipset_is_refused() {
        let mut values = vec![0; 15];
        values[0] = 0x0e40_00a1;
        assert!(identify(&values).unwrap_err().to_string().contains("not a GF100"));
    }
}
