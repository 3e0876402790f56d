//! The causes of the card's interrupt, read in one go.

use fermi_spec::addr::PhysAddr;
use fermi_spec::bar::Bar;
use fermi_spec::engine::{Engine, PBDMAS};
use fermi_spec::fault;
use fermi_spec::regs::pcopy::copy_intr;
use fermi_spec::regs::pfifo::EngineStatus;
use fermi_spec::regs::pgraph::graph_intr;
use fermi_spec::regs::{
    Bar0Reg, PbdmaReg, PcopyReg, PfifoReg, PgraphReg, PmcReg, PpciReg, PtimerReg, pbdma, pfifo, pmc, ppci,
};

use super::graph_errors;
use super::lane::Tokens;
use crate::channel_error::{CopyError, GraphError, PbdmaError};
use crate::event::{Action, Actions, Token};

/// An MMU fault as the card recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FaultRecord {
    pub(crate) unit: u8,
    /// Instance block, in the card's addresses.
    pub(crate) instance: PhysAddr,
    pub(crate) va: u64,
    pub(crate) kind: fault::FaultType,
}

/// The causes that were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// A channel on this engine asked for an interrupt.
    Notify(Engine),
    /// The MMU refused an access.
    Fault(FaultRecord),
    /// A channel on PGRAPH asked for a notification by interrupt.
    GraphNotify { channel: u8 },
    /// A PBDMA stopped.
    Pbdma {
        pbdma: u8,
        channel: u8,
        error: PbdmaError,
    },
    /// PGRAPH stopped with that channel.
    Graph { channel: u8, error: GraphError },
    /// A copy engine stopped with that channel.
    Copy {
        engine: Engine,
        channel: u8,
        error: CopyError,
    },
    /// The scheduler or channel table complains.
    Fifo {
        bits: u32,
        table_code: u32,
        scheduler_code: u32,
    },
    /// Who was on the engines ([`NOTIFY_ENGINES`]), and the low word of the card's time. Of every look, behind all else.
    Engines { statuses: [EngineStatus; 3], time: u32 },
}

/// Values on their way.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    reads: Vec<(Token, Bar0Reg, Option<u32>)>,
    /// Another interrupt came meanwhile: look again.
    again: bool,
    started: u64,
    finished: u64,
}

const NOTIFY_ENGINES: [Engine; 3] = [Engine::Graph, Engine::Copy0, Engine::Copy1];
/// Copy engines by their number among them.
const COPY_ENGINES: [(u16, Engine); 2] = [(0, Engine::Copy0), (1, Engine::Copy1)];

fn first_registers() -> Vec<Bar0Reg> {
    let mut registers: Vec<Bar0Reg> = vec![
        PmcReg::PmcIntr(0).into(),
        PfifoReg::PfifoIntr.into(),
        PfifoReg::FaultUnits.into(),
        PfifoReg::PbdmaIntrSource.into(),
        PfifoReg::ChannelTableError.into(),
        PfifoReg::SchedulerError.into(),
    ];
    for engine in NOTIFY_ENGINES {
        registers.push(PfifoReg::EngineIntr(u16::from(engine.number())).into());
    }
    for engine in NOTIFY_ENGINES {
        registers.extend(error_registers(engine));
        registers.push(PfifoReg::EngineStatus(u16::from(engine.number())).into());
    }
    registers.push(PtimerReg::PtimerLow.into());
    registers
}

/// Interrupt bits, error code and data of an engine.
fn error_registers(engine: Engine) -> [Bar0Reg; 3] {
    match engine {
        Engine::Copy0 => [
            PcopyReg::CopyIntr(0).into(),
            PcopyReg::CopyError(0).into(),
            PcopyReg::CopyErrorData(0).into(),
        ],
        Engine::Copy1 => [
            PcopyReg::CopyIntr(1).into(),
            PcopyReg::CopyError(1).into(),
            PcopyReg::CopyErrorData(1).into(),
        ],
        _ => [
            PgraphReg::GraphIntr.into(),
            PgraphReg::GraphTrappedMethod.into(),
            PgraphReg::GraphTrappedData.into(),
        ],
    }
}

impl Scan {
    /// Number of the look that [`Scan::start`] would begin, now or after the one under way.
    pub(crate) fn next_look(&self) -> u64 {
        self.started + 1
    }

    /// Whether the look with that number is over.
    pub(crate) fn has_finished(&self, look: u64) -> bool {
        self.finished >= look
    }

    /// Starts a look, or records that it must be repeated.
    pub(crate) fn start(&mut self, tokens: &mut Tokens, actions: &mut Actions) {
        if !self.reads.is_empty() {
            self.again = true;
            return;
        }
        self.started += 1;
        actions.register(PmcReg::PmcIntrEnable(0), 0);
        self.read(first_registers(), tokens, actions);
    }

    fn read(&mut self, registers: Vec<Bar0Reg>, tokens: &mut Tokens, actions: &mut Actions) {
        for reg in registers {
            let token = tokens.next();
            let offset = u64::from(reg.offset());
            actions.push(Action::HostRead {
                token,
                bar: Bar::Bar0,
                offset,
                bytes: 4,
            });
            self.reads.push((token, reg, None));
        }
    }

    /// Takes a value. `Some` with the causes when all values are in; the sources are then acknowledged.
    pub(crate) fn value(
        &mut self,
        token: Token,
        data: &[u8],
        tokens: &mut Tokens,
        actions: &mut Actions,
    ) -> Option<Vec<Finding>> {
        let entry = self.reads.iter_mut().find(|(t, _, _)| *t == token)?;
        entry.2 = Some(u32::from_le_bytes(data.try_into().unwrap_or([0; 4])));
        if self.reads.iter().any(|(_, _, value)| value.is_none()) {
            return Some(Vec::new());
        }
        let more = self.second_registers();
        if !more.is_empty() {
            self.read(more, tokens, actions);
            return Some(Vec::new());
        }
        let findings = self.findings();
        self.acknowledge(actions);
        self.reads.clear();
        self.finished = self.started;
        if std::mem::take(&mut self.again) {
            self.start(tokens, actions);
        }
        Some(findings)
    }

    fn get(&self, reg: impl Into<Bar0Reg>) -> Option<u32> {
        let reg = reg.into();
        self.reads
            .iter()
            .find(|(_, r, _)| *r == reg)
            .and_then(|(_, _, value)| *value)
    }

    fn units(&self) -> impl Iterator<Item = u8> + use<> {
        let mask = self.get(PfifoReg::FaultUnits).unwrap_or(0);
        (0..fault::unit::COUNT as u8).filter(move |unit| mask & 1 << unit != 0)
    }

    fn pbdmas(&self) -> impl Iterator<Item = u16> + use<> {
        let mask = self.get(PfifoReg::PbdmaIntrSource).unwrap_or(0);
        (0..PBDMAS as u16).filter(move |pbdma| mask & 1 << pbdma != 0)
    }

    /// Fault records, PBDMA states and PGRAPH's account of an error, as far as what was read asks for them.
    fn second_registers(&self) -> Vec<Bar0Reg> {
        let mut registers: Vec<Bar0Reg> = Vec::new();
        for unit in self.units() {
            registers
                .extend((0..4).map(|word| Bar0Reg::from(PfifoReg::FaultRecord(u16::from(unit) * 4 + word))));
        }
        for i in self.pbdmas() {
            registers.extend(
                [
                    PbdmaReg::PbdmaIntr(i),
                    PbdmaReg::PbdmaChannel(i),
                    PbdmaReg::PbdmaMethod0(i),
                    PbdmaReg::PbdmaData0(i),
                ]
                .map(Bar0Reg::from),
            );
        }
        let of_graph = graph_errors::registers(|reg| self.word(reg));
        registers.extend(of_graph.into_iter().map(Bar0Reg::from));
        registers.retain(|&reg| self.get(reg).is_none());
        registers
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for engine in NOTIFY_ENGINES {
            if self.word(PfifoReg::EngineIntr(u16::from(engine.number()))) & pfifo::ENGINE_NOTIFY != 0 {
                findings.push(Finding::Notify(engine));
            }
        }
        for unit in self.units() {
            let word = |n| self.word(PfifoReg::FaultRecord(u16::from(unit) * 4 + n));
            findings.push(Finding::Fault(FaultRecord {
                unit,
                instance: PhysAddr::from_page_number(word(0)),
                va: u64::from(word(1)) | u64::from(word(2)) << 32,
                kind: fault::FaultType::from_bits(word(3)),
            }));
        }
        for i in self.pbdmas() {
            findings.push(Finding::Pbdma {
                pbdma: i as u8,
                channel: (self.word(PbdmaReg::PbdmaChannel(i)) & pfifo::CHANNEL_ID_MASK) as u8,
                error: PbdmaError {
                    intr: self.word(PbdmaReg::PbdmaIntr(i)),
                    method: self.word(PbdmaReg::PbdmaMethod0(i)),
                    data: self.word(PbdmaReg::PbdmaData0(i)),
                },
            });
        }
        findings.extend(self.engine_errors());
        let bits = self.word(PfifoReg::PfifoIntr) & !pfifo::intr::LEVELS;
        if bits != 0 {
            findings.push(Finding::Fifo {
                bits,
                table_code: self.word(PfifoReg::ChannelTableError),
                scheduler_code: self.word(PfifoReg::SchedulerError),
            });
        }
        let status = |engine: Engine| self.word(PfifoReg::EngineStatus(u16::from(engine.number())));
        findings.push(Finding::Engines {
            statuses: NOTIFY_ENGINES.map(|engine| EngineStatus::from_bits(status(engine))),
            time: self.word(PtimerReg::PtimerLow),
        });
        findings
    }

    /// Errors of engines, with the channel on each.
    fn engine_errors(&self) -> Vec<Finding> {
        let on = |engine: Engine| {
            let status = self.word(PfifoReg::EngineStatus(u16::from(engine.number())));
            EngineStatus::from_bits(status).channel()
        };
        let mut found = Vec::new();
        for (i, engine) in COPY_ENGINES {
            let error = CopyError {
                intr: self.word(PcopyReg::CopyIntr(i)),
                code: self.word(PcopyReg::CopyError(i)),
                data: self.word(PcopyReg::CopyErrorData(i)),
            };
            if error.intr & copy_intr::DISPATCH != 0 {
                let channel = on(engine);
                found.push(Finding::Copy {
                    engine,
                    channel,
                    error,
                });
            }
        }
        let channel = on(Engine::Graph);
        if self.word(PgraphReg::GraphIntr) & graph_intr::NOTIFY != 0 {
            found.push(Finding::GraphNotify { channel });
        }
        let error = graph_errors::error(|reg| self.word(reg));
        found.extend(error.map(|error| Finding::Graph { channel, error }));
        found
    }

    /// The value that was read, zero if none was.
    fn word(&self, reg: impl Into<Bar0Reg>) -> u32 {
        self.get(reg).unwrap_or(0)
    }

    /// Clears the causes and arms the line again: a source that is still up interrupts anew.
    fn acknowledge(&self, actions: &mut Actions) {
        for engine in NOTIFY_ENGINES {
            let reg = PfifoReg::EngineIntr(u16::from(engine.number()));
            if self.word(reg) != 0 {
                actions.register(reg, self.word(reg));
            }
        }
        if self.word(PfifoReg::FaultUnits) != 0 {
            actions.register(PfifoReg::FaultUnits, self.word(PfifoReg::FaultUnits));
        }
        for i in self.pbdmas() {
            actions.register(PbdmaReg::PbdmaMethod0(i), pbdma::METHOD_NOP);
            actions.register(PbdmaReg::PbdmaIntr(i), self.word(PbdmaReg::PbdmaIntr(i)));
            actions.register(PfifoReg::PbdmaIntrSource, 1 << i);
        }
        for (i, _) in COPY_ENGINES {
            let intr = self.word(PcopyReg::CopyIntr(i));
            if intr != 0 {
                actions.register(PcopyReg::CopyIntrAck(i), intr);
            }
        }
        if self.word(PgraphReg::GraphIntr) & graph_intr::NOTIFY != 0 {
            actions.register(PgraphReg::GraphIntr, graph_intr::NOTIFY);
        }
        if let Some(error) = graph_errors::error(|reg| self.word(reg)) {
            graph_errors::acknowledge(&error, actions);
        }
        let bits = self.word(PfifoReg::PfifoIntr) & !pfifo::intr::LEVELS;
        if bits != 0 {
            actions.register(PfifoReg::PfifoIntr, bits);
        }
        actions.register(PpciReg::PciMsiRearm, ppci::MSI_REARM);
        actions.register(PmcReg::PmcIntrEnable(0), pmc::LINE_HARDWARE);
    }
}
