// UNSAFETY: EGL and GBM are foreign libraries whose functions are called by pointer.
//! A display without a screen and an OpenGL context on it.
//!
//! Constants and signatures: the Khronos EGL registry (`egl.xml`), Mesa's `gbm.h`.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::library::Library;

const PLATFORM_GBM: c_uint = 0x31d7;
const PLATFORM_SURFACELESS: c_uint = 0x31dd;
const OPENGL_API: c_uint = 0x30a2;
const CONTEXT_MAJOR: c_int = 0x3098;
const CONTEXT_MINOR: c_int = 0x30fb;
const CONTEXT_PROFILE: c_int = 0x30fd;
const PROFILE_CORE: c_int = 1;
const NONE: c_int = 0x3038;
const EXTENSIONS: c_int = 0x3055;
const SYNC_NATIVE_FENCE: c_uint = 0x3144;

type Handle = *mut c_void;
type Boolean = c_uint;

/// Kind of the display.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Platform {
    /// A GBM device on the render node.
    Gbm,
    /// No surface: Mesa chooses the card.
    Surfaceless,
}

macro_rules! functions {
    ($($field:ident: $name:literal as fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Functions {
            fn load(library: Library) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let at = library.function($name)?.as_ptr();
                        // SAFETY: the registry gives the function of that name this signature.
                        unsafe {
                            std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) $(-> $result)?>(at)
                        }
                    },)+
                })
            }
        }
    };
}

functions! {
    get_platform_display: c"eglGetPlatformDisplay" as fn(c_uint, Handle, *const isize) -> Handle;
    initialize: c"eglInitialize" as fn(Handle, *mut c_int, *mut c_int) -> Boolean;
    bind_api: c"eglBindAPI" as fn(c_uint) -> Boolean;
    create_context: c"eglCreateContext" as fn(Handle, Handle, Handle, *const c_int) -> Handle;
    make_current: c"eglMakeCurrent" as fn(Handle, Handle, Handle, Handle) -> Boolean;
    destroy_context: c"eglDestroyContext" as fn(Handle, Handle) -> Boolean;
    terminate: c"eglTerminate" as fn(Handle) -> Boolean;
    get_error: c"eglGetError" as fn() -> c_int;
    query_string: c"eglQueryString" as fn(Handle, c_int) -> *const c_char;
    get_proc_address: c"eglGetProcAddress" as fn(*const c_char) -> Handle;
    create_sync: c"eglCreateSync" as fn(Handle, c_uint, *const isize) -> Handle;
    destroy_sync: c"eglDestroySync" as fn(Handle, Handle) -> Boolean;
}

/// A current OpenGL context. It belongs to the thread that made it.
#[derive(Debug)]
pub(crate) struct Egl {
    functions: Functions,
    display: Handle,
    context: Handle,
    version: (c_int, c_int),
    /// GBM works on this file for as long as the display lives.
    _node: File,
}

impl Egl {
    /// Opens a display and makes the best core context current that it offers.
    pub(crate) fn new(platform: Platform, node: &Path) -> Result<Self> {
        let functions = Functions::load(Library::open(c"libEGL.so.1")?)?;
        let node = OpenOptions::new()
            .read(true)
            .write(true)
            .open(node)
            .with_context(|| format!("cannot open {}", node.display()))?;
        let (kind, native) = match platform {
            Platform::Surfaceless => (PLATFORM_SURFACELESS, null_mut()),
            Platform::Gbm => (PLATFORM_GBM, gbm_device(&node)?),
        };
        // SAFETY: `native` is what the platform's extension asks for: null, or a GBM device that is never destroyed.
        let display = unsafe { (functions.get_platform_display)(kind, native, null()) };
        let mut egl = Self {
            functions,
            display,
            context: null_mut(),
            version: (0, 0),
            _node: node,
        };
        ensure!(
            !egl.display.is_null(),
            "no display: EGL error {:#x}",
            egl.last_error()
        );
        egl.start()?;
        Ok(egl)
    }

    fn start(&mut self) -> Result<()> {
        let functions = &self.functions;
        // SAFETY: the display came from EGL; the version is not asked for.
        let started = unsafe { (functions.initialize)(self.display, null_mut(), null_mut()) };
        ensure!(
            started != 0,
            "cannot initialise the display: EGL error {:#x}",
            self.last_error()
        );
        // SAFETY: an enum by value.
        let has_opengl = unsafe { (functions.bind_api)(OPENGL_API) };
        ensure!(has_opengl != 0, "EGL has no OpenGL");
        for version in [(4, 6), (4, 5), (4, 4), (4, 3), (4, 2), (4, 1), (3, 3)] {
            let attributes = [
                CONTEXT_MAJOR,
                version.0,
                CONTEXT_MINOR,
                version.1,
                CONTEXT_PROFILE,
                PROFILE_CORE,
                NONE,
            ];
            // SAFETY: the attribute list is ended by NONE; no config and no sharing are null.
            let context = unsafe {
                (functions.create_context)(self.display, null_mut(), null_mut(), attributes.as_ptr())
            };
            if context.is_null() {
                continue;
            }
            self.context = context;
            self.version = version;
            // SAFETY: display and context are of this EGL; no surfaces are null.
            let current = unsafe { (functions.make_current)(self.display, null_mut(), null_mut(), context) };
            ensure!(
                current != 0,
                "cannot make the context current: EGL error {:#x}",
                self.last_error()
            );
            return Ok(());
        }
        bail!("no OpenGL core context: EGL error {:#x}", self.last_error())
    }

    /// Version of the context that was asked for and given.
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Whether the display has an extension.
    pub(crate) fn has(&self, extension: &str) -> bool {
        // SAFETY: the display is initialised; the answer is null or a C string that lives as long as the display.
        let text = unsafe {
            let text = (self.functions.query_string)(self.display, EXTENSIONS);
            if text.is_null() {
                return false;
            }
            CStr::from_ptr(text)
        };
        text.to_string_lossy().split(' ').any(|found| found == extension)
    }

    /// A function of OpenGL or of an EGL extension.
    pub(crate) fn function(&self, name: &CStr) -> Result<NonNull<c_void>> {
        // SAFETY: a C string by pointer.
        let at = unsafe { (self.functions.get_proc_address)(name.as_ptr()) };
        NonNull::new(at).ok_or_else(|| anyhow!("no function {}", name.to_string_lossy()))
    }

    /// A file that becomes readable when all work until now is done. `flush` sends that work off.
    pub(crate) fn fence_file(&self, flush: impl FnOnce()) -> Result<OwnedFd> {
        let name = CString::new("eglDupNativeFenceFDANDROID")?;
        let duplicate = self.function(&name)?.as_ptr();
        // SAFETY: the extension EGL_ANDROID_native_fence_sync gives the function of that name this signature.
        let duplicate = unsafe {
            std::mem::transmute::<Handle, unsafe extern "C" fn(Handle, Handle) -> c_int>(duplicate)
        };
        // SAFETY: the display is initialised and the context current; no attributes are null.
        let sync = unsafe { (self.functions.create_sync)(self.display, SYNC_NATIVE_FENCE, null()) };
        ensure!(
            !sync.is_null(),
            "no native fence: EGL error {:#x}",
            self.last_error()
        );
        flush();
        // SAFETY: the sync was just made and is destroyed once; the file is this function's own.
        let file = unsafe {
            let file = duplicate(self.display, sync);
            (self.functions.destroy_sync)(self.display, sync);
            file
        };
        ensure!(
            file >= 0,
            "a native fence has no file: EGL error {:#x}",
            self.last_error()
        );
        // SAFETY: EGL has handed the descriptor over.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn last_error(&self) -> c_int {
        // SAFETY: takes nothing.
        unsafe { (self.functions.get_error)() }
    }
}

impl Drop for Egl {
    fn drop(&mut self) {
        // SAFETY: nothing of this display is used afterwards; a null context is not destroyed.
        unsafe {
            (self.functions.make_current)(self.display, null_mut(), null_mut(), null_mut());
            if !self.context.is_null() {
                (self.functions.destroy_context)(self.display, self.context);
            }
            (self.functions.terminate)(self.display);
        }
    }
}

fn gbm_device(node: &File) -> Result<Handle> {
    let create = Library::open(c"libgbm.so.1")?.function(c"gbm_create_device")?;
    // SAFETY: `gbm.h` gives the function of that name this signature.
    let create =
        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn(c_int) -> Handle>(create.as_ptr()) };
    // SAFETY: the descriptor stays open as long as the display, which is all that uses the device.
    let device = unsafe { create(node.as_raw_fd()) };
    ensure!(!device.is_null(), "no GBM device");
    Ok(device)
}
