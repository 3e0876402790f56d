// UNSAFETY: OpenGL's functions are called by pointer and take addresses.
//! Compute shaders: compiled from text, run on storage buffers.
#![expect(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_uint};
use std::ptr::null;

use anyhow::{Result, ensure};

use super::{Buffer, Gl};

const COMPUTE_SHADER: c_uint = 0x91b9;
const COMPILE_STATUS: c_uint = 0x8b81;
const LINK_STATUS: c_uint = 0x8b82;
const SHADER_STORAGE_BUFFER: c_uint = 0x90d2;
const ALL_BARRIERS: c_uint = !0;

/// A compute program; deleted when dropped.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    gl: &'a Gl<'a>,
    name: c_uint,
}

impl<'a> Program<'a> {
    /// Compiles `source`.
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

    /// Runs that many groups on `buffers`, bound from 0 on; what they wrote can be read afterwards.
    pub(crate) fn run(&self, groups: [u32; 3], buffers: &[&Buffer<'_>]) -> Result<()> {
        let functions = &self.gl.functions;
        // SAFETY: names and numbers only.
        unsafe {
            (functions.use_program)(self.name);
            for (index, buffer) in buffers.iter().enumerate() {
                (functions.bind_buffer_base)(SHADER_STORAGE_BUFFER, index as c_uint, buffer.name);
            }
            (functions.dispatch)(groups[0], groups[1], groups[2]);
            (functions.barrier)(ALL_BARRIERS);
        }
        self.gl.check("glDispatchCompute")
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: a name.
        unsafe { (self.gl.functions.delete_program)(self.name) }
    }
}
