//! Kernels that take texels and samples, and load and store surfaces.

use fermi_spec::{
    graphics::{SurfaceFormat, SurfaceHeight},
    surface::{Block, BlockLinear, BlockSize, Gob},
    texture::{Header, Pyramid, Sampler},
};

use proptest::prelude::*;

use super::*;
use crate::compute::{
    surface::Surface,
    texture::{Slot, Texture},
};

/// Where the tests have their texels.
const TEXELS: u64 = 0x400_0000;
const RGBA8: u32 = 0x08;
const RGBA32: u32 = 0x01;
const R32: u32 = 0x0f;
const UINT: u32 = 4;
const UNORM: u32 = 2;
const FLOAT: u32 = 7;
/// Shapes of headers.
const TWO_D: u32 = 1;
const THREE_D: u32 = 2;
const CUBE: u32 = 3;
const TWO_D_ARRAY: u32 = 5;
const BUFFER: u32 = 6;
const TWO_D_NO_MIPMAP: u32 = 7;

/// What a texture of a test is.
#[derive(Clone, Copy)]
struct Made {
    sizes: u32,
    number: u32,
    shape: u32,
    size: [u32; 3],
    levels: u32,
    pitch: u32,
    is_normalized: bool,
}

impl Made {
    const fn new(sizes: u32, number: u32, shape: u32, size: [u32; 3]) -> Self {
        Self {
            sizes,
            number,
            shape,
            size,
            levels: 1,
            pitch: 0,
            is_normalized: false,
        }
    }

    fn words(self) -> [u32; 8] {
        let types = [6, 9, 12, 15].map(|low| self.number << low);
        let sources = 2 << 18 | 3 << 21 | 4 << 24 | 5 << 27;
        let layout = if self.pitch != 0 {
            1 << 18
        } else {
            1 << 22 | 1 << 25
        };
        let [width, height, depth] = self.size;
        [
            self.sizes | types.iter().sum::<u32>() | sources,
            TEXELS as u32,
            self.shape << 14 | layout | u32::from(self.is_normalized) << 31,
            self.pitch,
            1 << 31 | width,
            height | depth << 16 | (self.levels - 1) << 28,
            0,
            (self.levels - 1) << 4,
        ]
    }

    fn texture(self) -> Texture {
        Texture::new(Header::from_words(self.words())).expect("a shape")
    }

    fn pyramid(self, layer_depth: u32) -> Pyramid {
        let block = Block::new(Gob::FERMI, [0, 1, 1]);
        let bytes = u32::from(Header::from_words(self.words()).texel().expect("a texel").bytes);
        Pyramid::new(
            bytes,
            [self.size[0], self.size[1], layer_depth],
            block,
            self.levels,
        )
    }
}

/// Runs one warp whose lanes leave four words each in `$r4q`.
struct Bench {
    memory: Flat,
    textures: Vec<Slot<Texture>>,
    samplers: Vec<Slot<Sampler>>,
    surfaces: [Surface; 8],
}

impl Bench {
    fn new() -> Self {
        let mut memory = Flat::default();
        memory.put(B, &[0; 4096]);
        memory.put(TEXELS, &[0; 0x2_0000]);
        Self {
            memory,
            textures: Vec::new(),
            samplers: Vec::new(),
            surfaces: Default::default(),
        }
    }

    fn with(made: Made) -> Self {
        let mut bench = Self::new();
        bench.textures.push(Slot::Ready(made.texture()));
        bench
    }

    fn sampler(mut self, words: [u32; 8]) -> Self {
        self.samplers = vec![Slot::Ready(Sampler::from_words(words))];
        self
    }

    fn surface(mut self, index: usize, size: [u32; 2], color: u8) -> Self {
        self.surfaces[index] = Surface::new(
            TEXELS,
            size[0],
            SurfaceHeight::new().with_lines(size[1]),
            SurfaceFormat::new().with_color(color),
            BlockSize::new().with_height(1),
        );
        self
    }

    fn try_run(&mut self, source: &str) -> Result<Vec<[u32; 4]>, Stop> {
        let source = format!(
            "mov b32 $r0 $laneid\n{source}\nshl b32 $r40 $r0 clamp 0x4\nadd b32 $r40 $r40 {B:#x}\n\
             st b128 wb g[$r40] $r4q\nexit"
        );
        let program = assemble(&source).unwrap_or_else(|error| panic!("{source}: {error}"));
        let mut launch = launch(&program, [1, 1, 1], [32, 1, 1], &[]);
        launch.registers = 48;
        launch.textures.textures.clone_from(&self.textures);
        launch.textures.samplers.clone_from(&self.samplers);
        launch.surfaces = self.surfaces;
        run(&mut self.memory, &program, launch, u64::MAX)?;
        let words = self.memory.words(B, 128);
        Ok(words.as_chunks().0.to_vec())
    }

    fn run(&mut self, source: &str) -> Vec<[u32; 4]> {
        self.try_run(source).expect("the kernel ends")
    }
}

const FETCH: &str = "texfetch lzero all $r4:$r5:$r6:$r7";

#[test]
fn texels_of_a_pitch_texture_are_at_their_lines() {
    let made = Made {
        pitch: 0x40,
        ..Made::new(RGBA8, UINT, TWO_D_NO_MIPMAP, [8, 4, 1])
    };
    let mut bench = Bench::with(made);
    bench.memory.put(TEXELS + 3 * 0x40 + 5 * 4, &[1, 2, 3, 4]);
    let found = bench.run(&format!("mov b32 $r1 0x3\n{FETCH} t2d $t0 $s0 $r0:$r1 ()"));
    assert_eq!(found[5], [1, 2, 3, 4]);
    assert_eq!(found[4], [0; 4]);
    // Beyond the edge, though memory goes on there.
    bench.memory.put(TEXELS + 3 * 0x40 + 8 * 4, &[9; 4]);
    let found = bench.run(&format!("mov b32 $r1 0x3\n{FETCH} t2d $t0 $s0 $r0:$r1 ()"));
    assert_eq!(found[8], [0; 4]);
}

#[test]
fn texels_in_blocks_are_where_the_layout_puts_them() {
    for (sizes, texel_bytes) in [(0x1d, 1), (0x1b, 2), (RGBA8, 4), (0x04, 8), (RGBA32, 16)] {
        let made = Made::new(sizes, UINT, TWO_D, [40, 24, 1]);
        let mut bench = Bench::with(made);
        let surface = made.pyramid(1).level(0).surface;
        for x in 0..32u64 {
            let at = surface.offset([x * texel_bytes, 17, 0]);
            bench.memory.put(TEXELS + at, &[x as u8 + 1]);
        }
        let found = bench.run(&format!("mov b32 $r1 0x11\n{FETCH} t2d $t0 $s0 $r0:$r1 ()"));
        for (x, texel) in found.iter().enumerate() {
            assert_eq!(texel[0], x as u32 + 1, "{texel_bytes} bytes");
        }
    }
}

#[test]
fn levels_and_layers_have_their_own_texels() {
    let made = Made {
        levels: 3,
        ..Made::new(R32, UINT, TWO_D_ARRAY, [32, 32, 4])
    };
    let mut bench = Bench::with(made);
    let pyramid = made.pyramid(1);
    let level = pyramid.level(2);
    let at = TEXELS + 3 * pyramid.layer_bytes() + level.offset + level.surface.offset([4 * 7, 5, 0]);
    bench.memory.put_words(at, &[77]);
    let found = bench.run(
        "mov b32 $r10 0x3\nmov b32 $r11 $r0\nmov b32 $r12 0x5\nmov b32 $r13 0x2
         texfetch llod all $r4:$r5:$r6:$r7 a2d $t0 $s0 $r10:$r11:$r12 $r13",
    );
    // The level is 8 texels wide.
    assert_eq!((found[7][0], found[6][0], found[8][0]), (77, 0, 0));
}

#[test]
fn buffer_ends_at_its_width_and_swizzle_has_its_constants() {
    let made = Made::new(R32, FLOAT, BUFFER, [20, 0, 0]);
    let mut words = made.words();
    // Red, zero, 1.0, the integer 1; pitch.
    words[0] = words[0] & 0x3_ffff | 2 << 18 | 7 << 24 | 6 << 27;
    words[2] |= 1 << 18;
    let mut bench = Bench::new();
    let texture = Texture::new(Header::from_words(words)).expect("a shape");
    bench.textures = vec![Slot::Empty, Slot::Ready(texture)];
    bench.memory.put_words(TEXELS, &vec![2f32.to_bits(); 64]);
    let found = bench.run(&format!("{FETCH} t1d $t1 $s0 $r0 ()"));
    assert_eq!(found[19], [2f32.to_bits(), 0, 1f32.to_bits(), 1]);
    assert_eq!(found[20], [0, 0, 1f32.to_bits(), 1]);
}

/// A texture of 4 × 4 floats that count from 0, line by line.
fn counting(shape: u32, layers: u32) -> Bench {
    let made = Made {
        is_normalized: true,
        ..Made::new(R32, FLOAT, shape, [4, 4, layers])
    };
    let depth = if shape == THREE_D { layers } else { 1 };
    let pyramid = made.pyramid(depth);
    let mut bench = Bench::with(made);
    let layer_count = if shape == CUBE { 6 } else { layers };
    for layer in 0..u64::from(layer_count) {
        for index in 0..16 {
            let place = match shape {
                THREE_D => pyramid
                    .level(0)
                    .surface
                    .offset([4 * (index % 4), index / 4, layer]),
                _ => {
                    layer * pyramid.layer_bytes()
                        + pyramid.level(0).surface.offset([4 * (index % 4), index / 4, 0])
                }
            };
            let value = (layer * 16 + index) as f32;
            bench.memory.put_words(TEXELS + place, &[value.to_bits()]);
        }
    }
    bench
}

const POINT: u32 = 1 | 1 << 4 | 1 << 6;
const LINEAR: u32 = 2 | 2 << 4 | 1 << 6;
const EDGE: u32 = 2 | 2 << 3 | 2 << 6;

fn sample(bench: &mut Bench, at: [f32; 3], shape: &str, registers: &str) -> f32 {
    let [x, y, z] = at.map(f32::to_bits);
    let found = bench.run(&format!(
        "mov b32 $r11 {x:#x}\nmov b32 $r12 {y:#x}\nmov b32 $r13 {z:#x}
         tex lzero all dall $r4:$r5:$r6:$r7 {shape} $t0 $s0 {registers} ()"
    ));
    f32::from_bits(found[0][0])
}

#[test]
fn point_samples_are_of_the_nearest_texel() {
    let mut bench = counting(TWO_D, 1).sampler([EDGE, POINT, 0, 0, 0, 0, 0, 0]);
    let mut at = |x, y| sample(&mut bench, [x, y, 0.0], "t2d", "$r11:$r12");
    assert_eq!(
        [at(0.0, 0.0), at(0.99, 0.3), at(5.0, 0.5), at(-1.0, 2.0)],
        [0.0, 7.0, 11.0, 12.0]
    );
}

#[test]
fn linear_samples_mix_neighbours_by_256ths() {
    let mut bench = counting(TWO_D, 1).sampler([EDGE, LINEAR, 0, 0, 0, 0, 0, 0]);
    let mut at = |x, y| sample(&mut bench, [x, y, 0.0], "t2d", "$r11:$r12");
    assert_eq!([at(0.5, 0.5), at(0.375, 0.625), at(0.25, 0.0)], [7.5, 9.0, 0.5]);
    let fine = at(0.25 + 1.0 / 4096.0, 0.125);
    assert_eq!(fine, 0.5, "a weight has 8 bits");
}

#[test]
fn border_takes_part_in_a_linear_sample() {
    let border = 100f32.to_bits();
    let mut bench = counting(TWO_D, 1).sampler([3 | 3 << 3, LINEAR, 0, 0, border, 0, 0, 0]);
    let mut at = |x, y| sample(&mut bench, [x, y, 0.0], "t2d", "$r11:$r12");
    assert_eq!([at(1.0, 0.125), at(2.0, 0.5)], [51.5, 100.0]);
}

#[test]
fn volumes_mix_in_depth_and_cubes_choose_a_face() {
    let mut volume = counting(THREE_D, 2).sampler([EDGE, LINEAR, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        sample(&mut volume, [0.125, 0.125, 0.5], "t3d", "$r11:$r12:$r13"),
        8.0
    );
    let mut cube = counting(CUBE, 1).sampler([EDGE, POINT, 0, 0, 0, 0, 0, 0]);
    let mut at = |direction| sample(&mut cube, direction, "tcube", "$r11:$r12:$r13");
    assert_eq!(at([0.9, 0.9, -1.0]), 5.0 * 16.0);
    assert_eq!(at([-1.0, -0.9, 0.9]), 16.0 + 15.0);
}

#[test]
fn layer_of_an_array_is_an_integer_in_front() {
    let mut bench = counting(TWO_D_ARRAY, 3).sampler([EDGE, POINT, 0, 0, 0, 0, 0, 0]);
    let found = bench.run(
        "mov b32 $r10 $r0\nmov b32 $r11 0x3f000000\nmov b32 $r12 0x0
         tex lzero all dall $r4:#:#:# a2d $t0 $s0 $r10:$r11:$r12 ()",
    );
    let layers = [0, 2, 9].map(|lane: usize| f32::from_bits(found[lane][0]));
    assert_eq!(layers, [2.0, 34.0, 34.0]);
}

#[test]
fn gather_goes_around_from_the_lower_left() {
    let mut bench = counting(TWO_D, 1).sampler([EDGE, LINEAR, 0, 0, 0, 0, 0, 0]);
    let found = bench.run(
        "mov b32 $r11 0x3f000000\nmov b32 $r12 0x3f000000
         texgather all dall r $r4:$r5:$r6:$r7 t2d $t0 $s0 $r11:$r12 ()",
    );
    assert_eq!(found[0].map(f32::from_bits), [9.0, 10.0, 6.0, 5.0]);
    let found = bench.run(
        "mov b32 $r11 0x3f000000\nmov b32 $r12 0x3f000000\nmov b32 $r13 0xff01
         texgather off all dall r $r4:$r5:$r6:$r7 t2d $t0 $s0 $r11:$r12 $r13",
    );
    assert_eq!(found[0].map(f32::from_bits), [6.0, 7.0, 3.0, 2.0]);
}

#[test]
fn shadow_samples_mix_results_of_comparisons() {
    // Reference less than the texel.
    let mut bench = counting(TWO_D, 1).sampler([EDGE | 1 << 10, LINEAR, 0, 0, 0, 0, 0, 0]);
    let found = bench.run(
        "mov b32 $r11 0x3f000000\nmov b32 $r12 0x3f000000\nmov b32 $r13 0x40d00000
         tex lzero shadow all dall $r4:$r5:$r6:$r7 t2d $t0 $s0 $r11:$r12 $r13",
    );
    // 6.5 is less than two of 5, 6, 9, 10.
    assert_eq!(found[0].map(f32::from_bits), [0.5; 4]);
}

#[test]
fn levels_are_mixed_and_cut_to_the_samplers_range() {
    let made = Made {
        levels: 3,
        is_normalized: true,
        ..Made::new(R32, FLOAT, TWO_D, [4, 4, 1])
    };
    let most = 0x180 << 12;
    let mut bench = Bench::with(made).sampler([EDGE, 2 | 2 << 4 | 3 << 6, most, 0, 0, 0, 0, 0]);
    let pyramid = made.pyramid(1);
    for (number, value) in [(0, 0f32), (1, 10.0), (2, 20.0)] {
        let level = pyramid.level(number);
        for index in 0..16 {
            let [x, y] = [index % 4, index / 4];
            if x < u64::from(level.size[0]) && y < u64::from(level.size[1]) {
                let at = TEXELS + level.offset + level.surface.offset([4 * x, y, 0]);
                bench.memory.put_words(at, &[value.to_bits()]);
            }
        }
    }
    let found = bench.run(
        "mov b32 $r11 0x3f000000\nmov b32 $r12 0x3f000000\ncvt rn f32 $r13 u32 $r0\nmul rn f32 $r13 $r13 0x3f000000
         tex llod all dall $r4:$r5:$r6:$r7 t2d $t0 $s0 $r11:$r12 $r13",
    );
    let levels = [0, 1, 2, 3, 9].map(|lane: usize| f32::from_bits(found[lane][0]));
    assert_eq!(levels, [0.0, 5.0, 10.0, 15.0, 15.0]);
}

#[test]
fn query_tells_sizes_and_levels() {
    let made = Made {
        levels: 4,
        ..Made::new(RGBA8, UNORM, THREE_D, [40, 24, 10])
    };
    let found = Bench::with(made).run("texquery all $r4:$r5:$r6:$r7 tdims $t0 $s0 $r0 $r0");
    assert_eq!([found[0], found[2]], [[40, 24, 10, 4], [10, 6, 2, 4]]);
}

#[test]
fn slots_by_register_take_the_place_of_those_in_the_instruction() {
    let made = Made::new(R32, UINT, BUFFER, [32, 0, 0]);
    let mut words = made.words();
    words[2] |= 1 << 18;
    let texture = Texture::new(Header::from_words(words)).expect("a shape");
    let mut bench = Bench::new();
    bench.textures = vec![Slot::Empty, Slot::Empty, Slot::Ready(texture)];
    bench.memory.put_words(TEXELS, &(0..32).collect::<Vec<_>>());
    let found = bench.run(&format!(
        "mov b32 $r10 0x1000000\nmov b32 $r11 $r0\n{FETCH} t1d ind $t0 $s0 $r10:$r11 ()"
    ));
    assert_eq!(found[9][0], 9);
}

#[test]
fn slot_without_a_texture_traps_and_unmapped_texels_fault() {
    let stop = |bench: &mut Bench, source: &str| bench.try_run(source).expect_err("it stops");
    let fetch = format!("{FETCH} t1d $t0 $s0 $r0 ()");
    assert_eq!(stop(&mut Bench::new(), &fetch), Stop::Error(WarpError::Texture));
    let made = Made::new(R32, UINT, TWO_D, [1 << 20, 1, 1]);
    let far = "mov b32 $r1 0x80000\nmov b32 $r2 0x0\ntexfetch lzero all $r4:#:#:# t2d $t0 $s0 $r1:$r2 ()";
    assert!(matches!(stop(&mut Bench::with(made), far), Stop::TextureFault(_)));
    let sample = "tex lzero all dall $r4:#:#:# t2d $t0 $s0 $r1:$r2 ()";
    assert_eq!(
        stop(&mut Bench::with(made), sample),
        Stop::Error(WarpError::Texture)
    );
}

/// The blocks of [`Bench::surface`].
fn blocks(width_bytes: u64, lines: u64) -> BlockLinear {
    BlockLinear::new(BlockSize::new().with_height(1).block(), [width_bytes, lines, 1])
}

const RGBA8_UNORM: u8 = 0xd5;
const RGBA32_UINT: u8 = 0xc2;
const R32_UINT: u8 = 0xe4;
const RGBA16_FLOAT: u8 = 0xca;

#[test]
fn bytes_that_were_stored_load_again() {
    let mut bench = Bench::new().surface(3, [32, 20], RGBA32_UINT);
    let found = bench.run(
        "shl b32 $r10 $r0 clamp 0x4\nmov b32 $r11 0x11
         mov b32 $r20 $r0\nadd b32 $r21 $r0 0x100\nadd b32 $r22 $r0 0x200\nadd b32 $r23 $r0 0x300
         sustb wb zero img[0x3] 2d $r10:$r11 b128 $r20q
         suldb b128 $r4q ca zero img[0x3] 2d $r10:$r11",
    );
    assert_eq!(found[7], [7, 0x107, 0x207, 0x307]);
    let at = TEXELS + blocks(32 * 16, 20).offset([7 * 16, 17, 0]);
    assert_eq!(bench.memory.words(at, 4), [7, 0x107, 0x207, 0x307]);
}

#[test]
fn stored_texels_are_converted_to_the_format() {
    let mut bench = Bench::new().surface(0, [32, 8], RGBA8_UNORM);
    let source = "mov b32 $r10 $r0\nmov b32 $r11 0x2
         mov b32 $r20 0x3f800000\nmov b32 $r21 0xbf800000\nmov b32 $r22 0x3f000000\nmov b32 $r23 0x40000000
         sustp wb zero img[0x0] 2d $r10:$r11 $r20:$r21:$r22:$r23
         shl b32 $r10 $r0 clamp 0x2
         suldb b32 $r4 ca zero img[0x0] 2d $r10:$r11";
    assert_eq!(bench.run(source)[31][0], 0xff80_00ff);
    let mut bench = Bench::new().surface(0, [32, 8], RGBA16_FLOAT);
    bench.run(source);
    let at = TEXELS + blocks(32 * 8, 8).offset([8 * 5, 2, 0]);
    assert_eq!(bench.memory.words(at, 2), [0xbc00_3c00, 0x4000_3800]);
}

#[test]
fn components_that_are_not_stored_stay() {
    let mut bench = Bench::new().surface(0, [32, 8], RGBA8_UNORM);
    bench.memory.put_words(TEXELS, &[0x1122_3344]);
    bench.run("mov b32 $r10 $r0\nmov b32 $r11 0x0\nmov b32 $r20 0x3f800000\nmov b32 $r21 0x0\nsustp wb zero img[0x0] 2d $r10:$r11 #:$r20:#:$r21");
    assert_eq!(bench.memory.words(TEXELS, 1), [0x0022_ff44]);
}

#[test]
fn access_outside_is_zero_clamped_or_a_trap() {
    let mut bench = Bench::new().surface(0, [8, 4], R32_UINT);
    let last = TEXELS + blocks(32, 4).offset([28, 3, 0]);
    bench.memory.put_words(last, &[99]);
    let load = |clamp: &str| {
        format!(
            "mov b32 $r10 0x40\nmov b32 $r11 0x7\nmov b32 $r4 0x5\nsuldb b32 $r4 ca {clamp} img[0x0] 2d $r10:$r11"
        )
    };
    assert_eq!(bench.run(&load("zero"))[0][0], 0);
    assert_eq!(bench.run(&load("clamp"))[0][0], 99);
    let trapped = bench.try_run(&load("trap")).expect_err("it stops");
    assert_eq!(trapped, Stop::Error(WarpError::MemoryOutOfBounds));
    bench.run(
        "mov b32 $r10 0x40\nmov b32 $r11 0x0\nmov b32 $r20 0x7\nsustb wb zero img[0x0] 2d $r10:$r11 b32 $r20",
    );
    assert_eq!(bench.memory.words(TEXELS + 0x40, 1), [0]);
    assert_eq!(bench.run("suldb b32 $r4 ca clamp img[0x7] 2d $r10:$r11")[0][0], 0);
    let odd =
        bench.try_run("mov b32 $r10 0x2\nmov b32 $r11 0x0\nsuldb b32 $r4 ca zero img[0x0] 2d $r10:$r11");
    assert_eq!(
        odd.expect_err("it stops"),
        Stop::Error(WarpError::UnalignedAccess)
    );
}

#[test]
fn address_of_a_texel_is_for_atomics_and_the_predicate_says_outside() {
    let mut bench = Bench::new().surface(2, [16, 4], R32_UINT);
    bench.run(
        "shl b32 $r10 $r0 clamp 0x2\nmov b32 $r11 0x1\nmov b32 $r12 0x1
         suleab $p1 $r20d b32 zero img[0x2] 2d $r10:$r11
         (not $p1) red add u32 g[$r20d] $r12\nnop",
    );
    let surface = blocks(64, 4);
    let at = |x: u64| TEXELS + surface.offset([4 * x, 1, 0]);
    assert_eq!(bench.memory.words(at(15), 1), [1]);
    // The next texel would be in another block, which nobody counted up.
    assert_eq!(bench.memory.words(at(15) + 64, 1), [0]);
}

#[test]
fn surface_by_register_and_layers_by_steps() {
    let mut bench = Bench::new().surface(5, [16, 4], R32_UINT);
    bench.memory.put_words(TEXELS + 2 * 256, &[55]);
    let found = bench.run(
        "mov b32 $r10 0x0\nmov b32 $r11 0x0\nmov b32 $r12 0x2\nmov b32 $r13 0x5
         suldb b32 $r4 ca zero img[$r13] e2d $r10:$r11:$r12",
    );
    assert_eq!(found[0][0], 55);
    let found = bench.run("mov b32 $r13 0x100\nsuldb b32 $r4 ca zero img[$r13] 1d $r10");
    assert_eq!(found[0][0], 0);
}

/// All that takes a texel or a place of a surface; operands are `$r10` to `$r17`, results go to `$r4q`.
const ACCESSES: [&str; 16] = [
    "texfetch lzero all $r4:$r5:$r6:$r7 t1d $t0 $s0 $r10 ()",
    "texfetch lzero all $r4:$r5:$r6:$r7 t2d $t0 $s0 $r10:$r11 ()",
    "texfetch lzero all $r4:$r5:$r6:$r7 t3d $t0 $s0 $r10:$r11:$r12 ()",
    "texfetch lzero all $r4:$r5:$r6:$r7 t1d ind $t0 $s0 $r10:$r11 ()",
    "tex lzero all dall $r4:$r5:$r6:$r7 t1d $t0 $s0 $r10 ()",
    "tex lzero all dall $r4:$r5:$r6:$r7 t2d $t0 $s0 $r10:$r11 ()",
    "tex lzero all dall $r4:$r5:$r6:$r7 t3d $t0 $s0 $r10:$r11:$r12 ()",
    "texquery all $r4:$r5:$r6:$r7 tdims $t0 $s0 $r10 $r10",
    "suldb b128 $r4q ca zero img[0x0] 2d $r10:$r11",
    "suldb b32 $r4 ca clamp img[0x0] e2d $r10:$r11:$r12",
    "suldb s16 $r4 ca trap img[0x0] 3d $r10:$r11:$r12",
    "suldb u8 $r4 ca clamp img[$r13] 1d $r10",
    "sustb wb clamp img[0x0] 2d $r10:$r11 b128 $r20q",
    "sustp wb clamp img[0x0] 2d $r10:$r11 $r20:$r21:$r22:$r23",
    "sustp wb zero img[0x0] 2d $r10:$r11 #:$r20:#:$r21",
    "suleab $p1 $r20d b32 clamp img[0x0] 2d $r10:$r11",
];

/// Words of which many are small, or floats of a usual size.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        0..64u32,
        (-4f32..40.0).prop_map(f32::to_bits),
        (0..32u32).prop_map(|bit| 1 << bit)
    ]
}

proptest! {
    /// Whatever a guest writes into its pools and methods, a warp ends: by itself, by a fault or a trap.
    #[test]
    fn any_texture_sampler_and_surface_end(
        header in prop::array::uniform8(any::<u32>()),
        size in prop::array::uniform2(word()),
        sampler in prop::array::uniform8(any::<u32>()),
        surface in prop::array::uniform5(word()),
        operands in prop::array::uniform8(word()),
        access in 0..ACCESSES.len(),
        is_there: bool,
    ) {
        let (mut header, mut surface) = (header, surface);
        (header[4], header[5]) = (size[0], size[1]);
        if is_there {
            (header[1], header[2]) = (TEXELS as u32, header[2] & !0xff);
            surface[0] = TEXELS as u32;
        }
        let mut bench = Bench::new().sampler(sampler);
        bench.textures = vec![Slot::Ready(Header::from_words(header)).and_then(Texture::new)];
        bench.surfaces[0] = Surface::new(
            u64::from(surface[0]),
            surface[1],
            SurfaceHeight::from_bits(surface[2]),
            SurfaceFormat::from_bits(surface[3]),
            BlockSize::from_bits(surface[4]),
        );
        let moves = (10..).zip(operands).map(|(register, value)| format!("mov b32 $r{register} {value:#x}"));
        let moves: Vec<_> = moves.collect();
        // Memory holds little, so many an access of large ones faults.
        let _ = bench.try_run(&format!("{}\n{}", moves.join("\n"), ACCESSES[access]));
    }
}
