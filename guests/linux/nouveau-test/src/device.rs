//! A file of the card, its GEM objects and syncobjs: the base of all tests.
//!
//! Every object frees what it names when it is dropped. Errors of the kernel keep their number, so that a test can
//! expect one: see [`error_number`].

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};

use crate::sys::{self, Mapping};
use crate::uapi::{self, GemInfo, GemNew, GetParam, Handle, Request, VmInit, domain};

/// The kernel's error number behind `error`, if it has one.
pub(crate) fn error_number(error: &anyhow::Error) -> Option<i32> {
    error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::raw_os_error)
}

/// An open file of the card: a client of the driver with an address space of its own.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    file: Arc<File>,
}

impl Device {
    /// Opens a card or render node.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Makes a call of the driver.
    pub(crate) fn call<T>(&self, request: &Request<T>, message: &mut T) -> Result<()> {
        sys::ioctl(self.file.as_fd(), request, message).with_context(|| format!("{} failed", request.name()))
    }

    /// Asks for a parameter of [`uapi::param`].
    pub(crate) fn parameter(&self, param: u64) -> Result<u64> {
        let mut message = GetParam { param, value: 0 };
        self.call(&uapi::GETPARAM, &mut message)
            .with_context(|| format!("parameter {param}"))?;
        Ok(message.value)
    }

    /// Takes the address space into our own hands, but for a region of the kernel's. Has to be the first call.
    pub(crate) fn init_address_space(&self, kernel_address: u64, kernel_bytes: u64) -> Result<()> {
        let mut message = VmInit {
            kernel_address,
            kernel_bytes,
        };
        self.call(&uapi::VM_INIT, &mut message)
    }

    /// Makes an object in one of `domains`, linear.
    pub(crate) fn object(&self, domains: u32, bytes: u64) -> Result<Object> {
        self.object_of_kind(domains, bytes, 0, 0)
    }

    /// Makes an object whose pages have the storage type `kind`.
    pub(crate) fn object_of_kind(
        &self,
        domains: u32,
        bytes: u64,
        tile_mode: u32,
        kind: u8,
    ) -> Result<Object> {
        let mut message = GemNew {
            info: GemInfo {
                domain: domains,
                size: bytes,
                tile_mode,
                tile_flags: uapi::TILE_NONCONTIG | u32::from(kind) << uapi::TILE_KIND_SHIFT,
                ..GemInfo::default()
            },
            ..GemNew::default()
        };
        self.call(&uapi::GEM_NEW, &mut message)
            .with_context(|| format!("object of {bytes:#x} bytes in {domains:#x}"))?;
        let object = Object {
            device: self.clone(),
            info: message.info,
        };
        ensure!(
            object.info.size >= bytes,
            "object of {bytes:#x} bytes became {:#x}",
            object.info.size
        );
        Ok(object)
    }

    /// A mapped object in system memory.
    pub(crate) fn gart(&self, bytes: u64) -> Result<Mapped> {
        self.object(domain::GART | domain::MAPPABLE, bytes)?.map()
    }

    /// A mapped object in VRAM.
    pub(crate) fn vram(&self, bytes: u64) -> Result<Mapped> {
        self.object(domain::VRAM | domain::MAPPABLE, bytes)?.map()
    }

    fn map(&self, offset: u64, bytes: usize) -> Result<Mapping> {
        Mapping::new(self.file.as_fd(), offset, bytes)
            .with_context(|| format!("cannot map {bytes:#x} bytes at {offset:#x}"))
    }
}

/// A GEM object; its handle is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Object {
    device: Device,
    info: GemInfo,
}

impl Object {
    /// Handle for messages.
    pub(crate) fn handle(&self) -> u32 {
        self.info.handle
    }

    /// Length of the object in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.info.size
    }

    /// Address that the driver chose in the client's address space. Zero if the client manages its own.
    pub(crate) fn address(&self) -> u64 {
        self.info.offset
    }

    /// Which domains it was made for.
    pub(crate) fn domains(&self) -> u32 {
        self.info.domain & (domain::VRAM | domain::GART)
    }

    /// Asks for its present properties and place.
    pub(crate) fn ask(&self) -> Result<GemInfo> {
        let mut info = GemInfo {
            handle: self.info.handle,
            ..GemInfo::default()
        };
        self.device.call(&uapi::GEM_INFO, &mut info)?;
        Ok(info)
    }

    /// Waits until the GPU has finished its accesses to the object: all of them (`for_writing`), or all writes.
    pub(crate) fn wait(&self, for_writing: bool) -> Result<()> {
        self.prepare(if for_writing { uapi::CPU_PREP_WRITE } else { 0 })
    }

    /// Whether the GPU still has to do something about the object.
    pub(crate) fn is_busy(&self) -> Result<bool> {
        match self.prepare(uapi::CPU_PREP_WRITE | uapi::CPU_PREP_NOWAIT) {
            Ok(()) => Ok(false),
            Err(error) if error_number(&error) == Some(libc::EBUSY) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn prepare(&self, flags: u32) -> Result<()> {
        let mut message = Handle {
            handle: self.info.handle,
            flags,
        };
        self.device.call(&uapi::GEM_CPU_PREP, &mut message)
    }

    /// Maps the object into this process.
    pub(crate) fn map(self) -> Result<Mapped> {
        let memory = self.device.map(self.info.map_handle, self.info.size as usize)?;
        Ok(Mapped { memory, object: self })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let mut message = Handle {
            handle: self.info.handle,
            flags: 0,
        };
        // The handle goes with the file at the latest, so an error is ignored.
        let _ = self.device.call(&uapi::GEM_CLOSE, &mut message);
    }
}

/// A GEM object and its memory in this process.
#[derive(Debug)]
pub(crate) struct Mapped {
    // The mapping goes before the handle.
    memory: Mapping,
    object: Object,
}

impl Mapped {
    /// The object's memory in this process.
    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }
}

impl std::ops::Deref for Mapped {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.object
    }
}
