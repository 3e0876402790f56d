//! The contents of the rings, in order: for a file, and as text.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::happened::Happened;
use crate::event::{Tick, VmId};
use crate::notice::Notice;

/// Content of a line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Told {
    /// An event or an action.
    Happened(Happened),
    /// A notice of the core.
    Notice {
        /// The notice as the core gave it.
        #[serde(rename = "Notice")]
        notice: Notice,
    },
    /// A remark of the edge itself.
    Remark {
        /// The remark, without the ends of lines.
        #[serde(rename = "Remark")]
        text: String,
    },
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The clock when its event was applied, nanoseconds since the edge started.
    pub now: Tick,
    /// Number of its event, from 1.
    pub event: u64,
    /// The event, action, notice or remark.
    pub told: Told,
    /// Name of the register that it concerns, for readers of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register: Option<String>,
}

impl Line {
    pub(super) fn new(now: Tick, event: u64, told: Told) -> Self {
        let register = match &told {
            Told::Happened(happened) => happened.register(),
            Told::Notice { .. } | Told::Remark { .. } => None,
        };
        Self {
            now,
            event,
            told,
            register: register.map(|register| register.to_string()),
        }
    }

    /// Whether it concerns that VM. An entry that concerns no VM in particular concerns none.
    pub fn is_about(&self, vm: VmId) -> bool {
        match &self.told {
            Told::Happened(happened) => happened.vm() == Some(vm),
            Told::Notice { notice } => notice.vm() == Some(vm),
            Told::Remark { .. } => false,
        }
    }
}

impl fmt::Display for Line {
    /// The clock in milliseconds, the event's number, then the entry; actions of an event are indented.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (milliseconds, rest) = (self.now.0 / 1_000_000, self.now.0 % 1_000_000);
        write!(f, "{milliseconds:>8}.{rest:06} {:>8} ", self.event)?;
        match &self.told {
            Told::Happened(happened) if happened.is_action() => write!(f, "  {happened}"),
            Told::Happened(happened) => happened.fmt(f),
            Told::Notice { notice } => write!(f, "  # {notice:?}"),
            Told::Remark { text } => write!(f, "  ! {text}"),
        }
    }
}

/// The last things that happened, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Flight {
    /// Each event, followed by its actions.
    pub lines: Vec<Line>,
}

impl Flight {
    /// At most the last `count` lines, as text.
    pub fn last_as_text(&self, count: usize) -> String {
        let last = &self.lines[self.lines.len().saturating_sub(count)..];
        last.iter().map(|line| format!("{line}\n")).collect()
    }
}

impl fmt::Display for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
