//! Shaders that work together through memory, and how they are launched; compared with the software renderer.

use anyhow::Result;

use super::shaders::{floats, input, output, read, words};
use super::{Case, compared};
use crate::gl::Gl;
use crate::gl::compute::{Binding, Program};

pub(super) const CASES: &[Case] = &[
    compared("shader-reduction", reduction, &[]),
    compared("shader-transposition", transposition, &[]),
    compared("shader-atomics", atomics, &[]),
    compared("shader-shared-atomics", shared_atomics, &[]),
    compared("shader-counters", counters, &[]),
    compared("shader-uniforms", uniforms, &[]),
    compared("shader-records", records, &[]),
    compared("shader-indirect", indirect, &[]),
];

fn reduction(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const COUNT: usize = 2048;
    let program = Program::new(gl, include_str!("../../shaders/reduction.glsl"))?;
    let given = input(gl, &words(220, COUNT))?;
    let (sums, scan) = (output(gl, COUNT / 256)?, output(gl, COUNT)?);
    program.run([COUNT as u32 / 256, 1, 1], &[&given, &sums, &scan])?;
    Ok([read(&sums, COUNT / 256)?, read(&scan, COUNT)?].concat())
}

fn transposition(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const GROUPS: [u32; 3] = [4, 3, 1];
    let count = (GROUPS[0] * GROUPS[1]) as usize * 256 * 2;
    let program = Program::new(gl, include_str!("../../shaders/transposition.glsl"))?;
    let given = input(gl, &floats(221, count, 1000.0, 20))?;
    let turned = output(gl, count)?;
    program.run(GROUPS, &[&given, &turned])?;
    read(&turned, count)
}

fn atomics(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const COUNT: usize = 2048;
    /// Number of the words before the arrays.
    const LEAST: usize = 1;
    const ALL: usize = 3;
    const LEAST_SIGNED: usize = 6;
    const HANDED_ON: usize = 9;
    const SLOT: usize = 10;
    const WORDS: usize = 12 + 64 + 256;
    let program = Program::new(gl, include_str!("../../shaders/atomics.glsl"))?;
    let given = input(gl, &words(222, COUNT))?;
    let mut start = vec![0; WORDS];
    (start[LEAST], start[ALL], start[LEAST_SIGNED]) = (u32::MAX, u32::MAX, i32::MAX as u32);
    let results = input(gl, &start)?;
    program.run([COUNT as u32 / 64, 1, 1], &[&given, &results])?;
    let mut found = read(&results, WORDS)?;
    // Which value came last depends on the order.
    found[HANDED_ON] = found[HANDED_ON].wrapping_add(found[SLOT]);
    found[SLOT] = 0;
    Ok(found)
}

fn shared_atomics(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const GROUPS: usize = 6;
    let program = Program::new(gl, include_str!("../../shaders/shared-atomics.glsl"))?;
    let (given, bins) = (input(gl, &words(223, GROUPS * 128))?, output(gl, GROUPS * 72)?);
    program.run([GROUPS as u32, 1, 1], &[&given, &bins])?;
    read(&bins, GROUPS * 72)
}

fn counters(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const COUNT: usize = 256;
    let program = Program::new(gl, include_str!("../../shaders/counters.glsl"))?;
    let counters = input(gl, &[0, COUNT as u32 / 2])?;
    let drawn = output(gl, 2 * COUNT + 1)?;
    counters.bind_at(Binding::AtomicCounter, 0);
    program.run([COUNT as u32 / 64, 1, 1], &[&drawn])?;
    Ok([read(&counters, 2)?, read(&drawn, 2 * COUNT + 1)?].concat())
}

fn uniforms(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const GROUPS: [u32; 3] = [3, 2, 4];
    const WORDS: usize = 3 * 2 * 4 * 64 * 2;
    let program = Program::new(gl, include_str!("../../shaders/uniforms.glsl"))?;
    let tables = [230, 231, 232].map(|seed| input(gl, &words(seed, 64 * 4)));
    let tables: Vec<_> = tables.into_iter().collect::<Result<_>>()?;
    for (index, table) in (0..).zip(&tables) {
        table.bind_at(Binding::Uniform, index);
    }
    program.set_word(c"factor", 2_654_435_761)?;
    program.set_vector(c"weights", [1.0, 64.0, 4096.0, 3.0])?;
    let results = output(gl, WORDS)?;
    program.run(GROUPS, &[&results])?;
    read(&results, WORDS)
}

fn records(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const COUNT: usize = 192;
    /// By the rules of std430.
    const RECORD_WORDS: usize = 12;
    const MATRIX_WORDS: usize = 6;
    let program = Program::new(gl, include_str!("../../shaders/records.glsl"))?;
    let given = input(gl, &words(224, COUNT * 4))?;
    let (records, matrices) = (
        output(gl, COUNT * RECORD_WORDS)?,
        output(gl, COUNT * MATRIX_WORDS)?,
    );
    program.run([COUNT as u32 / 64, 1, 1], &[&given, &records, &matrices])?;
    Ok([
        read(&records, COUNT * RECORD_WORDS)?,
        read(&matrices, COUNT * MATRIX_WORDS)?,
    ]
    .concat())
}

/// The groups are counted by a buffer, once by us and then by the grid before.
fn indirect(gl: &Gl<'_>) -> Result<Vec<u32>> {
    const WORDS: usize = 4 * 3 * 2 * 64;
    let program = Program::new(gl, include_str!("../../shaders/cell.glsl"))?;
    let cells = input(gl, &words(225, WORDS))?;
    let results = output(gl, WORDS)?;
    let groups = input(gl, &[3, 2, 2, 0, 0, 0, 0, 0])?;
    let buffers = [&cells, &results, &groups];
    program.run_indirect(&groups, 0, &buffers)?;
    program.run_indirect(&groups, 16, &buffers)?;
    Ok([read(&results, WORDS)?, read(&groups, 8)?].concat())
}
