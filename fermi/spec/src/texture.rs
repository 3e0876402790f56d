//! Textures: entries of the pools of headers and samplers, and where the levels of a texture lie.
//!
//! A header (NVIDIA: texture header, envytools: TIC) says what a texture is; a sampler (TSC) how it is filtered. Both
//! have 32 bytes and lie in pools, whose addresses and sizes the channel sets; it gives entries to the slots that
//! instructions name.
//!
//! Sources: NVIDIA's `cl9097tex.h`; envytools `rnndb/graph/g80_texture.xml`.

mod header;
mod pyramid;
mod sampler;

pub use header::{Header, Shape, Source};
pub use pyramid::{Level, Pyramid};
pub use sampler::{Address, Compare, Filter, MipFilter, Sampler};

/// Bytes of an entry of either pool.
pub const ENTRY_BYTES: usize = 32;
/// Words of an entry.
const WORDS: usize = ENTRY_BYTES / 4;
/// Levels that a texture can have.
pub const LEVELS_MAX: u32 = 16;

fn words_of(bytes: &[u8; ENTRY_BYTES]) -> [u32; WORDS] {
    let (chunks, _) = bytes.as_chunks();
    core::array::from_fn(|word| u32::from_le_bytes(chunks[word]))
}

/// Bits `high..=low` of a word.
const fn bits(word: u32, high: u32, low: u32) -> u32 {
    word >> low & (u32::MAX >> (31 - (high - low)))
}

/// The same as a two's complement number.
const fn signed_bits(word: u32, high: u32, low: u32) -> i32 {
    (word << (31 - high)) as i32 >> (31 - high + low)
}
