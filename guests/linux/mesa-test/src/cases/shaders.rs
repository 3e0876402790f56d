//! The common parts of tests of compute shaders: inputs and outputs in storage buffers.

use anyhow::Result;

use crate::bytes::bytes;
use crate::gl::compute::Program;
use crate::gl::{Buffer, Gl, number};

/// Words that depend on `seed`.
pub(super) fn words(seed: u32, count: usize) -> Vec<u32> {
    from_bytes(&bytes(seed, count * 4))
}

/// Words of a buffer.
pub(super) fn from_bytes(data: &[u8]) -> Vec<u32> {
    let (words, _) = data.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Bytes of words.
pub(super) fn to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// f32 in (-limit, limit) whose significands have `bits` bits, so that sums and products of few are exact.
pub(super) fn floats(seed: u32, count: usize, limit: f32, bits: u32) -> Vec<u32> {
    let steps = f64::from(1_u32 << bits);
    let float = |word: u32| {
        let sign = if word & 1 != 0 { -1.0 } else { 1.0 };
        let fraction = (f64::from(word >> 1) / f64::from(1_u32 << 31) * steps).floor() / steps;
        ((fraction * f64::from(limit)) * sign) as f32
    };
    words(seed, count)
        .into_iter()
        .map(|word| float(word).to_bits())
        .collect()
}

/// A buffer that holds words.
pub(super) fn input<'a>(gl: &'a Gl<'a>, words: &[u32]) -> Result<Buffer<'a>> {
    let data = to_bytes(words);
    gl.buffer(data.len(), Some(&data), number::DYNAMIC_COPY)
}

/// A buffer of zeros.
pub(super) fn output<'a>(gl: &'a Gl<'a>, words: usize) -> Result<Buffer<'a>> {
    input(gl, &vec![0; words])
}

/// The words in a buffer.
pub(super) fn read(buffer: &Buffer<'_>, words: usize) -> Result<Vec<u32>> {
    Ok(from_bytes(&buffer.read(0, words * 4)?))
}

/// Runs a shader of groups of 64 that reads the buffer 0 and writes `columns` words for each invocation to buffer 1.
pub(super) fn columns(
    gl: &Gl<'_>,
    source: &str,
    given: &[u32],
    invocations: usize,
    columns: usize,
) -> Result<Vec<u32>> {
    let program = Program::new(gl, source)?;
    let (given, results) = (input(gl, given)?, output(gl, invocations * columns)?);
    program.run([invocations as u32 / 64, 1, 1], &[&given, &results])?;
    read(&results, invocations * columns)
}
