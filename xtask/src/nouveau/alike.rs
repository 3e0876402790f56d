//! Whether the driver says the same of a vGPU as of a card.
//!
//! Lines of the driver are compared step by step and test by test, each as often as it came, whatever their order: two engines may report
//! in either. Numbers that differ from run to run on one card too are left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use regex::Regex;

use super::kernel_log::{TEST_BEGIN, TEST_END, split};

/// What a step's lines begin with in a log that was kept.
pub(super) const STEP: &str = "── ";
/// A word of each of the driver's lines.
const DRIVER: &str = "nouveau";
/// Numbers that belong to a run, and what stands for them: processes, instance blocks, channels.
const OF_A_RUN: [(&str, &str); 4] = [
    (r"\[[0-9]+\]", "[PID]"),
    (r"\[[0-9a-f]{10} ", "[INSTANCE "),
    (r"(ch|channel) [0-9]+", "$1 N"),
    (r"fifo:([0-9]+):[0-9a-f]{4}(:[0-9a-f]{4})?:", "fifo:$1:N:"),
];
/// A process is told that its channel is gone, or submits once more before: a race in the guest, which goes either way on a card.
const EITHER_WAY: &str = ": error fencing pushbuf: -19";
/// A test whose errors follow one another faster than a kernel asks for them: which of them it finds goes by time, on one card too. There has to be
/// one on both.
const BY_TIME: &str = "garbage";
/// Differences in a message.
const SHOWN: usize = 20;

/// How often each line came, by step and test.
type Lines = BTreeMap<String, BTreeMap<String, usize>>;

fn lines_of(log: &str) -> Result<Lines> {
    let of_a_run = OF_A_RUN.map(|(pattern, stands)| Regex::new(pattern).map(|pattern| (pattern, stands)));
    let of_a_run: Vec<_> = of_a_run.into_iter().collect::<Result<_, _>>()?;
    let (mut step, mut test) = ("", "");
    let mut lines = Lines::new();
    for line in log.lines() {
        if let Some(name) = line.strip_prefix(STEP) {
            (step, test) = (name, "");
            continue;
        }
        let (_, text) = split(line);
        if let Some(name) = text.strip_prefix(TEST_BEGIN) {
            test = name;
        } else if text.starts_with(TEST_END) {
            test = "";
        } else if text.contains(DRIVER) && !text.ends_with(EITHER_WAY) {
            if test == BY_TIME {
                lines
                    .entry(format!("{step}, {test}"))
                    .or_default()
                    .insert("an error".to_owned(), 1);
                continue;
            }
            let mut text = text.to_owned();
            for (pattern, stands) in &of_a_run {
                text = pattern.replace_all(&text, *stands).into_owned();
            }
            let of_test = lines.entry(format!("{step}, {test}")).or_default();
            *of_test.entry(text).or_default() += 1;
        }
    }
    Ok(lines)
}

/// Compares the kernel's logs of two guests. Returns how many of the driver's lines are the same.
///
/// # Errors
///
/// Says which lines came how often, on the card and on the vGPU.
pub(super) fn compare(card: &str, vgpu: &str) -> Result<usize> {
    let (card, vgpu) = (lines_of(card)?, lines_of(vgpu)?);
    let none = BTreeMap::new();
    let places = card
        .keys()
        .chain(vgpu.keys().filter(|place| !card.contains_key(*place)));
    let (mut same, mut count, mut text) = (0, 0, String::new());
    for place in places {
        let of = |lines: &Lines| lines.get(place).unwrap_or(&none).clone();
        let (on_card, on_vgpu) = (of(&card), of(&vgpu));
        let new = on_vgpu.keys().filter(|line| !on_card.contains_key(*line));
        for line in on_card.keys().chain(new) {
            let times = |lines: &BTreeMap<String, usize>| lines.get(line).copied().unwrap_or(0);
            let (before, now) = (times(&on_card), times(&on_vgpu));
            same += before.min(now);
            if before != now {
                count += 1;
                if count <= SHOWN {
                    write!(text, "\n{place}: {before} on the card, {now} on the vGPU: {line}")?;
                }
            }
        }
    }
    ensure!(same > 0, "the driver says nothing");
    ensure!(
        count == 0,
        "the driver says something else in {count} lines:{text}"
    );
    Ok(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = "── insmod\n\
        <6>[   10.0] nouveau 0000:00:01.0: NVIDIA GF100 (0c0000a3)\n\
        <6>[   10.1] something else\n\
        ── nouveau-test\n\
        <12>[   11.0] nouveau-test: begin fault\n\
        <3>[   11.1] nouveau 0000:00:01.0: fifo: fault 00 on channel 2 [000fc14000 nouveau-test[245]]\n\
        <3>[   11.2] nouveau 0000:00:01.0: fifo:000000:0002:[nouveau-test[245]] rc scheduled\n\
        <3>[   11.3] nouveau 0000:00:01.0: nouveau-test[245]: error fencing pushbuf: -19\n\
        <12>[   11.4] nouveau-test: end fault\n";

    #[test]
    fn numbers_of_a_run_and_the_order_within_a_test_make_no_difference() {
        let vgpu = CARD
            .replace("channel 2", "channel 1")
            .replace("[245]", "[301]")
            .replace("0002", "0001");
        let vgpu = vgpu
            .replace("000fc14000", "000fc15000")
            .replace("   11.3", "   19.3");
        assert_eq!(compare(CARD, &vgpu).unwrap(), 3);
        let mut lines: Vec<_> = vgpu.lines().collect();
        lines.swap(5, 6);
        lines.remove(7);
        assert_eq!(compare(CARD, &lines.join("\n")).unwrap(), 3);
    }

    #[test]
    fn line_that_lacks_or_comes_twice_or_in_another_test_is_told() {
        let lacks = CARD.replace("rc scheduled", "recovered");
        let error = compare(CARD, &lacks).unwrap_err().to_string();
        assert!(
            error.contains("in 2 lines") && error.contains("1 on the card, 0 on the vGPU"),
            "{error}"
        );
        let twice = format!("{CARD}── rmmod\n<6>[ 20.0] nouveau 0000:00:01.0: bye\n");
        assert!(compare(CARD, &twice).unwrap_err().to_string().contains("rmmod"));
        assert!(compare(CARD, &CARD.replace("begin fault", "begin other")).is_err());
        assert!(compare("", "").is_err());
        let by_time = CARD.replace("begin fault", "begin garbage");
        assert_eq!(
            compare(&by_time, &by_time.replace("rc scheduled", "recovered")).unwrap(),
            2
        );
    }
}
