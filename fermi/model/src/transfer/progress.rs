//! How far a transfer is, apart from what it is.

use super::{Elements, Transfer};

/// The method that started a transfer. With the registers of the context it says all of it but how far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Launching {
    pub(crate) subchannel: u8,
    pub(crate) method: u16,
    pub(crate) data: u32,
}

/// How far a transfer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// Elements that are done, of all lines.
    pub(crate) elements: u64,
    /// Its condition was read.
    pub(crate) is_decided: bool,
    /// Nothing is left to move.
    pub(crate) is_finished: bool,
    /// Of a fill of two targets, the second one is filled.
    pub(crate) in_second: bool,
}

impl Transfer {
    pub(crate) fn launched_by(self, launching: Launching) -> Self {
        Self { launching, ..self }
    }

    /// How far it is.
    pub(crate) fn progress(mut self) -> Progress {
        self.go_on();
        Progress {
            elements: u64::from(self.line) * self.line_elements + self.done,
            is_decided: self.condition.is_none(),
            is_finished: self.is_finished(),
            in_second: self.in_second,
        }
    }

    /// The same transfer, as far as another one like it was. What an image says that nobody saved may be anything: beyond the end there is
    /// nothing to move.
    pub(crate) fn at(mut self, progress: Progress) -> Self {
        if let (true, Elements::Filled(_, Some(_))) = (progress.in_second, self.elements) {
            self.line = self.lines;
            self.go_on();
        }
        if progress.is_decided {
            self.condition = None;
        }
        let line = progress.elements.checked_div(self.line_elements);
        let line = line.and_then(|line| u32::try_from(line).ok());
        match line.filter(|line| *line < self.lines && !progress.is_finished) {
            Some(line) => Self {
                line,
                done: progress.elements % self.line_elements,
                ..self
            },
            None => self.without_lines(),
        }
    }
}
