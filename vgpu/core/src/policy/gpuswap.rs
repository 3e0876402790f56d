//! GPUswap: spread VRAM evenly, move what chance picks (Kehne, Metter, Bellosa, VEE'15).
//!
//! GPUswap §4.3: the victim is who holds most, pending demand included, and without reference bits a random chunk is as
//! good as any; §4.5: the winner of a refill is who holds least. Weights and the protections of cgroup v2 are added, and the
//! giver, so that the promise of a fair share holds after frees too.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Holding, Policy};
use crate::event::VmId;
use crate::memory::ChunkNo;

pub(super) struct Gpuswap;

impl Policy for Gpuswap {
    /// First anybody above `high`, then the largest weighted claim above `low`, then above `min`.
    fn victim(&self, holdings: &[Holding]) -> Option<VmId> {
        let largest = |keep: &dyn Fn(&&Holding) -> bool| {
            holdings
                .iter()
                .filter(keep)
                .max_by_key(|h| (h.weighted(h.claim), h.vm))
                .map(|h| h.vm)
        };
        largest(&|h| h.resident > h.quota.high && h.may_lose(h.chunk, h.quota.min))
            .or_else(|| largest(&|h| h.may_lose(h.chunk, h.quota.low.max(h.quota.min))))
            .or_else(|| largest(&|h| h.may_lose(h.chunk, h.quota.min)))
    }

    /// The smallest weighted claim among those that want a chunk and may hold it.
    fn winner(&self, holdings: &[Holding]) -> Option<VmId> {
        holdings
            .iter()
            .filter(|h| h.wanted > 0 && h.resident.saturating_add(h.chunk) <= h.quota.max)
            .min_by_key(|h| (h.weighted(h.claim), h.vm))
            .map(|h| h.vm)
    }

    /// Somebody who would still hold at least as much, by weight, as the winner then does. Leaves nobody with spilled
    /// chunks more than one chunk below the fair share, and cannot oscillate.
    fn giver(&self, holdings: &[Holding], winner: VmId) -> Option<VmId> {
        let won = holdings.iter().find(|h| h.vm == winner)?;
        let after_winning = won.weighted(won.claim.saturating_add(won.chunk));
        holdings
            .iter()
            .filter(|h| h.vm != winner && h.may_lose(h.chunk, h.quota.low.max(h.quota.min)))
            .filter(|h| h.weighted(h.claim.saturating_sub(h.chunk)) >= after_winning)
            .max_by_key(|h| (h.weighted(h.claim), h.vm))
            .map(|h| h.vm)
    }

    fn chunk(&self, candidates: &[ChunkNo], rng: &mut ChaCha8Rng) -> usize {
        rng.random_range(0..candidates.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quota;
    use proptest::prelude::*;

    fn holding(vm: u16, claim: u64) -> Holding {
        Holding {
            vm: VmId(vm),
            claim,
            resident: claim,
            movable: claim,
            wanted: 1 << 30,
            chunk: 2,
            quota: Quota::default(),
        }
    }

    #[test]
    fn largest_claim_is_the_victim() {
        assert_eq!(
            Gpuswap.victim(&[holding(1, 10), holding(2, 20), holding(3, 6)]),
            Some(VmId(2))
        );
    }

    #[test]
    fn protected_memory_is_never_taken() {
        let mut only = holding(1, 10);
        only.quota.min = 10;
        assert_eq!(Gpuswap.victim(&[only]), None);
    }

    #[test]
    fn who_is_above_high_goes_before_the_largest() {
        let mut over = holding(1, 10);
        over.quota.high = 8;
        assert_eq!(Gpuswap.victim(&[over, holding(2, 20)]), Some(VmId(1)));
    }

    #[test]
    fn weight_divides_the_claim() {
        let mut heavy = holding(1, 20);
        heavy.quota.weight = 400;
        assert_eq!(Gpuswap.victim(&[heavy, holding(2, 10)]), Some(VmId(2)));
    }

    #[test]
    fn equal_holders_do_not_trade() {
        assert_eq!(Gpuswap.giver(&[holding(1, 10), holding(2, 10)], VmId(1)), None);
    }

    proptest! {
        #[test]
        fn giving_ends_within_a_chunk_of_equal(start in proptest::collection::vec(0u64..60, 2..6)) {
            let mut holdings: Vec<_> = start.iter().enumerate().map(|(i, &n)| holding(i as u16, n * 2)).collect();
            for _ in 0..10_000 {
                let Some(winner) = Gpuswap.winner(&holdings) else { break };
                let Some(giver) = Gpuswap.giver(&holdings, winner) else { break };
                for h in &mut holdings {
                    let change = |bytes: u64| match h.vm {
                        vm if vm == winner => bytes + 2,
                        vm if vm == giver => bytes - 2,
                        _ => bytes,
                    };
                    (h.claim, h.resident, h.movable) = (change(h.claim), change(h.resident), change(h.movable));
                }
            }
            let most = holdings.iter().map(|h| h.claim).max().unwrap();
            let least = holdings.iter().map(|h| h.claim).min().unwrap();
            prop_assert!(most - least <= 2, "{:?}", holdings);
        }
    }
}
