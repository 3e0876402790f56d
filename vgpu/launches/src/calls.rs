//! Calls of macros: every way that a macro may take, from one parameter to the next.
//!
//! ```text
//!            parameter                            methods that all ways send
//!   Waiting ───────────► ways, each to its next parameter or its end ───────────► Sending ──► Waiting, or the macro has ended
//!                          └─ too many ways or steps, methods that differ ──► Vague: methods that it may send at all
//!                                 └─ any method, code that was not seen, what no source tells of ──► Opaque::Macro
//! ```
//!
//! A branch by a value that is not known goes both ways. Ways that send the same methods are as good as one: where their data
//! differs it is not known. Where this does not do, what counts is which methods the code can send at all, whatever its registers
//! hold and whatever parameters come: what they set is not known then. A look may end while methods are being sent; the next one
//! goes on with them.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::IntoIter;

use fermi_spec::graphics::front_end;
use fermi_spec::methods::{class, host};

use crate::macros::Macros;
use crate::mme::{Machine, Sent, Step};
use crate::observer::{Look, Observer};
use crate::work::Opaque;

/// Work of an instruction of a macro, next to that of a word.
const STEP_WORK: u64 = 2;
/// Most instructions of one call or parameter, of all ways together. Hardware has a bound, too, which no source tells.
const STEPS_MAX: u64 = 0x1000;
/// Most places of code, each with a next method, that a macro can be at whose registers are not known.
const PLACES_MAX: usize = 0x400;
/// Most ways of one call.
const WAYS_MAX: usize = 16;
/// Methods for each macro: a call, and its further parameters.
const METHODS_OF_MACRO: u16 = 8;

/// A macro that was called and has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    caller: Caller,
    /// Ways that wait for a parameter; none: it has ended.
    ways: Vec<Machine>,
    /// All that it may do is told: it may take parameters or have ended.
    is_vague: bool,
    /// Methods that it has still to send.
    sent: IntoIter<Sent>,
}

/// Who called a macro, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Caller {
    subchannel: u16,
    class: u16,
    index: usize,
}

/// One way through a macro, up to where it needs the next parameter.
#[derive(Clone, Debug)]
struct Way {
    machine: Machine,
    parameter: Option<Option<u32>>,
    sent: Vec<Sent>,
    /// What a macro reads of the methods that were sent.
    values: BTreeMap<u16, Option<u32>>,
    has_ended: bool,
}

/// Where all ways have come.
#[derive(Debug)]
struct Reached {
    ways: Vec<Machine>,
    sent: Vec<Sent>,
    has_ended: bool,
}

/// The macro cannot be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lost;

impl Sent {
    /// Whether a macro can bind a class, upload code or call another one is not known.
    fn check(self) -> Result<(), Lost> {
        let methods = host::FIRST_ENGINE_METHOD..front_end::MACRO_CALL;
        let is_plain = methods.contains(&self.method) && !Macros::is_upload(self.method);
        is_plain.then_some(()).ok_or(Lost)
    }
}

/// Methods that macros may send, whatever their registers hold and whatever parameters come. `steps` counts those that it takes.
fn may_send(macros: &Macros, starts: &[Machine], steps: &mut u64) -> Result<BTreeSet<u16>, Lost> {
    let mut open: Vec<Machine> = starts.iter().map(|start| start.forget()).collect();
    let (mut seen, mut methods) = (BTreeSet::new(), BTreeSet::new());
    while let Some(machine) = open.pop() {
        if !seen.insert(machine) {
            continue;
        }
        if seen.len() > PLACES_MAX {
            return Err(Lost);
        }
        let word = macros.code(machine.place()).ok_or(Lost)?;
        for is_zero in [false, true] {
            *steps += 1;
            let mut next = machine.decide(is_zero);
            let (sent, goes_on) = match next.step(word, &mut Some(None), |_| None) {
                Step::Done(sent) => (sent, true),
                Step::Ended(sent) => (sent, false),
                Step::Waiting | Step::Undecided | Step::Lost => return Err(Lost),
            };
            if let Some(sent) = sent {
                sent.check()?;
                methods.insert(sent.method);
            }
            if goes_on {
                open.push(next.forget());
            }
        }
    }
    Ok(methods)
}

impl Way {
    fn new(machine: Machine, parameter: Option<Option<u32>>) -> Self {
        Self {
            machine,
            parameter,
            sent: Vec::new(),
            values: BTreeMap::new(),
            has_ended: false,
        }
    }

    fn send(&mut self, sent: Sent, macros: &Macros) -> Result<(), Lost> {
        sent.check()?;
        let value = macros.read_behind(sent.method, sent.data);
        self.values.insert(sent.method, value);
        self.sent.push(sent);
        Ok(())
    }
}

impl Reached {
    fn of(way: Way) -> Self {
        Self {
            ways: if way.has_ended {
                Vec::new()
            } else {
                vec![way.machine]
            },
            sent: way.sent,
            has_ended: way.has_ended,
        }
    }

    /// What can be told where this or another way is taken.
    fn or(mut self, way: Way) -> Result<Self, Lost> {
        let other = Self::of(way);
        if self.has_ended != other.has_ended || self.sent.len() != other.sent.len() {
            return Err(Lost);
        }
        for (own, sent) in self.sent.iter_mut().zip(other.sent) {
            if own.method != sent.method {
                return Err(Lost);
            }
            own.data = own.data.filter(|data| Some(*data) == sent.data);
        }
        let new = other.ways.into_iter().filter(|way| !self.ways.contains(way));
        let new: Vec<_> = new.collect();
        self.ways.extend(new);
        Ok(self)
    }
}

/// The ways of a macro that are still to be followed.
struct Ways<'a> {
    macros: &'a Macros,
    class: u16,
    open: Vec<Way>,
    count: usize,
    steps: u64,
}

impl<'a> Ways<'a> {
    fn new(macros: &'a Macros, class: u16, starts: &[Machine], parameter: Option<Option<u32>>) -> Self {
        Self {
            macros,
            class,
            open: starts.iter().map(|start| Way::new(*start, parameter)).collect(),
            count: starts.len(),
            steps: 0,
        }
    }

    /// Follows all ways to their next parameter or their end.
    fn follow(&mut self) -> Result<Reached, Lost> {
        let mut reached: Option<Reached> = None;
        while let Some(mut way) = self.open.pop() {
            self.finish(&mut way)?;
            reached = Some(match reached {
                None => Reached::of(way),
                Some(reached) => reached.or(way)?,
            });
        }
        reached.ok_or(Lost)
    }

    fn finish(&mut self, way: &mut Way) -> Result<(), Lost> {
        while !way.has_ended {
            if self.steps == STEPS_MAX {
                return Err(Lost);
            }
            self.steps += 1;
            let word = self.macros.code(way.machine.place()).ok_or(Lost)?;
            let (values, macros, class) = (&way.values, self.macros, self.class);
            let read = |method| {
                let of_way = values.get(&method).filter(|_| class == class::THREED);
                of_way.map_or_else(|| macros.value(class, method), |value| *value)
            };
            let sent = match way.machine.step(word, &mut way.parameter, read) {
                Step::Done(sent) => sent,
                Step::Ended(sent) => {
                    way.has_ended = true;
                    sent
                }
                Step::Waiting => return Ok(()),
                Step::Undecided => {
                    self.fork(way)?;
                    None
                }
                Step::Lost => return Err(Lost),
            };
            if let Some(sent) = sent {
                way.send(sent, self.macros)?;
            }
        }
        // One parameter too many.
        way.parameter.map_or(Ok(()), |_| Err(Lost))
    }

    /// A branch that may go either way.
    fn fork(&mut self, way: &mut Way) -> Result<(), Lost> {
        self.count += 1;
        if self.count > WAYS_MAX {
            return Err(Lost);
        }
        let mut other = way.clone();
        other.machine = way.machine.decide(true);
        self.open.push(other);
        way.machine = way.machine.decide(false);
        Ok(())
    }
}

impl Call {
    /// Whether it has methods to send.
    pub(crate) fn is_sending(&self) -> bool {
        self.sent.len() > 0
    }

    /// Bytes of the host's memory that it takes, about.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.sent.len() * size_of::<Sent>() + self.ways.len() * size_of::<Machine>()
    }
}

impl Observer {
    /// A call of a macro, or a parameter for one.
    pub(crate) fn call_macro(
        &mut self,
        [subchannel, class]: [u16; 2],
        method: u16,
        data: Option<u32>,
        look: &mut Look<'_>,
    ) {
        let data = self.macros.in_effect(method, data);
        let offset = method - front_end::MACRO_CALL;
        let caller = Caller {
            subchannel,
            class,
            index: usize::from(offset / METHODS_OF_MACRO),
        };
        let is_call = offset.is_multiple_of(METHODS_OF_MACRO);
        let starts = match self.call.take() {
            Some(call) if call.is_vague && !is_call && call.caller == caller => {
                self.call = Some(call);
                return;
            }
            None if is_call => self.start(caller, data),
            Some(call) if call.is_vague && is_call => self.start(caller, data),
            Some(call) if !is_call && call.caller == caller => Some((call.ways, Some(data))),
            // A parameter for none, or none for one that waits.
            _ => None,
        };
        let Some((starts, parameter)) = starts else {
            return self.lose_macro(class, look);
        };
        let mut ways = Ways::new(&self.macros, class, &starts, parameter);
        let reached = ways.follow();
        look.spend(ways.steps.saturating_mul(STEP_WORK));
        match reached {
            Ok(reached) => {
                self.call = Some(Call {
                    caller,
                    ways: reached.ways,
                    is_vague: false,
                    sent: reached.sent.into_iter(),
                });
                self.send_methods(look);
            }
            Err(Lost) => self.call_vaguely(caller, &starts, look),
        }
    }

    fn start(&self, caller: Caller, data: Option<u32>) -> Option<(Vec<Machine>, Option<Option<u32>>)> {
        let place = self.macros.start(caller.index)?;
        Some((vec![Machine::start(place, data)], None))
    }

    /// Nobody knows what the macro sends, but perhaps what it may send.
    fn call_vaguely(&mut self, caller: Caller, starts: &[Machine], look: &mut Look<'_>) {
        let mut steps = 0;
        let methods = may_send(&self.macros, starts, &mut steps);
        look.spend(steps.saturating_mul(STEP_WORK));
        let Ok(methods) = methods else {
            return self.lose_macro(caller.class, look);
        };
        for method in methods {
            look.spend(1);
            self.maybe_method(caller.class, method, look);
        }
        self.call = Some(Call {
            caller,
            ways: Vec::new(),
            is_vague: true,
            sent: Vec::new().into_iter(),
        });
    }

    /// Sends the methods of the macro under way.
    pub(crate) fn send_methods(&mut self, look: &mut Look<'_>) {
        while look.left > 0
            && let Some(call) = &mut self.call
            && let Some(Sent { method, data }) = call.sent.next()
        {
            let class = call.caller.class;
            look.spend(1);
            self.class_method(class, method, data, look);
        }
        self.call = self
            .call
            .take()
            .filter(|call| call.is_sending() || call.is_vague || !call.ways.is_empty());
    }

    /// Something came that is no parameter: a macro that waits for one is given up.
    pub(crate) fn end_waiting_macro(&mut self, look: &mut Look<'_>) {
        if let Some(call) = self.call.take()
            && !call.is_vague
        {
            self.lose_macro(call.caller.class, look);
        }
    }

    /// A macro of a class may send, and upload, anything.
    pub(crate) fn lose_macro(&mut self, class: u16, look: &mut Look<'_>) {
        self.call = None;
        self.macros.lose();
        match class {
            class::COMPUTE => self.compute.lose(),
            _ => self.threed.lose(),
        }
        look.opaque(Opaque::Macro, &mut self.pending);
    }
}

#[cfg(test)]
mod tests;
