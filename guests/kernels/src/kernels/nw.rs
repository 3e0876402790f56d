//! Needleman-Wunsch of Rodinia: the global alignment of two sequences of equal length, as the scores of all pairs of
//! their beginnings. Launches go over the diagonals of tiles, whose tiles depend on those of the two diagonals before.
//!
//! As in Rodinia the similarities of all pairs are an input. They are integers like those of BLOSUM62: -4 to 3 for two
//! letters, 4 to 11 for a letter and itself.

use crate::math::root;
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const SIMILARITY: usize = 0;
const SCORES: usize = 1;
/// Numbers of the noise.
const DOWN: usize = 0;
const ACROSS: usize = 1;
const TABLE: usize = 2;
const LETTERS: u32 = 20;
/// Score of a gap: Rodinia's.
const GAP: i32 = -10;
const TILE: u32 = 32;
const EDGE_THREADS: u32 = 256;
const SIDE_MAX: u64 = 1 << 15;

/// Two sequences of `side` letters.
#[derive(Clone, Debug)]
pub(crate) struct Nw {
    side: usize,
}

impl Nw {
    pub(crate) const NAME: &str = "nw";

    pub(crate) fn of(footprint: u64) -> Self {
        // side² + (side + 1)² words.
        let words = (footprint / 4).min(1 << 40);
        let side = root((2 * words).saturating_sub(1)).saturating_sub(1) / 2;
        Self {
            side: side.clamp(1, SIDE_MAX) as usize,
        }
    }

    fn similarity(noise: Noise, row: usize, column: usize) -> i32 {
        let letters =
            [(DOWN, row), (ACROSS, column)].map(|(sequence, place)| noise.of(sequence).below(place, LETTERS));
        let [low, high] = [letters[0].min(letters[1]), letters[0].max(letters[1])];
        let least = if low == high { 4 } else { -4 };
        noise.of(TABLE).below((high * LETTERS + low) as usize, 8) as i32 + least
    }

    /// The tiles with a sum of row and column of `diagonal`.
    fn launch_diagonal(&self, gpu: &mut dyn Gpu, diagonal: u32) -> Result<(), Stopped> {
        let tiles = self.tiles();
        let first = diagonal.saturating_sub(tiles - 1);
        let last = diagonal.min(tiles - 1);
        let parameters = Parameters::new()
            .long(gpu.address(SIMILARITY))
            .long(gpu.address(SCORES))
            .word(self.side as u32)
            .word(GAP as u32)
            .word(diagonal)
            .word(first);
        gpu.launch(&Launch {
            program: &programs::NW_TILE,
            blocks: [last - first + 1, 1],
            threads: [TILE, 1],
            instructions: 60 + (11 + 9) * TILE + 16 * (2 * TILE - 1),
            parameters: &parameters,
        })
    }

    fn tiles(&self) -> u32 {
        (self.side as u32).div_ceil(TILE)
    }
}

impl Kernel for Nw {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("similarity", self.side * self.side, Role::Input);
        buffers.add("scores", (self.side + 1) * (self.side + 1), Role::Output);
    }

    fn fill(&self, noise: Noise, _buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = Self::similarity(noise, index / self.side, index % self.side) as u32;
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let side = self.side as u32;
        let parameters = Parameters::new()
            .long(gpu.address(SCORES))
            .word(side)
            .word(GAP as u32);
        gpu.launch(&Launch {
            program: &programs::NW_EDGE,
            blocks: [(side + 1).div_ceil(EDGE_THREADS), 1],
            threads: [EDGE_THREADS, 1],
            instructions: 20,
            parameters: &parameters,
        })?;
        for diagonal in 0..2 * self.tiles() - 1 {
            self.launch_diagonal(gpu, diagonal)?;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        (self.side + 1) * (self.side + 1)
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let pitch = self.side + 1;
        for (x, word) in memory[..pitch].iter_mut().enumerate() {
            *word = (x as i32 * GAP) as u32;
        }
        for y in 1..pitch {
            let (above, here) = memory[(y - 1) * pitch..(y + 1) * pitch].split_at_mut(pitch);
            here[0] = (y as i32 * GAP) as u32;
            for x in 1..pitch {
                let matched = above[x - 1] as i32 + Self::similarity(noise, y - 1, x - 1);
                let gap = (above[x] as i32).max(here[x - 1] as i32) + GAP;
                here[x] = matched.max(gap) as u32;
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
