//! Compute shaders whose results are known.

use anyhow::{Result, ensure};
use report::Outcome;

use super::{Case, case};
use crate::bytes::bytes;
use crate::egl::Egl;
use crate::gl::compute::Program;
use crate::gl::{Gl, number};

pub(super) const CASES: &[Case] = &[case("compute-index", index), case("compute-reverse", reverse)];

fn words(data: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.try_into().map_or(0, u32::from_le_bytes);
    data.chunks_exact(4).map(word).collect()
}

fn same_words(found: &[u32], wanted: impl Iterator<Item = u32>) -> Result<()> {
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        ensure!(
            *found == wanted,
            "word {index} is {found:#x} instead of {wanted:#x}"
        );
    }
    Ok(())
}

/// Each invocation writes a word that depends on its place.
fn index(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const COUNT: u32 = 4096;
    let program = Program::new(
        gl,
        "#version 430\n\
         layout(local_size_x = 64) in;\n\
         layout(std430, binding = 0) buffer Out { uint words[]; };\n\
         void main() { uint i = gl_GlobalInvocationID.x; words[i] = i * 3u + 7u; }\n",
    )?;
    let out = gl.buffer(COUNT as usize * 4, None, number::DYNAMIC_COPY)?;
    program.run([COUNT / 64, 1, 1], &[&out])?;
    let found = words(&out.read(0, COUNT as usize * 4)?);
    same_words(&found, (0..COUNT).map(|i| i * 3 + 7))?;
    Ok(Outcome::Passed)
}

/// Groups exchange words through shared memory.
fn reverse(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const COUNT: usize = 1024;
    let program = Program::new(
        gl,
        "#version 430\n\
         layout(local_size_x = 128) in;\n\
         layout(std430, binding = 0) buffer In { uint source[]; };\n\
         layout(std430, binding = 1) buffer Out { uint target[]; };\n\
         shared uint part[128];\n\
         void main() {\n\
             uint i = gl_LocalInvocationID.x;\n\
             part[i] = source[gl_GlobalInvocationID.x];\n\
             barrier();\n\
             target[gl_GlobalInvocationID.x] = part[127u - i] ^ gl_WorkGroupID.x;\n\
         }\n",
    )?;
    let data = bytes(150, COUNT * 4);
    let source = gl.buffer(data.len(), Some(&data), number::STATIC_DRAW)?;
    let target = gl.buffer(data.len(), None, number::DYNAMIC_COPY)?;
    program.run([COUNT as u32 / 128, 1, 1], &[&source, &target])?;
    let (found, given) = (words(&target.read(0, data.len())?), words(&data));
    let wanted = (0..COUNT).map(|i| given[i / 128 * 128 + 127 - i % 128] ^ (i / 128) as u32);
    same_words(&found, wanted)?;
    Ok(Outcome::Passed)
}
