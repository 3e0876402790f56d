//! Facts that a driver reads about the card before it uses it: ROM, configuration space, PMU.

use super::support::*;
use crate::CONFIG_BYTES;
use fermi_spec::regs::pcopy::PCOPY;
use fermi_spec::regs::pmu::PMU;
use fermi_spec::regs::ppci::PPCI;
use fermi_spec::{
    bar::Bar,
    board::{Board, VENDOR},
    regs::{
        PROM_BASE, PROM_END, PbusReg, PfifoReg, PgraphReg, PmcReg, PmuReg, PpciReg, PtimerReg, PunitsWord,
    },
    vbios,
};

fn config(bench: &mut Bench, at: u64) -> u32 {
    let mut word = [0; 4];
    bench.card.config_read(at, &mut word);
    u32::from_le_bytes(word)
}

/// Fetches the first 4 KiB as nouveau does: the shadow switched off around it.
fn fetch_rom(bench: &mut Bench) -> Vec<u8> {
    let shadow = bench.read(PpciReg::PciRomShadow);
    bench.write(PpciReg::PciRomShadow, shadow & !1);
    let words = (0..1024).flat_map(|word| bench.read_at(PROM_BASE + 4 * word).to_le_bytes());
    let rom = words.collect();
    bench.write(PpciReg::PciRomShadow, shadow);
    rom
}

#[test]
fn rom_is_read_through_prom_and_ones_follow_it() {
    let mut bench = bare();
    let rom = fetch_rom(&mut bench);
    assert_eq!(rom[..vbios::BYTES], *vbios::image_of(Board::Gtx480));
    assert!(rom[vbios::BYTES..].iter().all(|byte| *byte == 0xff));
    assert_eq!(bench.read_at(PROM_END - 4), u32::MAX);
}

#[test]
fn prom_shows_nothing_while_the_rom_is_shadowed() {
    let mut bench = bare();
    assert_eq!(bench.read(PpciReg::PciRomShadow) & 1, 1);
    assert_eq!(bench.read_at(PROM_BASE), u32::MAX);
}

#[test]
fn mirror_and_configuration_space_are_the_same_bytes() {
    let mut bench = bare();
    for at in (0..CONFIG_BYTES as u32).step_by(4) {
        assert_eq!(
            bench.read_at(PPCI.first + at),
            config(&mut bench, u64::from(at)),
            "at {at:#x}"
        );
    }
    let command = u64::from(PPCI.first) + 4;
    bench.card.bar_write(Bar::Bar0, command, &0x0406u16.to_le_bytes());
    assert!(bench.card.is_intx_disabled() && bench.card.is_bus_master());
    assert_eq!(config(&mut bench, 4) & 0xffff, 0x0406);
    bench.card.config_write(5, &[0]);
    assert!(!bench.card.is_intx_disabled());
    assert_eq!(bench.read_at(PPCI.first + 4) & 0xffff, 0x0006);
}

#[test]
fn link_runs_at_the_speed_that_the_card_can() {
    let mut bench = bare();
    // Current speed and what nouveau takes for the most that the card can.
    assert_eq!(bench.read_at(PPCI.first + 0x88) & 0x3_0000, 0x2_0000);
    assert_eq!(bench.read_at(PPCI.first + 0x460) & 0x3300, 0x2200);
    assert_eq!(config(&mut bench, 0) & 0xffff, u32::from(VENDOR));
}

/// nouveau's `g84_pci_init` and `nvkm_pcie_init`, which it runs if there is a PCI Express capability.
#[test]
fn pci_express_is_set_up_through_the_mirror() {
    let mut bench = bare();
    let mirror = |at: u32| PPCI.first + at;
    assert_eq!(bench.read_at(mirror(0x7c)) & 0x20, 0x20, "tags of 8 bits");
    let control = bench.read_at(mirror(0x80));
    bench.write_at(mirror(0x80), control | 0x100);
    assert_eq!(config(&mut bench, 0x80) & 0x100, 0x100);
    let can_do_version_2 = bench.read_at(mirror(0x460)) & 0x200 != 0;
    let version = bench.read(PunitsWord::PciVersion);
    assert!(can_do_version_2 && version & 1 == 1, "nothing to raise");
    bench.write(PunitsWord::PciVersion, version & !0x80);
    bench.write(PunitsWord::PciVersion, version | 0x80);
    assert_eq!(bench.read(PunitsWord::PciVersion), version);
}

#[test]
fn message_that_was_missed_is_sent_when_messages_are_turned_on() {
    let mut bench = ready();
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    bench.runlist(&[]);
    bench.run();
    assert!(bench.card.take_interrupt());
    assert!(bench.card.interrupt_line() && !bench.card.is_msi_enabled());
    assert_eq!(config(&mut bench, 4) >> 16 & 1 << 3, 1 << 3);
    bench.card.config_write(0x6a, &[0x81]);
    assert!(bench.card.is_msi_enabled());
    assert!(bench.card.take_interrupt());
}

#[test]
fn pmu_tells_of_its_rings_once_it_runs() {
    let mut bench = bare();
    let at = |offset: u32| PMU.first + offset;
    bench.write_at(at(0x014), 0xffff);
    assert_eq!(bench.read_at(at(0x04c)), 0);
    let enable = bench.read(PmcReg::PmcEnable);
    bench.write(PmcReg::PmcEnable, enable & !(1 << 13));
    bench.write(PmcReg::PmcEnable, enable | 1 << 13);
    assert_eq!(bench.read_at(at(0x10c)) & 6, 0);
    bench.write_at(at(0x1c0), 1 << 24);
    bench.write_at(at(0x1c4), 0x1234_5678);
    assert_eq!(bench.read(PmuReg::PmuCommandRing), 0);
    bench.write_at(at(0x10c), 0);
    bench.write_at(at(0x104), 0);
    bench.write_at(at(0x100), 2);
    assert_eq!(bench.read(PmuReg::PmuCommandRing), 0x0080_0400);
    assert_eq!(bench.read(PmuReg::PmuMessageRing), 0x0080_0480);
    bench.write_at(at(0x1c0), 0);
    assert_eq!(bench.read_at(at(0x1c4)), 0x1234_5678);
}

#[test]
fn reset_of_the_pmu_stops_it_and_empties_it() {
    let mut bench = bare();
    bench.write_at(PMU.first + 0x1c4, 7);
    bench.write_at(PMU.first + 0x580, 7);
    bench.write_at(PMU.first + 0x100, 2);
    bench.write(PmcReg::PmcEnable, 0);
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert_eq!(bench.read(PmuReg::PmuCommandRing), 0);
    assert_eq!(bench.read_at(PMU.first + 0x1c4), 0);
    assert_eq!(bench.read_at(PMU.first + 0x580), 0);
}

#[test]
fn copy_engines_take_microcode_as_nouveau_uploads_it() {
    let mut bench = bare();
    bench.write(PmcReg::PmcEnable, u32::MAX);
    for engine in 0..2 {
        let at = |offset: u32| PCOPY.first + 0x1000 * engine + offset;
        bench.write_at(at(0x014), u32::MAX);
        assert_eq!(bench.read_at(at(0x12c)) & 0xf, 3);
        let caps = bench.read_at(at(0x108));
        let (code, data) = ((caps & 0x1ff) << 8, (caps >> 9 & 0x1ff) << 8);
        assert!(code >= 0x600 && data >= 0x800, "{code:#x} {data:#x}");
        bench.write_at(at(0x180), 1 << 24);
        for word in 0..code / 4 {
            bench.write_at(at(0x184), word + 1);
        }
        bench.write_at(at(0x180), 1 << 25 | (code - 4));
        assert_eq!(bench.read_at(at(0x184)), code / 4);
        bench.write_at(at(0x100), 2);
        assert_eq!(bench.read_at(at(0x100)) & 1 << 4, 0, "not stopped");
        bench.write_at(at(0x084), engine);
        bench.write_at(at(0x048), 3);
        assert_eq!(bench.read_at(at(0x048)), 3);
    }
}

#[test]
fn reset_keeps_vram_and_forgets_registers() {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    bench.submit(&mut channel, &Methods::new().to(0, 0x20, &[0]).0);
    bench.run();
    bench.card.config_write(4, &[6]);
    bench.set_vram_u32(0x1_0000, 0xcafe);
    let changes = bench.card.bar3_changes();
    let (time, methods) = (bench.card.gpu_time(), bench.card.counters().methods);
    bench.card.reset();
    assert!(!bench.card.interrupt_line() && !bench.card.take_interrupt());
    assert!(!bench.card.is_bus_master());
    assert_ne!(bench.card.bar3_changes(), changes);
    assert_eq!(bench.read(PbusReg::Bar1Block), 0);
    assert_eq!(bench.read(PfifoReg::ChannelInstance(1)), 0);
    assert_eq!(bench.read_bar(Bar::Bar1, 0x1_0000), 0xcafe);
    assert_eq!(bench.card.gpu_time(), time);
    assert_eq!(bench.card.counters().methods, methods);
    assert!(bench.read(PtimerReg::PtimerLow) < 1_000);
}

#[test]
fn squashed_access_is_shown_until_acknowledged() {
    let mut bench = bare();
    bench.write_at(PCOPY.first + 0x40, 0xcafe);
    bench.read_at(PCOPY.first + 0x44);
    assert_eq!(bench.read(PbusReg::PbusIntr), 2);
    assert_eq!(bench.read(PbusReg::PbusErrorAddress), (PCOPY.first + 0x40) | 3);
    assert_eq!(bench.read(PbusReg::PbusErrorData), 0xcafe);
    bench.write(PbusReg::PbusErrorAddress, 0);
    bench.read_at(PCOPY.first + 0x44);
    assert_eq!(bench.read(PbusReg::PbusErrorAddress), (PCOPY.first + 0x44) | 1);
}

#[test]
fn counts_of_graph_units_are_not_hidden_by_the_falcon_around_them() {
    let mut bench = bare();
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert_eq!(bench.read(PgraphReg::GraphUnits) & 0x1f, 4);
    let tpcs: u32 = (0..4).map(|gpc| bench.read(PgraphReg::GpcTpcs(gpc))).sum();
    assert_eq!(tpcs, 15);
}
