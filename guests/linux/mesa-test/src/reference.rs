//! Results of the same tests by Mesa's software renderer (llvmpipe), and how far from them others may be.
//!
//! This program runs itself once more, as a process whose Mesa knows no card. It prints the words that each test gave:
//!
//! ```text
//! words NAME 1 ffffffff 2a …
//! FAIL NAME REASON
//! ```

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

const WORDS: &str = "words ";
const FAILED: &str = "FAIL ";
/// Name of the software renderer.
pub(crate) const RENDERER: &str = "llvmpipe";

/// How near a result has to be. A list of bounds is used over and over along the results.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The same word.
    Bits,
    /// An f32 at most this many steps away.
    Ulps(u32),
    /// An f32 whose difference is not larger.
    Within(f32),
    /// An f64 of two words, the low one first, at most this many steps away.
    DoubleUlps(u64),
}

impl Bound {
    fn words(self) -> usize {
        match self {
            Self::DoubleUlps(_) => 2,
            _ => 1,
        }
    }

    fn holds(self, found: &[u32], wanted: &[u32]) -> bool {
        let float = |words: &[u32]| f32::from_bits(words[0]);
        match self {
            _ if found == wanted => true,
            Self::Bits => false,
            Self::Ulps(ulps) => steps(found[0].into(), wanted[0].into(), 32) <= ulps.into(),
            Self::Within(bound) => (float(found) - float(wanted)).abs() <= bound,
            Self::DoubleUlps(ulps) => {
                let double = |words: &[u32]| u64::from(words[1]) << 32 | u64::from(words[0]);
                steps(double(found), double(wanted), 64) <= ulps
            }
        }
    }
}

/// Numbers between two floats of so many bits; NaNs count as beyond infinity.
fn steps(a: u64, b: u64, bits: u32) -> u64 {
    let half = 1_u64 << (bits - 1);
    // The order of floats is that of sign and magnitude.
    let place = |float: u64| {
        let magnitude = i128::from(float & (half - 1));
        if float & half != 0 { -magnitude } else { magnitude }
    };
    u64::try_from((place(a) - place(b)).abs()).unwrap_or(u64::MAX)
}

/// Compares words; reports the first one that is too far off.
pub(crate) fn compare(found: &[u32], wanted: &[u32], bounds: &[Bound]) -> Result<()> {
    ensure!(
        found.len() == wanted.len(),
        "{} words, {RENDERER} has {}",
        found.len(),
        wanted.len()
    );
    let bounds = if bounds.is_empty() { &[Bound::Bits] } else { bounds };
    let (mut at, mut wrong, mut first) = (0, 0, None);
    for bound in bounds.iter().cycle() {
        let end = at + bound.words();
        let (Some(found), Some(wanted)) = (found.get(at..end), wanted.get(at..end)) else {
            break;
        };
        if !bound.holds(found, wanted) {
            wrong += 1;
            first.get_or_insert_with(|| {
                format!("word {at} is {found:x?}, {RENDERER} has {wanted:x?} (bound: {bound:?})")
            });
        }
        at = end;
    }
    ensure!(at == found.len(), "{} words are not whole rows", found.len());
    match first {
        None => Ok(()),
        Some(first) => bail!("{first}; {wrong} are wrong"),
    }
}

/// Prints the results of a test.
pub(crate) fn print(name: &str, result: &Result<Vec<u32>>) -> Result<()> {
    let mut line = match result {
        Ok(words) => words
            .iter()
            .fold(format!("{WORDS}{name}"), |line, word| format!("{line} {word:x}")),
        Err(error) => format!("{FAILED}{name} {}", report::one_line(error)),
    };
    line.push('\n');
    std::io::stdout()
        .write_all(line.as_bytes())
        .context("standard output is closed")
}

/// Results of the software renderer, by test.
#[derive(Debug)]
pub(crate) struct Reference {
    results: BTreeMap<String, Result<Vec<u32>, String>>,
}

impl Reference {
    /// Runs the tests of these names.
    pub(crate) fn ask(names: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("no path to this program")?;
        let output = Command::new(program)
            .args(["--results", "--platform", "surfaceless", "--renderer", RENDERER])
            .args(names.iter().flat_map(|name| ["--only", name]))
            .envs([
                ("LIBGL_ALWAYS_SOFTWARE", "1"),
                ("GALLIUM_DRIVER", RENDERER),
                ("MESA_SHADER_CACHE_DISABLE", "true"),
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("this program cannot run itself")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut results = BTreeMap::new();
        for line in text.lines() {
            if let Some((name, words)) = line.strip_prefix(WORDS).map(name_and_rest) {
                let words = words.split_ascii_whitespace();
                let words: Result<_, _> = words.map(|word| u32::from_str_radix(word, 16)).collect();
                results.insert(name.to_owned(), Ok(words.context("no words")?));
            } else if let Some((name, reason)) = line.strip_prefix(FAILED).map(name_and_rest) {
                results.insert(name.to_owned(), Err(reason.to_owned()));
            }
        }
        ensure!(
            !results.is_empty(),
            "{RENDERER} gave nothing, status {}: {text}",
            output.status
        );
        Ok(Self { results })
    }

    /// The words of a test.
    pub(crate) fn words(&self, name: &str) -> Result<&[u32]> {
        match self.results.get(name) {
            Some(Ok(words)) => Ok(words),
            Some(Err(reason)) => Err(anyhow!("with {RENDERER}: {reason}")),
            None => Err(anyhow!("{RENDERER} did not come to this test")),
        }
    }
}

fn name_and_rest(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cross_zero() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(steps(bits(-0.0), bits(0.0), 32), 0);
        assert_eq!(steps(bits(-f32::from_bits(1)), bits(f32::from_bits(2)), 32), 3);
        assert_eq!(steps(1.0_f64.to_bits(), 1.0_f64.next_up().to_bits(), 64), 1);
    }

    #[test]
    fn bounds_are_used_over_and_over() {
        let words = [1.0_f32, 2.0, 1.0, 2.0].map(f32::to_bits);
        let mut near = words;
        near[3] += 2;
        let bounds = [Bound::Bits, Bound::Ulps(2)];
        assert!(compare(&near, &words, &bounds).is_ok());
        near[3] += 1;
        assert!(compare(&near, &words, &bounds).is_err());
        near = words;
        near[2] += 1;
        assert!(compare(&near, &words, &bounds).is_err());
    }

    #[test]
    fn double_takes_two_words() {
        assert!(compare(&[5, 7], &[4, 7], &[Bound::DoubleUlps(1)]).is_ok());
        assert!(compare(&[5, 7], &[3, 7], &[Bound::DoubleUlps(1)]).is_err());
        assert!(compare(&[5, 7, 1], &[5, 7, 1], &[Bound::DoubleUlps(1)]).is_err());
    }
}
