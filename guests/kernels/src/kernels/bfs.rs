//! BFS of Rodinia: two launches a level over all nodes, until the host reads that no node came next.
//!
//! A graph has 2 to 10 edges a node, 6 on the average (Rodinia's inputs have 6), to nodes anywhere: accesses go
//! all over its memory. Degrees of two neighbouring nodes add up to 12, so that the place of a node's edges is known
//! without the nodes before.

use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const FIRST: usize = 0;
const EDGES: usize = 1;
const FRONTIER: usize = 2;
const NEXT: usize = 3;
const COST: usize = 4;
const MORE: usize = 5;
const DEGREE: usize = 6;
/// Degrees differ from their mean by less than this.
const SPREAD: u32 = 5;
/// Words for each node: its edges' place, its edges, two masks, its cost.
const WORDS_PER_NODE: u64 = 4 + DEGREE as u64;
const NODES_MAX: u64 = 1 << 28;
const THREADS: u32 = 256;
/// Cost of a node that was not reached.
const UNREACHED: u32 = u32::MAX;

/// A graph with an even number of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Bfs {
    nodes: usize,
}

impl Bfs {
    pub(crate) const NAME: &str = "bfs";

    pub(crate) fn of(footprint: u64) -> Self {
        let nodes = (footprint / 4).saturating_sub(2) / WORDS_PER_NODE;
        let nodes = nodes.clamp(2, NODES_MAX) as usize & !1;
        Self { nodes }
    }

    fn edges(&self) -> usize {
        self.nodes * DEGREE
    }

    /// Where the edges of `node`, which may be the end, begin.
    fn first_edge(noise: Noise, node: usize) -> usize {
        let extra = if node % 2 == 1 {
            // Of the even node before: its degree is 2 to 10.
            noise.of(FIRST).below(node, 2 * SPREAD - 1) as usize + 1
        } else {
            SPREAD as usize
        };
        node * DEGREE + extra - SPREAD as usize
    }

    fn target(&self, noise: Noise, edge: usize) -> u32 {
        noise.of(EDGES).below(edge, self.nodes as u32)
    }

    fn launch(
        &self,
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

impl Kernel for Bfs {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("first", self.nodes + 1, Role::Input);
        buffers.add("edges", self.edges(), Role::Input);
        buffers.add("frontier", self.nodes, Role::Work);
        buffers.add("next", self.nodes, Role::Work);
        buffers.add("cost", self.nodes, Role::Output);
        buffers.add("more", 1, Role::Work);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = if buffer == FIRST {
                Self::first_edge(noise, index) as u32
            } else {
                self.target(noise, index)
            };
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.launch(gpu, &programs::BFS_START, 26, &[FRONTIER, NEXT, COST])?;
        // A path has at most as many steps as nodes.
        for _ in 0..self.nodes {
            gpu.write(MORE, 0, &[0])?;
            let expand = [FIRST, EDGES, FRONTIER, NEXT, COST];
            self.launch(gpu, &programs::BFS_EXPAND, 150, &expand)?;
            self.launch(gpu, &programs::BFS_ADVANCE, 22, &[FRONTIER, NEXT, MORE])?;
            let mut more = [0];
            gpu.read(MORE, 0, &mut more)?;
            if more == [0] {
                break;
            }
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        2 * self.nodes
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (cost, queue) = memory.split_at_mut(self.nodes);
        cost.fill(UNREACHED);
        (cost[0], queue[0]) = (0, 0);
        let (mut taken, mut queued) = (0, 1);
        while taken < queued {
            let node = queue[taken] as usize;
            let cost_next = cost[node] + 1;
            taken += 1;
            for edge in Self::first_edge(noise, node)..Self::first_edge(noise, node + 1) {
                let target = self.target(noise, edge);
                let reached = &mut cost[target as usize];
                if *reached == UNREACHED {
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
