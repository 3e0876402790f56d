//! Output of a run: a line for each event, its notices, and the actions in full if they are asked for.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io;

use fermi_spec::bar::Bar;
use fermi_spec::instance::{CHANNELS, USERD_BYTES};
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PRAMIN_BYTES};
use serde::Serialize;
use vgpu::{Action, Event, Request, Tick};

/// Characters of an event that its line shows.
const EVENT_CHARACTERS: usize = 160;

/// How much of a run is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Telling {
    /// The outcome alone; there is no log. A fifth of a run's time would go into its hash.
    Nothing,
    /// The outcome alone; the log is hashed and dropped.
    #[default]
    Outcome,
    /// A line for each event, with a digest of its actions.
    Events,
    /// And a line for each action, registers by name.
    Actions,
}

/// A hash that tells runs of one build apart, and no more. Of all that a run does it took a third to hash it by SHA-256.
#[derive(Clone, Default)]
struct Digest(DefaultHasher);

impl Digest {
    fn add(&mut self, thing: &impl Serialize) {
        serde_json::to_writer(self, thing).expect("events and actions are serializable");
    }

    fn digits(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log so far, or its hash alone.
#[derive(Default)]
pub(super) struct Log {
    pub(super) telling: Telling,
    pub(super) text: String,
    hash: Digest,
    pub(super) events: u64,
}

impl Log {
    pub(super) fn new(telling: Telling) -> Self {
        Self {
            telling,
            ..Self::default()
        }
    }

    /// An event and what it led to.
    pub(super) fn event(&mut self, now: Tick, event: &Event, actions: &[Action]) {
        self.events += 1;
        if self.telling == Telling::Nothing {
            return;
        }
        let (told, done): (Vec<&Action>, Vec<&Action>) = actions
            .iter()
            .partition(|action| matches!(action, Action::Notice(_)));
        let mut digest = Digest::default();
        digest.add(&done);
        let digest = digest.digits();
        self.hash.add(&(now, event, &digest));
        if self.telling == Telling::Outcome {
            return;
        }
        let text = serde_json::to_string(event).expect("events are serializable");
        let line: String = text.chars().take(EVENT_CHARACTERS).collect();
        self.remark(&format!("{:>14} {line} -> {digest}\n", now.0));
        if self.telling == Telling::Actions {
            if let Some(name) = register_of(event) {
                self.remark(&format!("{:>14} {name}\n", "@"));
            }
            for action in done {
                self.remark(&format!("{:>14} {}\n", ">", describe(action)));
            }
        }
        for action in told {
            if let Action::Notice(notice) = action {
                let notice = serde_json::to_string(notice).expect("notices are serializable");
                self.remark(&format!("{:>14} # {notice}\n", now.0));
            }
        }
    }

    /// A line that the hash leaves out.
    pub(super) fn remark(&mut self, line: &str) {
        if matches!(self.telling, Telling::Events | Telling::Actions) {
            self.text.push_str(line);
        }
    }

    /// The text, and the hash of its events and digests.
    pub(super) fn end(self) -> (String, String) {
        (self.text, self.hash.digits())
    }
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The register or window that a guest's access names.
fn register_of(event: &Event) -> Option<String> {
    match event {
        Event::Request {
            request: Request::Read { bar, offset, .. } | Request::Write { bar, offset, .. },
            ..
        } => Some(place(*bar, *offset)),
        _ => None,
    }
}

/// Where an access to a BAR of the card goes.
fn place(bar: Bar, offset: u64) -> String {
    let pramin = u64::from(PRAMIN_BASE)..u64::from(PRAMIN_BASE + PRAMIN_BYTES);
    match bar {
        Bar::Bar0 if pramin.contains(&offset) => format!("PRAMIN+{:#x}", offset - pramin.start),
        Bar::Bar0 => match u32::try_from(offset).ok().and_then(Bar0Reg::decode) {
            Some(register) => format!("{register} ({offset:#08x})"),
            None => format!("BAR0 {offset:#08x}"),
        },
        Bar::Bar1 if offset < CHANNELS as u64 * USERD_BYTES => {
            let (channel, at) = (offset / USERD_BYTES, offset % USERD_BYTES);
            format!("BAR1 {offset:#x} (USERD of channel {channel} +{at:#x})")
        }
        Bar::Bar1 => format!("BAR1 {offset:#x}"),
        Bar::Bar3 => format!("BAR3 {offset:#x}"),
    }
}

/// A word as a number, anything else as bytes in their order.
fn data_text(data: &[u8]) -> String {
    match <[u8; 4]>::try_from(data) {
        Ok(word) => format!("{:#010x}", u32::from_le_bytes(word)),
        Err(_) => format!("{} bytes {}", data.len(), hex(data)),
    }
}

/// An action in a line, registers by name. Actions without a register are printed as in a recording.
fn describe(action: &Action) -> String {
    match action {
        Action::HostWrite { bar, offset, data } => {
            format!("store {} = {}", place(*bar, *offset), data_text(data))
        }
        Action::HostRead {
            token,
            bar,
            offset,
            bytes,
        } => format!("load {}, {bytes} bytes, token {}", place(*bar, *offset), token.0),
        Action::HostPoll {
            token,
            offset,
            mask,
            value,
            timeout_ns,
        } => {
            let register = place(Bar::Bar0, u64::from(*offset));
            let token = token.0;
            format!("poll {register} & {mask:#010x} == {value:#010x} for {timeout_ns} ns, token {token}")
        }
        other => serde_json::to_string(other).expect("actions are serializable"),
    }
}

#[cfg(test)]
mod tests {
    use vgpu::Token;

    use super::*;
    use fermi_spec::regs::{PfifoReg, PflushReg};

    #[test]
    fn actions_name_registers_and_windows() {
        let store = |bar, offset, data: &[u8]| {
            describe(&Action::HostWrite {
                bar,
                offset,
                data: data.to_vec(),
            })
        };
        let preempt = u64::from(PfifoReg::Preempt.offset());
        assert_eq!(
            store(Bar::Bar0, preempt, &[3, 0, 0, 0]),
            format!("store Preempt ({preempt:#08x}) = 0x00000003")
        );
        assert_eq!(
            store(Bar::Bar0, u64::from(PRAMIN_BASE) + 0x20, &[1, 2]),
            "store PRAMIN+0x20 = 2 bytes 0102"
        );
        assert_eq!(
            store(Bar::Bar1, 2 * USERD_BYTES + 0x8c, &[1, 0, 0, 0]),
            format!(
                "store BAR1 {:#x} (USERD of channel 2 +0x8c) = 0x00000001",
                2 * USERD_BYTES + 0x8c
            )
        );
        let poll = Action::HostPoll {
            token: Token(5),
            offset: PflushReg::HostFlush.offset(),
            mask: 2,
            value: 0,
            timeout_ns: 7,
        };
        assert!(
            describe(&poll).starts_with("poll HostFlush ("),
            "{}",
            describe(&poll)
        );
    }

    #[test]
    fn hash_does_not_depend_on_how_much_is_told() {
        let of = |telling| {
            let mut log = Log::new(telling);
            log.event(Tick(3), &Event::Wake, &[Action::WakeAt { at: Tick(9) }]);
            log.end().1
        };
        assert_eq!(of(Telling::Outcome), of(Telling::Actions));
        assert_eq!(of(Telling::Events), of(Telling::Actions));
    }
}
