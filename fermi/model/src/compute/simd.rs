//! One function, compiled twice.
//
// UNSAFETY: the interpreter's loops over lanes become vector instructions only if the compiler may use them. They are
// compiled once for any processor and once for those with AVX2 and FMA, and the choice is made at run time.
#![expect(unsafe_code)]

use super::{
    grid::{Grid, GridProgress},
    outside::Outside,
    trap::Stop,
};

/// Runs [`Grid::run_body`] with the best instructions of this processor. Results do not depend on the choice.
pub(super) fn run_grid(
    grid: &mut Grid,
    outside: &mut dyn Outside,
    budget: u64,
) -> Result<GridProgress, Stop> {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("bmi1")
        && std::is_x86_feature_detected!("bmi2")
        && std::is_x86_feature_detected!("lzcnt")
        && std::is_x86_feature_detected!("popcnt")
    {
        // SAFETY: the processor has the instructions that the function was compiled for, as was just checked.
        return unsafe { run_grid_avx2(grid, outside, budget) };
    }
    grid.run_body(outside, &mut (), budget)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn run_grid_avx2(grid: &mut Grid, outside: &mut dyn Outside, budget: u64) -> Result<GridProgress, Stop> {
    grid.run_body(outside, &mut (), budget)
}
