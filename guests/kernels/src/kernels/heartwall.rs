//! Heart Wall of Rodinia, reduced: points of an ultrasound film are followed from frame to frame, a launch a frame and a
//! block a point. A point goes to where the normalised cross-correlation with its template is largest, and the template
//! takes a little of what it finds there.
//!
//! Left out of Rodinia's: templates of 41 × 41 in windows of 81 × 81 (here 16 × 16 in 32 × 32), correlation by a whole
//! convolution and cumulative sums (here each displacement by itself, with its own mean and deviation), the mask that
//! prefers small displacements, and the two walls, which differ in nothing but their names. Templates adapt after each
//! frame, not after every tenth. Rodinia loads a frame at a time; here all are in memory from the start, and there is a
//! point for each 64 × 64 pixels.
//!
//! Pixels are whole numbers from 0 to 254, so that sums over a window and over its squares are exact. The picture moves by
//! [`MOTION`] a frame under some noise of its own.

use crate::math::{fma, root, square_root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const FILM: usize = 0;
const STARTS: usize = 1;
const TEMPLATES: usize = 2;
const TRACK: usize = 3;
const FRAMES: usize = 4;
/// Side of a template; displacements are as many in a direction, half of them back.
const TEMPLATE: usize = 16;
const TEMPLATE_WORDS: usize = TEMPLATE * TEMPLATE;
const WINDOW: usize = 2 * TEMPLATE;
/// Words of a point's places, two a frame.
const TRACK_WORDS: usize = 2 * FRAMES;
/// Words of a point: start, template, places.
const POINT_WORDS: u64 = (2 + TEMPLATE_WORDS + TRACK_WORDS) as u64;
/// Side of the square that a point has.
const CELL: u64 = 64;
const SIDE_MIN: u64 = 8;
const SIDE_MAX: u64 = 1 << 15;
/// Share of itself that a template keeps: Rodinia's.
const KEEP: f32 = 0.87;
/// The least variance of a window, times its pixels.
const VARIANCE_MIN: f32 = 256.0;
/// Pixels to the right and down, a frame.
const MOTION: [usize; 2] = [3, 2];

/// A film of `side` × `side` pixels, and points in a square.
#[derive(Clone, Debug)]
pub(crate) struct Heartwall {
    side: usize,
    /// Points in a row.
    columns: usize,
}

/// The 32 × 32 pixels around a point.
type Window = [[f32; WINDOW]; WINDOW];

/// How much a template is like the window at a displacement, as the program computes it.
fn score(template: &[f32; TEMPLATE_WORDS], window: &Window, x: usize, y: usize) -> f32 {
    let [mut sum, mut squares, mut products, mut own] = [0.0; 4];
    for (row, values) in template.chunks_exact(TEMPLATE).enumerate() {
        for (value, pixel) in values.iter().zip(&window[y + row][x..]) {
            sum += pixel;
            // Whole numbers below 2^24: nothing is rounded.
            squares += pixel * pixel;
            products = fma(*value, *pixel, products);
            own += value;
        }
    }
    let share = -1.0 / TEMPLATE_WORDS as f32;
    let covariance = fma(own * sum, share, products);
    let variance = fma(sum * sum, share, squares).max(VARIANCE_MIN);
    covariance / square_root(variance)
}

/// The displacement, from 0, of the largest score; of several the first.
fn best(template: &[f32; TEMPLATE_WORDS], window: &Window) -> [usize; 2] {
    let mut best = (f32::NEG_INFINITY, [0, 0]);
    for y in 0..TEMPLATE {
        for x in 0..TEMPLATE {
            let score = score(template, window, x, y);
            if score > best.0 {
                best = (score, [x, y]);
            }
        }
    }
    best.1
}

impl Heartwall {
    pub(crate) const NAME: &str = "heartwall";

    pub(crate) fn of(footprint: u64) -> Self {
        let words = (footprint / 4).min(1 << 40);
        let cell = CELL * CELL;
        let cell_words = cell * FRAMES as u64 + POINT_WORDS;
        let side = if words < cell_words {
            root(words.saturating_sub(POINT_WORDS) / FRAMES as u64)
        } else {
            root(words * cell / cell_words)
        };
        let side = side.clamp(SIDE_MIN, SIDE_MAX);
        Self {
            side: side as usize,
            columns: (side / CELL).max(1) as usize,
        }
    }

    fn points(&self) -> usize {
        self.columns * self.columns
    }

    fn frame_words(&self) -> usize {
        self.side * self.side
    }

    fn pixel(film: Noise, frame: usize, x: usize, y: usize) -> f32 {
        // The picture's own place: it begins left of the first frame and above it by as much as it moves.
        let [moved_x, moved_y] = MOTION.map(|pixels| (FRAMES - frame) * pixels);
        let picture = film.below((y + moved_y) << 16 | (x + moved_x), 224);
        let noise = film.of(frame).below(y << 16 | x, 31);
        (picture + noise) as f32
    }

    /// Where a point starts, in x or y.
    fn start(&self, noise: Noise, point: usize, axis: usize) -> usize {
        let place = [point % self.columns, point / self.columns][axis];
        let cell = self.side / self.columns;
        let free = cell.saturating_sub(TEMPLATE).max(1);
        place * cell + noise.of(STARTS).below(2 * point + axis, free as u32) as usize
    }

    /// The pixels of a frame from `x`, `y` on, which may be outside.
    fn window(&self, film: Noise, frame: usize, [x, y]: [isize; 2]) -> Window {
        let last = self.side as isize - 1;
        let inside = |place: isize| place.clamp(0, last) as usize;
        core::array::from_fn(|row| {
            core::array::from_fn(|column| {
                let (x, y) = (inside(x + column as isize), inside(y + row as isize));
                Self::pixel(film, frame, x, y)
            })
        })
    }

    /// Follows a point through the film.
    fn follow(&self, noise: Noise, point: usize, template: &mut [u32], track: &mut [u32]) {
        const BACK: isize = TEMPLATE as isize / 2;
        let film = noise.of(FILM);
        let last = self.side.saturating_sub(TEMPLATE) as isize;
        let mut place = [0, 1].map(|axis| self.start(noise, point, axis) as isize);
        let first = self.window(film, 0, place);
        let mut values = core::array::from_fn(|index| first[index / TEMPLATE][index % TEMPLATE]);
        let (track, _) = track.as_chunks_mut::<2>();
        track[0] = place.map(|place| place as u32);
        for (frame, words) in track.iter_mut().enumerate().skip(1) {
            let window = self.window(film, frame, place.map(|place| place - BACK));
            let [x, y] = best(&values, &window);
            for (index, value) in values.iter_mut().enumerate() {
                let found = window[y + index / TEMPLATE][x + index % TEMPLATE];
                *value = fma(*value - found, KEEP, found);
            }
            place = [place[0] + x as isize, place[1] + y as isize];
            place = place.map(|place| (place - BACK).clamp(0, last));
            *words = place.map(|place| place as u32);
        }
        for (word, value) in template.iter_mut().zip(values) {
            *word = value.to_bits();
        }
    }

    fn launch(
        &self,
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        instructions: u32,
        parameters: &Parameters,
    ) -> Result<(), Stopped> {
        gpu.launch(&Launch {
            program,
            blocks: [self.points() as u32, 1],
            threads: [TEMPLATE_WORDS as u32, 1],
            instructions,
            parameters,
        })
    }
}

impl Kernel for Heartwall {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("film", FRAMES * self.frame_words(), Role::Input);
        buffers.add("starts", 2 * self.points(), Role::Input);
        buffers.add("templates", TEMPLATE_WORDS * self.points(), Role::Output);
        buffers.add("track", TRACK_WORDS * self.points(), Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let film = noise.of(FILM);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = if buffer == FILM {
                let (frame, place) = (index / self.frame_words(), index % self.frame_words());
                Self::pixel(film, frame, place % self.side, place / self.side).to_bits()
            } else {
                self.start(noise, index / 2, index % 2) as u32
            };
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let parameters = Parameters::new()
            .long(gpu.address(FILM))
            .long(gpu.address(STARTS))
            .long(gpu.address(TEMPLATES))
            .long(gpu.address(TRACK))
            .word(self.side as u32)
            .word(FRAMES as u32);
        self.launch(gpu, &programs::HEARTWALL_START, 38, &parameters)?;
        for frame in 1..FRAMES {
            let pixels = gpu.address(FILM) + (frame * self.frame_words()) as u64 * 4;
            let parameters = Parameters::new()
                .long(pixels)
                .long(gpu.address(TEMPLATES))
                .long(gpu.address(TRACK))
                .word(self.side as u32)
                .word(FRAMES as u32)
                .word(frame as u32)
                .float(KEEP);
            self.launch(gpu, &programs::HEARTWALL_TRACK, 1700, &parameters)?;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        self.points() * (TEMPLATE_WORDS + TRACK_WORDS)
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (templates, track) = memory.split_at_mut(self.points() * TEMPLATE_WORDS);
        let templates = templates.chunks_exact_mut(TEMPLATE_WORDS);
        for (point, (template, track)) in templates.zip(track.chunks_exact_mut(TRACK_WORDS)).enumerate() {
            self.follow(noise, point, template, track);
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        let (templates, track) = memory.split_at(self.points() * TEMPLATE_WORDS);
        let all = if buffer == TEMPLATES { templates } else { track };
        words.copy_from_slice(&all[first..first + words.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_go_with_the_picture() {
        let film = Heartwall {
            side: 192,
            columns: 3,
        };
        let noise = Noise::new(5);
        let (mut template, mut track) = ([0; TEMPLATE_WORDS], [0; TRACK_WORDS]);
        // The one in the middle, which does not reach the border.
        film.follow(noise, 4, &mut template, &mut track);
        let start = [0, 1].map(|axis| film.start(noise, 4, axis) as u32);
        let [right, down] = MOTION.map(|pixels| pixels as u32);
        let want = (0..FRAMES as u32).flat_map(|frame| [start[0] + frame * right, start[1] + frame * down]);
        assert!(want.eq(track), "{start:?}: {track:?}");
    }
}
