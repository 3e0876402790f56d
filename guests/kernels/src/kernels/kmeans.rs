//! K-means of Rodinia: points of 16 features and 5 clusters. A round makes each point a member of the nearest centre, and
//! the means of the members the next centres; the host asks how many points changed.
//!
//! Rodinia sums members up on the processor; here it is the GPU, by atomic additions. Features are whole numbers from 0
//! to 255, so that their sums are exact in any order. Rounds end as Rodinia's do, when at most a thousandth of the points
//! changed, but after [`ROUNDS_MAX`] at the latest.

use crate::math::fma;
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const POINTS: usize = 0;
const MEMBERS: usize = 1;
const CENTRES: usize = 2;
const SUMS: usize = 3;
const COUNTS: usize = 4;
const CHANGED: usize = 5;
const FEATURES: usize = 16;
/// Number of clusters, Rodinia's default.
const CLUSTERS: usize = 5;
const CENTRE_WORDS: usize = CLUSTERS * FEATURES;
/// Most rounds: a guest would not wait for hundreds.
const ROUNDS_MAX: usize = 4;
/// Points come in heaps, each of which takes this much of the range of a feature.
const HEAP: u32 = 64;
const RANGE: u32 = 256;
const THREADS: u32 = 256;
/// Sums of features of so many points fit 32 bits.
const POINTS_MAX: u64 = 1 << 24;

/// Points, and the words of the clusters.
#[derive(Clone, Debug)]
pub(crate) struct Kmeans {
    points: usize,
}

/// State of the clusters in a round.
#[derive(Clone, Copy, Debug)]
struct Clusters {
    centres: [[f32; FEATURES]; CLUSTERS],
    sums: [[u32; FEATURES]; CLUSTERS],
    counts: [u32; CLUSTERS],
}

impl Clusters {
    /// The nearest cluster, to whose sums the point is added.
    fn assign(&mut self, point: [u32; FEATURES]) -> u32 {
        let mut nearest = (f32::INFINITY, 0);
        for (cluster, centre) in self.centres.iter().enumerate() {
            let mut square = 0.0;
            for (feature, place) in point.iter().zip(centre) {
                let difference = *feature as f32 - place;
                square = fma(difference, difference, square);
            }
            if square < nearest.0 {
                nearest = (square, cluster);
            }
        }
        let cluster = nearest.1;
        self.counts[cluster] += 1;
        for (sum, feature) in self.sums[cluster].iter_mut().zip(point) {
            *sum += feature;
        }
        cluster as u32
    }

    fn next(&mut self) {
        for cluster in 0..CLUSTERS {
            let count = core::mem::take(&mut self.counts[cluster]);
            let sums = core::mem::take(&mut self.sums[cluster]);
            if count != 0 {
                self.centres[cluster] = sums.map(|sum| sum as f32 / count as f32);
            }
        }
    }
}

impl Kmeans {
    pub(crate) const NAME: &str = "kmeans";

    pub(crate) fn of(footprint: u64) -> Self {
        let fixed = (2 * CENTRE_WORDS + CLUSTERS + 1) as u64;
        let points = (footprint / 4).saturating_sub(fixed) / (FEATURES as u64 + 1);
        Self {
            points: points.clamp(CLUSTERS as u64, POINTS_MAX) as usize,
        }
    }

    fn feature(noise: Noise, point: usize, feature: usize, points: usize) -> u32 {
        let heap = noise.of(MEMBERS).below(point, CLUSTERS as u32) as usize;
        let least = noise
            .of(CENTRES)
            .below(heap * FEATURES + feature, RANGE - HEAP + 1);
        least + noise.of(POINTS).below(feature * points + point, HEAP)
    }

    fn point(&self, noise: Noise, point: usize) -> [u32; FEATURES] {
        core::array::from_fn(|feature| Self::feature(noise, point, feature, self.points))
    }

    /// Whether another round is worth it.
    fn goes_on(&self, changed: u32) -> bool {
        u64::from(changed) * 1000 > self.points as u64
    }

    /// A launch with a thread for each word of the centres.
    fn launch_small(
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        parameters: &Parameters,
    ) -> Result<(), Stopped> {
        gpu.launch(&Launch {
            program,
            blocks: [1, 1],
            threads: [CENTRE_WORDS.next_multiple_of(32) as u32, 1],
            instructions: 45,
            parameters,
        })
    }

    fn round(&self, gpu: &mut dyn Gpu, round: usize) -> Result<u32, Stopped> {
        gpu.write(CHANGED, 0, &[0])?;
        gpu.copy_in(CHANGED)?;
        let mut parameters = Parameters::new();
        for buffer in [POINTS, CENTRES, MEMBERS, SUMS, COUNTS, CHANGED] {
            parameters = parameters.long(gpu.address(buffer));
        }
        let parameters = parameters
            .word(self.points as u32)
            .word(CENTRE_WORDS as u32)
            .word(CLUSTERS as u32)
            .word(u32::from(round == 0));
        gpu.launch(&Launch {
            program: &programs::KMEANS_ASSIGN,
            blocks: [(self.points as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions: 350,
            parameters: &parameters,
        })?;
        let parameters = Parameters::new()
            .long(gpu.address(CENTRES))
            .long(gpu.address(SUMS))
            .long(gpu.address(COUNTS))
            .word(CENTRE_WORDS as u32);
        Self::launch_small(gpu, &programs::KMEANS_CENTRES, &parameters)?;
        let mut changed = [0];
        gpu.copy_out(CHANGED)?;
        gpu.read(CHANGED, 0, &mut changed)?;
        Ok(changed[0])
    }
}

impl Kernel for Kmeans {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("points", self.points * FEATURES, Role::Input);
        buffers.add("members", self.points, Role::Output);
        buffers.add("centres", CENTRE_WORDS, Role::Output);
        buffers.add("sums", CENTRE_WORDS, Role::Work);
        buffers.add("counts", CLUSTERS, Role::Work);
        buffers.add("changed", 1, Role::Work);
    }

    fn fill(&self, noise: Noise, _buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            let (feature, point) = (index / self.points, index % self.points);
            *word = (Self::feature(noise, point, feature, self.points) as f32).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        gpu.copy_in(POINTS)?;
        let mut parameters = Parameters::new();
        for buffer in [POINTS, CENTRES, SUMS, COUNTS] {
            parameters = parameters.long(gpu.address(buffer));
        }
        let parameters = parameters.word(self.points as u32).word(CENTRE_WORDS as u32);
        Self::launch_small(gpu, &programs::KMEANS_START, &parameters)?;
        for round in 0..ROUNDS_MAX {
            let changed = self.round(gpu, round)?;
            if !self.goes_on(changed) {
                break;
            }
        }
        gpu.copy_out(MEMBERS)?;
        gpu.copy_out(CENTRES)
    }

    fn is_copied_by_hand(&self) -> bool {
        true
    }

    fn reference_words(&self) -> usize {
        CENTRE_WORDS + self.points
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (centres, members) = memory.split_at_mut(CENTRE_WORDS);
        members.fill(u32::MAX);
        let mut clusters = Clusters {
            centres: core::array::from_fn(|cluster| self.point(noise, cluster).map(|feature| feature as f32)),
            sums: [[0; FEATURES]; CLUSTERS],
            counts: [0; CLUSTERS],
        };
        for _ in 0..ROUNDS_MAX {
            let mut changed = 0;
            for (point, member) in members.iter_mut().enumerate() {
                let cluster = clusters.assign(self.point(noise, point));
                changed += u32::from(cluster != *member);
                *member = cluster;
            }
            clusters.next();
            if !self.goes_on(changed) {
                break;
            }
        }
        for (word, centre) in centres.iter_mut().zip(clusters.centres.as_flattened()) {
            *word = centre.to_bits();
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        let (centres, members) = memory.split_at(CENTRE_WORDS);
        let all = if buffer == CENTRES { centres } else { members };
        words.copy_from_slice(&all[first..first + words.len()]);
    }
}
