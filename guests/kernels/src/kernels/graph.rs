//! Graphs at random, and searches that go over them by frontiers.
//!
//! A graph has 2 to 10 edges a node, 6 on the average (Rodinia's inputs have 6), to nodes anywhere: accesses go
//! all over its memory. Degrees of two neighbouring nodes add up to 12, so that the place of a node's edges is known
//! without the nodes before.

use crate::{Gpu, Launch, Noise, Parameters, Stopped, programs};
use core::ops::Range;

/// Edges of a node on the average.
pub(super) const DEGREE: usize = 6;
/// Degrees differ from their mean by less than this.
const SPREAD: u32 = 5;
const NODES_MAX: u64 = 1 << 28;
const THREADS: u32 = 256;
/// Numbers of the noise.
const DEGREES: usize = 0;
const TARGETS: usize = 1;

/// A graph with an even number of nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Graph {
    pub(super) nodes: usize,
}

/// Buffers and program of a search from node 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search<'a> {
    /// Takes the nodes out of the frontier and notes in `next` whom they reached.
    pub(super) expand: &'static programs::Program,
    /// Its buffers in the order of its parameters, of which the last is the number of nodes.
    pub(super) expand_buffers: &'a [usize],
    /// About how many instructions one of its threads executes.
    pub(super) instructions: u32,
    /// A word for each node: not 0 if it is to be expanded.
    pub(super) frontier: usize,
    /// The same for after this launch.
    pub(super) next: usize,
    /// A word for each node: 0 at the start, all ones if it was not reached.
    pub(super) cost: usize,
    /// A word: not 0 if the frontier has nodes.
    pub(super) more: usize,
}

impl Graph {
    /// Cost of a node that was not reached.
    pub(super) const UNREACHED: u32 = u32::MAX;

    /// The largest with at most `words` of memory at `words_per_node`.
    pub(super) fn of(words: u64, words_per_node: usize) -> Self {
        let nodes = (words / words_per_node as u64).clamp(2, NODES_MAX);
        Self {
            nodes: nodes as usize & !1,
        }
    }

    pub(super) fn edges(self) -> usize {
        self.nodes * DEGREE
    }

    /// Where the edges of `node`, which may be the end, begin.
    pub(super) fn first_edge(self, noise: Noise, node: usize) -> usize {
        let extra = if node % 2 == 1 {
            // Of the even node before: its degree is 2 to 10.
            noise.of(DEGREES).below(node, 2 * SPREAD - 1) as usize + 1
        } else {
            SPREAD as usize
        };
        node * DEGREE + extra - SPREAD as usize
    }

    /// The edges of `node`.
    pub(super) fn edges_of(self, noise: Noise, node: usize) -> Range<usize> {
        self.first_edge(noise, node)..self.first_edge(noise, node + 1)
    }

    /// The node that `edge` leads to.
    pub(super) fn target(self, noise: Noise, edge: usize) -> u32 {
        noise.of(TARGETS).below(edge, self.nodes as u32)
    }

    /// Two launches a level over all nodes, until the host reads that no node came next.
    pub(super) fn search(self, gpu: &mut dyn Gpu, search: &Search<'_>) -> Result<(), Stopped> {
        let &Search {
            frontier, next, more, ..
        } = search;
        self.launch(gpu, &programs::GRAPH_START, 26, &[frontier, next, search.cost])?;
        // A path has at most as many steps as nodes.
        for _ in 0..self.nodes {
            gpu.write(more, 0, &[0])?;
            self.launch(gpu, search.expand, search.instructions, search.expand_buffers)?;
            self.launch(gpu, &programs::GRAPH_ADVANCE, 22, &[frontier, next, more])?;
            let mut flag = [0];
            gpu.read(more, 0, &mut flag)?;
            if flag == [0] {
                break;
            }
        }
        Ok(())
    }

    fn launch(
        self,
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        instructions: u32,
        buffers: &[usize],
    ) -> Result<(), Stopped> {
        let mut parameters = Parameters::new();
        for buffer in buffers {
            parameters = parameters.long(gpu.address(*buffer));
        }
        let parameters = parameters.word(self.nodes as u32);
        gpu.launch(&Launch {
            program,
            blocks: [(self.nodes as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions,
            parameters: &parameters,
        })
    }
}
