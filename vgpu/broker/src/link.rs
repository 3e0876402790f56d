//! A VM in this process: function calls instead of a socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use fermi_spec::instance::{CHANNELS, USERD_BYTES};
use fermi_spec::regs::pieces::runs;
use vfio_user_server::RegionMemory;
use vgpu::{ACCESS_BYTES_MAX, Denial, InterruptKind, Refusal, Reply, Request, RequestId, VmConfig};
use vmm_sys_util::eventfd::EventFd;

use crate::broker::Shared;
use crate::error::{AttachError, LinkError};
use crate::image::WindowFile;
use crate::mapping::MapError;
use crate::memory::{FileMap, RamMap};
use crate::pci_function::window_part;
use crate::perform::Performer;
use crate::port::VmPort;
use crate::sigbus::MapOwner;
use crate::vms::Attachment;

/// Longest wait for an answer, as long as QEMU waits for a message's.
pub(crate) const ANSWER_SECONDS_MAX: u64 = 5;

const ANSWER_MAX: Duration = Duration::from_secs(ANSWER_SECONDS_MAX);

#[derive(Debug, Default)]
struct Locked {
    /// Requests on their way, and their answers once they are there.
    answers: BTreeMap<RequestId, Option<Reply>>,
    attached: Option<Result<(), Denial>>,
    expelled: Option<String>,
    is_detached: bool,
    /// Number of threads in `wait`: without any, no wake-up is needed.
    waiting: usize,
    interrupt: Option<EventFd>,
    /// The guest lets interrupts through.
    is_interrupt_enabled: bool,
    /// An interrupt was raised before it could be signalled.
    is_interrupt_held: bool,
    /// Signalled when the guest has not rung for some time.
    quiet: Option<EventFd>,
}

/// The broker's side of a [`LocalLink`].
#[derive(Debug, Default)]
struct LocalPort {
    state: Mutex<Locked>,
    changed: Condvar,
}

impl LocalPort {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        // Every change is a single insertion or assignment, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Locked)) {
        let mut state = self.lock();
        change(&mut state);
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until `done` gives a value. `None` if it does not within the bound.
    fn wait<T>(&self, mut done: impl FnMut(&mut Locked) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        if let Some(result) = done(&mut state) {
            return Some(result);
        }
        let deadline = Instant::now() + ANSWER_MAX;
        state.waiting += 1;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            let result = done(&mut state);
            if result.is_some() || left.is_zero() {
                state.waiting -= 1;
                return result;
            }
        }
    }
}

impl VmPort for LocalPort {
    fn attached(&self, outcome: Result<(), Denial>) {
        self.change(|state| state.attached = Some(outcome));
    }

    fn reply(&self, request: RequestId, reply: Reply) {
        self.change(|state| {
            // A caller that gave up waiting took its entry along.
            if let Some(answer) = state.answers.get_mut(&request) {
                *answer = Some(reply);
            }
        });
    }

    fn interrupt(&self, kind: InterruptKind) {
        match kind {
            InterruptKind::Msi => self.change(Locked::raise),
            // Nobody on this side asks to unmask it, so it does not come.
            InterruptKind::Intx => {}
        }
    }

    fn quiet(&self) {
        // A full counter says the same.
        self.lock().quiet.iter().for_each(|quiet| drop(quiet.write(1)));
    }

    fn let_interrupts(&self, through: bool) {
        self.change(|state| {
            state.is_interrupt_enabled = through;
            state.raise_held();
        });
    }

    fn expelled(&self, reason: &str) {
        self.change(|state| state.expelled = Some(reason.to_owned()));
    }

    fn detached(&self) {
        self.change(|state| state.is_detached = true);
    }
}

impl Locked {
    fn raise(&mut self) {
        // A full counter means that interrupts wait to be fetched already.
        self.is_interrupt_held = match &self.interrupt {
            Some(interrupt) if self.is_interrupt_enabled => {
                let _ = interrupt.write(1);
                false
            }
            _ => true,
        };
    }

    fn raise_held(&mut self) {
        if self.is_interrupt_held {
            self.raise();
        }
    }
}

/// A vGPU of a VM in this process. Dropping it detaches the VM.
///
/// Calls may come from several threads; each waits for its own answer, at most 5 seconds. Interrupts are signalled once
/// the guest lets them through by the configuration space.
#[derive(Debug)]
pub struct LocalLink {
    shared: Arc<Shared>,
    port: Arc<LocalPort>,
    attachment: Attachment,
    owner: MapOwner,
    /// Name of the VM.
    name: String,
    /// The file behind BAR1, BAR3 and PRAMIN, once somebody asked for it.
    windows: Mutex<Option<WindowFile>>,
}

impl LocalLink {
    pub(crate) fn attach(shared: Arc<Shared>, config: VmConfig) -> Result<Self, AttachError> {
        let port = Arc::new(LocalPort::default());
        let owner = MapOwner::new(shared.torn.clone(), shared.reaper.clone());
        let name = config.name.clone();
        let window_bytes = match shared.lets_windows {
            true => shared.bars.windows().bytes(),
            false => 0,
        };
        let attachment = shared
            .lock()?
            .attach(port.clone(), config, shared.reaper.clone(), window_bytes)?;
        let link = Self {
            shared,
            port,
            attachment,
            owner,
            name,
            windows: Mutex::default(),
        };
        // On failure `link` is dropped, and the VM leaves if it was coming.
        let outcome = link.port.wait(|state| {
            let told = state.attached.clone();
            let told = told.map(|outcome| outcome.map_err(AttachError::Denied));
            let reason = || state.expelled.clone().unwrap_or_default();
            let gone = || Err(AttachError::Expelled { reason: reason() });
            told.or_else(|| state.is_detached.then(gone))
        });
        match outcome {
            Some(Ok(())) => Ok(link),
            Some(Err(error)) => {
                link.shared.check_running()?;
                Err(error)
            }
            None => {
                link.shared.check_running()?;
                Err(AttachError::Timeout)
            }
        }
    }

    /// Memory that may be mapped in the place of a part of a BAR, if the card lets that be. What the BAR shows lives there from then on.
    pub fn bar_memory(&self, bar: Bar) -> Result<Option<RegionMemory>, LinkError> {
        if !self.shared.lets_windows {
            return Ok(None);
        }
        let part = window_part(self.shared.bars, bar);
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.is_none() {
            let file = WindowFile::new(&self.name, self.shared.bars.windows()).map_err(MapError::File)?;
            let mut performer = self.shared.lock()?;
            performer.let_windows(self.attachment, file.clone(), &self.owner);
            *windows = Some(file);
        }
        let Some(file) = &*windows else { return Ok(None) };
        let descriptor = file.file.try_clone().map_err(MapError::File)?.into();
        Ok(Some(RegionMemory {
            descriptor,
            parts: vec![part],
        }))
    }

    /// Loads from a BAR. Longer loads than [`ACCESS_BYTES_MAX`] are done in pieces.
    pub fn read(&self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        self.load(offset, data, |offset, bytes| Request::Read { bar, offset, bytes })
    }

    fn load(
        &self,
        offset: u64,
        data: &mut [u8],
        request: impl Fn(u64, u32) -> Request,
    ) -> Result<(), LinkError> {
        for (offset, range) in runs(offset, data.len(), ACCESS_BYTES_MAX) {
            let part = &mut data[range];
            match self.call(request(offset, part.len() as u32))? {
                // An answer of another length would be a mistake of the core; the bytes that came are passed on.
                Reply::Data(bytes) => part.iter_mut().zip(bytes).for_each(|(to, from)| *to = from),
                Reply::Done => part.fill(0xff),
                Reply::Refused(refusal) => return Err(refusal.into()),
            }
        }
        Ok(())
    }

    /// Stores to a BAR. Longer stores than [`ACCESS_BYTES_MAX`] are done in pieces.
    pub fn write(&self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        self.store(offset, data, |offset, data| Request::Write { bar, offset, data })
    }

    fn store(
        &self,
        offset: u64,
        data: &[u8],
        request: impl Fn(u64, Vec<u8>) -> Request,
    ) -> Result<(), LinkError> {
        for (offset, range) in runs(offset, data.len(), ACCESS_BYTES_MAX) {
            self.done(request(offset, data[range].to_vec()))?;
        }
        Ok(())
    }

    /// Lets the vGPU reach `bytes` of a memory file from `offset` at `gpa`.
    pub fn map_ram(
        &self,
        gpa: Gpa,
        bytes: u64,
        memory: OwnedFd,
        offset: u64,
        writable: bool,
    ) -> Result<(), LinkError> {
        let file = Arc::new(File::from(memory));
        let file = Arc::new(FileMap::new(file, offset, bytes, writable, &self.owner)?);
        let map = RamMap::new(file, offset, bytes, writable)?;
        let issue = |performer: &mut Performer, id| performer.map_ram(self.attachment, id, gpa, map);
        done(self.wait_for(issue)?)
    }

    /// Takes a range back. When this returns, nothing reaches it any more.
    pub fn unmap_ram(&self, gpa: Gpa, bytes: u64) -> Result<(), LinkError> {
        self.done(Request::UnmapRam { gpa, bytes })
    }

    /// The guest rests, to wait for its work: doorbells that it has stored to memory are looked for now, and not when the broker would by
    /// itself.
    pub fn guest_rests(&self) {
        // One that has ended looks for none.
        if let Ok(mut performer) = self.shared.lock() {
            performer.guest_rests(self.attachment);
        }
    }

    /// Signals `quiet` from now on whenever the guest has not rung for some time, because its VMM can make its stores to doorbells trap.
    /// `false` if no doorbells lie in memory.
    pub fn let_doorbells_trap(&self, quiet: EventFd) -> bool {
        let Some(mut performer) = self.shared.lock().ok().filter(|_| self.shared.lets_windows) else {
            return false;
        };
        self.port.lock().quiet = Some(quiet);
        performer.let_trap(self.attachment);
        true
    }

    /// Place in BAR1 and length in bytes of the doorbells, if they lie in memory that is looked at.
    pub fn doorbells(&self) -> Option<(u64, u64)> {
        let performer = self.shared.lock().ok()?;
        let place = performer.doorbells_at(self.attachment)?;
        Some((place, CHANNELS as u64 * USERD_BYTES))
    }

    /// The guest's stores to the doorbells at this place of BAR1 trap, and are not looked for from now on. `false` if that is of no use now: they
    /// have to be let through.
    pub fn arm_doorbells(&self, place: u64) -> bool {
        let armed = self.shared.lock();
        armed.is_ok_and(|mut performer| performer.arm_doorbells(self.attachment, place))
    }

    /// A store to the doorbells has trapped, and is let through now.
    pub fn doorbell_stored(&self) {
        if let Ok(mut performer) = self.shared.lock() {
            performer.doorbell_stored(self.attachment);
        }
    }

    /// Resets the device, its configuration space included.
    pub fn reset(&self) -> Result<(), LinkError> {
        self.done(Request::Reset)
    }

    /// Signals `interrupt` from now on. One that was raised before this call is signalled as soon as the guest lets it.
    pub fn set_interrupt(&self, interrupt: EventFd) {
        let mut state = self.port.lock();
        state.interrupt = Some(interrupt);
        state.raise_held();
    }

    /// Reads the PCI configuration space.
    pub fn read_config(&self, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        self.load(offset, data, |offset, bytes| Request::ReadConfig {
            offset,
            bytes,
        })
    }

    /// Writes the PCI configuration space.
    pub fn write_config(&self, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        self.store(offset, data, |offset, data| Request::WriteConfig { offset, data })
    }

    /// Length of a BAR in bytes.
    pub fn bar_bytes(&self, bar: Bar) -> u64 {
        self.shared.bars.bytes(bar)
    }

    /// Why the broker gave this VM up, if it did.
    pub fn expulsion(&self) -> Option<String> {
        self.port.lock().expelled.clone()
    }

    /// Detaches, and waits until nothing of the VM is left in the broker or on the card.
    pub fn detach(self) -> Result<(), LinkError> {
        self.leave();
        match self.port.wait(|state| state.is_detached.then_some(())) {
            Some(()) => Ok(()),
            None => {
                self.shared.check_running()?;
                Err(LinkError::Timeout)
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn attachment_vm(&self) -> vgpu::VmId {
        self.attachment.vm
    }

    fn leave(&self) {
        // A broker that has ended has released everything.
        if let Ok(mut performer) = self.shared.lock() {
            performer.detach(self.attachment);
        }
    }

    fn done(&self, request: Request) -> Result<(), LinkError> {
        done(self.call(request)?)
    }

    fn call(&self, request: Request) -> Result<Reply, LinkError> {
        self.wait_for(|performer, id| performer.request(self.attachment, id, request))
    }

    /// Issues a request and waits for its answer.
    fn wait_for(&self, issue: impl FnOnce(&mut Performer, RequestId)) -> Result<Reply, LinkError> {
        let id = self.shared.next_request();
        self.port.lock().answers.insert(id, None);
        let issued = self.shared.lock().map(|mut performer| issue(&mut performer, id));
        let answer = self.port.wait(|state| {
            let answer = state.answers.get_mut(&id).and_then(Option::take);
            let is_over = issued.is_err() || state.is_detached;
            let answer = answer.or(is_over.then_some(Reply::Refused(Refusal::NotAttached)))?;
            Some((answer, state.expelled.clone()))
        });
        self.port.lock().answers.remove(&id);
        match answer {
            None => {
                self.shared.check_running()?;
                Err(LinkError::Timeout)
            }
            Some((Reply::Refused(Refusal::NotAttached), reason)) => {
                self.shared.check_running()?;
                Err(
                    reason.map_or(Refusal::NotAttached.into(), |reason| LinkError::Expelled {
                        reason,
                    }),
                )
            }
            Some((reply, _)) => Ok(reply),
        }
    }
}

/// The outcome of a request that has no data.
fn done(reply: Reply) -> Result<(), LinkError> {
    match reply {
        Reply::Done | Reply::Data(_) => Ok(()),
        Reply::Refused(refusal) => Err(refusal.into()),
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.leave();
    }
}
