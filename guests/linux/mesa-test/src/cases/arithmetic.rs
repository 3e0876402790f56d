//! Shaders that compute with numbers, compared with the software renderer.

use anyhow::Result;

use super::shaders::{columns, floats, words};
use super::{Case, compared};
use crate::gl::Gl;
use crate::reference::Bound::{self, DoubleUlps, Ulps, Within};

pub(super) const CASES: &[Case] = &[
    compared("shader-integers", integers, &[]),
    compared("shader-long-integers", long_integers, &[]),
    compared("shader-long-division", long_division, &[]),
    compared("shader-floats", single, &[]),
    compared("shader-functions", functions, FUNCTIONS),
    compared("shader-halves", halves, &[]),
    compared("shader-doubles", doubles, DOUBLES),
    compared("shader-double-functions", double_functions, DOUBLE_FUNCTIONS),
    compared("shader-loops", loops, &[]),
    compared("shader-switches", switches, &[]),
];

const COUNT: usize = 256;

/// Twice what GLSL 4.60, 4.7.1 allows each side, where it says something: division 2.5, inverse square root 2, square
/// root as the inverse of that. The others have no bound there, or one that depends on the argument: they are those
/// of polynomials in the software renderer.
const FUNCTIONS: &[Bound] = &[
    Ulps(5),
    Ulps(5),
    Ulps(5),
    Ulps(4),
    Within(4e-6),
    Within(1e-5),
    Within(1e-4),
    Within(1e-5),
    Within(1e-5),
    Ulps(8),
    Within(1e-6),
    // Of the order of 100, where what is added may cancel out.
    Within(2e-5),
];

/// Mesa's reciprocals and inverse square roots of f64 on this card are those of the special function unit: a high word
/// with 20 bits of significand, and nothing below (`nv50_ir_lowering_nvc0.cpp`, handleRCPRSQ).
const DOUBLE_FUNCTIONS: &[Bound] = &[
    DoubleUlps(1 << 34),
    DoubleUlps(1 << 34),
    DoubleUlps(1 << 34),
    DoubleUlps(2),
];

/// All to the bit, but that zeros may have either sign.
const DOUBLES: &[Bound] = &[DoubleUlps(0)];

fn integers(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let mut given = words(200, 2 * COUNT);
    // Numbers that are near the ends of their range.
    given[..8].copy_from_slice(&[0, 0, 1, u32::MAX, 1 << 31, u32::MAX, i32::MAX as u32, 1 << 31]);
    columns(gl, include_str!("../../shaders/integers.glsl"), &given, COUNT, 32)
}

fn long_integers(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = words(201, 4 * COUNT);
    columns(
        gl,
        include_str!("../../shaders/long-integers.glsl"),
        &given,
        COUNT,
        24,
    )
}

fn long_division(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = words(209, 4 * COUNT);
    columns(
        gl,
        include_str!("../../shaders/long-division.glsl"),
        &given,
        COUNT,
        2,
    )
}

fn single(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = floats(202, 2 * COUNT, 1000.0, 23);
    columns(gl, include_str!("../../shaders/floats.glsl"), &given, COUNT, 24)
}

fn functions(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = floats(203, 2 * COUNT, 100.0, 23);
    columns(
        gl,
        include_str!("../../shaders/functions.glsl"),
        &given,
        COUNT,
        12,
    )
}

fn halves(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = floats(204, 4 * COUNT, 128.0, 16);
    columns(gl, include_str!("../../shaders/halves.glsl"), &given, COUNT, 12)
}

/// f64 in (-2^20, 2^20).
fn double_words(seed: u32, count: usize) -> Vec<u32> {
    let double = |word: &[u32]| {
        let exponent = 1023 - 12 + (word[1] & 31);
        [word[0], word[1] & 0x800f_ffff | exponent << 20]
    };
    words(seed, 2 * count).chunks_exact(2).flat_map(double).collect()
}

fn doubles(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = double_words(205, 2 * COUNT);
    columns(gl, include_str!("../../shaders/doubles.glsl"), &given, COUNT, 32)
}

fn double_functions(gl: &Gl<'_>) -> Result<Vec<u32>> {
    let given = double_words(206, 2 * COUNT);
    columns(
        gl,
        include_str!("../../shaders/double-functions.glsl"),
        &given,
        COUNT,
        8,
    )
}

fn loops(gl: &Gl<'_>) -> Result<Vec<u32>> {
    columns(
        gl,
        include_str!("../../shaders/loops.glsl"),
        &words(207, COUNT),
        COUNT,
        4,
    )
}

fn switches(gl: &Gl<'_>) -> Result<Vec<u32>> {
    columns(
        gl,
        include_str!("../../shaders/switches.glsl"),
        &words(208, COUNT),
        COUNT,
        1,
    )
}
