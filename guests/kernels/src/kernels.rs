//! All kernels, by name. A new one is a module and a row here.

mod atax;
mod backprop;
mod bfs;
mod conv2d;
mod fdtd2d;
mod graph;
mod gups;
mod hashjoin;
mod heartwall;
mod hotspot;
mod joinrows;
mod kmeans;
mod lud;
mod matrix;
mod nn;
mod nw;
mod pathfinder;
mod srad;
mod srad2;
mod sssp;
mod triad;

pub use srad::Srad;

use crate::Kernel;

macro_rules! kernels {
    ($($module:ident::$Kernel:ident: $about:literal,)*) => {
        /// A kernel of a certain size.
        #[derive(Clone, Debug)]
        #[expect(private_interfaces, reason = "seen through the trait only")]
        pub enum Instance {
            $(#[doc = $about] $Kernel($module::$Kernel),)*
        }

        /// Names of all kernels.
        pub const NAMES: &[&str] = &[$($module::$Kernel::NAME),*];

        /// The kernel called `name` whose buffers have together at most `footprint` bytes, as near as its shape
        /// allows, or the fewest it can have.
        pub fn make(name: &str, footprint: u64) -> Option<Instance> {
            $(if name == $module::$Kernel::NAME {
                return Some(Instance::$Kernel($module::$Kernel::of(footprint)));
            })*
            None
        }

        impl Instance {
            /// The kernel behind the name.
            pub fn kernel(&self) -> &dyn Kernel {
                match self {
                    $(Self::$Kernel(kernel) => kernel,)*
                }
            }
        }
    };
}

kernels! {
    hotspot::Hotspot: "Heat in a chip, step by step (Rodinia).",
    bfs::Bfs: "Breadth-first search, level by level (Rodinia).",
    nn::Nn: "Distances of places and the nearest of them (Rodinia).",
    srad2::Srad2: "Diffusion in an image that stops at edges (Rodinia).",
    backprop::Backprop: "A step of training of a network (Rodinia).",
    heartwall::Heartwall: "Points of a film, followed by their surroundings (Rodinia, reduced).",
    kmeans::Kmeans: "Clusters of points, round by round (Rodinia).",
    lud::Lud: "Many matrices' lower and upper factors, tile by tile (Rodinia).",
    matrix::Matrix: "The matrix expression A·B + C·D, with both products kept.",
    triad::Triad: "STREAM's triad.",
    conv2d::Conv2d: "A 3 × 3 convolution (PolyBench).",
    pathfinder::Pathfinder: "The cheapest ways down a wall (Rodinia).",
    nw::Nw: "Needleman-Wunsch: the alignment of two sequences (Rodinia).",
    atax::Atax: "A matrix, then its transpose, times a vector (PolyBench).",
    fdtd2d::Fdtd2d: "Electric and magnetic fields, step by step (PolyBench).",
    sssp::Sssp: "Shortest ways from a node, by frontiers.",
    gups::Gups: "Atomic updates at random places (HPC Challenge).",
    hashjoin::HashJoin: "A hash join with counts and sums.",
    joinrows::JoinRows: "A hash join into rows whose memory the lanes allocate.",
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffers, Noise, Role};
    use std::vec;

    #[test]
    fn footprints_are_kept_and_used() {
        for name in NAMES {
            for footprint in [1 << 16, 3_000_000, 100 << 20, 700 << 20] {
                let instance = make(name, footprint).unwrap();
                let bytes = Buffers::of(instance.kernel()).bytes();
                assert!(bytes <= footprint, "{name} of {footprint}: {bytes}");
                assert!(bytes >= footprint / 10 * 7, "{name} of {footprint}: {bytes}");
            }
        }
    }

    #[test]
    fn any_footprint_makes_a_kernel() {
        for name in NAMES {
            for footprint in [0, 1, 1000, 1 << 40, u64::MAX] {
                let instance = make(name, footprint).unwrap();
                assert!(Buffers::of(instance.kernel()).iter().count() > 1, "{name}");
            }
        }
        assert!(make("mining", 1 << 20).is_none());
    }

    /// Filling or comparing piece by piece gives the same words as at once.
    #[test]
    fn words_do_not_depend_on_the_piece_they_are_asked_in() {
        let noise = Noise::new(3);
        for name in NAMES {
            let instance = make(name, 40_000).unwrap();
            let kernel = instance.kernel();
            let mut memory = vec![0xdead_beef; kernel.reference_words()];
            kernel.reference(noise, &mut memory);
            for (number, buffer) in Buffers::of(kernel).iter() {
                let ask = |first: usize, words: &mut [u32]| match buffer.role {
                    Role::Input => kernel.fill(noise, number, first, words),
                    Role::Work => {}
                    Role::Output => kernel.expected(noise, &memory, number, first, words),
                };
                let mut whole = vec![0; buffer.words];
                ask(0, &mut whole);
                let mut parts = vec![0; buffer.words];
                for (index, part) in parts.chunks_mut(37).enumerate() {
                    ask(index * 37, part);
                }
                assert!(whole == parts, "{name}: {}", buffer.name);
                let is_varied = buffer.words < 10 || whole.iter().any(|word| *word != whole[0]);
                assert!(buffer.role == Role::Work || is_varied, "{name}: {}", buffer.name);
            }
        }
    }
}
