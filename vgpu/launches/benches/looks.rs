//! What it takes to follow a channel whose kernels nobody looks into: `cargo bench -p launches`.
//!
//! Work as our own driver submits it, an entry each. The last column is the time of a unit of work, which is what a broker charges a VM for.

use std::hint::black_box;
use std::time::Instant;

use fermi_spec::addr::GpuVa;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::graphics::{BindConstants, compute, front_end, shader};
use fermi_spec::methods::{CopyExec, SemaphoreD, class, copy, host};
use fermi_spec::pushbuffer::incrementing;
use kernel_sets::Cache;
use launches::{CopyMethods, GpuMemory, Limits, Looked, Observer, Ring, Unmapped};

const RING: u64 = 0x10_0000;
const ENTRIES_LOG2: u32 = 9;
const PUSH: u64 = 0x20_0000;
const PUSH_BYTES: u64 = 0x1000;
const SUBCHANNEL: u8 = 1;
/// Times that each is measured, entries each time.
const ROUNDS: usize = 31;
const ENTRIES: u32 = 1 << 13;

/// The ring and one pushbuffer, so that reading them costs next to nothing.
struct Memory {
    ring: Vec<u8>,
    push: Vec<u8>,
}

impl GpuMemory for Memory {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let (from, base) = match at.0 {
            at if at >= PUSH => (&self.push, at - PUSH),
            at => (&self.ring, at - RING),
        };
        let base = base as usize;
        bytes.copy_from_slice(from.get(base..base + bytes.len()).ok_or(Unmapped)?);
        Ok(())
    }
}

fn set(words: &mut Vec<u32>, method: u16, operands: &[u32]) {
    words.push(incrementing(SUBCHANNEL, method, operands.len() as u16));
    words.extend_from_slice(operands);
}

fn bound(class: u16) -> Vec<u32> {
    vec![incrementing(SUBCHANNEL, host::SET_OBJECT, 1), class.into()]
}

fn release(words: &mut Vec<u32>) {
    let operand = SemaphoreD::new().with_operation(2).with_release_short(true);
    let operands = [2, 0x1000, 7, operand.into_bits()];
    words.push(incrementing(0, host::SEMAPHORE_A, 4));
    words.extend(operands);
}

/// A launch with 16 words of parameters, and the release behind it.
fn launch() -> Vec<u32> {
    let mut words = Vec::new();
    set(&mut words, shader::CONSTANT_BYTES, &[0x1000, 1, 0x10_0000]);
    let bind = BindConstants::new().with_valid(true);
    set(&mut words, compute::BIND_CONSTANTS, &[bind.into_bits()]);
    set(&mut words, shader::CONSTANT_OFFSET, &[0x20]);
    set(&mut words, shader::CONSTANT_DATA, &[5; 16]);
    set(&mut words, compute::CODE_HIGH, &[1, 0]);
    set(&mut words, compute::ENTRY, &[0]);
    set(&mut words, compute::LOCAL_POSITIVE, &[0, 0, 0]);
    set(&mut words, compute::SHARED_BYTES, &[0x100, 128, 1]);
    set(&mut words, compute::REGISTERS, &[32]);
    set(&mut words, compute::BLOCK_XY, &[128 | 1 << 16, 1]);
    set(&mut words, compute::GRID_XY, &[64 | 1 << 16, 1]);
    set(&mut words, compute::GRID_BEGIN, &[0]);
    set(&mut words, compute::GRID_READY, &[0]);
    set(&mut words, compute::LAUNCH, &[compute::LAUNCH_OPERAND]);
    set(&mut words, compute::GRID_END, &[0]);
    set(&mut words, compute::GRID_DONE, &[1]);
    set(&mut words, front_end::WAIT_FOR_IDLE, &[0]);
    set(&mut words, compute::FLUSH_CACHES, &[0x10]);
    release(&mut words);
    words
}

fn a_copy() -> Vec<u32> {
    let mut words = Vec::new();
    set(
        &mut words,
        copy::SRC_HIGH,
        &[2, 0, 3, 0, 0x1000, 0x1000, 0x1000, 1],
    );
    set(&mut words, copy::EXEC, &[CopyExec::new().into_bits()]);
    release(&mut words);
    words
}

/// Nanoseconds and units of work for an entry, where each is looked at when it comes.
fn took(class: u16, words: &[u32]) -> (f64, f64) {
    let mut push: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    push.resize((PUSH_BYTES * 2) as usize, 0);
    let bind: Vec<u8> = bound(class).iter().flat_map(|word| word.to_le_bytes()).collect();
    push[PUSH_BYTES as usize..][..bind.len()].copy_from_slice(&bind);
    let entry = GpEntry::fetch(GpuVa(PUSH), words.len() as u32).to_le_bytes();
    let mut ring = entry.repeat(1 << ENTRIES_LOG2);
    ring[..8].copy_from_slice(&GpEntry::fetch(GpuVa(PUSH + PUSH_BYTES), 2).to_le_bytes());
    let mut memory = Memory { ring, push };
    let ring = Ring {
        base: GpuVa(RING),
        entries_log2: ENTRIES_LOG2,
    };
    let limits = Limits {
        kernel: None,
        ..Limits::default()
    };
    let (mut cache, mut work) = (Cache::new(1), 0);
    let mut observer = Observer::new(ring, CopyMethods::Nouveau, 0);
    let mut items = Vec::new();
    let mut look = |observer: &mut Observer, put: u32| {
        // A look that lacks pages is made again from where it began.
        let mut next = observer.clone();
        items.clear();
        let looked = next.look(&mut memory, &mut cache, [put - 1, put], limits, &mut items);
        assert_eq!(looked, Looked::Done);
        black_box(&items);
        *observer = next;
        observer.work()
    };
    look(&mut observer, 1);
    let start = Instant::now();
    for number in 0..ENTRIES {
        // The first entry of the ring binds the class.
        let put = 2 + number % ((1 << ENTRIES_LOG2) - 2);
        if put == 2 && number != 0 {
            look(&mut observer, 1 << ENTRIES_LOG2);
            look(&mut observer, 1);
        }
        work += look(&mut observer, put);
    }
    let ns = start.elapsed().as_nanos() as f64 / f64::from(ENTRIES);
    (ns, work as f64 / f64::from(ENTRIES))
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    for (name, class, words) in [
        ("launch", class::COMPUTE, launch()),
        ("copy", class::COPY, a_copy()),
    ] {
        let mut found: Vec<(f64, f64)> = (0..ROUNDS).map(|_| took(class, &words)).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ns, work) = found[ROUNDS / 2];
        println!(
            "{name:>8} of {:>3} words {ns:>8.0} ns {work:>6.0} units {:>6.1} ns a unit",
            words.len(),
            ns / work
        );
    }
}
