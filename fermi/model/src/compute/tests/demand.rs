//! Memory whose pages come one at a time, each only when every warp waits: what a kernel leaves is the same.

use std::collections::BTreeSet;

use super::*;
use crate::compute::reach::Reach;

const PAGE: u64 = 4096;

/// Pages of a flat memory that are there so far. A page that an access reaches without having been asked for fails the test.
struct Demanded<'a> {
    flat: &'a mut Flat,
    there: BTreeSet<u64>,
    wanted: Vec<u64>,
}

impl Demanded<'_> {
    fn is_there(&self, va: u64, bytes: usize) -> bool {
        (va / PAGE..(va + bytes as u64).div_ceil(PAGE)).all(|page| self.there.contains(&page))
    }

    /// What no memory is behind is refused as ever.
    fn exists(&self, va: u64) -> bool {
        self.flat.pages.contains_key(&(va / PAGE))
    }

    fn check(&self, va: u64, bytes: usize) {
        assert!(
            self.is_there(va, bytes) || !self.exists(va),
            "{bytes} bytes at {va:#x} were reached without a look ahead"
        );
    }
}

impl Outside for Demanded<'_> {
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        if self.exists(va) && !self.is_there(va, bytes.len()) {
            return Err(Refusal {
                va: GpuVa(va),
                reason: Reason::PageNotPresent,
                write: false,
            });
        }
        self.flat.fetch(va, bytes)
    }

    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        self.check(va, data.len());
        self.flat.read(va, data)
    }

    fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Refusal> {
        self.check(va, data.len());
        self.flat.write(va, data)
    }

    fn atomic(&mut self, va: u64, bytes: u32, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal> {
        self.check(va, bytes as usize);
        self.flat.atomic(va, bytes, change)
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn lets_through(&mut self, reach: &Reach) -> bool {
        let pages = reach.pages.iter().map(|page| page.va);
        let missing: Vec<u64> = pages
            .filter(|va| self.exists(*va) && !self.is_there(*va, 1))
            .collect();
        self.wanted.extend(&missing);
        missing.is_empty()
    }

    fn waits_for_code(&mut self, refusal: Refusal) -> bool {
        let exists = self.exists(refusal.va.0);
        self.wanted.extend(exists.then_some(refusal.va.0));
        exists
    }
}

/// Runs a launch on memory of which nothing is there; how many replays it took.
pub(super) fn run(memory: &mut Flat, launch: &Launch, piece: u64) -> (Result<Tally, Stop>, usize) {
    let mut outside = Demanded {
        flat: memory,
        there: BTreeSet::new(),
        wanted: Vec::new(),
    };
    let mut grid = Grid::new(launch.clone(), 15, 0, FaultBuffer::default(), None);
    let mut replays = 0;
    for _ in 0..1_000_000 {
        match grid.run(&mut outside, None, piece) {
            Ok(GridProgress::Paused) => {}
            Ok(GridProgress::Done) => return (Ok(grid.tally), replays),
            Ok(GridProgress::Waiting) => {
                let page = outside.wanted.pop().expect("a warp that waits has asked");
                outside.wanted.clear();
                outside.there.insert(page / PAGE);
                grid.replay();
                replays += 1;
            }
            Err(stop) => return (Err(stop), replays),
        }
    }
    panic!("the grid does not end");
}

/// Lanes of one instruction whose pages come one after the other.
fn by_lane(access: &str, values: impl Fn(u64) -> u32) -> (Flat, usize) {
    // Each lane has a page of its own.
    let program = assemble(&format!(
        "mov b32 $r1 $laneid
        shl b32 $r0 $r1 clamp 0xc
        add b32 $r0 $r0 0x{A:x}
        {access}
        mov b32 $r3 0x{B:x}
        shl b32 $r4 $r1 clamp 0x2
        add b32 $r3 $r3 $r4
        st b32 wb g[$r3] $r0
        exit"
    ))
    .unwrap();
    let mut memory = Flat::default();
    for lane in 0..32 {
        memory.put_words(A + lane * PAGE, &[values(lane)]);
    }
    memory.put(B, &[0; 4096]);
    super::load(&mut memory, &program);
    let launch = super::launch(&program, [1, 1, 1], [32, 1, 1], &[]);
    let (tally, replays) = run(&mut memory, &launch, 7);
    tally.expect("it ends");
    (memory, replays)
}

#[test]
fn atomic_of_lanes_whose_pages_come_one_by_one_is_done_once() {
    let (mut memory, replays) = by_lane("red add u32 g[$r0] $r1", |lane| 100 * lane as u32);
    // Code, 32 pages of the atomic, one of the store.
    assert_eq!(replays, 34);
    for lane in 0..32 {
        assert_eq!(memory.words(A + lane * PAGE, 1), [101 * lane as u32]);
    }
}

#[test]
fn load_over_its_own_address_is_done_from_the_address() {
    let (mut memory, _) = by_lane("ld b32 $r0 ca g[$r0]", |lane| 7 + lane as u32);
    assert_eq!(memory.words(B, 32), (7..39).collect::<Vec<u32>>());
}

/// Half of the lanes reach shared memory, half of them memory that is missing.
#[test]
fn shared_lanes_wait_with_the_others() {
    let program = assemble(&format!(
        ".shared 0x1000
        mov b32 $r1 $laneid
        set $p0 0x1 lt u32 $r1 0x10
        shl b32 $r2 $r1 clamp 0x2
        mov b32 $r0 0x{A:x}
        $p0 mov b32 $r0 0xfe000000
        add b32 $r0 $r0 $r2
        add b32 $r5 $r1 0x1
        st b32 wb g[$r0] $r5
        ld b32 $r0 ca g[$r0]
        mov b32 $r3 0x{B:x}
        add b32 $r3 $r3 $r2
        st b32 wb g[$r3] $r0
        exit"
    ))
    .unwrap();
    let mut memory = Flat::default();
    memory.put(A, &[0; 4096]);
    memory.put(B, &[0; 4096]);
    super::load(&mut memory, &program);
    let launch = super::launch(&program, [1, 1, 1], [32, 1, 1], &[]);
    let (tally, replays) = run(&mut memory, &launch, 1000);
    assert_eq!(replays, 3);
    // What waited was not counted.
    let tally = tally.expect("it ends");
    assert_eq!(tally.instructions(), 13);
    assert_eq!(memory.words(B, 32), (1..33).collect::<Vec<u32>>());
}
