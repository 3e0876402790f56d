//! Every set of instructions that this processor has gives the same bits.

use super::{
    super::{
        grid::{Grid, GridProgress, Piece},
        simd,
    },
    A, B, FaultBuffer, Flat, assemble, launch, load, noise,
};

#[path = "../../../benches/instructions/special.rs"]
mod special;

/// Words that are something special as an integer, an f16 in either half, an f32 or the upper half of an f64.
fn specials() -> Vec<u32> {
    let halves = special::HALVES
        .iter()
        .zip(special::HALVES.iter().rev())
        .map(|(low, high)| low | high << 16);
    let upper = special::DOUBLES.iter().map(|bits| (bits >> 32) as u32);
    let others = [special::INTEGERS, special::SINGLES].concat();
    others.into_iter().chain(halves).chain(upper).collect()
}

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
        "min s32 $r12 $c $r0 $r1",
        "max u32 $r12 $r0 $r1",
        "ext u32 $r12 $r0 0x808",
        "ext s32 $r12 $c $r0 0x71b",
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

/// What each thread has afterwards, by the set of instructions: the result and the flags.
fn results(instruction: &str, input: &[u32]) -> Vec<Vec<u32>> {
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
    simd::perform_with_each(|| {
        let mut memory = Flat::default();
        memory.put_words(A, input);
        memory.put_words(B, &vec![0; input.len()]);
        load(&mut memory, &program);
        let launch = launch(&program, [1, 1, 1], [threads, 1, 1], &[]);
        Whole {
            grid: Grid::new(launch, 15, 0, FaultBuffer::default(), None),
            memory,
            words: input.len(),
        }
    })
}

/// A grid that is run to its end, and the words that it leaves.
struct Whole {
    grid: Grid,
    memory: Flat,
    words: usize,
}

impl simd::Work for Whole {
    type Output = Vec<u32>;

    #[inline(always)]
    fn perform(mut self, level: impl simd::Level) -> Vec<u32> {
        let piece = Piece {
            grid: &mut self.grid,
            outside: &mut self.memory,
            budget: u64::MAX,
        };
        assert_eq!(piece.perform(level), Ok(GridProgress::Done));
        self.memory.words(B, self.words)
    }
}

#[test]
fn all_levels_of_this_processor_give_the_same_bits() {
    let (mut input, specials) = (noise(5, 8 * 256), specials());
    for (place, word) in input.iter_mut().enumerate().take(8 * 192) {
        *word = match place / 512 {
            0 => specials[*word as usize % specials.len()],
            // f32 of ordinary size.
            1 => *word & 0x807f_ffff | (119 + (*word >> 23 & 15)) << 23,
            _ if *word & 1 == 0 => specials[(*word >> 1) as usize % specials.len()],
            _ => *word,
        };
    }
    for instruction in instructions() {
        let results = results(&instruction, &input);
        let [expected, others @ ..] = &results[..] else {
            panic!("a level is always there");
        };
        for (number, found) in others.iter().enumerate() {
            for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
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
