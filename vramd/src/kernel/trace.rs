//! The instructions of one warp, with their results.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use fermi_model::{WarpStep, WarpWatcher};
use fermi_spec::isa::{Opcode, Predicate, Register};
use serde::Serialize;

const LANES: usize = 32;

/// Parameters of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TraceChoice {
    /// Block by its number, x fastest, and warp of it.
    pub(crate) block: u64,
    pub(crate) warp: u32,
    /// One lane's results instead of all.
    pub(crate) lane: Option<u8>,
    /// Most lines of the trace.
    pub(crate) lines_max: usize,
}

/// An instruction of the traced warp.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct TraceLine {
    /// Bytes from the start of the code.
    pc: u32,
    /// Masks of lanes: active, and let through by the guard.
    active: String,
    executed: String,
    text: String,
    /// Registers, predicates and flags that it wrote.
    results: String,
    /// The grid ended at this instruction.
    stopped: bool,
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x} {}", self.pc, self.active)?;
        if self.executed == self.active {
            write!(f, "         ")?;
        } else {
            write!(f, "/{}", self.executed)?;
        }
        let stopped = if self.stopped { "  STOPPED" } else { "" };
        if self.results.is_empty() {
            write!(f, "  {}{stopped}", self.text)
        } else {
            write!(f, "  {:<44}  {}{stopped}", self.text, self.results)
        }
    }
}

/// Results of a trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) lines: Vec<TraceLine>,
    /// Instructions of the warp beyond the limit.
    pub(crate) left_out: u64,
}

/// Collects the lines of one warp.
pub(super) struct Tracer {
    choice: TraceChoice,
    grid: [u32; 3],
    trace: Arc<Mutex<Trace>>,
}

impl Tracer {
    /// A tracer of a grid, and the receiver of its lines.
    pub(super) fn new(choice: TraceChoice, grid: [u32; 3]) -> (Self, Arc<Mutex<Trace>>) {
        let trace = Arc::new(Mutex::new(Trace::default()));
        let tracer = Self {
            choice,
            grid,
            trace: Arc::clone(&trace),
        };
        (tracer, trace)
    }
}

impl WarpWatcher for Tracer {
    fn see(&mut self, step: &WarpStep<'_>) {
        let [x, y, z] = step.block.map(u64::from);
        let [columns, rows, _] = self.grid.map(u64::from);
        if step.warp != self.choice.warp || x + columns * (y + rows * z) != self.choice.block {
            return;
        }
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        if trace.lines.len() >= self.choice.lines_max {
            trace.left_out += 1;
            return;
        }
        trace.lines.push(TraceLine {
            pc: step.pc,
            active: format!("{:08x}", step.active),
            executed: format!("{:08x}", step.executed),
            text: step.instruction.at(step.pc).to_string(),
            results: results(step, self.choice.lane),
            stopped: step.is_stop,
        });
    }
}

/// Results of the instruction, in all lanes that executed it or in one.
fn results(step: &WarpStep<'_>, lane: Option<u8>) -> String {
    if step.is_stop {
        return String::new();
    }
    let lanes = match lane {
        Some(lane) => step.executed & 1 << (lane & 31),
        None => step.executed,
    };
    if lanes == 0 {
        return String::new();
    }
    let mut parts = Vec::new();
    if let Some((first, count)) = step.instruction.result() {
        for number in (first.0..).take(count as usize) {
            let values = step.register(Register(number));
            parts.push(format!("$r{number}={}", compact(values, lanes)));
        }
    }
    let mask = |holds: u32| match lane {
        Some(_) => u32::from(holds & lanes != 0).to_string(),
        None => format!("{:08x}", holds & lanes),
    };
    let flags: [u32; LANES] = std::array::from_fn(|lane| step.flags(lane));
    if step.instruction.opcode() == Opcode::R2p {
        parts.push(format!("$flags={}", compact(&flags, lanes)));
    }
    for predicate in step.instruction.result_predicates() {
        let Predicate(number) = predicate;
        parts.push(format!("$p{number}={}", mask(step.predicate(predicate))));
    }
    if step.instruction.sets_flags() {
        for (name, bit) in [("z", 12), ("s", 13), ("c", 14), ("o", 15)] {
            let holds = (0..LANES).fold(0, |all, lane| all | (flags[lane] >> bit & 1) << lane);
            parts.push(format!("$c.{name}={}", mask(holds)));
        }
    }
    parts.join(" ")
}

/// The values of lanes, ascending: one, `first+step*lane`, or runs.
fn compact(values: &[u32; LANES], lanes: u32) -> String {
    let taken: Vec<(u32, u32)> = (0..LANES)
        .filter(|lane| lanes >> lane & 1 != 0)
        .map(|lane| (lane as u32, values[lane]))
        .collect();
    let Some(((first_lane, first), rest)) = taken.split_first() else {
        return String::new();
    };
    if rest.iter().all(|(_, value)| value == first) {
        return format!("{first:08x}");
    }
    // A step that gives one value to each lane, if there is one.
    if let Some((lane, value)) = rest.first()
        && lane - first_lane == 1
    {
        let step = value.wrapping_sub(*first);
        let origin = first.wrapping_sub(step.wrapping_mul(*first_lane));
        if taken
            .iter()
            .all(|(lane, value)| origin.wrapping_add(step.wrapping_mul(*lane)) == *value)
        {
            return format!("{origin:08x}+{step:x}*lane");
        }
    }
    let mut text = String::from("[");
    let mut at = 0;
    while at < taken.len() {
        let value = taken[at].1;
        let run = taken[at..]
            .iter()
            .take_while(|(_, other)| *other == value)
            .count();
        let space = if at == 0 { "" } else { " " };
        // A String takes everything.
        let _ = match run {
            1 => write!(text, "{space}{value:x}"),
            _ => write!(text, "{space}{value:x}x{run}"),
        };
        at += run;
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_in_the_shortest_form() {
        let of =
            |value: fn(u32) -> u32, lanes| compact(&std::array::from_fn(|lane| value(lane as u32)), lanes);
        assert_eq!(of(|_| 7, u32::MAX), "00000007");
        assert_eq!(of(|lane| 0x100 + 4 * lane, u32::MAX), "00000100+4*lane");
        assert_eq!(of(|lane| 0x100 + 4 * lane, 0xf0), "00000100+4*lane");
        assert_eq!(of(|lane| lane / 3, 0x7f), "[0x3 1x3 2]");
        assert_eq!(of(|lane| lane * lane, 0xf), "[0 1 4 9]");
        assert_eq!(of(|lane| lane, 1 << 5), "00000005");
    }
}
