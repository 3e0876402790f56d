//! A guest without a machine: the driver and workload of the built-in guest program on a thread of this process,
//! with RAM in a memory file as a VM has it, over the same link.
//!
//! A thread cannot be killed. [`ThreadVm::kill`] makes its bus answer all ones and its clock leap, so that every wait
//! of the driver ends at once.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fermi_spec::bar::Bar;
use guests::{GuestBus, Machine, Options};
use rustix::fs::{MemfdFlags, SealFlags};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{GuestSetup, Journal};
use vmm::link::{LinkError, VgpuLink};
use vmm::serial::Reports as _;
use vmm::vm::ports::WaitPort;

/// Address of the first input; the RAM below it is that of a VM's program.
const INPUTS_START: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// How long [`GuestBus::relax`] spins after the last store to the vGPU, as the bare-metal guest does.
const SPIN: Duration = Duration::from_micros(30);
/// First and longest sleep; each turn without a store to the vGPU doubles it.
const SLEEP_MIN: Duration = Duration::from_micros(100);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Why the guest could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// The host lacks a resource.
    #[error("cannot {what}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// RAM cannot be mapped.
    #[error("cannot map {bytes} bytes of RAM")]
    Map {
        /// Size in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: vm_memory::mmap::MmapRegionError,
    },
    /// The files do not fit.
    #[error("the inputs do not fit {ram_bytes} bytes of RAM")]
    InputsTooLarge {
        /// RAM of the guest.
        ram_bytes: u64,
    },
    /// The options cannot be read.
    #[error("{what}")]
    Options {
        /// Message of the guest's parser.
        what: String,
    },
    /// The vGPU refuses the RAM or the interrupt.
    #[error("cannot set up the vGPU")]
    Link(#[from] LinkError),
}

fn cannot(what: &'static str) -> impl FnOnce(io::Error) -> ThreadError {
    move |source| ThreadError::Host { what, source }
}

/// An input in RAM.
struct Placed {
    name: String,
    gpa: u64,
    bytes: u64,
}

/// The parts that move to the thread.
struct Work {
    bus: ThreadBus,
    options: Options,
    inputs: Vec<Placed>,
    /// RAM behind the inputs.
    free: std::ops::Range<u64>,
}

/// State that the thread and its owner share.
struct Shared {
    stop: EventFd,
    is_stopping: AtomicBool,
    end: Mutex<Option<Result<(), String>>>,
}

/// A guest on a thread. Dropping it stops it.
pub struct ThreadVm {
    name: String,
    work: Option<Work>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadVm {
    pub(super) fn build(
        setup: &GuestSetup,
        link: Arc<dyn VgpuLink>,
        journal: Arc<Journal>,
    ) -> Result<ThreadVm, ThreadError> {
        let options = Options::parse(&setup.options);
        let options = options.map_err(|error| ThreadError::Options {
            what: error.to_string(),
        })?;
        let (file, ram) = create_ram(setup.ram_bytes)?;
        let too_large = || ThreadError::InputsTooLarge {
            ram_bytes: setup.ram_bytes,
        };
        let mut next = INPUTS_START;
        let mut inputs = Vec::new();
        for input in setup.inputs.iter() {
            let end = next
                .checked_add(input.bytes())
                .filter(|end| *end <= setup.ram_bytes);
            let end = end.ok_or_else(too_large)?;
            ram.as_volatile_slice()
                .write_slice(input.data(), next as usize)
                .map_err(|_| too_large())?;
            inputs.push(Placed {
                name: input.name().to_owned(),
                gpa: next,
                bytes: input.bytes(),
            });
            next = end.next_multiple_of(PAGE_BYTES);
        }
        let interrupt = EventFd::new(EFD_NONBLOCK).map_err(cannot("create an eventfd"))?;
        let stop = EventFd::new(EFD_NONBLOCK).map_err(cannot("create an eventfd"))?;
        link.dma_map(0, setup.ram_bytes, file.as_fd(), 0)?;
        link.set_msi(&interrupt)?;
        let wait = WaitPort::new(
            interrupt,
            stop.try_clone().map_err(cannot("clone an eventfd"))?,
            link.clone(),
        );
        let shared = Arc::new(Shared {
            stop,
            is_stopping: AtomicBool::new(false),
            end: Mutex::new(None),
        });
        let bus = ThreadBus {
            link,
            ram,
            wait,
            journal,
            shared: shared.clone(),
            start: Instant::now(),
            last_store: Instant::now(),
            sleep: SLEEP_MIN,
            failure: None,
        };
        let free = next.next_multiple_of(INPUTS_START)..setup.ram_bytes;
        let work = Work {
            bus,
            options,
            inputs,
            free,
        };
        Ok(ThreadVm {
            name: setup.name.clone(),
            work: Some(work),
            shared,
            thread: None,
        })
    }

    pub(super) fn start(&mut self) -> Result<(), ThreadError> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        let shared = self.shared.clone();
        let body = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| run(work)));
            let outcome = outcome.unwrap_or_else(|_| Err("the driver or workload panicked".to_owned()));
            *shared.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        let thread = thread::Builder::new()
            .name(format!("{}/guest", self.name))
            .spawn(body);
        self.thread = Some(thread.map_err(cannot("start a thread"))?);
        Ok(())
    }

    pub(super) fn end(&self) -> Option<Result<(), String>> {
        self.shared
            .end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn kill(&self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // A full counter is readable too.
        let _ = self.shared.stop.write(1);
    }
}

impl Drop for ThreadVm {
    fn drop(&mut self) {
        self.kill();
        if let Some(thread) = self.thread.take() {
            // Its panics were caught and are its end.
            let _ = thread.join();
        }
    }
}

fn create_ram(bytes: u64) -> Result<(File, Arc<MmapRegion>), ThreadError> {
    let create = || -> io::Result<File> {
        let fd =
            rustix::fs::memfd_create("vramd-guest-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(fd);
        file.set_len(bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    };
    let file = create().map_err(cannot("create guest RAM"))?;
    let mapped = FileOffset::new(file.try_clone().map_err(cannot("clone a descriptor"))?, 0);
    let region = MmapRegion::from_file(mapped, bytes as usize);
    let region = region.map_err(|source| ThreadError::Map { bytes, source })?;
    Ok((file, Arc::new(region)))
}

fn run(work: Work) -> Result<(), String> {
    let Work {
        mut bus,
        options,
        inputs,
        free,
    } = work;
    let inputs: Vec<_> = inputs
        .iter()
        .map(|input| guests::Input {
            name: &input.name,
            gpa: input.gpa,
            bytes: input.bytes,
        })
        .collect();
    // Memory of this process stands for RAM that a VM's program would use; in the memory file its pages stay untouched.
    let (dma, scratch) = guests::split_ram(free, &options);
    let mut scratch = vec![0; (scratch.end - scratch.start) as usize / 4];
    let outcome = guests::run(
        &mut bus,
        Machine {
            dma,
            scratch: &mut scratch,
            inputs: &inputs,
            options,
        },
    );
    if let Some(failure) = bus.failure {
        return Err(failure);
    }
    if bus.shared.is_stopping.load(Ordering::SeqCst) {
        return Err("the guest was killed".to_owned());
    }
    match outcome {
        Ok(summary) if summary.is_ok() => Ok(()),
        Ok(_) => Err("the workload found wrong bytes".to_owned()),
        Err(error) => Err(format!("the workload failed: {error}")),
    }
}

/// The machine as the driver sees it.
struct ThreadBus {
    link: Arc<dyn VgpuLink>,
    ram: Arc<MmapRegion>,
    wait: WaitPort,
    journal: Arc<Journal>,
    shared: Arc<Shared>,
    start: Instant,
    last_store: Instant,
    sleep: Duration,
    /// Why the link failed, if it did. From then on no access is answered.
    failure: Option<String>,
}

impl ThreadBus {
    fn is_dead(&self) -> bool {
        self.failure.is_some() || self.shared.is_stopping.load(Ordering::SeqCst)
    }

    /// Records a failure of the link; `false` if the access was not answered.
    fn check(&mut self, outcome: Result<(), LinkError>) -> bool {
        match outcome {
            Ok(()) => true,
            Err(LinkError::Refused { .. }) => false,
            Err(error) => {
                let mut failure = String::new();
                // Writing to a `String` cannot fail.
                let _ = super::write_chain(&mut failure, &error);
                self.failure = Some(failure);
                false
            }
        }
    }

    fn store(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        if !self.is_dead() {
            let outcome = self.link.region_write(bar.number(), offset, data);
            self.check(outcome);
        }
        self.last_store = Instant::now();
        self.sleep = SLEEP_MIN;
    }

    /// RAM from `gpa` on; `None` where the range leaves it.
    fn slice(&self, gpa: u64, bytes: usize) -> Option<VolatileSlice<'_>> {
        self.ram.get_slice(usize::try_from(gpa).ok()?, bytes).ok()
    }
}

impl GuestBus for ThreadBus {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut word = [0; 4];
        if self.is_dead() {
            return u32::MAX;
        }
        let outcome = self.link.region_read(bar.number(), offset, &mut word);
        if self.check(outcome) {
            u32::from_le_bytes(word)
        } else {
            u32::MAX
        }
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.store(bar, offset, &value.to_le_bytes());
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.store(bar, offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        match self.slice(gpa, data.len()) {
            Some(slice) => drop(slice.copy_to(data)),
            None => data.fill(0xff),
        }
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        if let Some(slice) = self.slice(gpa, data.len()) {
            slice.copy_from(data);
        }
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let word = self
            .slice(gpa, 4)
            .and_then(|slice| slice.load(0, Ordering::Acquire).ok());
        word.unwrap_or(u32::MAX)
    }

    fn relax(&mut self) {
        if self.is_dead() {
            return;
        }
        if self.last_store.elapsed() < SPIN {
            thread::yield_now();
        } else {
            self.wait.wait(self.sleep);
            self.sleep = (2 * self.sleep).min(SLEEP_MAX);
        }
    }

    fn now_ns(&mut self) -> u64 {
        // A time far beyond any wait, once no access is answered.
        let leap = if self.is_dead() { 1 << 62 } else { 0 };
        leap + self.start.elapsed().as_nanos() as u64
    }

    fn report(&mut self, line: &str) {
        self.journal.report(line);
    }
}
