//! What the card wants, read in one go after an interrupt.

use fermi_spec::addr::PhysAddr;
use fermi_spec::bar::Bar;
use fermi_spec::engine::{Engine, PBDMAS};
use fermi_spec::fault;
use fermi_spec::regs::{Bar0Reg, pfifo, pmc};

use super::lane::Tokens;
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

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// A channel on this engine asked for an interrupt.
    Notify(Engine),
    /// The MMU refused an access.
    Fault(FaultRecord),
    /// A PBDMA stopped: its number, interrupt bits, channel, latched method and data.
    Pbdma {
        pbdma: u8,
        intr: u32,
        channel: u8,
        method: u32,
        data: u32,
    },
    /// An engine's error, and the channel on the engine. PGRAPH: interrupt bits, trapped method, its data; a copy
    /// engine: interrupt bits, error code, its data.
    EngineError {
        engine: Engine,
        intr: u32,
        code: u32,
        data: u32,
        channel: u8,
    },
    /// The scheduler or channel table complains.
    Fifo {
        bits: u32,
        table_code: u32,
        scheduler_code: u32,
    },
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

fn first_registers() -> Vec<Bar0Reg> {
    let mut registers = vec![
        Bar0Reg::PmcIntr(0),
        Bar0Reg::PfifoIntr,
        Bar0Reg::FaultUnits,
        Bar0Reg::PbdmaIntrSource,
        Bar0Reg::ChannelTableError,
        Bar0Reg::SchedulerError,
    ];
    for engine in NOTIFY_ENGINES {
        registers.push(Bar0Reg::EngineIntr(u16::from(engine.number())));
    }
    for engine in NOTIFY_ENGINES {
        registers.extend(error_registers(engine));
        registers.push(Bar0Reg::EngineStatus(u16::from(engine.number())));
    }
    registers
}

/// Interrupt bits, error code and data of an engine.
fn error_registers(engine: Engine) -> [Bar0Reg; 3] {
    match engine {
        Engine::Copy0 => [
            Bar0Reg::CopyIntr(0),
            Bar0Reg::CopyError(0),
            Bar0Reg::CopyErrorData(0),
        ],
        Engine::Copy1 => [
            Bar0Reg::CopyIntr(1),
            Bar0Reg::CopyError(1),
            Bar0Reg::CopyErrorData(1),
        ],
        _ => [
            Bar0Reg::GraphIntr,
            Bar0Reg::GraphTrappedMethod,
            Bar0Reg::GraphTrappedData,
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

    /// Starts, or notes that it must be repeated.
    pub(crate) fn start(&mut self, tokens: &mut Tokens, actions: &mut Actions) {
        if !self.reads.is_empty() {
            self.again = true;
            return;
        }
        self.started += 1;
        actions.register(Bar0Reg::PmcIntrEnable(0), 0);
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

    /// Takes a value. `Some` with what was found when all are in; the sources are then acknowledged.
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

    fn get(&self, reg: Bar0Reg) -> Option<u32> {
        self.reads
            .iter()
            .find(|(_, r, _)| *r == reg)
            .and_then(|(_, _, value)| *value)
    }

    fn units(&self) -> impl Iterator<Item = u8> + use<> {
        let mask = self.get(Bar0Reg::FaultUnits).unwrap_or(0);
        (0..fault::unit::COUNT as u8).filter(move |unit| mask & 1 << unit != 0)
    }

    fn pbdmas(&self) -> impl Iterator<Item = u16> + use<> {
        let mask = self.get(Bar0Reg::PbdmaIntrSource).unwrap_or(0);
        (0..PBDMAS as u16).filter(move |pbdma| mask & 1 << pbdma != 0)
    }

    /// Fault records and PBDMA states that the first look asks for and that are not there yet.
    fn second_registers(&self) -> Vec<Bar0Reg> {
        let mut registers = Vec::new();
        for unit in self.units() {
            registers.extend((0..4).map(|word| Bar0Reg::FaultRecord(u16::from(unit) * 4 + word)));
        }
        for i in self.pbdmas() {
            registers.extend([
                Bar0Reg::PbdmaIntr(i),
                Bar0Reg::PbdmaChannel(i),
                Bar0Reg::PbdmaMethod0(i),
                Bar0Reg::PbdmaData0(i),
            ]);
        }
        registers.retain(|&reg| self.get(reg).is_none());
        registers
    }

    fn findings(&self) -> Vec<Finding> {
        let get = |reg| self.get(reg).unwrap_or(0);
        let mut findings = Vec::new();
        for engine in NOTIFY_ENGINES {
            if get(Bar0Reg::EngineIntr(u16::from(engine.number()))) & 1 != 0 {
                findings.push(Finding::Notify(engine));
            }
        }
        for unit in self.units() {
            let word = |n| get(Bar0Reg::FaultRecord(u16::from(unit) * 4 + n));
            findings.push(Finding::Fault(FaultRecord {
                unit,
                instance: PhysAddr(u64::from(word(0) & 0x0fff_ffff) << 12),
                va: u64::from(word(1)) | u64::from(word(2)) << 32,
                kind: fault::FaultType::from_bits(word(3)),
            }));
        }
        for i in self.pbdmas() {
            findings.push(Finding::Pbdma {
                pbdma: i as u8,
                intr: get(Bar0Reg::PbdmaIntr(i)),
                channel: get(Bar0Reg::PbdmaChannel(i)) as u8 & 0x7f,
                method: get(Bar0Reg::PbdmaMethod0(i)),
                data: get(Bar0Reg::PbdmaData0(i)),
            });
        }
        for engine in NOTIFY_ENGINES {
            let [intr, code, data] = error_registers(engine).map(get);
            if intr & error_bits(engine) != 0 {
                let channel = get(Bar0Reg::EngineStatus(u16::from(engine.number()))) as u8 & 0x7f;
                findings.push(Finding::EngineError {
                    engine,
                    intr,
                    code,
                    data,
                    channel,
                });
            }
        }
        let bits = get(Bar0Reg::PfifoIntr) & !pfifo::intr::LEVELS;
        if bits != 0 {
            findings.push(Finding::Fifo {
                bits,
                table_code: get(Bar0Reg::ChannelTableError),
                scheduler_code: get(Bar0Reg::SchedulerError),
            });
        }
        findings
    }

    /// Clears what was found and arms the line again: a source that is still up interrupts anew.
    fn acknowledge(&self, actions: &mut Actions) {
        let get = |reg| self.get(reg).unwrap_or(0);
        for engine in NOTIFY_ENGINES {
            let reg = Bar0Reg::EngineIntr(u16::from(engine.number()));
            if get(reg) != 0 {
                actions.register(reg, get(reg));
            }
        }
        if get(Bar0Reg::FaultUnits) != 0 {
            actions.register(Bar0Reg::FaultUnits, get(Bar0Reg::FaultUnits));
        }
        for i in self.pbdmas() {
            actions.register(Bar0Reg::PbdmaMethod0(i), pfifo::METHOD_NOP);
            actions.register(Bar0Reg::PbdmaIntr(i), get(Bar0Reg::PbdmaIntr(i)));
            actions.register(Bar0Reg::PbdmaIntrSource, 1 << i);
        }
        for (i, engine) in (0..).zip([Engine::Copy0, Engine::Copy1]) {
            let intr = get(error_registers(engine)[0]);
            if intr != 0 {
                actions.register(Bar0Reg::CopyIntrAck(i), intr);
            }
        }
        if get(Bar0Reg::GraphIntr) != 0 {
            actions.register(Bar0Reg::GraphIntr, get(Bar0Reg::GraphIntr));
        }
        let bits = get(Bar0Reg::PfifoIntr) & !pfifo::intr::LEVELS;
        if bits != 0 {
            actions.register(Bar0Reg::PfifoIntr, bits);
        }
        actions.register(Bar0Reg::PciMsiRearm, 0xff);
        actions.register(Bar0Reg::PmcIntrEnable(0), pmc::LINE_HARDWARE);
    }
}

/// Interrupt bits of an engine that mean that its channel did wrong.
fn error_bits(engine: Engine) -> u32 {
    match engine {
        Engine::Graph => !0,
        _ => COPY_DISPATCH_ERROR,
    }
}

/// Falcon interrupt bit of a dispatch error (nouveau `ce/gt215.c`).
const COPY_DISPATCH_ERROR: u32 = 0x40;
