//! Small programs, and what is found out about them.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::isa::assembler::assemble;
use kernel_sets::{Access, Bank, Bound, Cache, Kernel, Kind, Limits, Reason, Sets, analyse};
use proptest::prelude::*;

/// Pointers in c0[0x20] and c0[0x28], a count in c0[0x30].
const FIRST: u64 = 0x12_3456_0000;
const SECOND: u64 = 0x2_0000_0000;
const COUNT: u32 = 1000;

fn bank() -> Vec<Option<u32>> {
    let mut bank = vec![Some(0); 16];
    bank[8..13].copy_from_slice(
        &[
            FIRST as u32,
            (FIRST >> 32) as u32,
            SECOND as u32,
            (SECOND >> 32) as u32,
            COUNT,
        ]
        .map(Some),
    );
    bank
}

fn with_words(words: &[u64], limits: Limits) -> Sets {
    let bank = bank();
    let kernel = Kernel {
        entry: 0,
        grid: [8, 1, 1],
        block: [128, 1, 1],
        banks: &[Bank { words: &bank }],
        windows: [0xfe00_0000, 0xff00_0000],
    };
    let mut code = |at: u32| words.get(at as usize / 8).copied();
    analyse(&kernel, &mut code, limits)
}

fn sets(text: &str) -> Sets {
    let program = assemble(text).unwrap();
    with_words(&program.words, Limits::default())
}

/// The only access of a program.
fn access(text: &str) -> Access {
    let sets = sets(text);
    assert_eq!(sets.accesses.len(), 1, "{sets:x?}");
    sets.accesses[0].clone()
}

#[test]
fn threads_beyond_the_count_store_nothing_and_all_others_everything() {
    let sets = sets(
        "
        thread_x $r0 $r1
        set $p0 0x1 ge u32 $r0 c0[0x30]
        $p0 exit
        element $r2 $r3 $r0 0x20
        st b32 wb g[$r2d] $r0
        exit",
    );
    let bytes = FIRST..FIRST + 4 * u64::from(COUNT);
    assert_eq!(sets.accesses[0].bytes, bytes);
    assert_eq!(sets.accesses[0].bound, Bound::Exact);
    assert!(sets.accesses[0].is_store && !sets.accesses[0].is_load);
    assert_eq!(sets.overwrites, [bytes]);
}

#[test]
fn store_that_data_decides_about_overwrites_nothing() {
    let sets = sets(
        "
        thread_x $r0 $r1
        element $r2 $r3 $r0 0x20
        ld b32 $r4 ca g[$r2d]
        set $p0 0x1 ne u32 $r4 0x0
        element $r2 $r3 $r0 0x28
        $p0 st b32 wb g[$r2d] $r0
        exit",
    );
    assert_eq!(sets.overwrites, []);
    assert_eq!(sets.bound(), Bound::Exact);
}

#[test]
fn stores_with_gaps_overwrite_nothing() {
    let sets = sets(
        "
        thread_x $r0 $r1
        shl b32 $r0 $r0 clamp 0x1
        element $r2 $r3 $r0 0x20
        st b32 wb g[$r2d] $r0
        exit",
    );
    assert_eq!(sets.overwrites, []);
    assert_eq!(sets.accesses[0].bytes, FIRST..FIRST + 8 * 1023 + 4);
}

#[test]
fn index_from_memory_leaves_the_pointer() {
    let sets = sets(
        "
        mov b32 $r0 0x0
        element $r2 $r3 $r0 0x20
        ld b32 $r0 ca g[$r2d]
        element $r2 $r3 $r0 0x28
        red add u32 g[$r2d] $r0
        exit",
    );
    let atomic = &sets.accesses[1];
    assert_eq!(
        (atomic.bound, atomic.is_load, atomic.is_store),
        (Bound::Run, true, true)
    );
    assert_eq!(atomic.root.unwrap().address, SECOND);
    assert_eq!(atomic.bytes, SECOND..SECOND + 4 * u64::from(u32::MAX) + 4);
    assert_eq!(
        atomic.within(|_| Some(SECOND..SECOND + 0x1000)),
        SECOND..SECOND + 0x1000
    );
}

#[test]
fn masked_index_from_memory_has_bounds() {
    let sets = sets(
        "
        mov b32 $r0 0x0
        element $r2 $r3 $r0 0x20
        ld b32 $r0 ca g[$r2d]
        and b32 $r0 $r0 0xff
        element $r2 $r3 $r0 0x28
        ld b32 $r0 ca g[$r2d]
        exit",
    );
    assert_eq!(sets.accesses[1].bound, Bound::Exact);
    assert_eq!(sets.accesses[1].bytes, SECOND..SECOND + 0x400);
}

#[test]
fn pointer_from_memory_leaves_nothing() {
    let sets = sets(
        "
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        ld b64 $r4d ca g[$r2d]
        ld b32 $r0 ca g[$r4d]
        exit",
    );
    assert_eq!(sets.accesses[0].bytes, FIRST..FIRST + 8);
    assert_eq!(sets.accesses[1].bound, Bound::Space);
}

#[test]
fn pointer_of_a_counted_loop_is_known_to_its_end() {
    let found = access(
        "
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        mov b32 $r4 0x0
        again:
        ld b32 $r5 ca g[$r2d+0x10]
        add b32 $r2 $c $r2 0x40
        add b32 $r3 $r3 0x0 $c
        add b32 $r4 $r4 0x1
        set $p0 0x1 lt u32 $r4 0x20
        $p0 bra #again
        exit",
    );
    assert_eq!(found.bound, Bound::Exact);
    assert_eq!(found.bytes, FIRST + 0x10..FIRST + 0x10 + 31 * 0x40 + 4);
}

#[test]
fn pointer_of_an_endless_loop_leaves_its_run() {
    let found = access(
        "
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        again:
        ld b32 $r5 ca g[$r2d]
        add b32 $r2 $c $r2 0x40
        add b32 $r3 $r3 0x0 $c
        bra #again",
    );
    assert_eq!(found.bound, Bound::Run);
    assert_eq!(found.root.unwrap().address, FIRST);
}

#[test]
fn function_is_followed_for_each_call() {
    let sets = sets(
        "
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        call #load
        mov b32 $r2 c0[0x28]
        mov b32 $r3 c0[0x2c]
        call #load
        exit
        load:
        ld b32 $r5 ca g[$r2d]
        ret",
    );
    let found: Vec<_> = sets.accesses.iter().map(|access| access.bytes.clone()).collect();
    assert_eq!(found, [SECOND..SECOND + 4, FIRST..FIRST + 4]);
}

#[test]
fn both_sides_of_a_branch_come_to_the_join() {
    let found = access(
        "
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        mov b32 $r0 $tidx
        joinat #out
        set $p0 0x1 lt u32 $r0 0x10
        $p0 bra #far
        add b32 $r2 $c $r2 0x100
        add b32 $r3 $r3 0x0 $c
        join nop
        far:
        add b32 $r2 $c $r2 0x200
        add b32 $r3 $r3 0x0 $c
        join nop
        out:
        ld b32 $r5 ca g[$r2d]
        exit",
    );
    assert_eq!(found.bytes, FIRST + 0x100..FIRST + 0x204);
}

#[test]
fn texture_may_lie_anywhere() {
    let found = access("texfetch llod live $r16:#:#:# t1d $t5 $s17 $r22 $r38\nexit");
    assert_eq!((found.kind, found.bound), (Kind::Texture, Bound::Space));
}

#[test]
fn what_is_not_understood_has_a_reason() {
    assert_eq!(sets("bra $r0 0x0").reason, Some(Reason::IndirectBranch));
    assert_eq!(
        sets("again:\njoinat #again\nbra #again").reason,
        Some(Reason::StackDepth)
    );
    assert_eq!(sets("mov b32 $r0 $r1").reason, Some(Reason::CodeUnknown));
    assert_eq!(
        with_words(&[0], Limits::default()).reason,
        Some(Reason::NoInstruction)
    );
    let few = Limits {
        instructions: 2,
        work: 20,
    };
    let program = assemble("mov b32 $r0 $r1\nmov b32 $r0 $r1\nexit").unwrap();
    assert_eq!(with_words(&program.words, few).reason, Some(Reason::TooLong));
    let program = assemble("again:\nadd b32 $r0 $r0 $r1\nbra #again").unwrap();
    let unknown = with_words(&program.words, few);
    assert_eq!(unknown.reason, Some(Reason::TooMuchWork));
    assert_eq!((unknown.accesses.len(), unknown.bound()), (1, Bound::Space));
}

#[test]
fn launch_that_came_before_is_known() {
    let (mut cache, bank) = (Cache::new(2), bank());
    let words = assemble("mov b32 $r2 $tidx\nld b32 $r0 ca g[$r2]\nexit")
        .unwrap()
        .words;
    let mut ends = Vec::new();
    for threads in [32, 64, 32, 96, 32, 64] {
        let kernel = Kernel {
            entry: 0,
            grid: [1; 3],
            block: [threads, 1, 1],
            banks: &[Bank { words: &bank }],
            windows: [1 << 39; 2],
        };
        let mut code = |at: u32| words.get(at as usize / 8).copied();
        let sets = cache.sets(&kernel, &mut code, Limits::default());
        ends.push(sets.accesses[0].bytes.end);
    }
    assert_eq!(ends, [35, 67, 35, 99, 35, 67]);
    // The last two of three have a place: the oldest goes.
    assert_eq!((cache.hits, cache.misses), (1, 5));
}

#[test]
fn program_that_is_known_is_another_one_when_a_word_or_a_branch_constant_has_changed() {
    let text = "bra c0[0x8]\nmov b32 $r2 $tidx\nld b32 $r0 ca g[$r2]\nexit\nmov b32 $r2 $tidx\nst u8 wb g[$r2] $r2\nexit";
    let mut words = assemble(text).unwrap().words;
    let mut cache = Cache::new(8);
    let mut look = |words: &[u64], target: u32| {
        let bank = [Some(0), Some(0), Some(target)];
        let kernel = Kernel {
            entry: 0,
            grid: [1; 3],
            block: [32, 1, 1],
            banks: &[Bank { words: &bank }],
            windows: [1 << 39; 2],
        };
        let mut code = |at: u32| words.get(at as usize / 8).copied();
        let limits = Limits {
            instructions: 4,
            ..Limits::default()
        };
        let sets = cache.sets(&kernel, &mut code, limits);
        let access = sets.accesses.first().unwrap_or_else(|| panic!("{sets:?}"));
        (access.is_store, access.bytes.end, cache.misses)
    };
    assert_eq!(look(&words, 8), (false, 35, 1));
    assert_eq!(look(&words, 8), (false, 35, 1));
    assert_eq!(look(&words, 32), (true, 32, 2));
    // Code that is not reached is not looked at.
    words[5] = assemble("st b32 wb g[$r2] $r2").unwrap().words[0];
    assert_eq!(look(&words, 8), (false, 35, 2));
    assert_eq!(look(&words, 32), (true, 35, 3));
    assert_eq!(look(&words, 32), (true, 35, 3));
}

/// What only results in memory follow from is not looked into.
#[test]
fn arithmetic_that_no_address_follows_from_takes_no_work() {
    let with = |arithmetic: &str| {
        sets(&format!(
            "
            thread_x $r0 $r1
            {arithmetic}
            element $r2 $r3 $r0 0x20
            st b32 wb g[$r2d] $r8
            exit"
        ))
    };
    let (plain, busy) = (with(""), with(&"fma rn f32 $r8 $r8 $r10 $r8\n".repeat(50)));
    assert_eq!(plain.accesses[0].bytes, busy.accesses[0].bytes);
    assert_eq!(plain.work, busy.work);
}

proptest! {
    #[test]
    fn any_words_are_understood_or_not(words in prop::collection::vec(any::<u64>(), 0..40)) {
        let sets = with_words(&words, Limits::default());
        prop_assert!(sets.work <= Limits::default().work);
    }
}
