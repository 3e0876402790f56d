//! BFS of Rodinia, level by level, on a graph at random.

use super::graph::{DEGREE, Graph, Search};
use crate::{Buffers, Gpu, Kernel, Noise, Role, Stopped, programs};

const FIRST: usize = 0;
const EDGES: usize = 1;
const FRONTIER: usize = 2;
const NEXT: usize = 3;
const COST: usize = 4;
const MORE: usize = 5;
/// Words for each node: its edges' place, its edges, two masks, its cost.
const WORDS_PER_NODE: usize = 4 + DEGREE;

/// A breadth-first search of a random graph.
#[derive(Clone, Debug)]
pub(crate) struct Bfs {
    graph: Graph,
}

impl Bfs {
    pub(crate) const NAME: &str = "bfs";

    pub(crate) fn of(footprint: u64) -> Self {
        Self {
            graph: Graph::of((footprint / 4).saturating_sub(2), WORDS_PER_NODE),
        }
    }
}

impl Kernel for Bfs {
    fn buffers(&self, buffers: &mut Buffers) {
        let nodes = self.graph.nodes;
        buffers.add("first", nodes + 1, Role::Input);
        buffers.add("edges", self.graph.edges(), Role::Input);
        buffers.add("frontier", nodes, Role::Work);
        buffers.add("next", nodes, Role::Work);
        buffers.add("cost", nodes, Role::Output);
        buffers.add("more", 1, Role::Work);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = if buffer == FIRST {
                self.graph.first_edge(noise, index) as u32
            } else {
                self.graph.target(noise, index)
            };
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.graph.search(
            gpu,
            &Search {
                expand: &programs::BFS_EXPAND,
                expand_buffers: &[FIRST, EDGES, FRONTIER, NEXT, COST],
                instructions: 150,
                frontier: FRONTIER,
                next: NEXT,
                cost: COST,
                more: MORE,
            },
        )
    }

    fn reference_words(&self) -> usize {
        2 * self.graph.nodes
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (cost, queue) = memory.split_at_mut(self.graph.nodes);
        cost.fill(Graph::UNREACHED);
        (cost[0], queue[0]) = (0, 0);
        let (mut taken, mut queued) = (0, 1);
        while taken < queued {
            let node = queue[taken] as usize;
            let cost_next = cost[node] + 1;
            taken += 1;
            for edge in self.graph.edges_of(noise, node) {
                let target = self.graph.target(noise, edge);
                let reached = &mut cost[target as usize];
                if *reached == Graph::UNREACHED {
                    *reached = cost_next;
                    queue[queued] = target;
                    queued += 1;
                }
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
