use proptest::prelude::*;

use super::*;

const ORDERS: [Order; 4] = [
    Order::Arrival,
    Order::Turns,
    Order::First(1),
    Order::Demand(Fairness::DEFAULT),
];

fn whose(link: &mut Link, now: u64) -> Vec<usize> {
    std::iter::from_fn(|| link.next(now).map(|transfer| transfer.program)).collect()
}

fn with(order: Order, ready: &[usize]) -> Link {
    let mut link = Link::new(order, 3);
    for program in ready {
        link.ready(*program, 4096);
    }
    link
}

#[test]
fn orders_are_by_arrival_by_turn_and_by_who_is_first() {
    let ready = [0, 0, 2, 1, 0, 2];
    assert_eq!(whose(&mut with(Order::Arrival, &ready), 0), ready);
    assert_eq!(whose(&mut with(Order::Turns, &ready), 0), [0, 1, 2, 0, 2, 0]);
    assert_eq!(whose(&mut with(Order::First(2), &ready), 0), [2, 2, 0, 0, 1, 0]);
}

/// One period in which programs move as often as one another and run for so long each.
fn measured(ran: [u64; 3]) -> Link {
    let mut link = Link::new(Order::Demand(Fairness::DEFAULT), 3);
    for (program, ns) in ran.into_iter().enumerate() {
        link.ready(program, 4096);
        let transfer = link.next(0).unwrap();
        link.done(transfer, 1000);
        link.ran(program, ns);
    }
    link
}

#[test]
fn who_runs_least_for_each_transfer_goes_first_and_of_equals_nobody() {
    let later = Fairness::DEFAULT.period_ns;
    assert_eq!(measured([100_000, 10_000, 50_000]).preferred(later), Some(1));
    // 20 % apart.
    assert_eq!(measured([100_000, 12_000, 10_000]).preferred(later), None);
    assert_eq!(measured([0, 0, 0]).preferred(later), None);
}

#[test]
fn who_waits_too_much_goes_first_until_it_has_caught_up() {
    let later = Fairness::DEFAULT.period_ns;
    let mut link = measured([100_000, 10_000, 1_000_000]);
    assert_eq!(link.preferred(later), Some(1));
    let mut order = Vec::new();
    for _ in 0..40 {
        link.ready(0, 4096);
        link.ready(1, 4096);
    }
    while let Some(transfer) = link.next(later) {
        order.push(transfer.program);
        link.done(transfer, 1000);
    }
    let first_of_the_other = order.iter().position(|program| *program == 0).unwrap();
    // Halves of 100 µs of execution and of 1 µs on the link: 10 % more than the other's are some 5 µs, as many transfers.
    assert!((4..8).contains(&first_of_the_other), "{order:?}");
    // Both lose from then on, and neither is stopped by the other.
    let early = order[..40].iter().filter(|program| **program == 0).count();
    assert!((2..38).contains(&early), "{order:?}");
}

proptest! {
    /// Judged by the transfers alone.
    #[test]
    fn all_that_is_ready_goes_each_program_in_its_order_and_nobody_is_passed_without_end(
        steps in prop::collection::vec((0usize..4, 0usize..3, 1u64..100_000), 1..400),
        order in prop::sample::select(ORDERS.to_vec()),
    ) {
        let mut link = Link::new(order, 3);
        let mut waiting: Vec<(usize, u64)> = Vec::new();
        let mut passed = [0; 3];
        let mut now = 0;
        for (what, program, ns) in steps {
            now += ns;
            match what {
                0 | 1 => waiting.push((program, link.ready(program, ns))),
                2 => link.ran(program, ns),
                _ => {
                    let next = link.next(now);
                    prop_assert_eq!(next.is_none(), waiting.is_empty(), "a link that rests");
                    let Some(next) = next else { continue };
                    let first = |program: usize| waiting.iter().find(|(of, _)| *of == program);
                    prop_assert_eq!(first(next.program), Some(&(next.program, next.number)));
                    for (program, passed) in passed.iter_mut().enumerate() {
                        let is_passed = first(program).is_some_and(|(_, number)| *number < next.number);
                        *passed += u32::from(is_passed && program != next.program);
                    }
                    passed[next.program] = 0;
                    waiting.retain(|(_, number)| *number != next.number);
                    if let Order::Demand(fairness) = order {
                        // Two can have waited for as long, and one of them goes first.
                        prop_assert!(passed.iter().all(|passed| *passed < fairness.passed_max + 3));
                    }
                    link.done(next, ns);
                }
            }
        }
        let left = std::iter::from_fn(|| link.next(now)).count();
        prop_assert_eq!(left, waiting.len());
    }

    /// One transfer of a program that is never preferred, beside two that always have some.
    #[test]
    fn one_transfer_is_passed_a_bounded_number_of_times(ran in [1u64..1000, 1..1000, 1_000_000..10_000_000]) {
        let mut link = measured(ran);
        let now = Fairness::DEFAULT.period_ns;
        link.ready(2, 1);
        let mut passed = 0;
        loop {
            link.ready(0, 1);
            link.ready(1, 1);
            let next = link.next(now).unwrap();
            if next.program == 2 {
                break;
            }
            passed += 1;
            // Nobody's time is told, so that nobody is behind: the bound alone helps.
            prop_assert!(passed <= Fairness::DEFAULT.passed_max);
        }
    }
}
