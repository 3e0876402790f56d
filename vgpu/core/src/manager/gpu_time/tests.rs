use super::*;

const MS: u64 = 1_000_000;

fn wants(of: &[(u16, u64)]) -> BTreeMap<VmId, u64> {
    of.iter().map(|&(vm, weight)| (VmId(vm), weight)).collect()
}

fn found(holder: Option<VmId>, of: &[(u16, u64)]) -> Found {
    Found {
        holder,
        wants: wants(of),
        keepers: BTreeMap::new(),
    }
}

/// Books so many looks, each a millisecond after the other, of an engine that VMs are on in the order of `turns`.
fn booked(of: &[(u16, u64)], turns: &[Option<u16>]) -> BTreeMap<VmId, i64> {
    let mut accounts = BTreeMap::new();
    for (at, on) in (1..).zip(turns) {
        account(&mut accounts, &found(on.map(VmId), of), MS, Tick(at * MS));
    }
    let balances = accounts.iter().map(|(vm, account)| (*vm, account.balance_ns));
    balances.collect()
}

#[test]
fn who_has_its_part_owes_nothing() {
    let turns = [Some(1), Some(2), Some(2), Some(2)].repeat(50);
    let balances = booked(&[(1, 100), (2, 300)], &turns);
    assert!(
        balances.values().all(|balance| balance.abs() <= 200),
        "{balances:?}"
    );
}

#[test]
fn what_one_owes_the_others_are_owed_by_weight() {
    let balances = booked(&[(1, 100), (2, 100), (3, 200)], &[Some(1); 40]);
    assert_eq!(balances[&VmId(1)], -30 * MS as i64);
    assert_eq!(balances[&VmId(2)], 10 * MS as i64);
    assert_eq!(balances[&VmId(3)], 20 * MS as i64);
}

#[test]
fn time_of_nobody_and_of_one_alone_is_not_booked() {
    assert_eq!(booked(&[(1, 1), (2, 1)], &[None; 40])[&VmId(1)], 0);
    assert_eq!(booked(&[(1, 1)], &[Some(1); 40])[&VmId(1)], 0);
}

/// VM 1 is held back, and the engine stands for VM 2.
#[test]
fn engine_that_stands_is_had_by_whom_it_stands_for_until_that_is_too_much() {
    let mut accounts = BTreeMap::new();
    let stands = Found {
        holder: None,
        wants: wants(&[(1, 100)]),
        keepers: wants(&[(2, 300)]),
    };
    let both = found(Some(VmId(1)), &[(1, 100), (2, 300)]);
    account(&mut accounts, &both, 8 * MS, Tick(MS));
    assert_eq!(accounts[&VmId(1)].balance_ns, -6 * MS as i64);
    for at in 0..5 {
        assert!(!accounts[&VmId(2)].is_lazy(), "{at}");
        account(&mut accounts, &stands, MS, Tick((2 + at) * MS));
    }
    // The first look may be a pause between pieces of work. Of the others a quarter is VM 1's, and VM 2 has had all of it.
    assert_eq!(accounts[&VmId(1)].balance_ns, -6_000_000 + 4 * 250_000);
    assert_eq!(accounts[&VmId(2)].balance_ns, 6_000_000 - 4 * 250_000);
    // It stood for longer than it may: others are not kept away, and it earns nothing while it waits.
    assert!(accounts[&VmId(2)].is_lazy());
    let before = accounts[&VmId(1)].balance_ns;
    account(&mut accounts, &both, 8 * MS, Tick(7 * MS));
    assert_eq!(accounts[&VmId(1)].balance_ns, before);
    // That fades, and so it does with work.
    let mut works = accounts.clone();
    let at_work = found(Some(VmId(2)), &[(1, 100), (2, 300)]);
    account(&mut works, &at_work, 2 * MS, Tick(8 * MS));
    assert!(!works[&VmId(2)].is_lazy());
    account(&mut accounts, &both, MS, Tick(FADES_NS + 8 * MS));
    assert!(!accounts[&VmId(2)].is_lazy());
}

#[test]
fn debts_and_credits_have_bounds_and_are_forgotten() {
    let balances = booked(&[(1, 1), (2, 10_000)], &[Some(1); 5_000]);
    assert_eq!(balances[&VmId(1)], -DEBT_MAX_NS);
    assert_eq!(balances[&VmId(2)], CREDIT_MAX_NS);
    let mut accounts = BTreeMap::new();
    let both = found(Some(VmId(1)), &[(1, 1), (2, 1)]);
    account(&mut accounts, &both, 40 * MS, Tick(MS));
    let one = found(Some(VmId(1)), &[(1, 1)]);
    account(&mut accounts, &one, MS, Tick(REMEMBERED_NS + MS));
    assert_eq!(accounts.keys().collect::<Vec<_>>(), [&VmId(1)]);
}

#[test]
fn slices_keep_their_length_at_any_scale() {
    for units in [1, 31, 250, 255, 256, 500, 1_000, 2_000] {
        let slice = timeslice(units);
        let us = u64::from(slice.timeout()) << slice.scale();
        let exact = 8 * units;
        assert!(us <= exact && exact - us < exact / 100 + 64, "{units}: {us} µs");
    }
}

#[test]
fn turns_go_by_weight_within_bounds() {
    assert_eq!(turn(100, &[100, 100, 100]), TURN_UNITS);
    assert_eq!(
        [turn(100, &[100, 300]), turn(300, &[100, 300])],
        [TURN_UNITS / 2, TURN_UNITS * 3 / 2]
    );
    assert_eq!(
        [turn(1, &[1, 10_000]), turn(10_000, &[1; 32])],
        [TURN_UNITS / TURN_SPREAD, TURN_UNITS * TURN_SPREAD]
    );
    assert_eq!(turn(7, &[]), TURN_UNITS * 7);
}
