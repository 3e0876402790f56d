//! Copies of bytes that nobody will look at soon: past the caches of the processor.
//!
//! A store first reads the line that it changes. A store past the caches (non-temporal) does not, and leaves in the caches what others
//! use. For long copies between memories that are not in the caches it takes about three quarters of the time.
//
// UNSAFETY: such stores exist as functions of the processor's on pointers only: of a line each where it has AVX-512, of a fourth of one (SSE2,
// which every x86-64 has) elsewhere. Those of a line take nine tenths of the time or less.
#![expect(unsafe_code)]

use std::arch::x86_64::{
    __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512,
};

use vm_memory::VolatileSlice;

/// A line of the caches.
const LINE: usize = 64;
/// Words of a line that one instruction of SSE2 moves.
const WORDS: usize = LINE / size_of::<__m128i>();

/// Copies all of `from` to the start of `to`, which is as long, before anything that this thread stores later.
pub(crate) fn copy(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>) {
    let (source, target) = (from.ptr_guard(), to.ptr_guard_mut());
    let (start, end) = (source.as_ptr() as usize, target.as_ptr() as usize);
    let bytes = from.len();
    let is_in_lines = end.is_multiple_of(LINE) && bytes.is_multiple_of(LINE) && bytes == to.len();
    if !is_in_lines || start.abs_diff(end) < bytes {
        return from.copy_to_volatile_slice(*to);
    }
    // SAFETY: both slices are mapped for as long as their guards live and as long as `bytes`, which is a multiple of a line; `to` begins at
    // one. They do not overlap. The memory is shared with others, as that of all volatile slices is: no reference to it is made, and a
    // load that races with a store brings some bytes. AVX-512 is used where the processor has it.
    unsafe {
        match std::is_x86_feature_detected!("avx512f") {
            true => copy_by_lines(source.as_ptr(), target.as_ptr(), bytes),
            false => copy_by_words(source.as_ptr(), target.as_ptr(), bytes),
        }
    }
    // SAFETY: SSE2 is part of x86-64. Such stores are ordered by nothing else before a later one, which may say that the copy is over.
    unsafe { _mm_sfence() };
}

/// Copies whole lines with AVX-512.
///
/// # Safety
/// `bytes` bytes, a multiple of a line, are mapped from either place on and do not overlap; `target` begins at a line. The processor has AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn copy_by_lines(source: *const u8, target: *mut u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        // SAFETY: the line lies within both. The load needs no alignment; the store has its.
        unsafe {
            let value = _mm512_loadu_si512(source.add(line).cast());
            _mm512_stream_si512(target.add(line).cast(), value);
        }
    }
}

/// The same with SSE2.
///
/// # Safety
/// As of [`copy_by_lines`], on any processor.
unsafe fn copy_by_words(source: *const u8, target: *mut u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        // SAFETY: the line lies within both. The loads need no alignment; the stores have theirs.
        unsafe {
            let source = source.add(line).cast::<__m128i>();
            let target = target.add(line).cast::<__m128i>();
            let words: [__m128i; WORDS] = std::array::from_fn(|word| _mm_loadu_si128(source.add(word)));
            for (word, value) in words.into_iter().enumerate() {
                _mm_stream_si128(target.add(word), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

    use super::*;

    /// Copies within one memory of known bytes, and compares all of it with what the standard library's `copy_within` makes of it.
    fn check(from: usize, to: usize, bytes: usize, copy: impl Fn(&VolatileSlice<'_>, &VolatileSlice<'_>)) {
        let region: MmapRegion = MmapRegion::new(0x4000).unwrap();
        let all = region.as_volatile_slice();
        let mut expected: Vec<u8> = (0..0x4000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
        all.write_slice(&expected, 0).unwrap();
        let part = |at| all.subslice(at, bytes).unwrap();
        copy(&part(from), &part(to));
        expected.copy_within(from..from + bytes, to);
        let mut got = vec![0; 0x4000];
        all.read_slice(&mut got, 0).unwrap();
        assert!(got == expected, "{from:#x} to {to:#x}, {bytes:#x} bytes");
    }

    #[test]
    fn bytes_arrive_whatever_the_alignment_and_the_overlap() {
        for (from, to, bytes) in [
            (0, 0x2000, 0x1000),
            (0x2000, 0, 0x2000),
            (3, 0x2000, 0x1000),
            (0, 0x2003, 0x1000),
            (0x40, 0x2040, 0x41),
            (0, 0x40, 0x1000),
            (0x40, 0, 0x1000),
            (0x100, 0x100, 0x400),
            (0, 0x2000, 0),
            (0x3fc0, 0, 0x40),
        ] {
            check(from, to, bytes, copy);
        }
    }
    #[test]
    fn words_of_any_processor_bring_the_same_as_lines() {
        check(3, 0x2000, 0x1000, |from, to| {
            // SAFETY: both are mapped while the slices live, and apart; the second begins at a page.
            unsafe {
                copy_by_words(from.ptr_guard().as_ptr(), to.ptr_guard_mut().as_ptr(), from.len());
            }
        });
    }
}
