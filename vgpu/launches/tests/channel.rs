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
use proptest::prelude::*;

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

proptest! {
    #[test]
    fn constants_in_rows_are_those_that_come_one_by_one(
        offset in prop_oneof![0u32..0xc0, 0xffd0u32..0x1_0010],
        rows in prop::collection::vec((0u16..16, 1usize..20, any::<u32>()), 1..5),
        work in 1u64..40,
    ) {
        let looked = |in_rows: bool, work: u64| {
            let mut channel = with_code();
            let mut words = Vec::new();
            let [high, low] = halves(CONSTANTS);
            set(&mut words, shader::CONSTANT_BYTES, &[0x100, high, low, offset]);
            for (first, count, value) in &rows {
                let values: Vec<u32> = (0..*count as u32).map(|word| value ^ word).collect();
                let first = shader::CONSTANT_DATA + 4 * first;
                match in_rows {
                    // Beyond the sixteenth method they are state of no meaning here.
                    true => set(&mut words, first, &values),
                    false => (first..).step_by(4).zip(&values).for_each(|(method, value)| set(&mut words, method, &[*value])),
                }
            }
            channel.push(&words);
            channel.push(&launch());
            let (mut items, mut looked) = (Vec::new(), Looked::More);
            while looked == Looked::More {
                let limits = Limits { work, ..Limits::default() };
                looked = channel.observer.look(&mut channel.memory, &mut channel.cache, [0, channel.put], limits, &mut items);
            }
            items
        };
        let expected = looked(false, u64::MAX);
        prop_assert_eq!(&looked(true, u64::MAX), &expected);
        prop_assert_eq!(&looked(true, work), &expected, "in pieces");
    }
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

/// An instruction of a macro: (a + immediate), used as `how` says.
fn macro_add(how: u32, target: u32, a: u32, immediate: i32) -> u32 {
    1 | how << 4 | target << 8 | a << 11 | (immediate << 14) as u32
}

const SEND: u32 = 4;
const TO_ADDRESS: u32 = 2;
const TAKE: u32 = 0;
const EXIT: u32 = 1 << 7;
/// Sets method address and increment.
fn macro_to(method: u16) -> u32 {
    macro_add(TO_ADDRESS, 0, 0, i32::from(method / 4) | 1 << 12)
}

/// Uploads a macro behind others and makes it macro 3.
fn upload(code: &[u32]) -> Vec<u32> {
    let mut words = Vec::new();
    set(&mut words, front_end::MACRO_CODE_POINTER, &[0x20]);
    words.push(non_incrementing(
        SUBCHANNEL,
        front_end::MACRO_CODE,
        code.len() as u16,
    ));
    words.extend_from_slice(code);
    set(&mut words, front_end::MACRO_START_POINTER, &[3, 0x20]);
    words
}

const CALL: u16 = front_end::MACRO_CALL + 8 * 3;

/// Starts a grid of blocks that its two parameters name, as Mesa's macro of indirect launches does.
fn starts_a_grid() -> Vec<u32> {
    vec![
        macro_to(compute::GRID_XY),
        macro_add(TAKE, 2, 0, 0),
        macro_add(SEND, 0, 1, 0),
        macro_add(SEND, 0, 2, 0),
        macro_to(compute::LAUNCH) | EXIT,
        macro_add(SEND, 0, 0, compute::LAUNCH_OPERAND as i32),
    ]
}

/// A launch has set everything; a macro is uploaded.
fn with_macro(code: &[u32]) -> Channel {
    let mut channel = with_code();
    channel.push(&launch());
    channel.push(&upload(code));
    assert_eq!(launches(&channel.look(0)).len(), 1);
    channel
}

#[test]
fn macro_starts_a_grid_of_its_parameters() {
    let mut channel = with_macro(&starts_a_grid());
    channel.push(&[incrementing(SUBCHANNEL, CALL, 2), 7 | 2 << 16]);
    // A look ends while the macro waits.
    assert_eq!(channel.look(3), []);
    channel.push(&[5]);
    let works = channel.look(3);
    assert_eq!((why(&works), launches(&works)[0].grid), (vec![], [7, 2, 5]));
}

#[test]
fn parameters_that_are_still_to_be_written_are_not_known() {
    let copy_to = |at: u64| {
        let mut words = bound(class::COPY);
        let [high, low] = halves(at);
        set(&mut words, copy::SRC_HIGH, &[0, 0x5000, high, low, 0, 0, 4, 1]);
        let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
        set(&mut words, copy::EXEC, &[exec.into_bits()]);
        words.extend(bound(class::COMPUTE));
        words
    };
    let mut channel = with_macro(&starts_a_grid());
    channel.push(&copy_to(PUSH + 0x8000));
    channel.push(&[incrementing(SUBCHANNEL, CALL, 2), 7 | 2 << 16]);
    channel.end = PUSH + 0x8000;
    channel.push(&[5]);
    assert_eq!(why(&channel.look(3)), [Opaque::State]);
    // Another place.
    channel.push(&copy_to(PUSH + 0x8100));
    channel.push(&[incrementing(SUBCHANNEL, CALL, 2), 7 | 2 << 16]);
    channel.push(&[6]);
    assert_eq!(launches(&channel.look(6))[0].grid, [7, 2, 6]);
}

#[test]
fn method_between_a_call_and_its_parameters_and_one_too_many_end_what_is_known() {
    let works_of = |words: &[u32]| {
        let mut channel = with_macro(&starts_a_grid());
        channel.push(words);
        channel.push(&[immediate(SUBCHANNEL, compute::LAUNCH, 0)]);
        channel.look(3)
    };
    let lost = [Opaque::Macro, Opaque::State];
    let between = [immediate(SUBCHANNEL, CALL, 1), immediate(SUBCHANNEL, 0x300, 0)];
    assert_eq!(why(&works_of(&between)), lost);
    let other_index = [
        immediate(SUBCHANNEL, CALL, 1),
        immediate(SUBCHANNEL, CALL + 12, 0),
    ];
    assert_eq!(why(&works_of(&other_index)), lost);
    let too_many = works_of(&[
        incrementing(SUBCHANNEL, CALL, 2),
        1,
        1,
        immediate(SUBCHANNEL, CALL + 4, 0),
    ]);
    assert_eq!((launches(&too_many).len(), why(&too_many)), (1, lost.to_vec()));
}

#[test]
fn methods_that_may_be_replayed_are_not_known() {
    let mut channel = with_macro(&[]);
    channel.push(&[
        immediate(
            SUBCHANNEL,
            front_end::SHADOW_CONTROL,
            front_end::SHADOW_REPLAY as u16,
        ),
        immediate(SUBCHANNEL, compute::GRID_Z, 1),
        immediate(SUBCHANNEL, compute::LAUNCH, 0),
    ]);
    assert_eq!(why(&channel.look(3)), [Opaque::State]);
    channel.push(&[
        immediate(SUBCHANNEL, front_end::SHADOW_CONTROL, 0),
        immediate(SUBCHANNEL, compute::GRID_Z, 1),
        immediate(SUBCHANNEL, compute::LAUNCH, 0),
    ]);
    assert_eq!(launches(&channel.look(4)).len(), 1);
}

#[test]
fn macro_that_launches_again_and_again_takes_bounded_looks() {
    const LAUNCHES: u32 = 1000;
    const WORK: u64 = 512;
    let branch = 7 | 1 << 4 | 1 << 11 | (-2i32 << 14) as u32;
    let code = [
        macro_add(TO_ADDRESS, 0, 0, i32::from(compute::LAUNCH / 4)),
        macro_add(SEND, 0, 0, 0),
        macro_add(1, 1, 1, -1),
        branch,
        0x11,
        0x11 | EXIT,
        0x11,
    ];
    let mut channel = with_macro(&code);
    channel.push(&[immediate(SUBCHANNEL, CALL, LAUNCHES as u16)]);
    let limits = Limits {
        work: WORK,
        ..Limits::default()
    };
    let (mut found, mut is_done) = (0, false);
    while !is_done {
        let mut items = Vec::new();
        let (memory, cache) = (&mut channel.memory, &mut channel.cache);
        is_done = channel
            .observer
            .look(memory, cache, [3, channel.put], limits, &mut items)
            == Looked::Done;
        assert!(items.len() as u64 <= WORK / 16 + 1, "{} items", items.len());
        found += items
            .iter()
            .filter(|item| matches!(item.work, Work::Launch(_)))
            .count();
    }
    assert_eq!(found, LAUNCHES as usize);
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
