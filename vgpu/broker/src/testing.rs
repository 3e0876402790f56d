//! A card of plain registers, and a core whose actions the offset of an access selects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use fermi_spec::addr::{FrameNo, Gpa, GuestVramAddr, Iova};
use fermi_spec::bar::Bar;
use vgpu::{
    Action, Actions, Capabilities, ChannelWatch, ConfigSpace, Denial, DmaMemory, Event, FrameOwner, HostGpu,
    HostGpuError, HostMemory, InterruptKind, Notice, Place, Quota, REQUESTS_WAITING_MAX, Refusal, Reply,
    Request, RequestId, StartFailure, Tick, Token, VmConfig, VmId,
};
use vmm_sys_util::eventfd::EventFd;

use crate::broker::Setup;
use crate::port::Core;
use crate::room::HostRoom;

/// Bytes that the core for tests has for promises.
pub(crate) const USABLE: u64 = 1 << 20;

/// The part of the card that a test sees and may change.
#[derive(Debug, Default)]
pub(crate) struct Card {
    pub(crate) registers: BTreeMap<u64, u32>,
    /// Accesses in order: `w OFFSET`, `r OFFSET`.
    pub(crate) log: Vec<String>,
    pub(crate) maps: BTreeMap<u64, DmaMemory>,
    pub(crate) is_lost: bool,
    pub(crate) refuses_maps: bool,
    pub(crate) has_interrupt: bool,
    pub(crate) follows_mappings: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FakeGpu(Arc<Mutex<Card>>);

impl FakeGpu {
    pub(crate) fn card(&self) -> MutexGuard<'_, Card> {
        self.0.lock().unwrap()
    }

    fn answering(&self) -> Result<MutexGuard<'_, Card>, HostGpuError> {
        let card = self.card();
        if card.is_lost {
            return Err(HostGpuError::Lost {
                reason: "pulled out".into(),
            });
        }
        Ok(card)
    }
}

impl HostGpu for FakeGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            graph: None,
            bar1_bytes: 128 << 20,
            bar3_bytes: 64 << 20,
            frames_arrive_zeroed: false,
            bus: vgpu::Bus::default(),
            follows_mappings: self.card().follows_mappings,
        }
    }

    fn read(&mut self, _bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError> {
        let mut card = self.answering()?;
        // The performer looks at the card's identity whenever it likes.
        if offset != 0 {
            card.log.push(format!("r {offset:x}"));
        }
        let word = card.registers.get(&offset).copied().unwrap_or(0);
        data.copy_from_slice(&word.to_le_bytes()[..data.len()]);
        Ok(())
    }

    fn write(&mut self, _bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError> {
        let mut card = self.answering()?;
        card.log.push(format!("w {offset:x}"));
        card.registers
            .insert(offset, u32::from_le_bytes(data.try_into().unwrap()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), HostGpuError> {
        Ok(())
    }

    fn map_dma(&mut self, iova: Iova, memory: DmaMemory, _writable: bool) -> Result<(), HostGpuError> {
        let mut card = self.answering()?;
        if card.refuses_maps {
            return Err(HostGpuError::Map {
                iova,
                bytes: memory.bytes,
                reason: "no".into(),
            });
        }
        card.maps.insert(iova.0, memory);
        Ok(())
    }

    fn unmap_dma(&mut self, iova: Iova, _bytes: u64) -> Result<(), HostGpuError> {
        self.answering()?.maps.remove(&iova.0);
        Ok(())
    }

    fn place_memory(&mut self, _: VmId, _: GuestVramAddr) -> Option<DmaMemory> {
        None
    }

    fn place_frames(&mut self, _frames: &[FrameNo], _owner: FrameOwner) -> Result<(), HostGpuError> {
        self.answering().map(drop)
    }

    fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.card().has_interrupt)
    }
}

/// Reads of BAR0 at these offsets, and writes of BAR0 at [`RELEASE`] and so on, have the effects named.
pub(crate) mod at {
    /// Stores 0x100, loads 0x104, stores 0x108; with the value, stores 0x10c and answers with it.
    pub(crate) const ROUND_TRIP: u64 = 0x20;
    /// Polls register 0x200 for 7, 50 ms long; answers 1 or 0.
    pub(crate) const POLL: u64 = 0x30;
    /// Raises the reader's interrupt.
    pub(crate) const INTERRUPT: u64 = 0x40;
    /// Is answered by a write to [`RELEASE`], and so is a write. While as many of a VM are held as may wait, a request to mask its INTx or unmask it is refused.
    pub(crate) const HELD: u64 = 0x50;
    /// Answers what is held.
    pub(crate) const RELEASE: u64 = 0x58;
    /// Answers with the first bytes of the reader's RAM at [`super::RAM_AT`].
    pub(crate) const RAM: u64 = 0x60;
    /// Is answered after [`super::Event::Wake`], 2 ms later.
    pub(crate) const WAKE: u64 = 0x70;
    /// A write lets VMs go that wait to be detached.
    pub(crate) const LET_GO: u64 = 0x80;
    /// A write lets the core give the card up.
    pub(crate) const CARD_LOST: u64 = 0x90;
    /// A write lets the writer's interrupt line go up, which INTx signals.
    pub(crate) const LINE_UP: u64 = 0xa0;
    /// A write lets it go down.
    pub(crate) const LINE_DOWN: u64 = 0xa4;
    /// A write lets doorbells of channel 0 be looked for at [`super::USERD_AT`] of BAR1.
    pub(crate) const WATCH: u64 = 0xb0;
    /// Register of the card to which the core stores for each doorbell.
    pub(crate) const RUNG: u64 = 0x300;
}

const STARTED: Notice = Notice::Started {
    vram_bytes: 2 << 20,
    usable_bytes: 1 << 20,
};

/// Where USERD lies in BAR1.
pub(crate) const USERD_AT: u64 = 0x3000;

/// Where tests map RAM.
pub(crate) const RAM_AT: u64 = 0x10_0000;

/// The core that the offsets control.
#[derive(Default)]
pub(crate) struct TestCore {
    /// VMs of this name are refused.
    denies: String,
    fails_to_start: bool,
    /// Detaching waits for [`at::LET_GO`].
    keeps_detached: bool,
    leaving: Vec<VmId>,
    vms: BTreeSet<VmId>,
    /// VMs whose interrupt line is up, and those whose INTx is not masked.
    lines: BTreeSet<VmId>,
    unmasked: BTreeSet<VmId>,
    held: Vec<(VmId, RequestId)>,
    reads: BTreeMap<Token, (VmId, RequestId)>,
    woken: Vec<(VmId, RequestId)>,
    maps: BTreeMap<(VmId, u64), u64>,
    configs: BTreeMap<VmId, ConfigSpace>,
    next_token: u64,
}

fn iova_of(vm: VmId, gpa: Gpa) -> Iova {
    Iova(u64::from(vm.0) << 36 | gpa.0)
}

fn message(vm: VmId) -> Action {
    let kind = InterruptKind::Msi;
    Action::Interrupt { vm, kind }
}

fn answer(actions: &mut Actions, (vm, request): (VmId, RequestId), reply: Reply) {
    actions.push(Action::Reply { vm, request, reply });
}

impl TestCore {
    pub(crate) fn denying(name: &str) -> Self {
        Self {
            denies: name.into(),
            ..Self::default()
        }
    }

    pub(crate) fn failing_to_start() -> Self {
        Self {
            fails_to_start: true,
            ..Self::default()
        }
    }

    /// Detaching waits for [`at::LET_GO`].
    pub(crate) fn keeping_detached() -> Self {
        Self {
            keeps_detached: true,
            ..Self::default()
        }
    }

    fn token(&mut self, of: (VmId, RequestId)) -> Token {
        self.next_token += 1;
        let token = Token(self.next_token);
        self.reads.insert(token, of);
        token
    }

    fn read(
        &mut self,
        now: Tick,
        of: (VmId, RequestId),
        offset: u64,
        bytes: u32,
        memory: &mut dyn HostMemory,
        actions: &mut Actions,
    ) {
        let store = |offset| Action::HostWrite {
            bar: Bar::Bar0,
            offset,
            data: vec![1, 0, 0, 0],
        };
        match offset {
            at::ROUND_TRIP => {
                let token = self.token(of);
                actions.push(store(0x100));
                actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar0,
                    offset: 0x104,
                    bytes: 4,
                });
                actions.push(store(0x108));
            }
            at::POLL => {
                let token = self.token(of);
                let timeout_ns = 50_000_000;
                actions.push(Action::HostPoll {
                    token,
                    offset: 0x200,
                    mask: 0xf,
                    value: 7,
                    timeout_ns,
                });
            }
            at::INTERRUPT => {
                actions.push(message(of.0));
                answer(actions, of, Reply::Data(vec![0; bytes as usize]));
            }
            at::HELD => self.held.push(of),
            at::WAKE => {
                self.woken.push(of);
                actions.push(Action::WakeAt {
                    at: now.after(2_000_000),
                });
            }
            at::RAM => {
                let mut data = vec![0; bytes as usize];
                memory.read(
                    Place::Ram {
                        vm: of.0,
                        gpa: Gpa(RAM_AT),
                    },
                    &mut data,
                );
                answer(actions, of, Reply::Data(data));
            }
            _ => {
                let data = (0..bytes)
                    .map(|index| (offset as u8).wrapping_add(index as u8))
                    .collect();
                answer(actions, of, Reply::Data(data));
            }
        }
    }

    fn write(&mut self, of: (VmId, RequestId), offset: u64, actions: &mut Actions) {
        match offset {
            at::HELD => return self.held.push(of),
            at::RELEASE => {
                for held in self.held.drain(..) {
                    answer(actions, held, Reply::Data(vec![0x5a; 4]));
                }
            }
            at::LET_GO => {
                self.keeps_detached = false;
                for vm in self.leaving.drain(..) {
                    actions.push(Action::Detached { vm });
                }
            }
            at::CARD_LOST => {
                return actions.push(Action::CardLost {
                    operation: vgpu::CardOperation::TlbFlush,
                });
            }
            at::LINE_UP => {
                self.lines.insert(of.0);
                self.signal_intx(of.0, actions);
            }
            at::LINE_DOWN => {
                self.lines.remove(&of.0);
            }
            at::WATCH => {
                let vm = of.0;
                let at = Some(USERD_AT);
                actions.push(Action::PlaceUserd { vm, at });
                actions.push(Action::WatchChannel(ChannelWatch {
                    vm,
                    channel: 0,
                    is_watched: true,
                }));
            }
            _ => {}
        }
        answer(actions, of, Reply::Done);
    }

    fn held_of(&self, vm: VmId) -> usize {
        self.held.iter().filter(|(held, _)| *held == vm).count()
    }

    fn signal_intx(&mut self, vm: VmId, actions: &mut Actions) {
        if self.lines.contains(&vm) && self.unmasked.remove(&vm) {
            let kind = InterruptKind::Intx;
            actions.push(Action::Interrupt { vm, kind });
        }
    }

    fn detach(&mut self, vm: VmId, actions: &mut Actions) {
        self.vms.remove(&vm);
        self.lines.remove(&vm);
        self.unmasked.remove(&vm);
        self.configs.remove(&vm);
        for ((_, gpa), bytes) in self.maps.extract_if(.., |(owner, _), _| *owner == vm) {
            actions.push(Action::UnmapDma {
                iova: iova_of(vm, Gpa(gpa)),
                bytes,
            });
        }
        if self.keeps_detached {
            self.leaving.push(vm);
        } else {
            actions.push(Action::Detached { vm });
        }
    }
}

impl Core for TestCore {
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        match event {
            Event::Start if self.fails_to_start => {
                actions.push(Action::Notice(Notice::StartFailed {
                    reason: StartFailure::NoAnswer,
                }));
            }
            Event::Start => actions.push(Action::Notice(STARTED)),
            Event::Attach { vm, config } if config.name == self.denies => {
                let (promised, usable) = (2 * USABLE, USABLE);
                let reason = Denial::Min { promised, usable };
                actions.push(Action::Denied { vm, reason });
            }
            Event::SetQuota { vm, quota } if quota.min > USABLE => {
                let (promised, usable) = (quota.min, USABLE);
                let reason = Denial::Min { promised, usable };
                actions.push(Action::QuotaRefused { vm, reason });
            }
            Event::Attach { vm, .. } => {
                self.vms.insert(vm);
                actions.push(Action::Attached { vm });
            }
            Event::Detach { vm } => self.detach(vm, actions),
            Event::Request { vm, id, request } => self.request(now, (vm, id), request, memory, actions),
            other => self.host_event(other, actions),
        }
    }
}

impl TestCore {
    fn request(
        &mut self,
        now: Tick,
        of: (VmId, RequestId),
        request: Request,
        memory: &mut dyn HostMemory,
        actions: &mut Actions,
    ) {
        let vm = of.0;
        match request {
            Request::Reset => {
                let at = GuestVramAddr(0);
                let bytes = IMAGE_BYTES;
                actions.push(Action::DropImage { vm, at, bytes });
                self.change_config(vm, actions, ConfigSpace::reset);
                answer(actions, of, Reply::Done);
            }
            Request::MaskIntx { .. } if self.held_of(vm) >= REQUESTS_WAITING_MAX => {
                answer(actions, of, Reply::Refused(Refusal::TooManyWaiting));
            }
            Request::MaskIntx { masked } => {
                match masked {
                    true => self.unmasked.remove(&vm),
                    false => self.unmasked.insert(vm),
                };
                answer(actions, of, Reply::Done);
                self.signal_intx(vm, actions);
            }
            Request::ReadConfig { offset, bytes } => {
                let mut data = vec![0; bytes as usize];
                self.config(vm).read(offset, &mut data);
                answer(actions, of, Reply::Data(data));
            }
            Request::WriteConfig { offset, data } => {
                self.change_config(vm, actions, |config| config.write(offset, &data));
                answer(actions, of, Reply::Done);
            }
            Request::Read { offset, bytes, .. } => self.read(now, of, offset, bytes, memory, actions),
            Request::Write {
                bar: Bar::Bar0,
                offset,
                ..
            } => self.write(of, offset, actions),
            Request::Write { .. } => answer(actions, of, Reply::Done),
            Request::MapRam { gpa, bytes, writable } => {
                self.maps.insert((vm, gpa.0), bytes);
                let memory = Place::Ram { vm, gpa };
                actions.push(Action::MapDma {
                    iova: iova_of(vm, gpa),
                    bytes,
                    memory,
                    writable,
                    refusable: false,
                });
                answer(actions, of, Reply::Done);
            }
            Request::UnmapRam { gpa, bytes } => {
                let reply = match self.maps.remove(&(vm, gpa.0)) {
                    Some(_) => Reply::Done,
                    None => Reply::Refused(Refusal::NoSuchMap),
                };
                actions.push(Action::UnmapDma {
                    iova: iova_of(vm, gpa),
                    bytes,
                });
                answer(actions, of, reply);
            }
        }
    }

    fn config(&mut self, vm: VmId) -> &mut ConfigSpace {
        let fresh = || ConfigSpace::of(&vgpu::GpuConfig::default());
        self.configs.entry(vm).or_insert_with(fresh)
    }

    fn change_config(&mut self, vm: VmId, actions: &mut Actions, change: impl FnOnce(&mut ConfigSpace)) {
        let config = self.config(vm);
        change(config);
        let through = config.can_interrupt();
        actions.push(Action::LetInterrupts { vm, through });
    }

    /// Handles events of the card and of the clock.
    fn host_event(&mut self, event: Event, actions: &mut Actions) {
        match event {
            Event::HostValue { token, data } => {
                actions.push(Action::HostWrite {
                    bar: Bar::Bar0,
                    offset: 0x10c,
                    data: data.clone(),
                });
                answer(actions, self.reads[&token], Reply::Data(data));
            }
            Event::PollDone { token, met } => {
                answer(
                    actions,
                    self.reads[&token],
                    Reply::Data(vec![u8::from(met), 0, 0, 0]),
                );
            }
            Event::HostInterrupt => {
                self.vms.iter().for_each(|vm| actions.push(message(*vm)));
            }
            Event::Doorbells { channels, .. } => {
                actions.push(Action::HostWrite {
                    bar: Bar::Bar0,
                    offset: at::RUNG,
                    data: vec![channels.len() as u8, 0, 0, 0],
                });
            }
            Event::Wake => {
                for of in self.woken.drain(..) {
                    answer(actions, of, Reply::Data(vec![1; 4]));
                }
            }
            _ => {}
        }
    }
}

/// A broker's parts around a core, without sockets.
pub(crate) fn setup(core: TestCore, gpu: &FakeGpu, interrupt: Option<EventFd>) -> Setup {
    Setup {
        core: Box::new(core),
        gpu: Box::new(gpu.clone()),
        interrupt,
        hangup: None,
        recorder: None,
        flights: None,
        windows: vgpu::WindowMode::default(),
        room: HostRoom::default(),
        vms: Vec::new(),
    }
}

/// Bytes that a reset gives back: the image and more, so many that they are not given back at once.
const IMAGE_BYTES: u64 = 128 << 20;

pub(crate) fn vm_config(name: &str) -> VmConfig {
    VmConfig {
        name: name.into(),
        guest_vram: 8 << 20,
        chunk_bytes: 2 << 20,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    }
}

/// A client's memory: the file, so that a test can spoil it, and a descriptor to hand over.
pub(crate) fn client_memory(name: &str, bytes: u64) -> (File, OwnedFd) {
    let file = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(bytes).unwrap();
    let handed = file.try_clone().unwrap().into();
    (file, handed)
}

/// Files and maps of this process with a memory file's name.
pub(crate) fn traces_of(name: &str) -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?;
        Some(target.display().to_string())
    });
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().map(str::to_owned);
    open.chain(mapped).filter(|line| line.contains(name)).collect()
}
