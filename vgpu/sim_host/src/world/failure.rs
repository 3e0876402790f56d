//! What a world shows of itself when a check has failed.

use std::fmt::Write as _;

use fermi_spec::bar::Bar;
use fermi_spec::regs::Bar0Reg;

use super::{Watch, World};

/// Lines of the flight recorder that a failed test shows.
const LINES_OF_A_FAILURE: usize = 40;

impl<W: Watch> World<W> {
    /// Figures that help to find the cause of a failure.
    pub fn card_state(&mut self) -> String {
        use fermi_spec::regs::{PbdmaReg, PfifoReg, PmcReg};
        let mut registers = vec![
            PmcReg::PmcIntr(0).into(),
            PfifoReg::PfifoIntr.into(),
            PfifoReg::FaultUnits.into(),
            PfifoReg::EngineFault.into(),
            PfifoReg::Preempt.into(),
            PfifoReg::RunlistCommit.into(),
            PfifoReg::RunlistStatus.into(),
        ];
        let pbdma = |i| [PbdmaReg::PbdmaIntr(i), PbdmaReg::PbdmaChannel(i)];
        let channel = |i| [PfifoReg::ChannelInstance(i), PfifoReg::ChannelState(i)];
        registers.extend((0..3).flat_map(pbdma).map(Bar0Reg::from));
        registers.extend((0..6).map(PfifoReg::EngineStatus).map(Bar0Reg::from));
        registers.extend((0..32).flat_map(channel).map(Bar0Reg::from));
        registers.into_iter().fold(String::new(), |mut text, reg| {
            let _ = writeln!(text, "{reg:?} {:#010x}", self.register(reg));
            text
        })
    }

    /// A register of the card, as its host would load it.
    pub fn register(&mut self, reg: impl Into<Bar0Reg>) -> u32 {
        let mut word = [0; 4];
        let offset = u64::from(reg.into().offset());
        self.model.bar_read(Bar::Bar0, offset, &mut word);
        u32::from_le_bytes(word)
    }
}

impl<W: Watch> Drop for World<W> {
    /// A failed check ends in a panic, whoever made it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "what happened last:\n{}",
                self.flight().last_as_text(LINES_OF_A_FAILURE)
            );
        }
    }
}
