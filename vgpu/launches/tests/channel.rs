//! Rings and pushbuffers as drivers write them, and some that none would.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::collections::BTreeMap;

use fermi_spec::addr::{GpuVa, SMALL_PAGE};
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::graphics::{BindConstants, GlobalEntry, compute, front_end, shader};
use fermi_spec::isa::assembler::assemble;
use fermi_spec::methods::{CopyExec, M2mfLaunch, SemaphoreD, class, copy, host, m2mf, nvidia_copy};
use fermi_spec::pushbuffer::{immediate, incrementing, non_incrementing};
use kernel_sets::{Bound, Cache};
use launches::{
    Copy, CopyMethods, GpuMemory, Launch, Limits, Looked, Observer, Opaque, Ring, Target, Unmapped, Work,
};

const RING: u64 = 0x10_0000;
const ENTRIES_LOG2: u32 = 9;
const PUSH: u64 = 0x20_0000;
const CODE: u64 = 0x1_0000_0000;
const CONSTANTS: u64 = 0x1_0010_0000;
const DATA: u64 = 0x2_0000_0000;
const SUBCHANNEL: u8 = 1;

/// Pages that there are.
#[derive(Default)]
struct Memory {
    pages: BTreeMap<u64, Vec<u8>>,
    reads: usize,
}

impl Memory {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let page = self.pages.entry(at / SMALL_PAGE);
            page.or_insert_with(|| vec![0; SMALL_PAGE as usize])[(at % SMALL_PAGE) as usize] = *byte;
        }
    }

    fn write_words(&mut self, at: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(at, &bytes);
    }
}

impl GpuMemory for Memory {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.reads += 1;
        let page = self.pages.get(&(at.0 / SMALL_PAGE)).ok_or(Unmapped)?;
        let within = (at.0 % SMALL_PAGE) as usize;
        bytes.copy_from_slice(&page[within..within + bytes.len()]);
        Ok(())
    }
}

/// A channel that is looked at.
struct Channel {
    memory: Memory,
    observer: Observer,
    cache: Cache,
    put: u32,
    end: u64,
}

impl Channel {
    fn new(methods: CopyMethods) -> Self {
        let ring = Ring {
            base: GpuVa(RING),
            entries_log2: ENTRIES_LOG2,
        };
        Self {
            memory: Memory::default(),
            observer: Observer::new(ring, methods, 0),
            cache: Cache::new(16),
            put: 0,
            end: PUSH,
        }
    }

    fn push(&mut self, words: &[u32]) {
        self.memory.write_words(self.end, words);
        let entry = GpEntry::fetch(GpuVa(self.end), words.len() as u32);
        let at = RING + 8 * u64::from(self.put);
        self.memory.write(at, &entry.to_le_bytes());
        self.put = (self.put + 1) % (1 << ENTRIES_LOG2);
        self.end += 4 * words.len() as u64;
    }

    fn look(&mut self, get: u32) -> Vec<Work> {
        let mut items = Vec::new();
        let range = [get, self.put];
        let looked = self.observer.look(
            &mut self.memory,
            &mut self.cache,
            range,
            Limits::default(),
            &mut items,
        );
        assert_eq!(looked, Looked::Done);
        items.into_iter().map(|item| item.work).collect()
    }
}

fn set(words: &mut Vec<u32>, method: u16, operands: &[u32]) {
    words.push(incrementing(SUBCHANNEL, method, operands.len() as u16));
    words.extend_from_slice(operands);
}

fn halves(address: u64) -> [u32; 2] {
    [(address >> 32) as u32, address as u32]
}

fn bound(class: u16) -> Vec<u32> {
    vec![incrementing(SUBCHANNEL, host::SET_OBJECT, 1), class.into()]
}

/// Constants by the pushbuffer and a launch, as our driver has them.
fn launch() -> Vec<u32> {
    let mut words = Vec::new();
    let [high, low] = halves(CONSTANTS);
    set(&mut words, shader::CONSTANT_BYTES, &[0x100, high, low]);
    let bind = BindConstants::new().with_valid(true);
    set(&mut words, compute::BIND_CONSTANTS, &[bind.into_bits()]);
    set(&mut words, shader::CONSTANT_OFFSET, &[0x20]);
    let [high, low] = halves(DATA);
    set(&mut words, shader::CONSTANT_DATA, &[low, high]);
    set(&mut words, compute::SHARED_WINDOW, &[0xfe00_0000]);
    set(&mut words, compute::LOCAL_WINDOW, &[0xff00_0000]);
    set(&mut words, compute::CODE_HIGH, &halves(CODE));
    set(&mut words, compute::BLOCK_XY, &[32 | 1 << 16, 1, 0]);
    set(&mut words, compute::GRID_XY, &[4 | 1 << 16, 1]);
    set(&mut words, compute::LAUNCH, &[compute::LAUNCH_OPERAND]);
    words
}

/// Each thread stores its number.
fn code() -> Vec<u8> {
    let text = "thread_x $r0 $r1\nelement $r2 $r3 $r0 0x20\nst b32 wb g[$r2d] $r0\nexit";
    let words = assemble(text).unwrap().words;
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn with_code() -> Channel {
    let mut channel = Channel::new(CopyMethods::Nouveau);
    let mut page = vec![0; 0x1000];
    page[..code().len()].copy_from_slice(&code());
    channel.memory.write(CODE, &page);
    // Memory has other constants than the pushbuffer brings.
    channel.memory.write(CONSTANTS, &[0x55; 0x100]);
    channel.push(&bound(class::COMPUTE));
    channel
}

fn launches(works: &[Work]) -> Vec<&Launch> {
    let launches = works.iter().filter_map(|work| match work {
        Work::Launch(launch) => Some(&**launch),
        _ => None,
    });
    launches.collect()
}

fn why(works: &[Work]) -> Vec<Opaque> {
    let opaque = works.iter().filter_map(|work| match work {
        Work::Opaque(why) => Some(*why),
        _ => None,
    });
    opaque.collect()
}

#[test]
fn launch_has_the_constants_of_the_pushbuffer() {
    let mut channel = with_code();
    channel.push(&launch());
    let works = channel.look(0);
    let found = launches(&works)[0];
    assert_eq!((found.code.0, found.entry), (CODE, 0));
    assert_eq!((found.grid, found.block), ([4, 1, 1], [32, 1, 1]));
    // Words beside those of the pushbuffer are the memory's.
    assert_eq!(
        found.parameters[8..11],
        [Some(DATA as u32), Some((DATA >> 32) as u32), Some(0x5555_5555)]
    );
    // thread_x adds c0[0x18], which is 0x55555555 here, and multiplies by 32.
    let start = DATA + 4 * u64::from(0x5555_5555u32.wrapping_mul(32));
    assert_eq!(found.writes().next().unwrap().bytes, start..start + 4 * 128);
    assert_eq!(found.bound(), Bound::Exact);
    assert_eq!(found.fetches.len(), 2);
}

#[test]
fn values_of_methods_last_from_one_submission_to_the_next() {
    let mut channel = with_code();
    channel.push(&launch());
    assert_eq!(launches(&channel.look(0)).len(), 1);
    channel.push(&[immediate(SUBCHANNEL, compute::LAUNCH, 0)]);
    let works = channel.look(2);
    assert_eq!(launches(&works)[0].grid, [4, 1, 1]);
}

#[test]
fn launch_of_code_that_is_still_to_be_copied_is_opaque() {
    let mut channel = with_code();
    let mut words = bound(class::COPY);
    let [high, low] = halves(CODE);
    set(&mut words, copy::SRC_HIGH, &[0, 0x5000, high, low, 0, 0, 64, 1]);
    let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
    set(&mut words, copy::EXEC, &[exec.into_bits()]);
    words.extend(bound(class::COMPUTE));
    channel.push(&words);
    channel.push(&launch());
    let works = channel.look(0);
    assert_eq!(why(&works), [Opaque::State]);
    // When the copy and the opaque launch have ended memory says what there is.
    channel.push(&[immediate(SUBCHANNEL, compute::LAUNCH, 0)]);
    assert_eq!(launches(&channel.look(3)).len(), 1);
}

#[test]
fn launch_of_code_from_the_pushbuffer_is_known() {
    let mut channel = with_code();
    channel.memory.write(CODE, &vec![0; 0x1000]);
    let code = code();
    let mut words = bound(class::M2MF);
    set(&mut words, m2mf::OFFSET_OUT_HIGH, &halves(CODE));
    set(&mut words, m2mf::LINE_LENGTH, &[code.len() as u32, 1]);
    let inline = M2mfLaunch::new().with_inline(true).with_dst_linear(true);
    set(&mut words, m2mf::LAUNCH, &[inline.into_bits()]);
    words.push(non_incrementing(SUBCHANNEL, m2mf::DATA, code.len() as u16 / 4));
    words.extend(
        code.as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word)),
    );
    words.extend(bound(class::COMPUTE));
    channel.push(&words);
    channel.push(&launch());
    let works = channel.look(0);
    assert_eq!(why(&works), []);
    assert_eq!(launches(&works).len(), 1);
}

#[test]
fn copies_have_both_sides() {
    let target = |at, pitch| Target {
        at: GpuVa(at),
        line: 0x100,
        pitch,
        lines: 4,
    };
    let expected = Copy {
        from: Some(target(0x1_0000_1000, 0x100)),
        to: target(0x2_0000_2000, 0x200),
        whole: false,
    };
    let mut words = bound(class::COPY);
    let sides = [1, 0x1000, 2, 0x2000, 0x100, 0x200, 0x100, 4];
    set(&mut words, copy::SRC_HIGH, &sides);
    let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
    set(&mut words, copy::EXEC, &[exec.into_bits()]);
    let mut channel = Channel::new(CopyMethods::Nouveau);
    channel.push(&words);
    assert_eq!(channel.look(0), [Work::Copy(expected)]);
    assert_eq!(expected.to.bytes(), 0x2_0000_2000..0x2_0000_2700);

    let mut words = bound(class::COPY);
    set(&mut words, nvidia_copy::OFFSET_IN_UPPER, &sides);
    let dma = nvidia_copy::LaunchDma::new()
        .with_transfer(1)
        .with_multi_line(true)
        .with_src_linear(true)
        .with_dst_linear(true);
    set(&mut words, nvidia_copy::LAUNCH_DMA, &[dma.into_bits()]);
    set(
        &mut words,
        nvidia_copy::LAUNCH_DMA,
        &[dma.with_dst_linear(false).into_bits()],
    );
    let mut channel = Channel::new(CopyMethods::Nvidia);
    channel.push(&words);
    assert_eq!(
        channel.look(0),
        [Work::Copy(expected), Work::Opaque(Opaque::Tiles)]
    );
}

#[test]
fn semaphores_and_waits_are_in_order() {
    let release = SemaphoreD::new().with_operation(2).with_release_short(true);
    let acquire = SemaphoreD::new().with_operation(1);
    let mut channel = with_code();
    let mut words = Vec::new();
    set(&mut words, host::SEMAPHORE_A, &[1, 0x40, 7, release.into_bits()]);
    set(&mut words, front_end::WAIT_FOR_IDLE, &[0]);
    set(&mut words, host::SEMAPHORE_D, &[acquire.into_bits()]);
    channel.push(&words);
    let at = GpuVa(0x1_0000_0040);
    let expected = [
        Work::Release {
            at,
            bytes: 4,
            payload: Some(7),
        },
        Work::Wait,
        Work::Acquire { at, payload: 7 },
    ];
    assert_eq!(channel.look(0), expected);
}

#[test]
fn macro_may_have_set_anything() {
    let mut channel = with_code();
    channel.push(&launch());
    channel.push(&[
        immediate(SUBCHANNEL, front_end::MACRO_CALL, 0),
        immediate(SUBCHANNEL, compute::LAUNCH, 0),
    ]);
    let works = channel.look(0);
    assert_eq!(launches(&works).len(), 1);
    assert_eq!(why(&works), [Opaque::Macro, Opaque::State]);
}

#[test]
fn table_that_changes_addresses_is_told_from_one_that_does_not() {
    let mut channel = with_code();
    let same = GlobalEntry::new()
        .with_index(3)
        .with_high(3)
        .with_readable(true)
        .with_writable(true);
    let mut words = Vec::new();
    set(&mut words, compute::GLOBAL_ENTRY, &[same.into_bits()]);
    channel.push(&words);
    channel.push(&launch());
    let mut words = Vec::new();
    set(
        &mut words,
        compute::GLOBAL_ENTRY,
        &[same.with_high(4).into_bits()],
    );
    channel.push(&words);
    channel.push(&[immediate(SUBCHANNEL, compute::LAUNCH, 0)]);
    let works = channel.look(0);
    assert_eq!(launches(&works).len(), 1);
    assert_eq!(why(&works), [Opaque::AddressTable]);
}

#[test]
fn words_that_are_no_header_end_what_is_known() {
    let mut channel = with_code();
    channel.push(&[6 << 29]);
    channel.push(&[immediate(3, 0x100, 0)]);
    assert_eq!(why(&channel.look(0)), [Opaque::Malformed, Opaque::UnknownClass]);
}

#[test]
fn data_may_follow_its_header_in_the_next_segment() {
    let mut channel = with_code();
    let words = launch();
    channel.push(&words[..words.len() - 1]);
    channel.push(&words[words.len() - 1..]);
    assert_eq!(launches(&channel.look(0)).len(), 1);
}

#[test]
fn launches_without_end_take_bounded_looks() {
    const LAUNCHES: usize = 1 << 18;
    let mut channel = with_code();
    channel.push(&launch());
    channel.look(0);
    // One pushbuffer page again and again: 1024 launches an entry.
    let words = vec![immediate(SUBCHANNEL, compute::LAUNCH, 0); 1024];
    channel.memory.write_words(DATA, &words);
    let limits = Limits {
        work: 1 << 16,
        ..Limits::default()
    };
    let (mut found, mut looks) = (0, 0);
    for get in (0..).step_by(256).take(LAUNCHES / 1024 / 256) {
        for _ in 0..256 {
            let entry = GpEntry::fetch(GpuVa(DATA), 1024);
            let at = RING + 8 * u64::from(channel.put);
            channel.memory.write(at, &entry.to_le_bytes());
            channel.put = (channel.put + 1) % (1 << ENTRIES_LOG2);
        }
        loop {
            let mut items = Vec::new();
            let (reads, range) = (channel.memory.reads, [get % (1 << ENTRIES_LOG2), channel.put]);
            let memory = &mut channel.memory;
            let looked = channel
                .observer
                .look(memory, &mut channel.cache, range, limits, &mut items);
            assert!(items.len() <= (1 << 16) / 16 + 1, "{} items", items.len());
            assert!(channel.memory.reads - reads < 1 << 16);
            found += items.len();
            looks += 1;
            if looked == Looked::Done {
                break;
            }
        }
    }
    assert_eq!(found, LAUNCHES);
    assert!(looks > 4, "{looks} looks");
}
