//! Every set of instructions that this processor has gives the same bits.

use super::{
    super::{grid::Grid, grid::GridProgress, simd},
    A, B, Flat, assemble, launch, load, noise,
};

/// Words that are something special as an integer, an f16, an f32 or the upper half of an f64.
const SPECIAL: [u32; 24] = [
    0,
    1,
    0x8000_0000,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x3380_0000,
    0x3f00_0000,
    0x3f80_0001,
    0x4020_0000,
    0x4f00_0000,
    0x5f00_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    0x7ff0_0000,
    0x7fef_ffff,
    0x000f_ffff,
    0x0010_0000,
    0x7c00_3c00,
    0xfbff_0001,
    0xffff_ffff,
];

const ROUNDINGS: [&str; 4] = ["rn", "rm", "rp", "rz"];

/// Instructions of every loop over lanes, with flags where they have them.
fn instructions() -> Vec<String> {
    let mut texts: Vec<String> = [
        "set b32 $r12 lt f64 $r0d $r2d",
        "min f64 $r12d $r0d $r2d",
        "min f32 $r12 $r0 $r1",
        "set ftz b32 $r12 leu f32 $r0 $r1",
        "cos f32 $r12 $r0",
        "sin f32 $r12 $r0",
        "ex2 f32 $r12 $r0",
        "lg2 f32 $r12 $r0",
        "rcp f32 $r12 $r0",
        "rsqrt f32 $r12 $r0",
        "rcp64h $r12 $r0",
        "rsqrt64h $r12 $r0",
        "add b32 $r12 $c $r0 $r1",
        "sub sat b32 $r12 $r0 $r1",
        "add sat $r12 (mul high s32 $r0 u32 $r1) $r2",
        "max high s32 $r12 $c $r0 $r1",
        "ins b32 $r12 $r0 $r1 $r2",
        "ext rev s32 $r12 $r0 $r1",
        "bfind shiftamt s32 $r12 $r0",
        "popc $r12 $r0 $r1",
        "shl b32 $r12 $c $r0 clamp $r1",
        "shr s32 $r12 $c $r0 wrap $r1",
        "prmt b32 $r12 $r0 $r1 $r2",
        "prmt ecl b32 $r12 $r0 $r1 $r2",
        "mov $flags $r0 mask 0xffff",
        "cvt f64 $r12d f16 $r0 1",
        "cvt sat f16 $r12 f16 $r0 1",
        "cvt ftz sat f32 $r12 $c f32 $r0",
        "cvt sat s16 $r12 neg abs s64 $r0d",
    ]
    .map(str::to_owned)
    .into();
    for round in ROUNDINGS {
        for flags in ["", "ftz ", "sat "] {
            texts.push(format!("add {flags}{round} f32 $r12 $c $r0 $r1"));
        }
        for flags in ["", "ftz ", "fmz sat "] {
            texts.push(format!("mul {flags}{round} f32 $r12 $c $r0 $r1"));
            texts.push(format!("fma {flags}{round} f32 $r12 $c $r0 $r1 $r2"));
        }
        texts.push(format!("mul div8 {round} f32 $r12 $r0 $r1"));
        texts.push(format!("add {round} f64 $r12d $c $r0d $r2d"));
        texts.push(format!("mul {round} f64 $r12d $c $r0d $r2d"));
        texts.push(format!("fma {round} f64 $r12d $c $r0d $r2d $r4d"));
        for (from, source) in [("f16", "0 $r0"), ("f32", "$r0"), ("f64", "$r0d")] {
            for (to, target) in [
                ("u16", "$r12"),
                ("s32", "$r12"),
                ("u64", "$r12d"),
                ("s64", "$r12d"),
            ] {
                texts.push(format!("cvt {round}i {to} {target} {from} {source}"));
            }
        }
        for (to, target) in [("f16", "$r12"), ("f32", "$r12"), ("f64", "$r12d")] {
            for (from, source) in [("u8", "2 $r0"), ("s32", "$r0"), ("u64", "$r0d"), ("s64", "$r0d")] {
                texts.push(format!("cvt {round} {to} {target} {from} {source}"));
            }
        }
        texts.push(format!("cvt {round} f16 $r12 f64 $r0d"));
        texts.push(format!("cvt {round} f32 $r12 f64 $r0d"));
    }
    texts
}

/// What each thread has afterwards: the result and the flags.
fn results(instruction: &str, input: &[u32], run: simd::Runner) -> Vec<u32> {
    let text = format!(
        "mov b32 $r8 $tidx
        shl b32 $r9 $r8 clamp 0x5
        add b32 $r10 $r9 0x{A:x}
        ld b128 $r0q ca g[$r10]
        ld b128 $r4q ca g[$r10+0x10]
        add b32 $r9 $r9 0x{B:x}
        mov b32 $r12 0x0
        mov b32 $r13 0x0
        {instruction}
        mov $r14 $flags mask 0xffff
        st b128 wb g[$r9] $r12q
        exit"
    );
    let program = assemble(&text).unwrap_or_else(|error| panic!("{instruction}: {error:?}"));
    let threads = input.len() as u32 / 8;
    let mut memory = Flat::default();
    memory.put_words(A, input);
    memory.put_words(B, &vec![0; input.len()]);
    load(&mut memory, &program);
    let mut grid = Grid::new(launch(&program, [1, 1, 1], [threads, 1, 1], &[]), 15, 0);
    let progress = run(&mut grid, &mut memory, u64::MAX).expect(instruction);
    assert_eq!(progress, GridProgress::Done, "{instruction}");
    memory.words(B, input.len())
}

#[test]
fn all_levels_of_this_processor_give_the_same_bits() {
    let mut input = noise(5, 8 * 256);
    for (place, word) in input.iter_mut().enumerate().take(8 * 192) {
        *word = match place / 512 {
            0 => SPECIAL[*word as usize % SPECIAL.len()],
            // f32 of ordinary size.
            1 => *word & 0x807f_ffff | (119 + (*word >> 23 & 15)) << 23,
            _ if *word & 1 == 0 => SPECIAL[(*word >> 1) as usize % SPECIAL.len()],
            _ => *word,
        };
    }
    let runners = simd::runners();
    for instruction in instructions() {
        let [common, others @ ..] = &runners[..] else {
            panic!("a level is always there");
        };
        let expected = results(&instruction, &input, *common);
        for (number, other) in others.iter().enumerate() {
            let found = results(&instruction, &input, *other);
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(
                    found,
                    expected,
                    "{instruction}: word {} of thread {} at level {number}, of {:x?}",
                    place % 8,
                    place / 8,
                    &input[place / 8 * 8..place / 8 * 8 + 8]
                );
            }
        }
    }
}
