//! A copy with non-temporal stores, as the floor of what this machine can do.

// UNSAFETY: non-temporal stores exist as intrinsics on raw pointers only.
#![expect(unsafe_code)]

use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_load_si256, _mm256_stream_si256};

/// Unit of the copy, and the alignment of both ends.
pub(super) const LINE: usize = 32;

/// Copies `source` to `target`; `false` and nothing done if the processor has no AVX2 or the ends do not fit.
pub(super) fn copy(source: &[u8], target: &mut [u8]) -> bool {
    let fits = source.len() == target.len()
        && source.len().is_multiple_of(LINE)
        && source.as_ptr().addr().is_multiple_of(LINE)
        && target.as_ptr().addr().is_multiple_of(LINE);
    if !fits || !std::arch::is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: the processor has AVX2, and lengths and alignments are as the function wants them, all checked above.
    unsafe { copy_avx2(source, target) };
    true
}

/// # Safety
///
/// The processor has AVX2. Both slices are aligned to [`LINE`], equally long, and a multiple of it.
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(source: &[u8], target: &mut [u8]) {
    for (from, to) in source.chunks_exact(LINE).zip(target.chunks_exact_mut(LINE)) {
        // SAFETY: both pieces are LINE bytes long, as chunks_exact makes them, and aligned to LINE because they lie at
        // multiples of it from aligned starts.
        unsafe {
            let line = _mm256_load_si256(from.as_ptr().cast::<__m256i>());
            _mm256_stream_si256(to.as_mut_ptr().cast::<__m256i>(), line);
        }
    }
    // Non-temporal stores are weakly ordered: the next reader must see them.
    _mm_sfence();
}
