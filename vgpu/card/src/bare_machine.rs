//! A bare card as the machine of a guest's code, without a broker and without a VM.
//!
//! Everything runs on the caller's thread: the card works while the code waits. The clock of the code's waits is not
//! the card's, whose own time is that of its timing alone. Once the card is idle, no wait is answered any more, so the
//! clock leaps beyond all of them.

use std::time::{Duration, Instant};

use fermi_model::{BareCard, Stepped};
use fermi_spec::bar::Bar;
use guests::GuestBus;
use vm_memory::{Bytes as _, VolatileMemory as _};

/// Work units of the card in a turn of waiting code, unless somebody looks at the card more often.
const WORK_PER_TURN: u32 = 4096;
/// Nanoseconds that a turn counts for.
const TURN_NS: u64 = 1_000;
/// More than any wait of a driver.
const LEAP_NS: u64 = 1 << 60;

/// The card, whose system memory is the guest's RAM from address 0 on, and what the code did.
pub struct BareMachine {
    /// The card and its memory.
    pub card: BareCard,
    /// Asked at each turn whether to give up; then all waits end.
    pub is_stop_requested: Box<dyn Fn() -> bool>,
    /// Called with the card at each line that the code reports.
    pub on_line: fn(&mut BareCard, &str),
    /// Work units of the card in a turn of waiting code.
    pub work_per_turn: u32,
    /// Lines that the code reported.
    pub lines: Vec<String>,
    /// Interrupts that the card raised.
    pub interrupts: u32,
    /// What the card's turns took the host.
    pub card_time: Duration,
    /// Whether the code was told to give up.
    pub is_stopped: bool,
    now_ns: u64,
    /// Turns in a row in which the card had nothing to do.
    idle_turns: u32,
}

impl BareMachine {
    /// A machine that nobody stops.
    pub fn new(card: BareCard) -> Self {
        Self {
            card,
            is_stop_requested: Box::new(|| false),
            on_line: |_, _| (),
            work_per_turn: WORK_PER_TURN,
            lines: Vec::new(),
            interrupts: 0,
            card_time: Duration::ZERO,
            is_stopped: false,
            now_ns: 0,
            idle_turns: 0,
        }
    }

    /// Somebody has answered what the card waited for: it has something to do again, and the code waits on.
    pub fn card_was_answered(&mut self) {
        self.idle_turns = 0;
    }
}

/// RAM that does not exist reads as ones and drops stores.
impl GuestBus for BareMachine {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.card.model.bar_read(bar, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.card.model.bar_write(bar, offset, &value.to_le_bytes());
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.card.model.bar_write(bar, offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        match self.card.ram.get_slice(gpa as usize, data.len()) {
            Ok(slice) => drop(slice.copy_to(data)),
            Err(_) => data.fill(0xff),
        }
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        if let Ok(slice) = self.card.ram.get_slice(gpa as usize, data.len()) {
            slice.copy_from(data);
        }
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let word = self.card.ram.as_volatile_slice().read_obj(gpa as usize);
        word.unwrap_or(u32::MAX)
    }

    fn relax(&mut self) {
        self.now_ns = self.now_ns.wrapping_add(TURN_NS);
        let start = Instant::now();
        let stepped = self.card.model.step(0, self.work_per_turn);
        self.card_time += start.elapsed();
        self.interrupts += u32::from(self.card.model.take_interrupt());
        self.idle_turns = match stepped {
            Stepped::Busy => 0,
            Stepped::Waiting | Stepped::Idle => self.idle_turns + 1,
        };
        self.is_stopped |= (self.is_stop_requested)();
        if self.idle_turns > 1 || self.is_stopped {
            self.now_ns = self.now_ns.wrapping_add(LEAP_NS);
        }
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        (self.on_line)(&mut self.card, line);
    }
}
