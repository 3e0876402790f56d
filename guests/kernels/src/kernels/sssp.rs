//! Shortest ways from node 0 along edges of lengths 1 to 16, after Bellman and Ford by frontiers: a node that was
//! brought nearer offers its distance to its neighbours, which take the least by an atomic. Their order decides the
//! number of launches, but not the distances.

use super::graph::{DEGREE, Graph, Search};
use crate::{Buffers, Gpu, Kernel, Noise, Role, Stopped, programs};

const FIRST: usize = 0;
const EDGES: usize = 1;
const LENGTHS: usize = 2;
const FRONTIER: usize = 3;
const NEXT: usize = 4;
const DISTANCE: usize = 5;
const MORE: usize = 6;
/// Words for each node: its edges' place, its edges and their lengths, two masks, its distance.
const WORDS_PER_NODE: usize = 4 + 2 * DEGREE;
const LENGTH_MAX: u32 = 16;

/// Links of the reference's queue: nothing follows, not in the queue.
const LAST: u32 = u32::MAX;
const OUT: u32 = u32::MAX - 1;

/// A graph with lengths.
#[derive(Clone, Debug)]
pub(crate) struct Sssp {
    graph: Graph,
}

impl Sssp {
    pub(crate) const NAME: &str = "sssp";

    pub(crate) fn of(footprint: u64) -> Self {
        Self {
            graph: Graph::of((footprint / 4).saturating_sub(2), WORDS_PER_NODE),
        }
    }

    fn length(noise: Noise, edge: usize) -> u32 {
        noise.of(LENGTHS).below(edge, LENGTH_MAX) + 1
    }
}

impl Kernel for Sssp {
    fn buffers(&self, buffers: &mut Buffers) {
        let nodes = self.graph.nodes;
        buffers.add("first", nodes + 1, Role::Input);
        buffers.add("edges", self.graph.edges(), Role::Input);
        buffers.add("lengths", self.graph.edges(), Role::Input);
        buffers.add("frontier", nodes, Role::Work);
        buffers.add("next", nodes, Role::Work);
        buffers.add("distance", nodes, Role::Output);
        buffers.add("more", 1, Role::Work);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = match buffer {
                FIRST => self.graph.first_edge(noise, index) as u32,
                EDGES => self.graph.target(noise, index),
                _ => Self::length(noise, index),
            };
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.graph.search(
            gpu,
            &Search {
                expand: &programs::SSSP_EXPAND,
                expand_buffers: &[FIRST, EDGES, LENGTHS, FRONTIER, NEXT, DISTANCE],
                instructions: 160,
                frontier: FRONTIER,
                next: NEXT,
                cost: DISTANCE,
                more: MORE,
            },
        )
    }

    fn reference_words(&self) -> usize {
        2 * self.graph.nodes
    }

    /// Version with a queue of the nodes that were brought nearer, linked so that none is in it twice.
    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (distance, following) = memory.split_at_mut(self.graph.nodes);
        distance.fill(Graph::UNREACHED);
        following.fill(OUT);
        (distance[0], following[0]) = (0, LAST);
        let (mut head, mut tail) = (0, 0);
        while head != LAST {
            let node = head as usize;
            for edge in self.graph.edges_of(noise, node) {
                let target = self.graph.target(noise, edge);
                let offered = distance[node] + Self::length(noise, edge);
                let known = &mut distance[target as usize];
                if offered >= *known {
                    continue;
                }
                *known = offered;
                if following[target as usize] == OUT {
                    following[tail as usize] = target;
                    following[target as usize] = LAST;
                    tail = target;
                }
            }
            head = following[node];
            following[node] = OUT;
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
