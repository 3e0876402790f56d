//! Parts of the card that are alike, such as channels: some are promised to each VM, the rest is lent.
//!
//! ```text
//! total ┬ promised to VMs that are there, used or not: kept free for each
//!       ├ lent: what a VM has above its promise, at most `lent_max` in all
//!       └ left, for VMs that come and for loans
//! ```
//!
//! A promise is made when a VM comes, if all promises and loans together fit; from then on it is kept, whatever the others
//! take. As loans are bounded, VMs that are promised no more than `total − lent_max` together always find their place. A loan
//! is not asked back: what it holds is in use. So nobody borrows more than is left to lend, and the next one that asks
//! finds as much again as the last one has (the dynamic threshold of shared switch buffers, with a factor of 1).

use std::collections::BTreeMap;

use fermi_spec::instance::CHANNELS;
use serde::{Deserialize, Serialize};

use crate::event::VmId;
use crate::inspect::{Inspect, Tree};
use crate::saved::Unsound;

/// Channels that VMs may use.
pub(crate) const CHANNELS_USABLE: u32 = CHANNELS as u32 - 1;
/// Most channels that VMs hold together beyond what they were promised. The other half is for promises alone, so that VMs that
/// come find theirs; a VM that is refused one more may be promised more by its operator.
const CHANNELS_LENT_MAX: u32 = CHANNELS_USABLE / 2;

/// Who holds how many of parts that are alike, and who was promised how many.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lending {
    total: u32,
    lent_max: u32,
    vms: BTreeMap<VmId, Account>,
}

/// A VM's account of them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Account {
    promised: u32,
    held: u32,
}

impl Account {
    fn lent(self) -> u32 {
        self.held.saturating_sub(self.promised)
    }

    /// What is not free for others: what it holds, or was promised.
    fn kept(self) -> u32 {
        self.held.max(self.promised)
    }
}

/// Why a promise cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full {
    /// What would be promised to all VMs together.
    pub(crate) promised: u32,
    /// What VMs hold beyond their promises.
    pub(crate) lent: u32,
    /// All there is.
    pub(crate) total: u32,
}

impl Lending {
    /// The channels of a card.
    pub(crate) fn of_channels() -> Self {
        Self::new(CHANNELS_USABLE, CHANNELS_LENT_MAX)
    }

    /// Nobody has any of the `total` yet.
    pub(crate) fn new(total: u32, lent_max: u32) -> Self {
        Self {
            total,
            lent_max: lent_max.min(total),
            vms: BTreeMap::new(),
        }
    }

    /// Whether a VM that is not there yet can be promised as many.
    ///
    /// # Errors
    /// With what others were promised and lent it is more than there is.
    pub(crate) fn admit(&self, promise: u32) -> Result<(), Full> {
        let of_others: u32 = self.vms.values().map(|account| account.promised).sum();
        let promised = of_others.saturating_add(promise);
        let (lent, total) = (self.lent(), self.total);
        match promised.saturating_add(lent) > total {
            true => Err(Full {
                promised,
                lent,
                total,
            }),
            false => Ok(()),
        }
    }

    /// Makes a promise that was admitted.
    pub(crate) fn promise(&mut self, vm: VmId, promised: u32) {
        self.vms.insert(vm, Account { promised, held: 0 });
    }

    /// The VM is gone, with all that it held.
    pub(crate) fn forget(&mut self, vm: VmId) {
        self.vms.remove(&vm);
    }

    fn lent(&self) -> u32 {
        self.vms.values().map(|account| account.lent()).sum()
    }

    /// How many may still be lent: neither promised to anybody nor beyond the bound of all loans.
    fn left_to_lend(&self) -> u32 {
        let kept: u32 = self.vms.values().map(|account| account.kept()).sum();
        let loans_left = self.lent_max.saturating_sub(self.lent());
        self.total.saturating_sub(kept).min(loans_left)
    }

    /// Takes one for the VM: one of its promise, or a loan. `false`: it holds its promise, and may borrow no more.
    pub(crate) fn take(&mut self, vm: VmId) -> bool {
        let left = self.left_to_lend();
        let Some(account) = self.vms.get_mut(&vm) else {
            return false;
        };
        let may = account.held < account.promised || account.lent() < left;
        account.held += u32::from(may);
        may
    }

    /// Takes one back.
    pub(crate) fn give_back(&mut self, vm: VmId) {
        if let Some(account) = self.vms.get_mut(&vm) {
            account.held = account.held.saturating_sub(1);
        }
    }

    /// Checks accounts that were read: they are of `total`, and `held` says for each of these VMs what it holds, and was promised.
    pub(crate) fn check(&self, total: u32, vms: &BTreeMap<VmId, (u32, u32)>) -> Result<(), Unsound> {
        let known = self
            .vms
            .iter()
            .map(|(&vm, account)| (vm, (account.held, account.promised)));
        Unsound::unless(
            known.eq(vms.iter().map(|(&vm, &of)| (vm, of))),
            "what VMs hold of the card",
        )?;
        let kept: u64 = self.vms.values().map(|account| u64::from(account.kept())).sum();
        let fits = self.total == total && self.lent_max <= total && kept <= u64::from(total);
        Unsound::unless(fits, "more of the card is promised and lent than there is")
    }
}

impl Inspect for Lending {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("total", self.total as usize);
        let promised: u32 = self.vms.values().map(|account| account.promised).sum();
        tree.count("promised", promised as usize);
        tree.count("lent", self.lent() as usize);
        tree.count("lent_max", self.lent_max as usize);
        tree.count("left_to_lend", self.left_to_lend() as usize);
        tree.on_request("vms", self.vms.len(), |tree| {
            for (vm, account) in &self.vms {
                tree.group(vm, |tree| {
                    tree.count("promised", account.promised as usize);
                    tree.count("held", account.held as usize);
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: VmId = VmId(0);
    const B: VmId = VmId(1);

    fn take_all(lending: &mut Lending, vm: VmId) -> u32 {
        (0..1000).map(|_| u32::from(lending.take(vm))).sum()
    }

    #[test]
    fn vm_borrows_no_more_than_it_leaves_to_others() {
        let mut lending = Lending::of_channels();
        lending.promise(A, 2);
        lending.promise(B, 2);
        assert_eq!(take_all(&mut lending, A), 2 + 32);
        assert_eq!(take_all(&mut lending, B), 2 + 16);
    }

    #[test]
    fn vm_that_comes_late_finds_its_promise_whatever_others_borrowed() {
        let mut lending = Lending::of_channels();
        for vm in (0..32).map(VmId) {
            assert_eq!(lending.admit(2), Ok(()), "{vm}");
            lending.promise(vm, 2);
            take_all(&mut lending, vm);
        }
        let full = lending.admit(2).expect_err("all is lent");
        assert_eq!((full.promised, full.total), (66, 127));
        assert!(full.lent > 127 - 66, "{full:?}");
    }

    #[test]
    fn what_is_given_back_is_promised_or_lent_again() {
        let mut lending = Lending::new(8, 8);
        lending.promise(A, 1);
        assert_eq!(take_all(&mut lending, A), 1 + 4);
        assert!(lending.admit(4).is_err());
        lending.give_back(A);
        assert_eq!(lending.admit(4), Ok(()));
        lending.promise(B, 4);
        assert!(!lending.take(A));
        lending.forget(B);
        assert!(lending.take(A));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Come(u16, u32),
        Go(u16),
        Take(u16),
        GiveBack(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let vm = || 0u16..6;
        let step = prop_oneof![
            1 => (vm(), 0u32..5).prop_map(|(vm, promise)| Step::Come(vm, promise)),
            1 => vm().prop_map(Step::Go),
            6 => vm().prop_map(Step::Take),
            2 => vm().prop_map(Step::GiveBack),
        ];
        proptest::collection::vec(step, 0..120)
    }

    proptest! {
        /// By plain lists of who holds what: nobody is refused what it was promised, there is never more than all, and who
        /// is promised what loans may not touch is admitted.
        #[test]
        fn promises_are_kept_whatever_others_do(total in 1u32..24, lent_max in 0u32..24, steps in steps()) {
            let mut lending = Lending::new(total, lent_max);
            let lent_max = lent_max.min(total);
            let mut vms: BTreeMap<VmId, (u32, u32)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Come(vm, promise) if !vms.contains_key(&VmId(vm)) => {
                        let promised = vms.values().map(|(_, promised)| promised).sum::<u32>() + promise;
                        let admitted = lending.admit(promise).is_ok();
                        prop_assert!(admitted || promised > total - lent_max);
                        if admitted {
                            lending.promise(VmId(vm), promise);
                            vms.insert(VmId(vm), (0, promise));
                        }
                    }
                    Step::Go(vm) => {
                        lending.forget(VmId(vm));
                        vms.remove(&VmId(vm));
                    }
                    Step::Take(vm) => {
                        let took = lending.take(VmId(vm));
                        match vms.get_mut(&VmId(vm)) {
                            Some((held, promised)) => {
                                prop_assert!(took || held >= promised, "a promise is broken");
                                *held += u32::from(took);
                            }
                            None => prop_assert!(!took),
                        }
                    }
                    Step::GiveBack(vm) => {
                        if let Some((held, _)) = vms.get_mut(&VmId(vm)).filter(|(held, _)| *held > 0) {
                            lending.give_back(VmId(vm));
                            *held -= 1;
                        }
                    }
                    Step::Come(..) => {}
                }
                let kept: u32 = vms.values().map(|(held, promised)| held.max(promised)).sum();
                prop_assert!(kept <= total, "more is promised and held than there is");
                prop_assert!(lending.check(total, &vms).is_ok());
            }
        }
    }
}
