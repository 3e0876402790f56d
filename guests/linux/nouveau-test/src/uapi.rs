//! Structures and numbers of the DRM ioctls that nouveau answers.
//!
//! Source of the layouts: Linux `include/uapi/drm/nouveau_drm.h` and `include/uapi/drm/drm.h`; the `nvif` messages are
//! those of `drivers/gpu/drm/nouveau/include/nvif/ioctl.h`, which user space has used since libdrm 2.4.
//! Nothing here keeps state or calls the kernel: [`crate::sys`] does, and [`crate::device`] gives the calls their meaning.

/// Letter of all DRM ioctls.
const DRM_TYPE: u32 = b'd' as u32;
/// First ioctl number that belongs to the driver.
const DRIVER_BASE: u32 = 0x40;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// An ioctl number that carries a `T`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<T> {
    direction: u32,
    number: u32,
    name: &'static str,
    carries: std::marker::PhantomData<T>,
}

const fn request<T>(direction: u32, number: u32, name: &'static str) -> Request<T> {
    Request {
        direction,
        number,
        name,
        carries: std::marker::PhantomData,
    }
}

const fn core<T>(number: u32, name: &'static str) -> Request<T> {
    request(READ | WRITE, number, name)
}

const fn driver<T>(direction: u32, number: u32, name: &'static str) -> Request<T> {
    request(direction, DRIVER_BASE + number, name)
}

impl<T> Request<T> {
    /// Name for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The number with direction and a size of `bytes`, as the kernel decodes it.
    pub(crate) fn code(&self, bytes: usize) -> u32 {
        self.direction << 30 | (bytes as u32) << 16 | DRM_TYPE << 8 | self.number
    }
}

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ } $bytes:literal) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: $type,)+
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

message! {
    /// Closes a handle, or names a syncobj.
    Handle { handle: u32, flags: u32, } 8
}
message! {
    /// Waits for syncobjs until an absolute time of CLOCK_MONOTONIC.
    SyncobjWait {
        handles: u64, timeout_ns: i64, count: u32, flags: u32, first_signaled: u32, pad: u32,
    } 32
}
message! {
    /// Signals or resets syncobjs.
    SyncobjArray { handles: u64, count: u32, pad: u32, } 16
}
message! {
    /// Waits for points of timeline syncobjs.
    TimelineWait {
        handles: u64, points: u64, timeout_ns: i64, count: u32, flags: u32, first_signaled: u32, pad: u32,
    } 40
}
message! {
    /// Signals or queries points of timeline syncobjs.
    TimelineArray { handles: u64, points: u64, count: u32, flags: u32, } 24
}
message! {
    /// One parameter of the card.
    GetParam { param: u64, value: u64, } 16
}
message! {
    /// A software subchannel, of no use since Tesla.
    Subchannel { handle: u32, class: u32, } 8
}
message! {
    /// Makes a channel.
    ChannelAlloc {
        fb_ctxdma: u32, tt_ctxdma: u32, channel: i32, pushbuf_domains: u32, notifier: u32,
        subchannels: [Subchannel; 8], subchannel_count: u32,
    } 88
}
message! {
    /// Destroys a channel.
    ChannelFree { channel: i32, } 4
}
message! {
    /// Makes an engine object on a channel, the old way.
    GrobjAlloc { channel: u32, handle: u32, class: i32, } 12
}
message! {
    /// Destroys an engine object.
    GpuobjFree { channel: i32, handle: u32, } 8
}
message! {
    /// Properties and place of a GEM object.
    GemInfo {
        handle: u32, domain: u32, size: u64, offset: u64, map_handle: u64, tile_mode: u32, tile_flags: u32,
    } 40
}
message! {
    /// Makes a GEM object.
    GemNew { info: GemInfo, channel_hint: u32, align: u32, } 48
}
message! {
    /// An object that a pushbuffer uses.
    PushbufObject {
        user: u64, handle: u32, read_domains: u32, write_domains: u32, valid_domains: u32,
        presumed_valid: u32, presumed_domain: u32, presumed_offset: u64,
    } 40
}
message! {
    /// A word of a pushbuffer that depends on where an object is; since Tesla none does.
    PushbufReloc {
        container: u32, container_offset: u32, object: u32, flags: u32, data: u32, vram_or: u32, gart_or: u32,
    } 28
}
message! {
    /// A piece of an object that holds methods.
    PushbufPush { object: u32, pad: u32, offset: u64, length: u64, } 24
}
message! {
    /// Submits methods to a channel.
    Pushbuf {
        channel: u32, object_count: u32, objects: u64, reloc_count: u32, push_count: u32, relocs: u64,
        pushes: u64, suffix: [u32; 2], vram_available: u64, gart_available: u64,
    } 64
}
message! {
    /// Hands the address space to user space but for a region of the kernel's.
    VmInit { kernel_address: u64, kernel_bytes: u64, } 16
}
message! {
    /// Maps or unmaps.
    VmBindOp {
        op: u32, flags: u32, handle: u32, pad: u32, address: u64, object_offset: u64, bytes: u64,
    } 40
}
message! {
    /// A list of mappings, done at once or when syncobjs are signaled.
    VmBind {
        op_count: u32, flags: u32, wait_count: u32, signal_count: u32, waits: u64, signals: u64, ops: u64,
    } 40
}
message! {
    /// A syncobj that a job waits for or signals.
    Sync { flags: u32, handle: u32, point: u64, } 16
}
message! {
    /// Methods at an address.
    ExecPush { address: u64, bytes: u32, flags: u32, } 16
}
message! {
    /// Submits methods to a channel, by address.
    Exec {
        channel: u32, push_count: u32, wait_count: u32, signal_count: u32, waits: u64, signals: u64, pushes: u64,
    } 40
}
message! {
    /// Head of every nvif message.
    NvifHead { version: u8, kind: u8, pad: [u8; 4], owner: u8, route: u8, token: u64, object: u64, } 24
}
message! {
    /// A class in the answer of [`NvifClasses`].
    NvifClass { class: i32, min_version: i16, max_version: i16, } 8
}
message! {
    /// Asks which classes a channel offers.
    NvifClasses { head: NvifHead, version: u8, count: u8, pad: [u8; 6], classes: [NvifClass; 32], } 288
}
message! {
    /// Makes an object.
    NvifNew {
        head: NvifHead, version: u8, pad: [u8; 6], route: u8, token: u64, object: u64, handle: u32, class: i32,
    } 56
}

/// [`NvifHead::kind`] of [`NvifClasses`].
pub(crate) const NVIF_CLASSES: u8 = 1;
/// [`NvifHead::kind`] of [`NvifNew`].
pub(crate) const NVIF_NEW: u8 = 2;
/// Owner and route of a message about a channel's objects.
pub(crate) const NVIF_ANY: u8 = 0xff;

pub(crate) const GEM_CLOSE: Request<Handle> = request(WRITE, 0x09, "GEM_CLOSE");
pub(crate) const SYNCOBJ_CREATE: Request<Handle> = core(0xbf, "SYNCOBJ_CREATE");
pub(crate) const SYNCOBJ_DESTROY: Request<Handle> = core(0xc0, "SYNCOBJ_DESTROY");
pub(crate) const SYNCOBJ_WAIT: Request<SyncobjWait> = core(0xc3, "SYNCOBJ_WAIT");
pub(crate) const SYNCOBJ_RESET: Request<SyncobjArray> = core(0xc4, "SYNCOBJ_RESET");
pub(crate) const SYNCOBJ_SIGNAL: Request<SyncobjArray> = core(0xc5, "SYNCOBJ_SIGNAL");
pub(crate) const TIMELINE_WAIT: Request<TimelineWait> = core(0xca, "SYNCOBJ_TIMELINE_WAIT");
pub(crate) const TIMELINE_QUERY: Request<TimelineArray> = core(0xcb, "SYNCOBJ_QUERY");
pub(crate) const TIMELINE_SIGNAL: Request<TimelineArray> = core(0xcd, "SYNCOBJ_TIMELINE_SIGNAL");

pub(crate) const GETPARAM: Request<GetParam> = driver(READ | WRITE, 0x00, "GETPARAM");
pub(crate) const CHANNEL_ALLOC: Request<ChannelAlloc> = driver(READ | WRITE, 0x02, "CHANNEL_ALLOC");
pub(crate) const CHANNEL_FREE: Request<ChannelFree> = driver(WRITE, 0x03, "CHANNEL_FREE");
pub(crate) const GROBJ_ALLOC: Request<GrobjAlloc> = driver(WRITE, 0x04, "GROBJ_ALLOC");
pub(crate) const GPUOBJ_FREE: Request<GpuobjFree> = driver(WRITE, 0x06, "GPUOBJ_FREE");
pub(crate) const NVIF_CLASS_LIST: Request<NvifClasses> = driver(READ | WRITE, 0x07, "NVIF SCLASS");
pub(crate) const NVIF_OBJECT_NEW: Request<NvifNew> = driver(READ | WRITE, 0x07, "NVIF NEW");
pub(crate) const VM_INIT: Request<VmInit> = driver(READ | WRITE, 0x10, "VM_INIT");
pub(crate) const VM_BIND: Request<VmBind> = driver(READ | WRITE, 0x11, "VM_BIND");
pub(crate) const EXEC: Request<Exec> = driver(READ | WRITE, 0x12, "EXEC");
pub(crate) const GEM_NEW: Request<GemNew> = driver(READ | WRITE, 0x40, "GEM_NEW");
pub(crate) const GEM_PUSHBUF: Request<Pushbuf> = driver(READ | WRITE, 0x41, "GEM_PUSHBUF");
pub(crate) const GEM_CPU_PREP: Request<Handle> = driver(WRITE, 0x42, "GEM_CPU_PREP");
pub(crate) const GEM_INFO: Request<GemInfo> = driver(READ | WRITE, 0x44, "GEM_INFO");

/// Parameters of [`GETPARAM`].
pub(crate) mod param {
    pub(crate) const PCI_VENDOR: u64 = 3;
    pub(crate) const PCI_DEVICE: u64 = 4;
    pub(crate) const BUS_TYPE: u64 = 5;
    pub(crate) const VRAM_BYTES: u64 = 8;
    pub(crate) const GART_BYTES: u64 = 9;
    pub(crate) const CHIPSET: u64 = 11;
    pub(crate) const GRAPH_UNITS: u64 = 13;
    pub(crate) const PTIMER: u64 = 14;
    pub(crate) const EXEC_PUSH_MAX: u64 = 17;
    pub(crate) const BAR1_BYTES: u64 = 18;
    pub(crate) const VRAM_USED: u64 = 19;
}

/// Where an object may be.
pub(crate) mod domain {
    pub(crate) const VRAM: u32 = 1 << 1;
    pub(crate) const GART: u32 = 1 << 2;
    pub(crate) const MAPPABLE: u32 = 1 << 3;
    pub(crate) const COHERENT: u32 = 1 << 4;
}

/// Physical contiguity is not asked for.
pub(crate) const TILE_NONCONTIG: u32 = 0x8;
/// Position of the kind in `tile_flags`.
pub(crate) const TILE_KIND_SHIFT: u32 = 8;
/// CPU_PREP fails with EBUSY instead of waiting.
pub(crate) const CPU_PREP_NOWAIT: u32 = 1;
/// CPU_PREP waits for readers too.
pub(crate) const CPU_PREP_WRITE: u32 = 4;
/// Operation of VM_BIND: map an object.
pub(crate) const BIND_MAP: u32 = 0;
/// Operation of VM_BIND: unmap a range.
pub(crate) const BIND_UNMAP: u32 = 1;
/// VM_BIND runs when its syncobjs are signaled.
pub(crate) const BIND_ASYNC: u32 = 1;
/// Flag of a [`Sync`] with a point.
pub(crate) const SYNC_TIMELINE: u32 = 1;
/// All handles have to be signaled.
pub(crate) const WAIT_ALL: u32 = 1;
/// A handle without a fence is waited for too.
pub(crate) const WAIT_FOR_SUBMIT: u32 = 2;

/// Address of a slice for a message; zero if it is empty.
pub(crate) fn address_of<T>(items: &[T]) -> u64 {
    if items.is_empty() {
        0
    } else {
        items.as_ptr() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_kernel_headers() {
        assert_eq!(GETPARAM.code(size_of::<GetParam>()), 0xc010_6440);
        assert_eq!(GEM_NEW.code(size_of::<GemNew>()), 0xc030_6480);
        assert_eq!(GEM_CPU_PREP.code(size_of::<Handle>()), 0x4008_6482);
        assert_eq!(GEM_CLOSE.code(size_of::<Handle>()), 0x4008_6409);
        assert_eq!(SYNCOBJ_CREATE.code(size_of::<Handle>()), 0xc008_64bf);
        assert_eq!(EXEC.code(size_of::<Exec>()), 0xc028_6452);
    }
}
