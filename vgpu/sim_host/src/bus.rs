//! A guest of the simulated host: its code is a coroutine, which runs on a stack of its own while the simulation waits for it.
//!
//! Each request suspends the code until its answer is there, so a run depends on its seed alone, and the change to and
//! fro costs nanoseconds: the kernel knows one thread. RAM is touched directly: nothing else runs meanwhile.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fermi_spec::bar::Bar;
use fermi_spec::pte::Pte;
use guests::GuestBus;
use vgpu::{InterruptKind, Request};
use vm_memory::{MmapRegion, VolatileMemory};

/// Request of a guest to its machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// A load of so many bytes; those beyond eight are lost.
    Read(Bar, u64, usize),
    /// A store of these bytes.
    Write(Bar, u64, Vec<u8>),
    /// The guest waits for a while.
    Relax,
    /// Time on the simulation's clock.
    Now,
    /// A line for its owner.
    Report(String),
    /// Number of interrupts of a kind that were raised for the guest.
    Interrupts(InterruptKind),
    /// The shadow's entry for a virtual address of the guest's one address space: of a large page, or of a small one.
    Entry(u64, bool),
    /// Something that the machine around the guest does to its device.
    Machine(Request),
    /// Several at once, and nobody waits for the answers.
    Post(Vec<Request>),
    /// Words of these channels are said to have changed in memory.
    Ring(Vec<u8>),
    /// The machine asks for windows that are memory.
    MapWindows,
    /// The guest has ended: whether it found everything right.
    Done(Result<(), String>),
}

/// The guest's side: what its code asks by.
pub struct SimBus<'a> {
    simulation: &'a Yielder<u64, Ask>,
    ram: Arc<MmapRegion>,
}

impl SimBus<'_> {
    /// Does not return when the simulation is over first: the guest's stack is unwound then.
    fn call(&mut self, ask: Ask) -> u64 {
        self.simulation.suspend(ask)
    }

    /// A load of any width, for guests that do not behave; bytes beyond eight are lost.
    pub fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64 {
        self.call(Ask::Read(bar, offset, bytes))
    }

    /// Number of interrupts of this kind that were raised for the guest so far.
    pub fn interrupts(&mut self, kind: InterruptKind) -> u64 {
        self.call(Ask::Interrupts(kind))
    }

    /// The shadow's entry for `va`, of a large page or of a small one; 0 if there is none. No real guest sees that.
    pub fn shadow_entry(&mut self, va: u64, is_large: bool) -> Pte {
        Pte::from_bits(self.call(Ask::Entry(va, is_large)))
    }

    /// Has the machine do something to the device, and waits until it is done.
    pub fn machine(&mut self, what: Request) {
        self.call(Ask::Machine(what));
    }

    /// Has the machine send requests at once, for whose answers it does not wait. Windows that it has mapped do not matter.
    pub fn post(&mut self, what: Vec<Request>) {
        self.call(Ask::Post(what));
    }

    /// Has a look at the guest's doorbells find that these channels' have changed, which may be true of none.
    pub fn ring(&mut self, channels: Vec<u8>) {
        self.call(Ask::Ring(channels));
    }

    /// Has the machine ask for windows that are memory, once more if it has them, where the host can do that.
    pub fn map_windows(&mut self) {
        self.call(Ask::MapWindows);
    }

    /// A store of any width.
    pub fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        self.call(Ask::Write(bar, offset, data.to_vec()));
    }
}

/// A guest's way to its device for accesses of any width.
pub trait WideBus: GuestBus {
    /// A load of up to eight bytes; the rest of a longer one is lost.
    fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64;

    /// A store of at most 4096 bytes.
    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]);
}

/// The methods of [`GuestBus`] that one of any width, `WideBus`, has already.
#[macro_export]
macro_rules! narrow_accesses {
    () => {
        fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
            self.read(bar, offset, 4) as u32
        }

        fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
            self.write(bar, offset, &value.to_le_bytes());
        }

        fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
            self.write(bar, offset, &value.to_le_bytes());
        }

        fn ram_read32(&mut self, gpa: u64) -> u32 {
            let mut word = [0; 4];
            self.ram_read(gpa, &mut word);
            u32::from_le_bytes(word)
        }
    };
}

impl WideBus for SimBus<'_> {
    fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64 {
        SimBus::read(self, bar, offset, bytes)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        SimBus::write(self, bar, offset, data);
    }
}

impl GuestBus for SimBus<'_> {
    narrow_accesses!();

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        self.ram
            .get_slice(gpa as usize, data.len())
            .expect("inside of RAM")
            .copy_to(data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.ram
            .get_slice(gpa as usize, data.len())
            .expect("inside of RAM")
            .copy_from(data);
    }

    fn relax(&mut self) {
        self.call(Ask::Relax);
    }

    fn now_ns(&mut self) -> u64 {
        self.call(Ask::Now)
    }

    fn report(&mut self, line: &str) {
        self.call(Ask::Report(line.to_owned()));
    }
}

/// Bytes of a guest's stack.
const STACK_BYTES: usize = 2 << 20;

/// A guest's code, which is resumed with the answer to its last request.
type Code = Coroutine<u64, Ask, Result<(), String>>;

/// The simulation's side of a guest.
pub struct Guest {
    /// Absent once it has ended.
    code: RefCell<Option<Code>>,
    answer: Cell<u64>,
}

impl Guest {
    /// Takes `code` with `ram` as its RAM; it runs up to its first ask when [`Guest::next`] is called.
    ///
    /// # Panics
    /// The host has no room for its stack.
    pub fn start(
        ram: Arc<MmapRegion>,
        code: impl FnOnce(&mut SimBus) -> Result<(), String> + 'static,
    ) -> Self {
        let stack = DefaultStack::new(STACK_BYTES).expect("room for a stack");
        // What is handed over to the new stack is small.
        let code = Box::new(code);
        let code = Coroutine::with_stack(stack, move |simulation: &Yielder<u64, Ask>, _| {
            code(&mut SimBus { simulation, ram })
        });
        Self {
            code: RefCell::new(Some(code)),
            answer: Cell::new(0),
        }
    }

    /// Lets the guest run with the last answer up to its next request. A guest whose code panics has ended with an error.
    pub fn next(&self) -> Ask {
        let mut code = self.code.borrow_mut();
        let went = code.as_mut().map(|code| {
            let answer = self.answer.get();
            catch_unwind(AssertUnwindSafe(|| code.resume(answer)))
        });
        let outcome = match went {
            Some(Ok(CoroutineResult::Yield(ask))) => return ask,
            Some(Ok(CoroutineResult::Return(outcome))) => outcome,
            Some(Err(_)) => Err("the guest's code panicked".to_owned()),
            None => Err("the guest's code has ended".to_owned()),
        };
        *code = None;
        Ask::Done(outcome)
    }

    /// Answers the last request: [`Guest::next`] lets the guest go on with it.
    pub fn answer(&self, value: u64) {
        self.answer.set(value);
    }
}
