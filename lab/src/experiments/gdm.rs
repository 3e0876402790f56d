//! GDM (Wang et al., SIGMETRICS'14): pairs of programs, leaks, attacks and what is not moved, on the paper's sizes divided by 16.
//!
//! The seven programs run once each on a card of their own, results checked; their calls are replayed beside each other (`staged`) under
//! GDM and GDM-Base (section 6.4). Signatures are taken by the card.

mod abuse;
mod pairs;
mod unmoved;

use kernels::signature::Hash;

use super::Experiment;
use crate::calls::{Program, SignedBlocks};
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::report::Report;
use crate::settings::Settings;
use crate::staged::Costs;
use crate::{KIB, MIB};

const PAPER: &str = "Wang et al. on a GTX 480: 14 of 21 pairs exceed the card, all finish; 21 % more throughput than GDM-Base, work efficiency near 100 %; a leak is tolerated; an attack costs 69 %";
/// What quick runs divide all sizes by.
pub(super) const QUICK: u64 = 8;
/// Bytes of a block: 4 MB divided by 16.
const BLOCK: u64 = 256 * KIB;
/// What programs can use of the card: 1400 MB divided by 16, in KiB.
pub(super) const CARD_KIB: u64 = 89_600;
/// The paper's Table 1 divided by 16, in tenths of a MiB, and what each program is here.
pub(super) const PROGRAMS: [(&str, u64); 7] = [
    ("backprop", 418),
    ("hashjoin", 1321),
    ("hotspot", 823),
    ("kmeans", 75),
    ("matrix", 411),
    ("nn", 711),
    ("srad2", 387),
];
/// Blocks that the card's 15 multiprocessors sign at once: each has room for 1536 threads.
const AT_ONCE: u32 = 90;

/// Sizes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scale {
    divisor: u64,
}

impl Scale {
    const fn block(self) -> u64 {
        BLOCK / self.divisor
    }

    /// Blocks of the card.
    const fn capacity(self) -> u32 {
        (CARD_KIB * KIB / BLOCK) as u32
    }

    const fn bytes(self, tenths: u64) -> u64 {
        tenths * MIB / 10 / self.divisor
    }
}

/// What signing takes, and what it finds.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Signed {
    costs: Costs,
    /// Parts that differ after a flipped bit, in the block that has it and in all others.
    parts: [usize; 2],
    words: usize,
}

fn sign(scale: Scale, hash: Hash) -> Result<Signed, LabError> {
    let words = scale.block() as usize / 4;
    let time = |count: u32| -> Result<f64, LabError> {
        let mut blocks = SignedBlocks::start(count, scale.block())?;
        let frames: Vec<u32> = (0..count).collect();
        Ok(blocks.sign(hash, &frames)?.1 as f64)
    };
    let one = time(1)?;
    let of_block = (time(2 * AT_ONCE)? - time(AT_ONCE)?) / f64::from(AT_ONCE);
    let mut blocks = SignedBlocks::start(3, scale.block())?;
    let noise = kernels::Noise::new(7);
    let mut memory: Vec<u32> = (0..3 * words).map(|at| noise.word(at)).collect();
    blocks.fill(&memory)?;
    let (before, _) = blocks.sign(hash, &[0, 1, 2])?;
    memory[words + words / 3] ^= 1 << 17;
    blocks.fill(&memory)?;
    let (after, _) = blocks.sign(hash, &[0, 1, 2])?;
    let differ = |block: usize| {
        let parts = before[block]
            .chunks(hash.words())
            .zip(after[block].chunks(hash.words()));
        parts.filter(|(one, other)| one != other).count()
    };
    Ok(Signed {
        costs: Costs {
            sign_ns: of_block,
            launch_ns: (one - of_block).max(0.0),
        },
        parts: [differ(1), differ(0) + differ(2)],
        words: hash.words(),
    })
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let scale = Scale {
        divisor: settings.choose(1, QUICK),
    };
    let programs = jobs::all(
        &PROGRAMS,
        onlooker,
        |(name, _)| (*name).to_owned(),
        |(name, tenths), _| Program::record(name, scale.bytes(*tenths), scale.block()),
    )?;
    let sip = Hash::Sip {
        key: [0x0bad_cafe, 0x1234_5678],
    };
    let hashes = [("HalfSipHash-1-3, keyed", sip), ("MD5, the paper's", Hash::Md5)];
    let signed = jobs::all(
        &hashes,
        onlooker,
        |(name, _)| (*name).to_owned(),
        |(_, hash), _| sign(scale, *hash),
    )?;
    let mut report = Experiment::Gdm.report("GDM: Figures 7 to 9, section 6.5", PAPER, settings);
    let costs = signed[0].costs;
    pairs::add(&mut report, scale, costs, &programs);
    abuse::add(&mut report, scale, costs, &programs)?;
    unmoved::add(&mut report, scale, costs, &hashes.map(|(name, _)| name), &signed);
    report.notes.push(format!(
        "{} blocks of {} KiB; a launch holds objects that its code has pointers to; one engine copies, at 6 GB/s; contents that changed are those of the recorded run",
        scale.capacity(),
        scale.block() / KIB
    ));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn claims_hold_on_small_programs() {
        let settings = Settings::of(Profile::Default, 1, true);
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
    }
}
