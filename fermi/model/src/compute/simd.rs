//! Instructions of the processor at hand, for loops over lanes.
//!
//! The interpreter is compiled once for any processor and once for those with AVX2 and FMA, and the choice is made when a
//! grid runs. Results do not depend on it.
//
// UNSAFETY: loops over lanes become vector instructions only if the compiler may use them. A function that was compiled
// for AVX2 may be called only where the processor has it; a value of `Avx2` is the proof.
#![expect(unsafe_code)]

use super::{
    code::Op,
    grid::{Grid, GridProgress},
    outside::Outside,
    trap::Stop,
    warp::Warp,
};

/// Instructions of the shader cores whose loops over lanes are a function of their own, so that they do not lengthen
/// the interpreter's.
pub(super) trait Group {
    /// Performs `op` in `lanes`. Inlined always, as only then it becomes part of what is compiled for a [`Level`].
    fn perform(warp: &mut Warp, op: &Op, lanes: u32);
}

/// A set of instructions that the processor is known to have.
pub(super) trait Level: Copy {
    /// Performs an instruction of a group, compiled for this level.
    fn perform<G: Group>(self, warp: &mut Warp, op: &Op, lanes: u32);
}

/// The instructions that every processor of the architecture has.
#[derive(Clone, Copy)]
pub(super) struct Common;

impl Level for Common {
    #[inline(never)]
    fn perform<G: Group>(self, warp: &mut Warp, op: &Op, lanes: u32) {
        G::perform(warp, op, lanes);
    }
}

/// AVX2, FMA and the bit manipulation of the same generation.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        let is_there = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2")
            && std::is_x86_feature_detected!("lzcnt")
            && std::is_x86_feature_detected!("popcnt");
        is_there.then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Level for Avx2 {
    #[inline(always)]
    fn perform<G: Group>(self, warp: &mut Warp, op: &Op, lanes: u32) {
        // SAFETY: an `Avx2` exists only where `detect` found all that the function is compiled for.
        unsafe { perform_avx2::<G>(warp, op, lanes) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
fn perform_avx2<G: Group>(warp: &mut Warp, op: &Op, lanes: u32) {
    G::perform(warp, op, lanes);
}

/// Runs [`Grid::run_body`] with the best instructions of this processor.
pub(super) fn run_grid(
    grid: &mut Grid,
    outside: &mut dyn Outside,
    budget: u64,
) -> Result<GridProgress, Stop> {
    #[cfg(target_arch = "x86_64")]
    if let Some(level) = Avx2::detect() {
        // SAFETY: as above.
        return unsafe { run_grid_avx2(level, grid, outside, budget) };
    }
    grid.run_body(Common, outside, &mut (), budget)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn run_grid_avx2(
    level: Avx2,
    grid: &mut Grid,
    outside: &mut dyn Outside,
    budget: u64,
) -> Result<GridProgress, Stop> {
    grid.run_body(level, outside, &mut (), budget)
}
