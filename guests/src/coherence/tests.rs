use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// What happened to an array, in the order in which memory saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Touch(usize, Side, Touch),
    Copy(usize, Direction),
}

/// Two memories that hold a number for each array.
#[derive(Default)]
struct Memories {
    held: [[u64; 2]; ARRAYS_MAX],
    newest: [u64; ARRAYS_MAX],
    allocated: Vec<usize>,
    log: Vec<Event>,
}

impl Memories {
    /// Whether the side has the newest number; then it does what it said it would.
    fn touch(&mut self, array: usize, side: Side, touch: Touch) -> bool {
        let is_newest = self.held[array][side as usize] == self.newest[array];
        self.log.push(Event::Touch(array, side, touch));
        if touch != Touch::Read {
            self.newest[array] += 1;
            self.held[array][side as usize] = self.newest[array];
        }
        is_newest || touch == Touch::Overwrite
    }
}

impl Transfers for Memories {
    fn allocate(&mut self, array: usize) -> Result<(), DriverError> {
        self.allocated.push(array);
        Ok(())
    }

    fn copy(&mut self, array: usize, direction: Direction) -> Result<(), DriverError> {
        let target = direction.target() as usize;
        self.held[array][target] = self.held[array][1 - target];
        self.log.push(Event::Copy(array, direction));
        Ok(())
    }
}

/// A step of a program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Cpu(usize, Touch),
    Launch(Sets),
    CopyIn(usize),
    CopyOut(usize),
}

/// Does a step; whether everybody who touched something found the newest.
fn step(coherence: &mut Coherence, memories: &mut Memories, step: Step) -> bool {
    match step {
        Step::Cpu(array, touch) => {
            let checked = match touch {
                Touch::Read => coherence.check_read(memories, array),
                Touch::Write => coherence.check_write(memories, array),
                Touch::Overwrite => {
                    coherence.check_overwrite(array);
                    Ok(())
                }
            };
            checked.unwrap();
            memories.touch(array, Side::Cpu, touch)
        }
        Step::Launch(sets) => {
            coherence.before_launch(memories, sets).unwrap();
            let loads = Sets::numbers(sets.loads).map(|array| (array, Touch::Read));
            let stores = Sets::numbers(sets.stores).map(|array| (array, Touch::Write));
            let touches: Vec<_> = loads.chain(stores).collect();
            let found = touches
                .into_iter()
                .map(|(array, touch)| memories.touch(array, Side::Gpu, touch));
            let are_newest = found.fold(true, |all, is_newest| all & is_newest);
            coherence.after_launch(memories, sets).unwrap();
            are_newest
        }
        Step::CopyIn(array) => {
            coherence.copy_in(memories, array).unwrap();
            true
        }
        Step::CopyOut(array) => {
            coherence.copy_out(memories, array).unwrap();
            true
        }
    }
}

fn with_arrays(scheme: Scheme, count: usize) -> Coherence {
    let mut coherence = Coherence::new(scheme);
    for array in 0..count {
        assert_eq!(coherence.add(BYTES), Some(array));
    }
    coherence
}

const BYTES: u64 = 4096;

/// The classes of an array by its definition: for each copy, the log before and behind it is searched.
fn classes_by_search(log: &[Event], array: usize) -> [[u64; CLASSES]; 2] {
    let own: Vec<Event> = log
        .iter()
        .copied()
        .filter(|event| matches!(event, Event::Touch(of, ..) | Event::Copy(of, _) if *of == array))
        .collect();
    let is_private = !own
        .iter()
        .any(|event| matches!(event, Event::Touch(_, Side::Cpu, _)));
    let mut counts = [[0; CLASSES]; 2];
    for (at, event) in own.iter().enumerate() {
        let Event::Copy(_, direction) = event else {
            continue;
        };
        let class = match () {
            () if is_private => Class::Private,
            () if versions(&own[..at])[0] == versions(&own[..at])[1] => Class::NonStale,
            () if is_used(&own[..], at, *direction) => Class::Useful,
            () => Class::Eager,
        };
        counts[*direction as usize][class as usize] += 1;
    }
    counts
}

/// What both sides hold behind some events.
fn versions(events: &[Event]) -> [usize; 2] {
    let mut held = [0; 2];
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Touch(_, _, Touch::Read) => {}
            Event::Touch(_, side, _) => held[*side as usize] = at + 1,
            Event::Copy(_, direction) => {
                let target = direction.target() as usize;
                held[target] = held[1 - target];
            }
        }
    }
    held
}

/// Whether what a copy brought is touched before something else is there.
fn is_used(events: &[Event], copy: usize, direction: Direction) -> bool {
    let brought = versions(&events[..=copy])[direction.target() as usize];
    for at in copy + 1..events.len() {
        match events[at] {
            Event::Touch(_, side, touch) if side == direction.target() => return touch != Touch::Overwrite,
            _ if versions(&events[..=at])[direction.target() as usize] != brought => return false,
            _ => {}
        }
    }
    false
}

fn counts(history: &History, array: usize) -> [[u64; CLASSES]; 2] {
    let classes = history.classes(array);
    Direction::ALL.map(|direction| Class::ALL.map(|class| classes.of(direction, class).count))
}

const J: usize = 0;
const E_C: usize = 1;
const FIRST: Sets = Sets {
    loads: 1 << J,
    stores: 1 << E_C,
};
const SECOND: Sets = Sets {
    loads: 1 << J | 1 << E_C,
    stores: 1 << J,
};

/// Listing 1: 100 iterations, with the copies by hand.
fn listing(scheme: Scheme, reads_after: bool) -> (Coherence, Memories) {
    let mut coherence = with_arrays(scheme, 2);
    let mut memories = Memories::default();
    let iteration = [
        Step::Cpu(J, Touch::Read),
        Step::CopyIn(J),
        Step::Launch(FIRST),
        Step::Launch(SECOND),
        Step::CopyOut(J),
    ];
    let start = [Step::Cpu(J, Touch::Overwrite)];
    let loop_ = core::iter::repeat_n(iteration, 100).flatten();
    let end = reads_after.then_some(Step::Cpu(J, Touch::Read));
    for each in start.into_iter().chain(loop_).chain(end) {
        assert!(step(&mut coherence, &mut memories, each));
    }
    (coherence, memories)
}

fn moved(coherence: &Coherence, array: usize) -> [u64; 2] {
    let classes = coherence.history().classes(array);
    Direction::ALL.map(|direction| classes.direction(direction).count)
}

#[test]
fn loop_of_the_paper_copies_in_once_and_out_when_it_is_read() {
    let (coherence, memories) = listing(Scheme::Amm, false);
    assert_eq!(moved(&coherence, J), [1, 99]);
    assert_eq!(moved(&coherence, E_C), [0, 0]);
    // E_c has its VRAM though it was never copied.
    assert_eq!(memories.allocated, [J, E_C]);
    let (coherence, _) = listing(Scheme::Amm, true);
    assert_eq!(moved(&coherence, J), [1, 100]);
}

#[test]
fn loop_of_the_paper_by_hand_copies_in_each_time_for_nothing() {
    let (coherence, _) = listing(Scheme::Manual, true);
    assert_eq!(moved(&coherence, J), [100, 100]);
    assert_eq!(moved(&coherence, E_C), [0, 0]);
    let classes = coherence.history().classes(J);
    assert_eq!(classes.of(Direction::ToGpu, Class::NonStale).count, 99);
    assert_eq!(classes.class(Class::Eager).count, 0);
}

#[test]
fn naive_copies_each_array_four_times_an_iteration() {
    let (coherence, _) = listing(Scheme::Naive, false);
    assert_eq!(moved(&coherence, J), [200, 200]);
    assert_eq!(moved(&coherence, E_C), [200, 200]);
    let all = coherence.history().all();
    assert_eq!(all.class(Class::Private).bytes, 400 * BYTES);
    // J comes back for the last time, and nobody reads it.
    assert_eq!(all.class(Class::Eager).count, 1);
    // One in, and out behind each second launch but the last.
    assert_eq!(all.class(Class::Useful).count, 1 + 99);
    assert_eq!(all.class(Class::NonStale).count, 400 - 101);
    assert_eq!(all.all().bytes, 800 * BYTES);
}

#[test]
fn overwriting_an_old_copy_fetches_nothing() {
    let (mut coherence, mut memories) = listing(Scheme::Amm, false);
    let before = moved(&coherence, J);
    assert!(coherence.is_stale_on_cpu(J));
    assert!(step(
        &mut coherence,
        &mut memories,
        Step::Cpu(J, Touch::Overwrite)
    ));
    assert_eq!(moved(&coherence, J), before);
    assert!(!coherence.is_stale_on_cpu(J) && coherence.is_stale_on_gpu(J));
}

#[test]
fn scheme_that_forgets_a_copy_is_caught() {
    let mut coherence = with_arrays(Scheme::Manual, 2);
    let mut memories = Memories::default();
    step(&mut coherence, &mut memories, Step::Cpu(J, Touch::Write));
    let found_newest = step(&mut coherence, &mut memories, Step::Launch(FIRST));
    assert!(!found_newest);
    assert_eq!(coherence.history().breaches(), 1);
}

#[test]
fn more_arrays_than_bits_are_refused() {
    let mut coherence = with_arrays(Scheme::Amm, ARRAYS_MAX);
    assert_eq!(coherence.add(BYTES), None);
    assert!(!coherence.is_stale_on_cpu(usize::MAX));
    let mut memories = Memories::default();
    coherence.check_read(&mut memories, ARRAYS_MAX).unwrap();
    coherence.check_overwrite(ARRAYS_MAX);
    coherence.copy_in(&mut memories, ARRAYS_MAX).unwrap();
    assert!(memories.log.is_empty());
}

const ARRAYS: usize = 3;

fn any_step() -> impl Strategy<Value = Step> {
    let touch = prop_oneof![Just(Touch::Read), Just(Touch::Write), Just(Touch::Overwrite)];
    let sets = (0u16..1 << ARRAYS, 0u16..1 << ARRAYS);
    prop_oneof![
        (0..ARRAYS, touch).prop_map(|(array, touch)| Step::Cpu(array, touch)),
        sets.prop_map(|(loads, stores)| Step::Launch(Sets { loads, stores })),
        (0..ARRAYS).prop_map(Step::CopyIn),
        (0..ARRAYS).prop_map(Step::CopyOut),
    ]
}

proptest! {
    #[test]
    fn amm_is_coherent_and_no_copy_is_in_vain(steps in proptest::collection::vec(any_step(), 0..60)) {
        let mut coherence = with_arrays(Scheme::Amm, ARRAYS);
        let mut memories = Memories::default();
        for each in steps {
            prop_assert!(step(&mut coherence, &mut memories, each), "{each:?}");
        }
        let all = coherence.history().all();
        prop_assert_eq!(all.class(Class::Useful), all.all());
        prop_assert_eq!(coherence.history().breaches(), 0);
    }

    #[test]
    fn naive_is_coherent(steps in proptest::collection::vec(any_step(), 0..60)) {
        let mut coherence = with_arrays(Scheme::Naive, ARRAYS);
        let mut memories = Memories::default();
        for each in steps {
            prop_assert!(step(&mut coherence, &mut memories, each), "{each:?}");
        }
        prop_assert_eq!(coherence.history().breaches(), 0);
    }

    #[test]
    fn classes_are_those_that_a_search_of_the_log_gives(
        steps in proptest::collection::vec(any_step(), 0..60), scheme in 0..3usize,
    ) {
        let mut coherence = with_arrays(Scheme::ALL[scheme], ARRAYS);
        let mut memories = Memories::default();
        let mut breaches = 0;
        for each in steps {
            breaches += u64::from(!step(&mut coherence, &mut memories, each));
        }
        for array in 0..ARRAYS {
            prop_assert_eq!(counts(coherence.history(), array), classes_by_search(&memories.log, array));
        }
        // A step may touch several old copies, and a copy over a new one is no touch.
        prop_assert!(coherence.history().breaches() >= breaches);
    }
}
