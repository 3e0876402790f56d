//! Channels: engine objects on them, and the legacy way of submitting (GEM_PUSHBUF).
//!
//! A [`Channel`] keeps its pushbuffers, one object each, and uses one again when the GPU has read it and its
//! [`Ticket`] is dropped. The objects that a submission names, as read or as written, decide for which fences the
//! driver makes it wait: see [`reads`] and [`writes`].
//!
//! An object must not be submitted on another channel once a channel that used it is gone: nouveau 6.12 keeps the fence
//! of a wait that was over at the first look, with a pointer to its freed channel, and follows it then.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};

use crate::device::{Device, Mapped, Object};
use crate::push::{Push, Unit};
use crate::uapi::{
    self, ChannelAlloc, ChannelFree, GpuobjFree, GrobjAlloc, NvifClasses, NvifHead, NvifNew, Pushbuf,
    PushbufObject, PushbufPush, address_of,
};

/// Bytes of a pushbuffer that fits most submissions.
const PUSH_BYTES: usize = 32 << 10;
/// Pushbuffers of a channel: more are not outstanding.
const PUSHES_MAX: usize = 1024;

/// How a submission uses an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use<'a> {
    object: &'a Object,
    is_written: bool,
}

/// The submission only reads `object`: it waits for those that write it. Say so of semaphores too, or the driver
/// puts an order between the channels that the test wants to come from the GPU.
pub(crate) fn reads(object: &Object) -> Use<'_> {
    Use {
        object,
        is_written: false,
    }
}

/// The submission writes `object`: it waits for all others that use it.
pub(crate) fn writes(object: &Object) -> Use<'_> {
    Use {
        object,
        is_written: true,
    }
}

impl Use<'_> {
    fn message(self) -> PushbufObject {
        let domains = self.object.domains();
        PushbufObject {
            handle: self.object.handle(),
            read_domains: if self.is_written { 0 } else { domains },
            write_domains: if self.is_written { domains } else { 0 },
            valid_domains: domains,
            ..PushbufObject::default()
        }
    }
}

/// A submission that may not be done yet.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pushbuffer: Arc<Mapped>,
}

impl Ticket {
    /// Waits for its end. The driver gives up after 30 seconds (EBUSY).
    pub(crate) fn wait(&self) -> Result<()> {
        self.pushbuffer.wait(true)
    }

    /// Whether it has not ended.
    pub(crate) fn is_busy(&self) -> Result<bool> {
        self.pushbuffer.is_busy()
    }
}

/// A channel of the driver's; destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Channel {
    device: Device,
    id: i32,
    notifier: u32,
    pushbuffers: RefCell<VecDeque<Arc<Mapped>>>,
}

impl Channel {
    /// Makes a channel without engine objects.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let mut message = ChannelAlloc::default();
        device.call(&uapi::CHANNEL_ALLOC, &mut message)?;
        Ok(Self {
            device: device.clone(),
            id: message.channel,
            notifier: message.notifier,
            pushbuffers: RefCell::default(),
        })
    }

    /// Makes a channel with an object of each of `units`, bound to its subchannel.
    pub(crate) fn with_units(device: &Device, units: &[Unit]) -> Result<Self> {
        let channel = Self::new(device)?;
        let mut push = Push::new();
        for unit in units {
            channel.add_unit(*unit)?;
            push.bind(*unit);
        }
        channel.submit(&push, &[])?.wait()?;
        Ok(channel)
    }

    /// Number that the driver gave it.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// Makes the engine object that a unit's class needs, the legacy way.
    pub(crate) fn add_unit(&self, unit: Unit) -> Result<()> {
        self.add_class(unit.binding(), unit.class())
    }

    /// Makes an engine object of any class.
    pub(crate) fn add_class(&self, handle: u32, class: u16) -> Result<()> {
        let mut message = GrobjAlloc {
            channel: self.id as u32,
            handle,
            class: i32::from(class),
        };
        self.device
            .call(&uapi::GROBJ_ALLOC, &mut message)
            .with_context(|| format!("class {class:04x}"))
    }

    /// Destroys an engine object.
    pub(crate) fn remove(&self, handle: u32) -> Result<()> {
        let mut message = GpuobjFree {
            channel: self.id,
            handle,
        };
        self.device.call(&uapi::GPUOBJ_FREE, &mut message)
    }

    /// Classes that the channel's engines offer.
    pub(crate) fn classes(&self) -> Result<Vec<u16>> {
        let mut message = NvifClasses {
            head: self.nvif_head(uapi::NVIF_CLASSES),
            ..NvifClasses::default()
        };
        let room = message.classes.len();
        message.count = room as u8;
        self.device.call(&uapi::NVIF_CLASS_LIST, &mut message)?;
        ensure!(
            usize::from(message.count) <= room,
            "{} classes offered",
            message.count
        );
        let found = &message.classes[..usize::from(message.count)];
        Ok(found.iter().map(|class| class.class as u16).collect())
    }

    /// Makes an engine object as libdrm does for classes that it has looked up.
    pub(crate) fn add_class_by_nvif(&self, handle: u32, class: u16) -> Result<()> {
        let mut message = NvifNew {
            head: self.nvif_head(uapi::NVIF_NEW),
            route: uapi::NVIF_ANY,
            // Any number that names no other object of this client.
            object: u64::from(handle) << 32 | u64::from(self.id as u32),
            handle,
            class: i32::from(class),
            ..NvifNew::default()
        };
        self.device
            .call(&uapi::NVIF_OBJECT_NEW, &mut message)
            .with_context(|| format!("class {class:04x}"))
    }

    fn nvif_head(&self, kind: u8) -> NvifHead {
        NvifHead {
            kind,
            owner: uapi::NVIF_ANY,
            route: uapi::NVIF_ANY,
            token: self.id as u64,
            ..NvifHead::default()
        }
    }

    /// Submits `push`, which uses `objects`.
    pub(crate) fn submit(&self, push: &Push, objects: &[Use<'_>]) -> Result<Ticket> {
        let pushbuffer = self.idle_pushbuffer(push.words().len() * 4)?;
        for (index, word) in push.words().iter().enumerate() {
            pushbuffer.memory().write(index * 4, *word);
        }
        let pushes = [PushbufPush {
            length: (push.words().len() * 4) as u64,
            ..PushbufPush::default()
        }];
        self.submit_pieces(&pushbuffer, &pushes, objects)?;
        Ok(Ticket { pushbuffer })
    }

    /// Submits pieces of `pushbuffer` (object 0 of the list) as they are.
    pub(crate) fn submit_pieces(
        &self,
        pushbuffer: &Object,
        pushes: &[PushbufPush],
        objects: &[Use<'_>],
    ) -> Result<()> {
        let mut list = vec![reads(pushbuffer).message()];
        list.extend(objects.iter().map(|used| used.message()));
        let mut message = Pushbuf {
            channel: self.id as u32,
            object_count: list.len() as u32,
            objects: address_of(&list),
            push_count: pushes.len() as u32,
            pushes: address_of(pushes),
            ..Pushbuf::default()
        };
        self.device.call(&uapi::GEM_PUSHBUF, &mut message)
    }

    /// Submits and waits.
    pub(crate) fn run(&self, push: &Push, objects: &[Use<'_>]) -> Result<()> {
        self.submit(push, objects)?.wait()
    }

    /// A pushbuffer of at least `bytes` that is no longer read.
    fn idle_pushbuffer(&self, bytes: usize) -> Result<Arc<Mapped>> {
        let mut all = self.pushbuffers.borrow_mut();
        for _ in 0..all.len() {
            let Some(oldest) = all.pop_front() else { break };
            all.push_back(oldest.clone());
            // Two owners: the list and this function.
            let is_free = Arc::strong_count(&oldest) == 2 && oldest.bytes() >= bytes as u64;
            if is_free && !oldest.is_busy()? {
                return Ok(oldest);
            }
        }
        ensure!(all.len() < PUSHES_MAX, "{PUSHES_MAX} submissions are outstanding");
        let made = Arc::new(self.device.gart(bytes.max(PUSH_BYTES) as u64)?);
        all.push_back(made.clone());
        Ok(made)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let mut notifier = uapi::Handle {
            handle: self.notifier,
            flags: 0,
        };
        // Both go with the file at the latest, so an error is ignored.
        let _ = self.device.call(&uapi::GEM_CLOSE, &mut notifier);
        let mut message = ChannelFree { channel: self.id };
        let _ = self.device.call(&uapi::CHANNEL_FREE, &mut message);
    }
}
