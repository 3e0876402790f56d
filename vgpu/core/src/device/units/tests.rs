use super::*;
use crate::channel_error::{CopyError, GpcTrap, GraphError, PbdmaError};
use crate::device::errors::Blame;
use fermi_spec::addr::Aperture;
use fermi_spec::engine::Engine;
use fermi_spec::regs::falcon::{self, CONTROL_START};
use fermi_spec::regs::fecs::{FECS_CHANNEL_VALID, fecs_nouveau};
use fermi_spec::regs::pbdma::pbdma_intr;
use fermi_spec::regs::pfifo::{self, PREEMPT_PENDING};
use fermi_spec::regs::pgraph::{self, graph_intr, graph_trap};
use fermi_spec::regs::{
    Access, FecsReg, PbdmaReg, PbusReg, PcopyReg, PffbReg, PfifoReg, PgraphReg, PmcReg, PpciReg, pffb,
};

fn units() -> Units {
    let pci = ConfigSpace::of(&crate::config::GpuConfig::default());
    Units::new(0x0c00_00a3, 192 << 20, pci)
}

/// The guest lets units interrupt, by the pin as long as it does not switch on MSI.
fn armed_without_msi() -> Units {
    let mut units = units();
    units.write(PmcReg::PmcIntrEnable(0).into(), 1);
    units.write(PmcReg::PmcIntrMask(0).into(), !0);
    units.write(PfifoReg::PfifoIntrEnable.into(), !0);
    units
}

fn armed() -> Units {
    let mut units = armed_without_msi();
    units.pci.write(0x6a, &[1]);
    units
}

/// Whether a message is due.
fn rose(units: &mut Units) -> bool {
    match units.take_signal() {
        None => false,
        Some(InterruptKind::Msi) => true,
        Some(InterruptKind::Intx) => panic!("MSI is on"),
    }
}

fn read(units: &Units, reg: impl Into<Bar0Reg>) -> u32 {
    units.read(reg.into(), Tick(0))
}

/// Whose error it is.
const OF_5: Blame = Blame {
    channel: 5,
    instance: 0x77,
};
const DISPATCH: CopyError = CopyError {
    intr: 1 << 6,
    code: 2,
    data: 3,
};

fn illegal_method() -> GraphError {
    GraphError {
        intr: graph_intr::ILLEGAL_METHOD,
        method: 0x3_0300,
        data: 3,
        class: 0x90c0,
        ..GraphError::default()
    }
}

fn snapshot(units: &Units) -> Vec<(Bar0Reg, u32)> {
    Bar0Reg::all().map(|reg| (reg, read(units, reg))).collect()
}

#[test]
fn pbdma_enable_keeps_three_bits() {
    let mut units = units();
    units.write(PmcReg::PbdmaEnable.into(), !0);
    assert_eq!(read(&units, PmcReg::PbdmaEnable), 7);
}

#[test]
fn pramin_in_host_memory_shows_nothing() {
    let mut units = units();
    units.write(PbusReg::PraminBase.into(), 2 << 24 | 0x10);
    assert_eq!(mmio::aperture::pramin_address(units.pbus.pramin, 0), None);
}

#[test]
fn instance_target_is_forced_to_vram() {
    let mut units = units();
    let effect = units.write(PfifoReg::ChannelInstance(3).into(), 0xe000_1234);
    let Effect::ChannelInstance(3, entry) = effect else {
        panic!("{effect:?}")
    };
    assert_eq!(entry.aperture(), Aperture::Vram);
}

#[test]
fn mmu_bypass_is_not_kept() {
    let mut units = units();
    units.write(PffbReg::MmuConfig.into(), 0xb000_0001);
    assert_eq!(read(&units, PffbReg::MmuConfig), pffb::MMU_CONFIG_READY | 1);
}

#[test]
fn preempt_reads_pending_and_then_exactly_the_channel() {
    let mut units = units();
    assert_eq!(units.write(PfifoReg::Preempt.into(), 5), Effect::Preempt(5));
    assert_eq!(read(&units, PfifoReg::Preempt), PREEMPT_PENDING | 5);
    units.pfifo.preempt_done(5);
    assert_eq!(read(&units, PfifoReg::Preempt), 5);
}

#[test]
fn notify_raises_one_message_until_it_is_cleared() {
    let mut units = armed();
    units.pfifo.notify(Engine::Copy0);
    assert_eq!((rose(&mut units), rose(&mut units)), (true, false));
    assert_eq!(read(&units, PfifoReg::EngineIntrSource), 1 << 4);
    units.write(PfifoReg::EngineIntr(4).into(), 1);
    assert_eq!(read(&units, PmcReg::PmcIntr(0)), 0);
    rose(&mut units);
    units.pfifo.notify(Engine::Copy0);
    assert!(rose(&mut units));
}

#[test]
fn source_still_pending_at_re_arm_raises_again() {
    let mut units = armed();
    units.pfifo.notify(Engine::Graph);
    assert!(rose(&mut units));
    units.write(PmcReg::PmcIntrEnable(0).into(), 0);
    assert!(!rose(&mut units));
    units.write(PmcReg::PmcIntrEnable(0).into(), 1);
    assert!(rose(&mut units));
    assert!(!rose(&mut units));
    units.write(PpciReg::PciMsiRearm.into(), 0xff);
    assert!(rose(&mut units));
}

const COMMAND: u64 = 4;
const STATUS: u64 = 6;
const INTX_DISABLE: [u8; 2] = 0x400u16.to_le_bytes();

/// Whether INTx is due.
fn pulled(units: &mut Units) -> bool {
    match units.take_signal() {
        None => false,
        Some(InterruptKind::Intx) => true,
        Some(InterruptKind::Msi) => panic!("MSI is off"),
    }
}

#[test]
fn level_of_intx_is_signalled_once_and_again_at_each_unmask() {
    let mut units = armed_without_msi();
    units.pfifo.notify(Engine::Copy0);
    assert!(!pulled(&mut units), "masked until the VMM says that it listens");
    units.mask_intx(false);
    assert_eq!((pulled(&mut units), pulled(&mut units)), (true, false));
    units.mask_intx(false);
    assert!(pulled(&mut units), "the line is up still");
    units.write(PfifoReg::EngineIntr(4).into(), 1);
    units.mask_intx(false);
    assert!(!pulled(&mut units), "the line is down");
    units.pfifo.notify(Engine::Copy0);
    units.mask_intx(true);
    assert!(!pulled(&mut units));
    units.mask_intx(false);
    assert!(pulled(&mut units));
}

#[test]
fn pin_that_the_guest_switches_off_is_held_back_and_not_masked() {
    let mut units = armed_without_msi();
    units.mask_intx(false);
    units.pci.write(COMMAND, &INTX_DISABLE);
    units.pfifo.notify(Engine::Graph);
    assert!(!pulled(&mut units) && !units.wants_intx());
    units.pci.write(COMMAND, &[0, 0]);
    assert!(units.wants_intx() && pulled(&mut units));
}

#[test]
fn line_that_is_up_while_msi_comes_and_goes_is_told_each_time() {
    let mut units = armed_without_msi();
    units.mask_intx(false);
    units.pfifo.notify(Engine::Graph);
    assert!(pulled(&mut units));
    units.pci.write(0x6a, &[1]);
    assert!(rose(&mut units) && !rose(&mut units));
    // The VMM lets go of the pin for MSI, and takes it up again.
    units.mask_intx(true);
    units.pci.write(0x6a, &[0]);
    assert!(!pulled(&mut units));
    units.mask_intx(false);
    assert!(pulled(&mut units));
}

#[test]
fn status_register_shows_the_line_whatever_becomes_of_it() {
    let mut units = armed_without_msi();
    let shown = |units: &Units| {
        let (mut status, mut header) = ([0], [0; 8]);
        units.read_config(STATUS, &mut status);
        units.read_config(0, &mut header);
        assert_eq!(header[6], status[0], "the same in a longer load");
        let mirror = units.read_mirror(COMMAND as u32, Width::Dword);
        assert_eq!((mirror >> 16) as u8, status[0], "and in the mirror");
        status[0] & 1 << 3 != 0
    };
    assert!(!shown(&units));
    units.pfifo.notify(Engine::Graph);
    assert!(shown(&units), "the pin is masked");
    units.pci.write(COMMAND, &INTX_DISABLE);
    assert!(shown(&units), "the pin is switched off");
    units.pci.write(0x6a, &[1]);
    assert!(shown(&units), "MSI is on");
    units.write(PmcReg::PmcIntrEnable(0).into(), 0);
    assert!(!shown(&units), "the line is down");
}

#[test]
fn reset_brings_the_line_down_and_leaves_the_mask_to_the_vmm() {
    for masked in [true, false] {
        let mut units = armed_without_msi();
        units.mask_intx(masked);
        units.reset();
        assert!(!units.wants_intx());
        units.write(PmcReg::PmcIntrEnable(0).into(), 1);
        units.write(PmcReg::PmcIntrMask(0).into(), !0);
        units.write(PfifoReg::PfifoIntrEnable.into(), !0);
        units.pfifo.notify(Engine::Graph);
        assert_eq!(pulled(&mut units), !masked);
    }
}

#[test]
fn second_fault_of_a_unit_is_dropped_and_said() {
    let mut units = armed();
    units.pfifo.fault(0x15, [1, 2, 3, 4]);
    units.pfifo.fault(0x15, [5, 6, 7, 8]);
    assert_eq!(read(&units, PfifoReg::FaultRecord(0x15 * 4)), 1);
    let pending = read(&units, PfifoReg::PfifoIntr);
    assert_eq!(pending & pfifo::intr::DROPPED_FAULT, pfifo::intr::DROPPED_FAULT);
}

#[test]
fn errors_of_two_engines_are_told_apart() {
    let mut units = armed();
    assert!(units.engines.copy_error(Engine::Copy1, OF_5, DISPATCH));
    let of = |i| {
        [
            PcopyReg::CopyIntr(i),
            PcopyReg::CopyError(i),
            PcopyReg::CopyErrorData(i),
        ]
    };
    assert_eq!(of(0).map(|reg| read(&units, reg)), [0; 3]);
    assert_eq!(of(1).map(|reg| read(&units, reg)), [1 << 6, 2, 3]);
    let culprit = |units: &Units, i| falcon::Channel::from_bits(read(units, PcopyReg::CopyChannel(i)));
    assert!(culprit(&units, 1).valid() && !culprit(&units, 0).valid());
    assert_eq!(culprit(&units, 1).frame(), 0x77);
    // A driver passes on what the microcode routes to it.
    assert_ne!(read(&units, PcopyReg::CopyIntrRoute(1)) & 1 << 6, 0);
    assert!(units.has_error_of(5));
    let acknowledged = units.write(PcopyReg::CopyIntrAck(1).into(), 1 << 6);
    assert_eq!(acknowledged, Effect::ErrorSeen);
    assert!(!units.has_error_of(5));
    assert_eq!(read(&units, PmcReg::PmcIntr(0)), 0);
    assert!(!culprit(&units, 1).valid(), "nobody is to blame any more");
}

#[test]
fn culprit_of_an_error_of_pgraph_is_on_the_engine_until_it_is_acknowledged() {
    let mut units = armed();
    units.write(FecsReg::FecsControl.into(), CONTROL_START);
    units.write(FecsReg::FecsData.into(), FECS_CHANNEL_VALID | 0x10);
    units.write(FecsReg::FecsCommand.into(), fecs_nouveau::SET_CHANNEL);
    assert!(units.engines.graph_error(OF_5, illegal_method()));
    assert_eq!(read(&units, FecsReg::FecsChannel), FECS_CHANNEL_VALID | 0x77);
    units.write(PgraphReg::GraphIntr.into(), graph_intr::ILLEGAL_METHOD);
    assert_eq!(read(&units, FecsReg::FecsChannel), FECS_CHANNEL_VALID | 0x10);
}

/// As nouveau reads and acknowledges a warp's error: from the MP up.
#[test]
fn trap_of_a_warp_is_told_on_all_levels_and_gone_when_it_is_acknowledged() {
    let mut units = armed();
    let mut error = GraphError {
        intr: graph_intr::TRAP,
        trap: graph_trap::GPC,
        gpc_trap: 1,
        ..illegal_method()
    };
    error.gpcs[0] = GpcTrap {
        gpc: pgraph::GPC_TRAP_TPC0,
        tpc: pgraph::TPC_TRAP_MP,
        texture: 0,
        warp: 0x10,
        global: pgraph::MP_GLOBAL_TIMEOUT,
    };
    assert!(units.engines.graph_error(OF_5, error));
    let told = [
        (PgraphReg::GraphTrap, graph_trap::GPC, graph_trap::GPC),
        (PgraphReg::GraphGpcTrap, 1, 1),
        (
            PgraphReg::GpcTrap(0),
            pgraph::GPC_TRAP_TPC0,
            pgraph::GPC_TRAP_TPC0,
        ),
        (PgraphReg::TpcTrap(0), pgraph::TPC_TRAP_MP, pgraph::TPC_TRAP_MP),
        (PgraphReg::MpWarpError(0), 0x10, 0),
        (
            PgraphReg::MpGlobalError(0),
            pgraph::MP_GLOBAL_TIMEOUT,
            pgraph::MP_GLOBAL_TIMEOUT,
        ),
        (PgraphReg::GraphSubchannelClass(3), 0x90c0, 0x90c0),
    ];
    for (reg, value, _) in told {
        assert_eq!(read(&units, reg), value, "{reg:?}");
    }
    for (reg, _, acknowledge) in told.into_iter().rev().skip(1) {
        assert_eq!(units.write(reg.into(), acknowledge), Effect::None);
        assert_eq!(read(&units, reg), 0, "{reg:?}");
    }
    assert!(units.has_error_of(5), "the engine's own interrupt is pending");
    assert_eq!(units.write(PgraphReg::GraphIntr.into(), !0), Effect::ErrorSeen);
    assert!(!units.has_error_of(5));
}

#[test]
fn error_of_a_pbdma_is_told_with_its_channel_and_the_next_one_comes_after_it() {
    let mut units = armed();
    units.write(PbdmaReg::PbdmaIntrEnable(1).into(), !0);
    let error = |data| PbdmaError {
        intr: pbdma_intr::DEVICE,
        method: 0x8000_0100,
        data,
    };
    assert!(units.pbdmas.error(1, OF_5, error(1)) && units.pbdmas.error(1, OF_5, error(2)));
    for data in [1, 2] {
        assert_eq!(read(&units, PfifoReg::PbdmaIntrSource), 1 << 1);
        assert_eq!(read(&units, PbdmaReg::PbdmaData0(1)), data);
        assert_eq!(read(&units, PbdmaReg::PbdmaChannel(1)) & 0x7f, 5);
        assert!(units.has_error_of(5));
        let acknowledged = units.write(PbdmaReg::PbdmaIntr(1).into(), pbdma_intr::DEVICE);
        assert_eq!(acknowledged, Effect::ErrorSeen);
    }
    assert!(!units.has_error_of(5));
    assert_eq!(read(&units, PfifoReg::PbdmaIntrSource), 0);
}

#[test]
fn notification_is_an_interrupt_of_pgraph_and_no_error() {
    let mut units = armed();
    units.engines.graph_notify();
    assert_eq!(read(&units, PgraphReg::GraphIntr), graph_intr::NOTIFY);
    assert_eq!(
        units.write(PgraphReg::GraphIntr.into(), graph_intr::NOTIFY),
        Effect::None
    );
    assert_eq!(read(&units, PgraphReg::GraphIntr), 0);
}

#[test]
fn unit_that_the_guest_switches_off_loses_its_microcode_and_its_errors() {
    let mut units = armed();
    units.write(PmcReg::PmcEnable.into(), !0);
    units.write(FecsReg::FecsControl.into(), CONTROL_START);
    assert!(units.engines.graph_error(OF_5, illegal_method()));
    assert!(units.engines.copy_error(Engine::Copy0, OF_5, DISPATCH));
    let off = units.write(PmcReg::PmcEnable.into(), !(1 << Engine::Graph.enable_bit()));
    assert_eq!(off, Effect::ErrorSeen, "its channel may go on");
    assert_eq!(read(&units, FecsReg::FecsScratch(0)), 0);
    assert_eq!(read(&units, PgraphReg::GraphIntr), 0);
    assert_eq!(
        read(&units, PcopyReg::CopyIntr(0)),
        1 << 6,
        "it is another unit's"
    );
}

/// The access column of the register table holds: what a guest may not write does not change by writing.
#[test]
fn store_to_a_read_only_register_changes_nothing() {
    for reg in Bar0Reg::all().filter(|reg| reg.access() == Access::ReadOnly) {
        let mut units = armed();
        units.pfifo.fault(3, [5, 6, 7, 8]);
        let before = snapshot(&units);
        assert_eq!(units.write(reg, !0), Effect::None, "{reg}");
        assert_eq!(snapshot(&units), before, "{reg}");
    }
}

#[test]
fn write_only_register_reads_zero_and_a_bit_is_cleared_by_a_one() {
    let mut units = armed();
    for unit in 0..4 {
        units.pfifo.fault(unit, [5, 6, 7, 8]);
    }
    for reg in Bar0Reg::all() {
        let before = read(&units, reg);
        match reg.access() {
            Access::WriteOnly => assert_eq!(before, 0, "{reg}"),
            Access::WriteOneClears => {
                units.write(reg, 0b10);
                let levels = if reg == PfifoReg::PfifoIntr.into() {
                    pfifo::intr::LEVELS
                } else {
                    0
                };
                assert_eq!(read(&units, reg) & !levels, before & !0b10 & !levels, "{reg}");
            }
            Access::ReadOnly | Access::ReadWrite => {}
        }
    }
}

/// What [`Policy`] says of a named register is what its unit does: only a virtual one makes the mediator act.
#[test]
fn units_keep_to_the_policy() {
    for reg in Bar0Reg::all() {
        let mut units = units();
        let effect = units.write(reg, 0x5a5a_5a5a);
        match Policy::of_register(reg) {
            Policy::Constant(_) | Policy::Storage => assert_eq!(effect, Effect::None, "{reg}"),
            Policy::Refused => assert_eq!((effect, read(&units, reg)), (Effect::Refused, 0), "{reg}"),
            Policy::Virtual => assert_ne!(effect, Effect::Refused, "{reg}"),
        }
    }
}
