//! Every launch of every kernel of ours: how well its accesses are known, and that what was found out of its program
//! without a launch has them all.

use std::ops::Range;

use kernel_sets::{Bank, Bound, Kernel, Limits, Sets, analyse};
use kernels::programs::Program;
use kernels::{Buffers, Gpu, Launch, Stopped};

/// Bytes of a kernel's buffers.
const FOOTPRINT: u64 = 256 << 10;
/// Where the first buffer is, and bytes from one to the next.
const FIRST: u64 = 8 << 30;
const APART: u64 = 16 << 20;
const HEADER_BYTES: usize = 0x20;
const BANK_WORDS: usize = 1024;
const WINDOWS: [u64; 2] = [0xfe00_0000, 0xff00_0000];

/// Analyses what a plan launches, and runs nothing: words that the plan reads are zero.
struct Looker {
    name: &'static str,
    words: Vec<usize>,
    bad: Vec<String>,
    /// Accesses through a pointer that the program is not said to use so.
    unsaid: Vec<String>,
    launches: usize,
    overwritten: Vec<Range<u64>>,
}

impl Looker {
    fn of(name: &'static str) -> Self {
        let instance = kernels::make(name, FOOTPRINT).expect("a kernel of the list");
        let buffers = Buffers::of(instance.kernel());
        let mut looker = Self {
            name,
            words: buffers.iter().map(|(_, buffer)| buffer.words).collect(),
            bad: Vec::new(),
            unsaid: Vec::new(),
            launches: 0,
            overwritten: Vec::new(),
        };
        instance.kernel().run(&mut looker).expect("nothing stops it");
        looker
    }

    fn buffer_at(&self, address: u64) -> Option<Range<u64>> {
        let number = address.checked_sub(FIRST)? / APART;
        let start = FIRST + number * APART;
        let words = *self.words.get(number as usize)?;
        Some(start..start + 4 * words as u64)
    }

    fn compare(&mut self, program: &Program, sets: &Sets) {
        for access in &sets.accesses {
            let said = access.root.and_then(|root| {
                let offset = u32::from(root.offset);
                program.pointers.iter().find(|pointer| pointer.offset == offset)
            });
            let is_said = said.is_some_and(|said| {
                (said.is_loaded || !access.is_load) && (said.is_stored || !access.is_store)
            });
            if !is_said {
                self.unsaid
                    .push(format!("{} {access:x?}: {said:?}", program.name));
            }
        }
    }

    fn judge(&mut self, program: &str, sets: &Sets) {
        for access in &sets.accesses {
            let buffer = access.root.and_then(|root| self.buffer_at(root.address));
            if access.bound == Bound::Space || buffer.is_none() {
                self.bad
                    .push(format!("{} {program} {access:x?}: {:?}", self.name, sets.reason));
            }
            if std::env::var_os("SHOW").is_some() {
                let over = buffer.map_or(0, |buffer| {
                    (access.bytes.end as i64 - buffer.end as i64)
                        .max(buffer.start as i64 - access.bytes.start as i64)
                });
                println!(
                    "{} {program} {:x} {:?} over {over}",
                    self.name, access.pc, access.bound
                );
            }
        }
    }
}

impl Gpu for Looker {
    fn address(&self, buffer: usize) -> u64 {
        FIRST + APART * buffer as u64
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped> {
        for piece in launch.pieces() {
            let (words, count) = launch.parameters.bank(piece);
            let mut bank: Vec<Option<u32>> = words[..count].iter().copied().map(Some).collect();
            assert!(bank.len() * 4 >= HEADER_BYTES);
            bank.resize(BANK_WORDS, None);
            let kernel = Kernel {
                entry: 0,
                grid: [piece.blocks[0], piece.blocks[1], 1],
                block: [launch.threads[0], launch.threads[1], 1],
                banks: &[Bank { words: &bank }],
                windows: WINDOWS,
            };
            let mut code = |at: u32| launch.program.code.get(at as usize / 8).copied();
            let sets = analyse(&kernel, &mut code, Limits::default());
            self.judge(launch.program.name, &sets);
            self.compare(launch.program, &sets);
            self.overwritten.extend(sets.overwrites.clone());
            self.launches += 1;
        }
        Ok(())
    }

    fn load(&mut self, _: usize, _: usize, words: &mut [u32]) -> Result<(), Stopped> {
        words.fill(0);
        Ok(())
    }

    fn store(&mut self, _: usize, _: usize, _: &[u32]) -> Result<(), Stopped> {
        Ok(())
    }
}

#[test]
fn every_access_is_exact_or_in_the_run_of_a_buffer() {
    let mut bad = Vec::new();
    for name in kernels::NAMES {
        let looker = Looker::of(name);
        assert!(looker.launches > 0, "{name} launches something");
        bad.extend(looker.bad);
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn what_a_program_reaches_at_all_holds_what_each_launch_reaches() {
    let mut unsaid = Vec::new();
    for name in kernels::NAMES {
        unsaid.extend(Looker::of(name).unsaid);
    }
    assert!(unsaid.is_empty(), "{}", unsaid.join("\n"));
}
