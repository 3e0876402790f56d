// UNSAFETY: OpenGL's functions are called by pointer and take addresses.
//! Compute shaders: compiled from text, run on storage buffers.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr::null;

use anyhow::{Result, ensure};

use super::{Buffer, Gl};

const COMPUTE_SHADER: c_uint = 0x91b9;
const COMPILE_STATUS: c_uint = 0x8b81;
const LINK_STATUS: c_uint = 0x8b82;
const DISPATCH_INDIRECT_BUFFER: c_uint = 0x90ee;
const ALL_BARRIERS: c_uint = !0;

/// Role of a buffer in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binding {
    /// A block that is read and written.
    Storage = 0x90d2,
    /// A block of constants.
    Uniform = 0x8a11,
    /// A buffer of atomic counters.
    AtomicCounter = 0x92c0,
}

/// A compute program; deleted when dropped.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    gl: &'a Gl<'a>,
    name: c_uint,
}

impl<'a> Program<'a> {
    /// Compiles and links `source` as a compute shader.
    pub(crate) fn new(gl: &'a Gl<'a>, source: &str) -> Result<Self> {
        let text = CString::new(source)?;
        let at: *const c_char = text.as_ptr();
        let functions = &gl.functions;
        let mut answer: c_int = 0;
        let mut log = [0_u8; 512];
        // SAFETY: one C string is named, which outlives the call; answers are one value, the log has its size.
        let program = unsafe {
            let shader = (functions.create_shader)(COMPUTE_SHADER);
            (functions.shader_source)(shader, 1, &raw const at, null());
            (functions.compile_shader)(shader);
            (functions.get_shader)(shader, COMPILE_STATUS, &raw mut answer);
            let room = log.len() as c_int;
            (functions.shader_log)(shader, room, std::ptr::null_mut(), log.as_mut_ptr().cast());
            let name = (functions.create_program)();
            (functions.attach_shader)(name, shader);
            (functions.delete_shader)(shader);
            Self { gl, name }
        };
        ensure!(
            answer != 0,
            "a shader does not compile: {}",
            String::from_utf8_lossy(&log)
        );
        // SAFETY: the name is of a program; the answer is one value.
        unsafe {
            (functions.link_program)(program.name);
            (functions.get_program)(program.name, LINK_STATUS, &raw mut answer);
        }
        ensure!(answer != 0, "a program does not link");
        gl.check("a compute program")?;
        Ok(program)
    }

    /// Runs that many groups on `buffers`, bound from 0 on; their writes can be read afterwards.
    pub(crate) fn run(&self, groups: [u32; 3], buffers: &[&Buffer<'_>]) -> Result<()> {
        let functions = &self.gl.functions;
        self.prepare(buffers);
        // SAFETY: numbers only.
        unsafe {
            (functions.dispatch)(groups[0], groups[1], groups[2]);
            (functions.barrier)(ALL_BARRIERS);
        }
        self.gl.check("glDispatchCompute")
    }

    /// Runs the numbers of groups that three words of a buffer give.
    pub(crate) fn run_indirect(
        &self,
        groups: &Buffer<'_>,
        offset: usize,
        buffers: &[&Buffer<'_>],
    ) -> Result<()> {
        let functions = &self.gl.functions;
        self.prepare(buffers);
        groups.bind(DISPATCH_INDIRECT_BUFFER);
        // SAFETY: the offset is one of the buffer that is bound; OpenGL checks it.
        unsafe {
            (functions.dispatch_indirect)(offset as isize);
            (functions.barrier)(ALL_BARRIERS);
        }
        self.gl.check("glDispatchComputeIndirect")
    }

    fn prepare(&self, buffers: &[&Buffer<'_>]) {
        // SAFETY: a name.
        unsafe { (self.gl.functions.use_program)(self.name) };
        for (index, buffer) in (0..).zip(buffers) {
            buffer.bind_at(Binding::Storage, index);
        }
    }

    /// Sets a uniform of one word.
    pub(crate) fn set_word(&self, name: &CStr, value: u32) -> Result<()> {
        let place = self.place(name)?;
        // SAFETY: the program is in use; numbers only.
        unsafe { (self.gl.functions.uniform_word)(place, value) };
        self.gl.check("glUniform1ui")
    }

    /// Sets a uniform of four floats.
    pub(crate) fn set_vector(&self, name: &CStr, [x, y, z, w]: [f32; 4]) -> Result<()> {
        let place = self.place(name)?;
        // SAFETY: the program is in use; numbers only.
        unsafe { (self.gl.functions.uniform_vector)(place, x, y, z, w) };
        self.gl.check("glUniform4f")
    }

    /// Where a uniform of the program is, which is then in use.
    fn place(&self, name: &CStr) -> Result<c_int> {
        // SAFETY: a name, and a C string by pointer.
        let place = unsafe {
            (self.gl.functions.use_program)(self.name);
            (self.gl.functions.uniform_location)(self.name, name.as_ptr())
        };
        ensure!(place >= 0, "no uniform {}", name.to_string_lossy());
        Ok(place)
    }
}

impl Buffer<'_> {
    /// Binds it for a program.
    pub(crate) fn bind_at(&self, binding: Binding, index: c_uint) {
        // SAFETY: a name and numbers.
        unsafe { (self.gl.functions.bind_buffer_base)(binding as c_uint, index, self.name) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: a name.
        unsafe { (self.gl.functions.delete_program)(self.name) }
    }
}
