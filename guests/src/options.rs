//! The choices that the operator makes on a guest's command line.

use crate::coherence::Scheme;
use core::fmt;

/// The program that a guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Keeps its files in VRAM, moves them about, reads them back.
    Files,
    /// Runs a kernel of the crate `kernels`, by its index in [`kernels::NAMES`].
    Kernel(usize),
}

impl Workload {
    /// Name of [`Self::Files`].
    const FILES: &str = "files";

    /// The workload called `name`.
    pub fn named(name: &str) -> Option<Self> {
        if name == Self::FILES {
            return Some(Self::Files);
        }
        kernels::NAMES
            .iter()
            .position(|kernel| *kernel == name)
            .map(Self::Kernel)
    }

    /// Name of the workload on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => Self::FILES,
            Self::Kernel(index) => kernels::NAMES.get(index).copied().unwrap_or_default(),
        }
    }

    /// Names of all workloads.
    pub fn names() -> impl Iterator<Item = &'static str> {
        [Self::FILES].into_iter().chain(kernels::NAMES.iter().copied())
    }
}

/// Choices of a workload and facts that a driver cannot learn from the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Program to run (`vramd.workload`, default `files`).
    pub workload: Workload,
    /// Bytes of VRAM that the buffers of a kernel have together (`vramd.footprint_kib`, in KiB), `None` for nearly all
    /// that there are.
    pub footprint: Option<u64>,
    /// Seed of every choice that the workload makes (`vramd.seed`, default 1).
    pub seed: u64,
    /// How often the contents of VRAM are moved about, or a kernel's plan is run and compared (`vramd.rounds`,
    /// default 4).
    pub rounds: u32,
    /// How often a kernel's plan is run before its results are compared (`vramd.repeats`, default 1).
    pub repeats: u32,
    /// Keep a copy of each buffer of a kernel in RAM, and who moves them (`vramd.coherence`: `amm`, `naive` or `manual`). `None`,
    /// the default: buffers are in VRAM alone.
    pub coherence: Option<Scheme>,
    /// Bytes of a slot as a power of two from 128 KiB, `None` for the smallest that leaves no more slots than the
    /// workload can count (`vramd.slot_kib`, in KiB).
    pub slot_bytes: Option<u64>,
    /// Ask for an interrupt at the end of each submission and open the host line (`vramd.interrupts=1`). The waits
    /// poll in any case; with this, [`GuestBus::relax`](crate::GuestBus::relax) may sleep. Default off: each
    /// acknowledge costs a handful of register accesses.
    pub interrupts: bool,
    /// Untouched VRAM reads as zero (`vramd.zeroed`, default 1). This holds for a virtual GPU. On a card it does
    /// not: with 0 the driver clears each directory and table through BAR3 before use, up to 32,768 stores each.
    pub vram_is_zeroed: bool,
    /// Longest wait for one submission or register, in milliseconds (`vramd.timeout_ms`, default 60,000: a virtual
    /// GPU may be suspended for a while).
    pub timeout_ms: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workload: Workload::Files,
            footprint: None,
            seed: 1,
            rounds: 4,
            repeats: 1,
            coherence: None,
            slot_bytes: None,
            interrupts: false,
            vram_is_zeroed: true,
            timeout_ms: 60_000,
        }
    }
}

/// A word of the command line that starts with `vramd.` and is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionError<'a> {
    /// The word as it stands on the command line.
    pub word: &'a str,
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command line: cannot use \"{}\"", self.word)
    }
}

impl core::error::Error for OptionError<'_> {}

impl Options {
    /// Reads `vramd.NAME=VALUE` words; others are not ours and are passed over. A later word wins.
    pub fn parse(command_line: &str) -> Result<Self, OptionError<'_>> {
        let mut options = Self::default();
        for word in command_line.split_ascii_whitespace() {
            if let Some(assignment) = word.strip_prefix("vramd.") {
                options.set(assignment).ok_or(OptionError { word })?;
            }
        }
        Ok(options)
    }

    fn set(&mut self, assignment: &str) -> Option<()> {
        let (name, value) = assignment.split_once('=')?;
        match name {
            "workload" => self.workload = Workload::named(value)?,
            "footprint_kib" => self.footprint = Some(value.parse::<u64>().ok()?.checked_mul(1024)?),
            "seed" => self.seed = value.parse().ok()?,
            "rounds" => self.rounds = value.parse().ok()?,
            "repeats" => self.repeats = value.parse().ok()?,
            "coherence" => self.coherence = Some(Scheme::named(value)?),
            "slot_kib" => self.slot_bytes = Some(decode_slot(value)?),
            "interrupts" => self.interrupts = decode_switch(value)?,
            "zeroed" => self.vram_is_zeroed = decode_switch(value)?,
            "timeout_ms" => self.timeout_ms = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }
}

fn decode_switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn decode_slot(value: &str) -> Option<u64> {
    let kib: u64 = value.parse().ok()?;
    ((128..=1 << 20).contains(&kib) && kib.is_power_of_two()).then_some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_words_are_read_and_others_passed_over() {
        let options = Options::parse("console=ttyS0 vramd.seed=7 quiet vramd.rounds=9 vramd.slot_kib=512");
        let wanted = Options {
            seed: 7,
            rounds: 9,
            slot_bytes: Some(512 << 10),
            ..Options::default()
        };
        assert_eq!(options, Ok(wanted));
    }

    #[test]
    fn every_workload_is_found_by_its_name() {
        for name in Workload::names() {
            assert_eq!(Workload::named(name).map(Workload::name), Some(name));
        }
        let options = Options::parse("vramd.workload=bfs vramd.footprint_kib=64").unwrap();
        assert_eq!(
            (options.workload.name(), options.footprint),
            ("bfs", Some(65_536))
        );
        assert!(Options::parse("vramd.workload=mining").is_err());
    }

    #[test]
    fn every_scheme_is_found_by_its_name() {
        for scheme in Scheme::ALL {
            let options = Options::parse(&std::format!("vramd.coherence={}", scheme.name())).unwrap();
            assert_eq!(options.coherence, Some(scheme));
        }
        assert!(Options::parse("vramd.coherence=none").is_err());
    }

    #[test]
    fn unknown_name_is_named_in_the_error() {
        assert_eq!(
            Options::parse("vramd.sed=7"),
            Err(OptionError { word: "vramd.sed=7" })
        );
    }

    #[test]
    fn slot_that_is_no_power_of_two_is_refused() {
        assert!(Options::parse("vramd.slot_kib=192").is_err());
    }
}
