use fermi_spec::regs::Bar0Reg;
use fermi_spec::regs::fecs::CONTEXT_BYTES;
use proptest::prelude::*;

use super::*;

const BLOCK: u32 = FECS_CHANNEL_VALID | 0x123;
const OTHER: u32 = FECS_CHANNEL_VALID | 0x456;

fn store(fecs: &mut Fecs, reg: FecsReg, value: u32) {
    assert_eq!(fecs.write(reg, value), Asks::Nothing);
}

fn all() -> Vec<FecsReg> {
    let of_fecs = |reg| match reg {
        Bar0Reg::Fecs(reg) => Some(reg),
        _ => None,
    };
    Bar0Reg::all().filter_map(of_fecs).collect()
}

/// As nouveau starts its own microcode.
fn with_nouveau() -> Fecs {
    let mut fecs = Fecs::default();
    store(&mut fecs, FecsReg::FecsControl, CONTROL_START);
    fecs
}

/// As nouveau starts NVIDIA's.
fn with_nvidia() -> Fecs {
    let mut fecs = Fecs::default();
    store(&mut fecs, FecsReg::GpccsControl, CONTROL_START);
    store(&mut fecs, FecsReg::FecsControl, CONTROL_START);
    fecs
}

fn command(fecs: &mut Fecs, command: u32, data: u32) -> u32 {
    store(fecs, FecsReg::FecsScratchClear(0), !0);
    store(fecs, FecsReg::FecsData, data);
    store(fecs, FecsReg::FecsCommand, command);
    fecs.read(FecsReg::FecsScratch(0))
}

#[test]
fn start_of_nouveaus_microcode_is_answered_with_the_size_of_an_image() {
    let fecs = with_nouveau();
    assert_eq!(fecs.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
    assert_eq!(fecs.read(FecsReg::FecsScratch(1)), CONTEXT_BYTES);
    assert_eq!(fecs.read(FecsReg::FecsControl), CONTROL_SLEEPING);
}

#[test]
fn halted_falcon_answers_no_command() {
    let mut fecs = Fecs::default();
    assert_eq!(command(&mut fecs, fecs_nouveau::SET_CHANNEL, BLOCK), 0);
    store(&mut fecs, FecsReg::FecsNextChannel, OTHER);
    store(&mut fecs, FecsReg::FecsIntrSet, FECS_SWITCH_REQUEST);
    assert_eq!(fecs.read(FecsReg::FecsChannel), 0);
}

#[test]
fn golden_context_is_made_as_nouveau_makes_it() {
    let mut fecs = with_nouveau();
    assert_eq!(
        command(&mut fecs, fecs_nouveau::SET_CHANNEL, BLOCK),
        fecs_nouveau::DONE
    );
    assert_eq!(fecs.read(FecsReg::FecsChannel), BLOCK);
    // The request to save: no context comes next.
    let next = fecs.read(FecsReg::FecsNextChannel);
    store(&mut fecs, FecsReg::FecsNextChannel, next & !FECS_CHANNEL_VALID);
    store(&mut fecs, FecsReg::FecsIntrSet, FECS_SWITCH_REQUEST);
    assert_eq!(fecs.read(FecsReg::FecsChannel) & FECS_CHANNEL_VALID, 0);
    assert_eq!(command(&mut fecs, fecs_nouveau::SAVE, 0), 0, "nothing is current");
}

#[test]
fn command_that_names_no_channel_is_never_done() {
    let mut fecs = with_nouveau();
    assert_eq!(command(&mut fecs, fecs_nouveau::SET_CHANNEL, 0x123), 0);
    assert_eq!(fecs.read(FecsReg::FecsChannel), 0);
}

#[test]
fn unknown_command_interrupts_with_its_number_once_that_is_let_through() {
    let mut fecs = with_nouveau();
    store(&mut fecs, FecsReg::FecsCommand, 0x77);
    assert_eq!(fecs.read(FecsReg::FecsHostIntr), fecs_intr::ERROR);
    assert_eq!(
        fecs.read(FecsReg::FecsScratch(5)),
        0x77 << 16 | fecs_nouveau::BAD_COMMAND
    );
    assert_eq!(
        fecs.write(FecsReg::FecsHostIntrEnable, fecs_intr::ERROR),
        Asks::Interrupt
    );
    store(&mut fecs, FecsReg::FecsHostIntrClear, fecs_intr::ERROR);
    assert_eq!(fecs.read(FecsReg::FecsHostIntr), 0);
}

#[test]
fn nvidias_microcode_tells_sizes_and_saves_the_bound_channel_alone() {
    let mut fecs = with_nvidia();
    assert_eq!(fecs.read(FecsReg::FecsScratch(0)), fecs_nvidia::DONE);
    assert_eq!(command(&mut fecs, fecs_nvidia::IMAGE_BYTES, 0), CONTEXT_BYTES);
    assert_eq!(
        command(&mut fecs, fecs_nvidia::SAVE_GOLDEN, BLOCK),
        fecs_nvidia::FAILED
    );
    assert_eq!(
        command(&mut fecs, fecs_nvidia::BIND_CHANNEL, BLOCK),
        fecs_nvidia::BOUND
    );
    assert_eq!(
        command(&mut fecs, fecs_nvidia::BIND_CHANNEL, 1),
        fecs_nvidia::NOT_BOUND
    );
    assert_eq!(
        command(&mut fecs, fecs_nvidia::SAVE_GOLDEN, OTHER),
        fecs_nvidia::FAILED
    );
    assert_eq!(
        command(&mut fecs, fecs_nvidia::SAVE_GOLDEN, BLOCK),
        fecs_nvidia::DONE
    );
    store(&mut fecs, FecsReg::FecsCommand, fecs_nvidia::HALT);
    assert_eq!(fecs.read(FecsReg::FecsControl), CONTROL_STOPPED);
}

#[test]
fn reset_loses_the_microcode_and_what_it_was_told() {
    let mut fecs = with_nvidia();
    command(&mut fecs, fecs_nvidia::BIND_CHANNEL, BLOCK);
    fecs.reset();
    for reg in [
        FecsReg::FecsScratch(0),
        FecsReg::FecsChannel,
        FecsReg::FecsNextChannel,
        FecsReg::FecsData,
    ] {
        assert_eq!(fecs.read(reg), 0, "{reg:?}");
    }
    assert_eq!(fecs.read(FecsReg::GpccsControl), CONTROL_STOPPED);
}

proptest! {
    /// Whatever a driver stores, in any order: no panic, and a halted falcon neither interrupts by itself nor changes contexts.
    #[test]
    fn any_stores_are_survived(stores in proptest::collection::vec((proptest::sample::select(all()), any::<u32>()), 0..200)) {
        let mut fecs = Fecs::default();
        for (reg, value) in stores {
            let before = (fecs.stage, fecs.channel);
            let asks = fecs.write(reg, value);
            if before.0 == Stage::Halted && reg != FecsReg::FecsChannel {
                prop_assert_eq!(fecs.channel, before.1);
            }
            if asks == Asks::Interrupt {
                prop_assert!(fecs.host_intr & fecs.host_intr_enable != 0);
            }
            for reg in all() {
                let _ = fecs.read(reg);
            }
        }
    }
}
