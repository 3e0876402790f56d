//! Instructions of the processor at hand, for loops over lanes.
//!
//! The interpreter is compiled for any processor, for those with AVX2 and FMA, and for those with AVX-512, and the choice
//! is made when a grid runs. Results do not depend on it.
//
// UNSAFETY: loops over lanes become vector instructions only if the compiler may use them. A function that was compiled
// for a set of instructions may be called only where the processor has it; a value of the set's type is the proof.
#![expect(unsafe_code)]

use super::{code::Op, warp::Warp};

/// Instructions of the shader cores whose loops over lanes are a function of their own, so that they do not lengthen
/// the interpreter's.
pub(super) trait Group {
    /// Performs `op` in `lanes`. Inlined always, as only then it becomes part of what is compiled for a [`Level`].
    fn perform(warp: &mut Warp, op: &Op, lanes: u32);
}

/// Work of the interpreter, compiled for each [`Level`].
pub(super) trait Work {
    type Output;
    /// Inlined always, as a [`Group`] is.
    fn perform(self, level: impl Level) -> Self::Output;
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

/// A level: its proof, what it performs, and how it runs a grid. `$all` are the features, each of which is looked for.
macro_rules! level {
    ($(#[$doc:meta])* $name:ident, $all:literal, [$($feature:tt),*], $perform:ident, $run:ident) => {
        $(#[$doc])*
        #[cfg(target_arch = "x86_64")]
        #[derive(Clone, Copy)]
        struct $name(());

        #[cfg(target_arch = "x86_64")]
        impl $name {
            fn detect() -> Option<Self> {
                ($(std::is_x86_feature_detected!($feature))&&*).then_some(Self(()))
            }

            fn run<W: Work>(self, work: W) -> W::Output {
                // SAFETY: a value exists only where `detect` found all that the function is compiled for.
                unsafe { $run(self, work) }
            }
        }

        #[cfg(target_arch = "x86_64")]
        impl Level for $name {
            #[inline(always)]
            fn perform<G: Group>(self, warp: &mut Warp, op: &Op, lanes: u32) {
                // SAFETY: as above.
                unsafe { $perform::<G>(warp, op, lanes) }
            }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $all)]
        #[inline(never)]
        fn $perform<G: Group>(warp: &mut Warp, op: &Op, lanes: u32) {
            G::perform(warp, op, lanes);
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $all)]
        fn $run<W: Work>(level: $name, work: W) -> W::Output {
            work.perform(level)
        }
    };
}

level!(
    /// AVX2, FMA and the bit manipulation of the same generation.
    Avx2,
    "avx2,fma,bmi1,bmi2,lzcnt,popcnt",
    ["avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt"],
    perform_avx2,
    run_avx2
);

level!(
    /// The same and the AVX-512 of servers: masks, lengths up to 64 bytes, words of 8 to 64 bits.
    Avx512,
    "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl",
    [
        "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "avx512f", "avx512bw", "avx512cd", "avx512dq",
        "avx512vl"
    ],
    perform_avx512,
    run_avx512
);

/// Does work with the best instructions of this processor.
pub(super) fn perform<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(level) = Avx512::detect() {
            return level.run(work);
        }
        if let Some(level) = Avx2::detect() {
            return level.run(work);
        }
    }
    work.perform(Common)
}

/// Does work with each set of instructions that this processor has, the common one first.
#[cfg(test)]
pub(super) fn perform_with_each<W: Work>(mut work: impl FnMut() -> W) -> Vec<W::Output> {
    let mut outputs = vec![work().perform(Common)];
    #[cfg(target_arch = "x86_64")]
    {
        outputs.extend(Avx2::detect().map(|level| level.run(work())));
        outputs.extend(Avx512::detect().map(|level| level.run(work())));
    }
    outputs
}
