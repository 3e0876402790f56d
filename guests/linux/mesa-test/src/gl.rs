// UNSAFETY: OpenGL's functions are called by pointer and take addresses.
//! The functions of OpenGL that the tests use, with slices for pointers.
//!
//! Names and numbers: the Khronos registry (`gl.xml`). Every call is followed by a look at the error that it may have
//! left. A context is current on the thread for as long as a [`Gl`] lives, as it borrows the display.
#![expect(unsafe_code)]

pub(crate) mod clear;
pub(crate) mod compute;
pub(crate) mod format;
pub(crate) mod texture;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null};

use anyhow::{Result, anyhow, ensure};

use crate::egl::Egl;
use format::{Format, Size};
use texture::Texture;

/// Numbers of the registry, by its names.
pub(crate) mod number {
    #![allow(missing_docs, reason = "the registry explains them")]
    pub(crate) const COPY_READ_BUFFER: u32 = 0x8f36;
    pub(crate) const COPY_WRITE_BUFFER: u32 = 0x8f37;
    pub(crate) const STREAM_READ: u32 = 0x88e1;
    pub(crate) const STATIC_DRAW: u32 = 0x88e4;
    pub(crate) const DYNAMIC_COPY: u32 = 0x88ea;
    pub(crate) const MAP_READ: u32 = 1;
    pub(crate) const MAP_WRITE: u32 = 2;
    pub(crate) const MAP_INVALIDATE_RANGE: u32 = 4;
    pub(crate) const MAP_FLUSH_EXPLICIT: u32 = 0x10;
    pub(crate) const MAP_UNSYNCHRONIZED: u32 = 0x20;
    pub(crate) const MAP_PERSISTENT: u32 = 0x40;
    pub(crate) const MAP_COHERENT: u32 = 0x80;
    pub(crate) const TEXTURE_1D: u32 = 0x0de0;
    pub(crate) const TEXTURE_2D: u32 = 0x0de1;
    pub(crate) const TEXTURE_BUFFER: u32 = 0x8c2a;
    pub(crate) const TEXTURE_MIN_FILTER: u32 = 0x2801;
    pub(crate) const TEXTURE_MAG_FILTER: u32 = 0x2800;
    pub(crate) const TEXTURE_WRAP_S: u32 = 0x2802;
    pub(crate) const TEXTURE_WRAP_T: u32 = 0x2803;
    pub(crate) const TEXTURE_WRAP_R: u32 = 0x8072;
    pub(crate) const TEXTURE_BORDER_COLOR: u32 = 0x1004;
    pub(crate) const TEXTURE_COMPARE_MODE: u32 = 0x884c;
    pub(crate) const TEXTURE_COMPARE_FUNC: u32 = 0x884d;
    pub(crate) const COMPARE_REF_TO_TEXTURE: usize = 0x884e;
    pub(crate) const LESS_OR_EQUAL: usize = 0x0203;
    pub(crate) const NEAREST: usize = 0x2600;
    pub(crate) const LINEAR: usize = 0x2601;
    pub(crate) const NEAREST_MIPMAP_NEAREST: usize = 0x2700;
    pub(crate) const LINEAR_MIPMAP_NEAREST: usize = 0x2701;
    pub(crate) const LINEAR_MIPMAP_LINEAR: usize = 0x2703;
    pub(crate) const REPEAT: usize = 0x2901;
    pub(crate) const MIRRORED_REPEAT: usize = 0x8370;
    pub(crate) const CLAMP_TO_EDGE: usize = 0x812f;
    pub(crate) const CLAMP_TO_BORDER: usize = 0x812d;
    pub(crate) const TEXTURE_3D: u32 = 0x806f;
    pub(crate) const TEXTURE_2D_ARRAY: u32 = 0x8c1a;
    pub(crate) const TEXTURE_CUBE: u32 = 0x8513;
    pub(crate) const TEXTURE_CUBE_FIRST: u32 = 0x8515;
    pub(crate) const TEXTURE_BASE_LEVEL: u32 = 0x813c;
    pub(crate) const TEXTURE_MAX_LEVEL: u32 = 0x813d;
    pub(crate) const UNPACK_ALIGNMENT: u32 = 0x0cf5;
    pub(crate) const PACK_ALIGNMENT: u32 = 0x0d05;
    pub(crate) const PACK_ROW_LENGTH: u32 = 0x0d02;
    pub(crate) const UNPACK_ROW_LENGTH: u32 = 0x0cf2;
    pub(crate) const FRAMEBUFFER: u32 = 0x8d40;
    pub(crate) const COLOR_ATTACHMENT: u32 = 0x8ce0;
    pub(crate) const FRAMEBUFFER_COMPLETE: u32 = 0x8cd5;
    pub(crate) const RENDERER: u32 = 0x1f01;
    pub(crate) const VERSION: u32 = 0x1f02;
    pub(crate) const TIMESTAMP: u32 = 0x8e28;
    pub(crate) const TIME_ELAPSED: u32 = 0x88bf;
    pub(crate) const QUERY_RESULT: u32 = 0x8866;
    pub(crate) const SYNC_GPU_COMMANDS_COMPLETE: u32 = 0x9117;
    pub(crate) const SYNC_FLUSH: u32 = 1;
    pub(crate) const ALREADY_SIGNALED: u32 = 0x911a;
    pub(crate) const CONDITION_SATISFIED: u32 = 0x911c;
}

macro_rules! functions {
    ($($field:ident: $name:literal as fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        #[derive(Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Functions {
            fn load(egl: &Egl) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let at = egl.function($name)?.as_ptr();
                        // SAFETY: the registry gives the function of that name this signature.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(at)
                        }
                    },)+
                })
            }
        }
    };
}

functions! {
    get_error: c"glGetError" as fn() -> c_uint;
    get_string: c"glGetString" as fn(c_uint) -> *const c_char;
    get_integer64: c"glGetInteger64v" as fn(c_uint, *mut i64);
    finish: c"glFinish" as fn();
    flush: c"glFlush" as fn();
    gen_buffers: c"glGenBuffers" as fn(c_int, *mut c_uint);
    delete_buffers: c"glDeleteBuffers" as fn(c_int, *const c_uint);
    bind_buffer: c"glBindBuffer" as fn(c_uint, c_uint);
    buffer_data: c"glBufferData" as fn(c_uint, isize, *const c_void, c_uint);
    buffer_storage: c"glBufferStorage" as fn(c_uint, isize, *const c_void, c_uint);
    buffer_sub_data: c"glBufferSubData" as fn(c_uint, isize, isize, *const c_void);
    get_buffer_sub_data: c"glGetBufferSubData" as fn(c_uint, isize, isize, *mut c_void);
    copy_buffer_sub_data: c"glCopyBufferSubData" as fn(c_uint, c_uint, isize, isize, isize);
    map_buffer_range: c"glMapBufferRange" as fn(c_uint, isize, isize, c_uint) -> *mut c_void;
    flush_mapped: c"glFlushMappedBufferRange" as fn(c_uint, isize, isize);
    unmap_buffer: c"glUnmapBuffer" as fn(c_uint) -> u8;
    gen_textures: c"glGenTextures" as fn(c_int, *mut c_uint);
    delete_textures: c"glDeleteTextures" as fn(c_int, *const c_uint);
    bind_texture: c"glBindTexture" as fn(c_uint, c_uint);
    tex_parameter: c"glTexParameteri" as fn(c_uint, c_uint, c_int);
    tex_storage_2d: c"glTexStorage2D" as fn(c_uint, c_int, c_uint, c_int, c_int);
    tex_image_2d: c"glTexImage2D" as fn(c_uint, c_int, c_int, c_int, c_int, c_int, c_uint, c_uint, *const c_void);
    tex_image_3d: c"glTexImage3D"
        as fn(c_uint, c_int, c_int, c_int, c_int, c_int, c_int, c_uint, c_uint, *const c_void);
    tex_sub_image_2d: c"glTexSubImage2D"
        as fn(c_uint, c_int, c_int, c_int, c_int, c_int, c_uint, c_uint, *const c_void);
    compressed_2d: c"glCompressedTexImage2D"
        as fn(c_uint, c_int, c_uint, c_int, c_int, c_int, c_int, *const c_void);
    get_tex_image: c"glGetTexImage" as fn(c_uint, c_int, c_uint, c_uint, *mut c_void);
    get_compressed: c"glGetCompressedTexImage" as fn(c_uint, c_int, *mut c_void);
    copy_image: c"glCopyImageSubData"
        as fn(c_uint, c_uint, c_int, c_int, c_int, c_int, c_uint, c_uint, c_int, c_int, c_int, c_int, c_int, c_int, c_int);
    pixel_store: c"glPixelStorei" as fn(c_uint, c_int);
    gen_framebuffers: c"glGenFramebuffers" as fn(c_int, *mut c_uint);
    delete_framebuffers: c"glDeleteFramebuffers" as fn(c_int, *const c_uint);
    bind_framebuffer: c"glBindFramebuffer" as fn(c_uint, c_uint);
    framebuffer_texture: c"glFramebufferTexture2D" as fn(c_uint, c_uint, c_uint, c_uint, c_int);
    framebuffer_status: c"glCheckFramebufferStatus" as fn(c_uint) -> c_uint;
    read_pixels: c"glReadPixels" as fn(c_int, c_int, c_int, c_int, c_uint, c_uint, *mut c_void);
    fence_sync: c"glFenceSync" as fn(c_uint, c_uint) -> *mut c_void;
    client_wait_sync: c"glClientWaitSync" as fn(*mut c_void, c_uint, u64) -> c_uint;
    delete_sync: c"glDeleteSync" as fn(*mut c_void);
    gen_queries: c"glGenQueries" as fn(c_int, *mut c_uint);
    delete_queries: c"glDeleteQueries" as fn(c_int, *const c_uint);
    query_counter: c"glQueryCounter" as fn(c_uint, c_uint);
    begin_query: c"glBeginQuery" as fn(c_uint, c_uint);
    end_query: c"glEndQuery" as fn(c_uint);
    create_shader: c"glCreateShader" as fn(c_uint) -> c_uint;
    shader_source: c"glShaderSource" as fn(c_uint, c_int, *const *const c_char, *const c_int);
    compile_shader: c"glCompileShader" as fn(c_uint);
    get_shader: c"glGetShaderiv" as fn(c_uint, c_uint, *mut c_int);
    shader_log: c"glGetShaderInfoLog" as fn(c_uint, c_int, *mut c_int, *mut c_char);
    delete_shader: c"glDeleteShader" as fn(c_uint);
    create_program: c"glCreateProgram" as fn() -> c_uint;
    attach_shader: c"glAttachShader" as fn(c_uint, c_uint);
    link_program: c"glLinkProgram" as fn(c_uint);
    get_program: c"glGetProgramiv" as fn(c_uint, c_uint, *mut c_int);
    delete_program: c"glDeleteProgram" as fn(c_uint);
    use_program: c"glUseProgram" as fn(c_uint);
    bind_buffer_base: c"glBindBufferBase" as fn(c_uint, c_uint, c_uint);
    bind_image: c"glBindImageTexture" as fn(c_uint, c_uint, c_int, u8, c_int, c_uint, c_uint);
    active_texture: c"glActiveTexture" as fn(c_uint);
    tex_buffer: c"glTexBuffer" as fn(c_uint, c_uint, c_uint);
    tex_image_1d: c"glTexImage1D" as fn(c_uint, c_int, c_int, c_int, c_int, c_uint, c_uint, *const c_void);
    tex_parameter_floats: c"glTexParameterfv" as fn(c_uint, c_uint, *const f32);
    dispatch: c"glDispatchCompute" as fn(c_uint, c_uint, c_uint);
    dispatch_indirect: c"glDispatchComputeIndirect" as fn(isize);
    barrier: c"glMemoryBarrier" as fn(c_uint);
    uniform_location: c"glGetUniformLocation" as fn(c_uint, *const c_char) -> c_int;
    uniform_word: c"glUniform1ui" as fn(c_int, c_uint);
    uniform_vector: c"glUniform4f" as fn(c_int, f32, f32, f32, f32);
    get_query_u64: c"glGetQueryObjectui64v" as fn(c_uint, c_uint, *mut u64);
    enable: c"glEnable" as fn(c_uint);
    disable: c"glDisable" as fn(c_uint);
    scissor: c"glScissor" as fn(c_int, c_int, c_int, c_int);
    draw_buffers: c"glDrawBuffers" as fn(c_int, *const c_uint);
    framebuffer_whole: c"glFramebufferTexture" as fn(c_uint, c_uint, c_uint, c_int);
    framebuffer_layer: c"glFramebufferTextureLayer" as fn(c_uint, c_uint, c_uint, c_int, c_int);
    clear: c"glClear" as fn(c_uint);
    clear_color: c"glClearColor" as fn(f32, f32, f32, f32);
    clear_depth: c"glClearDepthf" as fn(f32);
    clear_stencil: c"glClearStencil" as fn(c_int);
    clear_signed: c"glClearBufferiv" as fn(c_uint, c_int, *const i32);
    clear_unsigned: c"glClearBufferuiv" as fn(c_uint, c_int, *const u32);
    clear_buffer_data: c"glClearBufferData" as fn(c_uint, c_uint, c_uint, c_uint, *const c_void);
    clear_buffer_part: c"glClearBufferSubData"
        as fn(c_uint, c_uint, isize, isize, c_uint, c_uint, *const c_void);
    clear_texture: c"glClearTexImage" as fn(c_uint, c_int, c_uint, c_uint, *const c_void);
    clear_texture_part: c"glClearTexSubImage"
        as fn(c_uint, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_uint, c_uint, *const c_void);
}

/// OpenGL of the context that is current.
#[derive(Debug)]
pub(crate) struct Gl<'a> {
    functions: Functions,
    context: PhantomData<&'a Egl>,
}

/// A rectangle of a texture's level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// First texel of a line.
    pub(crate) x: usize,
    /// First line of a layer.
    pub(crate) y: usize,
    /// First layer of the texture.
    pub(crate) z: usize,
}

fn int(value: usize) -> c_int {
    c_int::try_from(value).expect("tests use sizes that OpenGL can name")
}

impl<'a> Gl<'a> {
    /// The functions of the current context.
    pub(crate) fn new(egl: &'a Egl) -> Result<Self> {
        Ok(Self {
            functions: Functions::load(egl)?,
            context: PhantomData,
        })
    }

    /// Fails if a call since the last look failed.
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        // SAFETY: takes nothing; a context is current.
        let error = unsafe { (self.functions.get_error)() };
        ensure!(error == 0, "{what}: OpenGL error {error:#06x}");
        Ok(())
    }

    /// A string of the implementation.
    pub(crate) fn string(&self, name: u32) -> Result<String> {
        // SAFETY: the answer is null or a C string that lives as long as the context.
        let text = unsafe {
            let text = (self.functions.get_string)(name);
            ensure!(!text.is_null(), "no string {name:#x}");
            CStr::from_ptr(text)
        };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Waits until all commands are done.
    pub(crate) fn finish(&self) {
        // SAFETY: takes nothing; a context is current.
        unsafe { (self.functions.finish)() }
    }

    /// Sends all commands to the GPU.
    pub(crate) fn flush(&self) {
        // SAFETY: takes nothing; a context is current.
        unsafe { (self.functions.flush)() }
    }

    /// The GPU's time in nanoseconds.
    pub(crate) fn time(&self) -> Result<u64> {
        let mut time = 0;
        // SAFETY: the parameter is one value.
        unsafe { (self.functions.get_integer64)(number::TIMESTAMP, &raw mut time) };
        self.check("glGetInteger64v")?;
        Ok(time as u64)
    }

    fn name(&self, make: unsafe extern "C" fn(c_int, *mut c_uint)) -> c_uint {
        let mut name = 0;
        // SAFETY: one name is made, into one variable.
        unsafe { make(1, &raw mut name) };
        name
    }

    /// A new buffer of `bytes`, holding `data` if there is any.
    pub(crate) fn buffer(&self, bytes: usize, data: Option<&[u8]>, usage: u32) -> Result<Buffer<'_>> {
        let buffer = self.bound_buffer();
        let at = self.data_of(bytes, data)?;
        // SAFETY: `at` is null or holds `bytes`, which are copied before the call ends.
        unsafe { (self.functions.buffer_data)(number::COPY_READ_BUFFER, bytes as isize, at, usage) };
        self.check("glBufferData")?;
        Ok(buffer)
    }

    /// A new buffer of `bytes` that cannot be made anew.
    pub(crate) fn immutable_buffer(&self, bytes: usize, flags: u32) -> Result<Buffer<'_>> {
        let buffer = self.bound_buffer();
        // SAFETY: no data.
        unsafe { (self.functions.buffer_storage)(number::COPY_READ_BUFFER, bytes as isize, null(), flags) };
        self.check("glBufferStorage")?;
        Ok(buffer)
    }

    fn data_of(&self, bytes: usize, data: Option<&[u8]>) -> Result<*const c_void> {
        match data {
            None => Ok(null()),
            Some(data) if data.len() == bytes => Ok(data.as_ptr().cast()),
            Some(data) => Err(anyhow!("{} bytes for a buffer of {bytes}", data.len())),
        }
    }

    fn bound_buffer(&self) -> Buffer<'_> {
        let name = self.name(self.functions.gen_buffers);
        let buffer = Buffer { gl: self, name };
        buffer.bind(number::COPY_READ_BUFFER);
        buffer
    }

    /// Copies between buffers.
    pub(crate) fn copy(
        &self,
        source: &Buffer<'_>,
        source_at: usize,
        target: &Buffer<'_>,
        target_at: usize,
        bytes: usize,
    ) -> Result<()> {
        source.bind(number::COPY_READ_BUFFER);
        target.bind(number::COPY_WRITE_BUFFER);
        // SAFETY: names and numbers only.
        unsafe {
            (self.functions.copy_buffer_sub_data)(
                number::COPY_READ_BUFFER,
                number::COPY_WRITE_BUFFER,
                source_at as isize,
                target_at as isize,
                bytes as isize,
            );
        }
        self.check("glCopyBufferSubData")
    }

    /// A new texture of that target.
    pub(crate) fn texture(&self, target: u32) -> Texture<'_> {
        let name = self.name(self.functions.gen_textures);
        let texture = Texture {
            gl: self,
            name,
            target,
        };
        texture.bind();
        texture
    }

    /// Sets how client memory is read and written.
    pub(crate) fn pixel_store(&self, parameter: u32, value: usize) -> Result<()> {
        // SAFETY: numbers only.
        unsafe { (self.functions.pixel_store)(parameter, int(value)) };
        self.check("glPixelStorei")
    }

    /// Reads from a texture as a framebuffer.
    pub(crate) fn read_pixels(
        &self,
        texture: &Texture<'_>,
        [width, height, _]: Size,
        format: Format,
        target: &mut [u8],
    ) -> Result<()> {
        ensure!(
            target.len() >= width * height * format.texel,
            "no room for the pixels"
        );
        let name = self.name(self.functions.gen_framebuffers);
        let functions = &self.functions;
        // SAFETY: names and numbers; `target` was checked to hold what is read, with lines packed by the caller.
        let status = unsafe {
            (functions.bind_framebuffer)(number::FRAMEBUFFER, name);
            (functions.framebuffer_texture)(
                number::FRAMEBUFFER,
                number::COLOR_ATTACHMENT,
                texture.target,
                texture.name,
                0,
            );
            let status = (functions.framebuffer_status)(number::FRAMEBUFFER);
            if status == number::FRAMEBUFFER_COMPLETE {
                (functions.read_pixels)(
                    0,
                    0,
                    int(width),
                    int(height),
                    format.format,
                    format.kind,
                    target.as_mut_ptr().cast(),
                );
            }
            (functions.bind_framebuffer)(number::FRAMEBUFFER, 0);
            (functions.delete_framebuffers)(1, &raw const name);
            status
        };
        ensure!(
            status == number::FRAMEBUFFER_COMPLETE,
            "framebuffer status {status:#x}"
        );
        self.check("glReadPixels")
    }

    /// Copies a box between textures.
    pub(crate) fn copy_image(
        &self,
        (source, source_at): (&Texture<'_>, Place),
        (target, target_at): (&Texture<'_>, Place),
        [width, height, depth]: Size,
    ) -> Result<()> {
        // SAFETY: names and numbers only.
        unsafe {
            (self.functions.copy_image)(
                source.name,
                source.target,
                0,
                int(source_at.x),
                int(source_at.y),
                int(source_at.z),
                target.name,
                target.target,
                0,
                int(target_at.x),
                int(target_at.y),
                int(target_at.z),
                int(width),
                int(height),
                int(depth),
            );
        }
        self.check("glCopyImageSubData")
    }

    /// Waits for all work until now; the answer of OpenGL.
    pub(crate) fn fence(&self, limit_ns: u64) -> Result<u32> {
        // SAFETY: the sync object is made, waited for and deleted here.
        let answer = unsafe {
            let sync = (self.functions.fence_sync)(number::SYNC_GPU_COMMANDS_COMPLETE, 0);
            ensure!(!sync.is_null(), "no sync object");
            let answer = (self.functions.client_wait_sync)(sync, number::SYNC_FLUSH, limit_ns);
            (self.functions.delete_sync)(sync);
            answer
        };
        self.check("glClientWaitSync")?;
        Ok(answer)
    }

    /// Times by the GPU's order: before `work`, after it, and how long it took by the third kind of query.
    pub(crate) fn times_around(&self, work: impl FnOnce() -> Result<()>) -> Result<[u64; 3]> {
        let functions = &self.functions;
        let names = [0; 3].map(|_: u8| self.name(functions.gen_queries));
        // SAFETY: names and numbers only.
        unsafe {
            (functions.query_counter)(names[0], number::TIMESTAMP);
            (functions.begin_query)(number::TIME_ELAPSED, names[1]);
        }
        work()?;
        // SAFETY: names and numbers only.
        unsafe {
            (functions.end_query)(number::TIME_ELAPSED);
            (functions.query_counter)(names[2], number::TIMESTAMP);
        }
        let results = names.map(|name| {
            let mut value = 0;
            // SAFETY: one value is asked for.
            unsafe { (functions.get_query_u64)(name, number::QUERY_RESULT, &raw mut value) };
            value
        });
        // SAFETY: three names are deleted.
        unsafe { (functions.delete_queries)(3, names.as_ptr()) };
        self.check("queries")?;
        Ok([results[0], results[2], results[1]])
    }
}

/// A buffer object; deleted when dropped.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    gl: &'a Gl<'a>,
    name: c_uint,
}

impl Buffer<'_> {
    /// Binds the buffer to a target such as `GL_ARRAY_BUFFER`.
    pub(crate) fn bind(&self, target: u32) {
        // SAFETY: a name and a number.
        unsafe { (self.gl.functions.bind_buffer)(target, self.name) }
    }

    /// Writes `data` at `offset`.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.bind(number::COPY_WRITE_BUFFER);
        // SAFETY: the data is copied before the call ends.
        unsafe {
            (self.gl.functions.buffer_sub_data)(
                number::COPY_WRITE_BUFFER,
                offset as isize,
                data.len() as isize,
                data.as_ptr().cast(),
            );
        }
        self.gl.check("glBufferSubData")
    }

    /// Reads `bytes` from `offset`.
    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        self.bind(number::COPY_READ_BUFFER);
        let mut data = vec![0; bytes];
        // SAFETY: `data` has room for what is asked for.
        unsafe {
            (self.gl.functions.get_buffer_sub_data)(
                number::COPY_READ_BUFFER,
                offset as isize,
                bytes as isize,
                data.as_mut_ptr().cast(),
            );
        }
        self.gl.check("glGetBufferSubData")?;
        Ok(data)
    }

    /// Maps a range for `work`.
    pub(crate) fn mapped<T>(
        &self,
        offset: usize,
        bytes: usize,
        flags: u32,
        work: impl FnOnce(&Range<'_>) -> Result<T>,
    ) -> Result<T> {
        self.bind(number::COPY_WRITE_BUFFER);
        let functions = &self.gl.functions;
        // SAFETY: numbers only.
        let at = unsafe {
            (functions.map_buffer_range)(number::COPY_WRITE_BUFFER, offset as isize, bytes as isize, flags)
        };
        self.gl.check("glMapBufferRange")?;
        let start = NonNull::new(at.cast()).ok_or_else(|| anyhow!("no mapping"))?;
        let result = work(&Range {
            buffer: self,
            start,
            bytes,
        });
        self.bind(number::COPY_WRITE_BUFFER);
        // SAFETY: the buffer is bound and mapped; the range was borrowed and is gone.
        let kept = unsafe { (functions.unmap_buffer)(number::COPY_WRITE_BUFFER) };
        ensure!(kept != 0, "a mapping lost its contents");
        self.gl.check("glUnmapBuffer")?;
        result
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: one name is deleted.
        unsafe { (self.gl.functions.delete_buffers)(1, &raw const self.name) }
    }
}

/// A mapped range of a buffer.
#[derive(Debug)]
pub(crate) struct Range<'a> {
    buffer: &'a Buffer<'a>,
    start: NonNull<u8>,
    bytes: usize,
}

impl Range<'_> {
    /// Writes `data` at `offset` of the range.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.bytes, "write beyond a mapping");
        // SAFETY: the range is mapped for as long as `self` is borrowed, and the assertion keeps the write inside.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.as_ptr().add(offset), data.len()) }
    }

    /// Reads the whole range.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut data = vec![0; self.bytes];
        // SAFETY: the range is mapped for as long as `self` is borrowed, and `data` has its size.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), data.as_mut_ptr(), self.bytes) };
        data
    }

    /// Tells OpenGL that a part was written.
    pub(crate) fn flush(&self, offset: usize, bytes: usize) -> Result<()> {
        self.buffer.bind(number::COPY_WRITE_BUFFER);
        // SAFETY: numbers only.
        unsafe {
            (self.buffer.gl.functions.flush_mapped)(
                number::COPY_WRITE_BUFFER,
                offset as isize,
                bytes as isize,
            );
        }
        self.buffer.gl.check("glFlushMappedBufferRange")
    }
}
