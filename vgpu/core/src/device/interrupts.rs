//! A guest's interrupt tree: units → PFIFO → PMC → one MSI (nouveau `mc/gf100.c`).

use fermi_spec::engine::{ENGINES, Engine, PBDMAS, pmc_intr};
use fermi_spec::fault;
use fermi_spec::regs::{Bar0Reg, PbdmaReg, PcopyReg, PfifoReg, PgraphReg, PmcReg, PpciReg, pfifo};

/// What the guest can see and clear.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    line_enable: [u32; 3],
    mask: [u32; 3],
    /// Bits of 2100 that are no levels.
    pfifo: u32,
    pfifo_enable: u32,
    engine: [u32; ENGINES],
    fault_units: u32,
    records: Vec<[u32; 4]>,
    runlist: u32,
    pbdma: [u32; PBDMAS],
    pbdma_enable: [u32; PBDMAS],
    pbdma_channel: [u32; PBDMAS],
    pbdma_method: [(u32, u32); PBDMAS],
    /// Interrupt bits, code and data of PGRAPH and the copy engines.
    errors: [[u32; 3]; 3],
    /// What the line was when it was last looked at.
    was_up: bool,
}

impl Interrupts {
    /// A channel on this engine asked for an interrupt.
    pub(crate) fn notify(&mut self, engine: Engine) {
        self.engine[usize::from(engine.number())] |= 1;
    }

    /// The runlist commit is done.
    pub(crate) fn runlist_done(&mut self) {
        self.runlist |= pfifo::RUNLIST_DONE;
    }

    /// The MMU refused an access. A record that is still occupied drops the fault, as on the card.
    pub(crate) fn fault(&mut self, unit: u8, record: [u32; 4]) {
        let bit = 1 << unit;
        if self.fault_units & bit != 0 {
            self.pfifo |= pfifo::intr::DROPPED_FAULT;
            return;
        }
        self.records.resize(fault::unit::COUNT, [0; 4]);
        if let Some(slot) = self.records.get_mut(usize::from(unit)) {
            *slot = record;
            self.fault_units |= bit;
        }
    }

    /// A PBDMA stopped with an error.
    pub(crate) fn pbdma_error(&mut self, pbdma: u8, bits: u32, channel: u8, method: u32, data: u32) {
        let i = usize::from(pbdma).min(PBDMAS - 1);
        self.pbdma[i] |= bits;
        self.pbdma_channel[i] = u32::from(channel) | 1 << 8;
        self.pbdma_method[i] = (method, data);
    }

    /// An engine refused what a channel of the guest sent it.
    pub(crate) fn engine_error(&mut self, engine: Engine, intr: u32, code: u32, data: u32) {
        let slot = &mut self.errors[error_slot(engine)];
        *slot = [slot[0] | intr, code, data];
    }

    /// Sets error bits of PFIFO_INTR; the levels stay computed.
    pub(crate) fn pfifo_error(&mut self, bits: u32) {
        self.pfifo |= bits & !pfifo::intr::LEVELS;
    }

    fn engine_source(&self) -> u32 {
        (0..)
            .zip(self.engine)
            .filter(|(_, bits)| *bits != 0)
            .fold(0, |mask, (i, _)| mask | 1 << i)
    }

    fn pbdma_source(&self) -> u32 {
        (0..)
            .zip(self.pbdma.iter().zip(self.pbdma_enable))
            .filter(|(_, (bits, enable))| *bits & enable != 0)
            .fold(0, |mask, (i, _)| mask | 1 << i)
    }

    fn pfifo_pending(&self) -> u32 {
        let level = |up: bool, bit: u32| if up { bit } else { 0 };
        self.pfifo
            | level(self.fault_units != 0, pfifo::intr::MMU_FAULT)
            | level(self.pbdma_source() != 0, pfifo::intr::PBDMA)
            | level(self.runlist != 0, pfifo::intr::RUNLIST)
            | level(self.engine_source() != 0, pfifo::intr::ENGINE)
    }

    fn pending(&self) -> u32 {
        let engines = [Engine::Graph, Engine::Copy0, Engine::Copy1]
            .into_iter()
            .filter(|&engine| self.errors[error_slot(engine)][0] != 0)
            .fold(0, |bits, engine| bits | 1 << engine.interrupt_bit());
        let fifo = self.pfifo_pending() & self.pfifo_enable != 0;
        engines | if fifo { pmc_intr::PFIFO } else { 0 }
    }

    fn is_up(&self) -> bool {
        self.line_enable[0] & 1 != 0 && self.pending() & self.mask[0] != 0
    }

    /// Whether one MSI is due: the line rose since the last look.
    pub(crate) fn rose(&mut self) -> bool {
        let up = self.is_up();
        let rose = up && !self.was_up;
        self.was_up = up;
        rose
    }

    /// The guest's load, `None` for a register that is not of this unit.
    pub(crate) fn read(&self, reg: Bar0Reg) -> Option<u32> {
        let engine = |i: u16| self.engine.get(usize::from(i)).copied().unwrap_or(0);
        let of = |words: &[u32], i: u16| words.get(usize::from(i)).copied().unwrap_or(0);
        Some(match reg {
            Bar0Reg::Pmc(PmcReg::PmcIntr(0)) => self.pending(),
            Bar0Reg::Pmc(PmcReg::PmcIntr(_)) => 0,
            Bar0Reg::Pmc(PmcReg::PmcIntrEnable(i)) => of(&self.line_enable, i),
            Bar0Reg::Pmc(PmcReg::PmcIntrLine(i)) => u32::from(i == 0 && self.is_up()),
            Bar0Reg::Pmc(PmcReg::PmcIntrMask(i)) => of(&self.mask, i),
            Bar0Reg::Pfifo(PfifoReg::PfifoIntr) => self.pfifo_pending(),
            Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnable) => self.pfifo_enable,
            Bar0Reg::Pfifo(PfifoReg::FaultUnits) => self.fault_units,
            Bar0Reg::Pfifo(PfifoReg::PbdmaIntrSource) => self.pbdma_source(),
            Bar0Reg::Pfifo(PfifoReg::EngineIntrSource) => self.engine_source(),
            Bar0Reg::Pfifo(PfifoReg::EngineIntr(i)) => engine(i),
            Bar0Reg::Pfifo(PfifoReg::RunlistIntr) => self.runlist,
            Bar0Reg::Pfifo(PfifoReg::FaultRecord(i)) => self
                .records
                .get(usize::from(i) / 4)
                .map_or(0, |record| record[usize::from(i) % 4]),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntr(i)) => of(&self.pbdma, i),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntrEnable(i)) => of(&self.pbdma_enable, i),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaChannel(i)) => of(&self.pbdma_channel, i),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaMethod0(i)) => {
                self.pbdma_method.get(usize::from(i)).map_or(0, |m| m.0)
            }
            Bar0Reg::Pbdma(PbdmaReg::PbdmaData0(i)) => {
                self.pbdma_method.get(usize::from(i)).map_or(0, |m| m.1)
            }
            Bar0Reg::Pgraph(PgraphReg::GraphIntr) => self.errors[0][0],
            Bar0Reg::Pgraph(PgraphReg::GraphTrappedMethod) => self.errors[0][1],
            Bar0Reg::Pgraph(PgraphReg::GraphTrappedData) => self.errors[0][2],
            Bar0Reg::Pcopy(PcopyReg::CopyIntr(i)) => self.errors[1 + usize::from(i & 1)][0],
            Bar0Reg::Pcopy(PcopyReg::CopyError(i)) => self.errors[1 + usize::from(i & 1)][1],
            Bar0Reg::Pcopy(PcopyReg::CopyErrorData(i)) => self.errors[1 + usize::from(i & 1)][2],
            _ => return None,
        })
    }

    /// The guest's store; `false` for a register that is not of this unit.
    pub(crate) fn write(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let set = |words: &mut [u32], i: u16| {
            if let Some(word) = words.get_mut(usize::from(i)) {
                *word = value;
            }
        };
        let clear = |words: &mut [u32], i: u16| {
            if let Some(word) = words.get_mut(usize::from(i)) {
                *word &= !value;
            }
        };
        match reg {
            Bar0Reg::Pmc(PmcReg::PmcIntrEnable(i)) => set(&mut self.line_enable, i),
            Bar0Reg::Pmc(PmcReg::PmcIntrMask(i)) => set(&mut self.mask, i),
            Bar0Reg::Pfifo(PfifoReg::PfifoIntr) => self.pfifo &= !value,
            Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnable) => self.pfifo_enable = value,
            Bar0Reg::Pfifo(PfifoReg::FaultUnits) => self.fault_units &= !value,
            Bar0Reg::Pfifo(PfifoReg::EngineIntr(i)) => clear(&mut self.engine, i),
            Bar0Reg::Pfifo(PfifoReg::RunlistIntr) => self.runlist &= !value,
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntr(i)) => clear(&mut self.pbdma, i),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaIntrEnable(i)) => set(&mut self.pbdma_enable, i),
            Bar0Reg::Pbdma(PbdmaReg::PbdmaMethod0(_))
            | Bar0Reg::Pbdma(PbdmaReg::PbdmaData0(_))
            | Bar0Reg::Pfifo(PfifoReg::PbdmaIntrSource) => {}
            Bar0Reg::Pgraph(PgraphReg::GraphIntr) => self.errors[0][0] &= !value,
            Bar0Reg::Pcopy(PcopyReg::CopyIntrAck(i)) => self.errors[1 + usize::from(i & 1)][0] &= !value,
            // A message is due again if the line is still up.
            Bar0Reg::Ppci(PpciReg::PciMsiRearm) => self.was_up = false,
            _ => return false,
        }
        true
    }
}

fn error_slot(engine: Engine) -> usize {
    match engine {
        Engine::Copy0 => 1,
        Engine::Copy1 => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed() -> Interrupts {
        let mut interrupts = Interrupts::default();
        interrupts.write(Bar0Reg::Pmc(PmcReg::PmcIntrEnable(0)), 1);
        interrupts.write(Bar0Reg::Pmc(PmcReg::PmcIntrMask(0)), !0);
        interrupts.write(Bar0Reg::Pfifo(PfifoReg::PfifoIntrEnable), !0);
        interrupts
    }

    #[test]
    fn notify_raises_one_message_until_it_is_cleared() {
        let mut interrupts = armed();
        interrupts.notify(Engine::Copy0);
        assert_eq!((interrupts.rose(), interrupts.rose()), (true, false));
        assert_eq!(
            interrupts.read(Bar0Reg::Pfifo(PfifoReg::EngineIntrSource)),
            Some(1 << 4)
        );
        interrupts.write(Bar0Reg::Pfifo(PfifoReg::EngineIntr(4)), 1);
        assert_eq!(interrupts.read(Bar0Reg::Pmc(PmcReg::PmcIntr(0))), Some(0));
        interrupts.rose();
        interrupts.notify(Engine::Copy0);
        assert!(interrupts.rose());
    }

    #[test]
    fn source_still_pending_at_re_arm_raises_again() {
        let mut interrupts = armed();
        interrupts.notify(Engine::Graph);
        assert!(interrupts.rose());
        interrupts.write(Bar0Reg::Pmc(PmcReg::PmcIntrEnable(0)), 0);
        assert!(!interrupts.rose());
        interrupts.write(Bar0Reg::Pmc(PmcReg::PmcIntrEnable(0)), 1);
        assert!(interrupts.rose());
    }

    #[test]
    fn second_fault_of_a_unit_is_dropped_and_said() {
        let mut interrupts = armed();
        interrupts.fault(0x15, [1, 2, 3, 4]);
        interrupts.fault(0x15, [5, 6, 7, 8]);
        assert_eq!(
            interrupts.read(Bar0Reg::Pfifo(PfifoReg::FaultRecord(0x15 * 4))),
            Some(1)
        );
        let pending = interrupts.read(Bar0Reg::Pfifo(PfifoReg::PfifoIntr)).unwrap_or(0);
        assert_eq!(pending & pfifo::intr::DROPPED_FAULT, pfifo::intr::DROPPED_FAULT);
    }
}
