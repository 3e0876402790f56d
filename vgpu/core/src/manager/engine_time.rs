//! For how long each VM's work was on the engines, by samples: the card does not say it.
//!
//! ```text
//! time: ├───── 50 ms ─────┼───── 50 ms ─────┼───── 50 ms ─────┤
//!            ▲ who is on each engine (2640)?   ▲    ▲
//! ```
//!
//! One sample in each period, at a moment of it that is drawn by a key that no guest knows; whoever is at work on an engine then is counted
//! the whole period. Guests see the broker's clock: one that knew the moments would rest at each. Each sample may be wrong, and their sum is right: of a share of one half, 200 samples (10 s) have 7 % of it as
//! their deviation. Time is the host's, so on a software card it is the time for which the engine is kept from others, whatever the
//! card's own clock says. Samples are taken while a channel may run, three loads each.
//!
//! unverified: that 2640 says on a real card whose work is on an engine.

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::EngineStatus;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Cx;
use super::engine_looks::DRIVEN;
use super::running::Running;
use crate::event::{Action, Tick, Token, VmId};
use crate::host::PhysChannel;
use crate::notice::Notice;

/// A period, of which each sample stands for the whole.
const PERIOD_NS: u64 = 50_000_000;

/// When the next sample is due, and the one that the card has not answered in full. It is no state: who comes back without it goes on
/// with the period that has begun.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// The period whose sample comes next.
    next: u64,
    /// When it is due.
    at: Tick,
    /// A channel might run when the core was left: periods that pass until it is entered again are not empty.
    is_armed: bool,
    /// Periods that the sample under way stands for.
    periods: u64,
    asked: Vec<(Token, Engine)>,
}

impl Samples {
    /// The sample of the period `now` is in is due: how many periods it stands for.
    fn take(&mut self, now: Tick, key: u64) -> u64 {
        let period = now.0 / PERIOD_NS;
        let periods = match self.is_armed {
            true => (period + 1).saturating_sub(self.next).max(1),
            false => 1,
        };
        self.next = period + 1;
        // Drawn by the period's number and the key alone: the same run has the same samples, and the core's dice stay as they are.
        let within = ChaCha8Rng::seed_from_u64(self.next ^ key).random_range(0..PERIOD_NS);
        self.at = Tick(self.next * PERIOD_NS + within);
        periods
    }
}

impl Running {
    /// Whether a channel of a VM may come onto an engine.
    pub(super) fn may_run(&self) -> bool {
        self.vms.values().any(|vgpu| vgpu.eligible().next().is_some())
    }

    /// When the next sample is due; `None` while nothing runs.
    pub(super) fn next_sample(&self) -> Option<Tick> {
        let samples = &self.volatile.samples;
        samples.is_armed.then_some(samples.at)
    }

    /// Takes a sample if one is due.
    pub(super) fn sample_engines(&mut self, cx: &mut Cx<'_>) {
        let may_run = self.may_run();
        let samples = &mut self.volatile.samples;
        if may_run && cx.now >= samples.at && samples.asked.is_empty() {
            samples.periods = samples.take(cx.now, self.config.sampling_key);
            for engine in DRIVEN {
                let token = self.card.tokens.next();
                samples.asked.push((token, engine));
                cx.actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar0,
                    offset: PfifoReg::EngineStatus(engine.number().into()).offset().into(),
                    bytes: 4,
                });
            }
        }
        samples.is_armed = may_run;
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn sample_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let samples = &mut self.volatile.samples;
        let Some(at) = samples.asked.iter().position(|(of, _)| *of == token) else {
            return false;
        };
        let (_, engine) = samples.asked.swap_remove(at);
        let ns = samples.periods * PERIOD_NS;
        let status = EngineStatus::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
        if status.busy()
            && let Some(vm) = self.worker(PhysChannel(status.channel()))
        {
            cx.tell(Notice::EngineTime { vm, engine, ns });
        }
        true
    }

    /// The VM whose work a channel does, also one that the guest has unbound.
    pub(super) fn worker(&self, channel: PhysChannel) -> Option<VmId> {
        let bound = self.bound_as(channel.0).map(|(vm, _)| vm);
        bound.or_else(|| self.leaving.get(&channel).map(|leaving| leaving.vm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_one_sample_and_one_that_was_missed_counts_with_the_next() {
        let mut samples = Samples {
            is_armed: true,
            ..Samples::default()
        };
        let mut counted = 0;
        let mut taken = Vec::new();
        for _ in 0..100 {
            let now = samples.at;
            counted += samples.take(now, 7);
            taken.push(now.0 % PERIOD_NS);
        }
        assert_eq!(counted, 100);
        assert_eq!(samples.take(Tick(samples.at.0 + 7 * PERIOD_NS), 7), 8);
        // They are all over the period.
        taken.sort_unstable();
        assert!(
            taken[10] < PERIOD_NS / 4 && taken[90] > PERIOD_NS * 3 / 4,
            "{taken:?}"
        );
    }

    #[test]
    fn periods_without_work_count_for_nobody() {
        let mut samples = Samples::default();
        assert_eq!(samples.take(Tick(1_000 * PERIOD_NS), 7), 1);
        assert_eq!(samples.next, 1_001);
    }

    #[test]
    fn moments_with_one_key_say_nothing_of_those_with_another() {
        let moments = |key| {
            let mut samples = Samples::default();
            let moment = |_| {
                samples.take(samples.at, key);
                samples.at.0 % PERIOD_NS
            };
            (0..200).map(moment).collect::<Vec<u64>>()
        };
        let (one, other) = (moments(1), moments(2));
        assert_eq!(one, moments(1));
        // A guest that rests for a tenth of each period around the moments of its own guess misses no more than chance has it miss.
        let hit = one
            .iter()
            .zip(&other)
            .filter(|(a, b)| a.abs_diff(**b) < PERIOD_NS / 20);
        let hit = hit.count();
        assert!(hit < 40, "{hit} of 200");
    }
}
