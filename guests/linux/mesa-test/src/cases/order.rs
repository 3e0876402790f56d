//! Fences and queries: the order of results, and their time.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use report::Outcome;

use super::{Case, case};
use crate::bytes::{bytes, same};
use crate::egl::Egl;
use crate::gl::{Gl, number};
use crate::library::wait_readable;

pub(super) const CASES: &[Case] = &[
    case("fence", fence),
    case("fence-file", fence_file),
    case("timestamps", timestamps),
];

/// Bytes of a copy that takes a while.
const SIZE: usize = 4 << 20;
/// Longest wait for a fence.
const PATIENCE: Duration = Duration::from_secs(10);

/// The fence of a row of copies ends, and what was copied is there.
fn fence(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let buffers = (0..4)
        .map(|seed| gl.buffer(SIZE, Some(&bytes(seed, SIZE)), number::STATIC_DRAW))
        .collect::<Result<Vec<_>>>()?;
    for round in 0..3 {
        for pair in buffers.windows(2) {
            gl.copy(&pair[0], 0, &pair[1], 0, SIZE)?;
        }
        let answer = gl.fence(PATIENCE.as_nanos() as u64)?;
        let is_done = [number::ALREADY_SIGNALED, number::CONDITION_SATISFIED].contains(&answer);
        ensure!(
            is_done,
            "round {round}: the wait for a fence answered {answer:#x}"
        );
        let again = gl.fence(0)?;
        ensure!(again != 0, "round {round}: the second fence answered {again:#x}");
    }
    same(&buffers[3].read(0, SIZE)?, &bytes(0, SIZE))?;
    Ok(Outcome::Passed)
}

/// The same as a file descriptor.
fn fence_file(egl: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    const EXTENSION: &str = "EGL_ANDROID_native_fence_sync";
    if !egl.has(EXTENSION) {
        return Ok(Outcome::Skipped(format!("the display has no {EXTENSION}")));
    }
    let first = gl.buffer(SIZE, Some(&bytes(5, SIZE)), number::STATIC_DRAW)?;
    let second = gl.buffer(SIZE, None, number::STATIC_DRAW)?;
    gl.copy(&first, 0, &second, 0, SIZE)?;
    let file = egl.fence_file(|| gl.flush())?;
    let in_time = wait_readable(file.as_fd(), PATIENCE)?;
    ensure!(in_time, "the fence's file is not readable after {PATIENCE:?}");
    Ok(Outcome::Passed)
}

/// The card's time passes as ours does, and queries are answered in order.
fn timestamps(_: &Egl, gl: &Gl<'_>) -> Result<Outcome> {
    let (start, gpu) = (Instant::now(), gl.time()?);
    let first = gl.buffer(SIZE, Some(&bytes(6, SIZE)), number::STATIC_DRAW)?;
    let second = gl.buffer(SIZE, None, number::STATIC_DRAW)?;
    // Mesa reckons the time it tells from ours, so it is not held against the queries.
    let mut before = 0;
    for round in 0..3 {
        let [begin, end, took] = gl.times_around(|| gl.copy(&first, 0, &second, 0, SIZE))?;
        ensure!(
            before <= begin && begin <= end,
            "round {round}: times are {before}, {begin}, {end}"
        );
        ensure!(
            took <= end - begin,
            "round {round}: {took} ns within {} ns",
            end - begin
        );
        before = end;
    }
    let (passed, counted) = (start.elapsed().as_nanos() as u64, gl.time()? - gpu);
    ensure!(
        (passed / 8..=passed * 2).contains(&counted),
        "{counted} ns by the card, {passed} ns here"
    );
    Ok(Outcome::Passed)
}
