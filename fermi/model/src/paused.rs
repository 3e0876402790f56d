//! Copies that give way: between two pieces of a copy an engine may go to another channel, when the slice of the copy's own
//! channel is over.
//!
//! ```text
//!   copying ──slice over, another channel wants the engine──► paused ──loaded, engine free──► copying
//!                                        context: which launch, how far ┘  └ also as another channel of the card, if its context is
//!                                        RAMFC: which engine               behind a pointer; one that the card keeps is dropped
//! ```
//!
//! assumption: microcode of a copy engine can leave a copy between two lines and keep in its context where it was. So the channel may be
//! taken out of the card's table meanwhile, and go on under another number. A preempt (2634) still waits for the end of a copy that the
//! engine has, as nouveau's microcode makes it. A grid gives way at its end only.
//!
//! | word | in a context ([`Registers::rest`]) |
//! | --- | --- |
//! | 0 | data of the method that launched it |
//! | 1, 2 | elements that are done, low and high |
//! | 3 | \[15:0\] that method, \[18:16\] its subchannel, 28 in the second target, 29 nothing left, 30 condition read, 31 there is one |

use crate::{
    context::{REST_WORDS, Registers},
    engine::{Effect, unit_of},
    host::Outcome,
    memory::Place,
    model::FermiModel,
    pfifo::ChannelId,
    slices::Slice,
    transfer::{Launching, Progress, Transfer},
};
use fermi_spec::{engine::Engine, instance::offset};

/// RAMFC word that says which engine has a copy to go on with (assumption: hardware keeps in one of those without a name that an engine's context
/// must be loaded again).
const PAUSED: u64 = offset::WORD_D4;

const IS_THERE: u32 = 1 << 31;
const IS_DECIDED: u32 = 1 << 30;
const IS_FINISHED: u32 = 1 << 29;
const IN_SECOND: u32 = 1 << 28;

/// A copy that gave way, as words of its context.
fn to_words(transfer: &Transfer) -> [u32; REST_WORDS] {
    let Launching {
        subchannel,
        method,
        data,
    } = transfer.launching;
    let progress = transfer.progress();
    let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    let flags = flag(progress.is_decided, IS_DECIDED)
        | flag(progress.is_finished, IS_FINISHED)
        | flag(progress.in_second, IN_SECOND);
    [
        data,
        progress.elements as u32,
        (progress.elements >> 32) as u32,
        IS_THERE | flags | u32::from(subchannel & 7) << 16 | u32::from(method),
    ]
}

fn from_words(words: [u32; REST_WORDS]) -> Option<(Launching, Progress)> {
    let [data, low, high, flags] = words;
    (flags & IS_THERE != 0).then(|| {
        let launching = Launching {
            subchannel: (flags >> 16 & 7) as u8,
            method: flags as u16,
            data,
        };
        let progress = Progress {
            elements: u64::from(high) << 32 | u64::from(low),
            is_decided: flags & IS_DECIDED != 0,
            is_finished: flags & IS_FINISHED != 0,
            in_second: flags & IN_SECOND != 0,
        };
        (launching, progress)
    })
}

impl FermiModel {
    /// A copy begins or goes on: it gives way to nobody before its channel's slice is over.
    pub(crate) fn begin_turn(&mut self, unit: usize) {
        let loaded = self.units[unit]
            .holder
            .and_then(|holder| self.pfifo.channel(holder.channel).loaded);
        let mut turn = loaded.map_or(Slice::default(), |pbdma| self.pbdmas[pbdma].slice);
        // Behind the next piece: without it a copy might wait for ever.
        turn.end = turn.end.max(self.units[unit].at.saturating_add(1));
        self.units[unit].turn = turn;
    }

    /// The engine goes to another channel: its context keeps what it copies, and the channel is due again. One that waits for a
    /// semaphore tries that again when it is loaded, as the copy itself may be what releases it.
    pub(crate) fn pause_transfer(&mut self, unit: usize) {
        let Some((transfer, holder)) = self.units[unit].transfer.take().zip(self.units[unit].holder) else {
            return;
        };
        let engine = self.units[unit].engine;
        debug_assert!(
            self.is_told_by_context(unit, transfer),
            "{transfer:?} is not what its method makes of the registers"
        );
        self.units[unit].registers.set_rest(engine, to_words(&transfer));
        self.mem.counters.paused_copies += 1;
        // After a reset of PFIFO its number may be another channel's.
        if self.pfifo.channel(holder.channel).instance() == holder.instance {
            self.set_paused(holder.channel, Some(engine));
            self.pfifo.channel_mut(holder.channel).acquire = None;
            self.pfifo.refresh(holder.channel);
        }
    }

    /// Whether the words of a context make the same transfer of its method.
    fn is_told_by_context(&mut self, unit: usize, mut transfer: Transfer) -> bool {
        transfer.go_on();
        let Some((launching, progress)) = from_words(to_words(&transfer)) else {
            return false;
        };
        let again = self.launch_again(unit, launching);
        let again = again.map(|again| again.launched_by(launching).at(progress));
        progress.is_finished || again == Some(transfer)
    }

    fn set_paused(&mut self, id: ChannelId, engine: Option<Engine>) {
        let word = engine.map_or(0, |engine| u32::from(engine.number()) + 1);
        let channel = self.pfifo.channel_mut(id);
        channel.paused = engine;
        let (loaded, at) = (channel.loaded, channel.instance().offset(PAUSED));
        if let Some(pbdma) = loaded {
            self.pbdmas[pbdma].set_reg(PAUSED, word);
        }
        self.mem.write_u32(at, word);
    }

    /// The engine that a channel has a copy to go on with as it comes into the table, by its instance block.
    pub(crate) fn kept_pause(&mut self, instance: Option<Place>) -> Option<Engine> {
        let instance = instance?;
        let number = self.mem.read_u32(instance.offset(PAUSED)).checked_sub(1)?;
        let engine = Engine::from_number(u8::try_from(number).ok()?)?;
        unit_of(engine)?;
        self.context_pointer(engine, instance).map(|_| engine)
    }

    /// Whether the channel on the PBDMA has a copy to go on with, and nothing else to wait for.
    pub(crate) fn has_paused(&self, pbdma: usize) -> bool {
        let channel = self.pbdmas[pbdma].channel();
        channel.is_some_and(|id| self.pfifo.channel(id).paused.is_some())
    }

    /// Goes on with the copy of the channel on the PBDMA, once it has the engine; `None` if there is none.
    pub(crate) fn resume_transfer(&mut self, pbdma: usize, id: ChannelId) -> Option<Outcome> {
        let engine = self.pfifo.channel(id).paused?;
        let unit = unit_of(engine)?;
        if !self.pfifo.engine_may_use(engine, pbdma) {
            return Some(Outcome::WrongPbdma);
        }
        if self
            .engine_free_at(pbdma, engine)
            .is_none_or(|at| at > self.clock.now())
        {
            return Some(Outcome::Stalled(engine));
        }
        let instance = self.pbdmas[pbdma].instance();
        self.set_paused(id, None);
        // A whole slice, whatever the wait has used up. Before the next wait the channel gives way to others on its PBDMA.
        self.renew_slice(pbdma);
        let Some(ns) = self.switch_unit(unit, id, instance) else {
            return Some(Outcome::Halted);
        };
        Some(Outcome::Done { ns })
    }

    /// The engine has got the context of a channel: it goes on with the copy that gave way, if there is one, when the switch is over.
    pub(crate) fn take_rest(&mut self, unit: usize, switch_ns: u64) {
        let engine = self.units[unit].engine;
        let registers = &mut self.units[unit].registers;
        let Some((launching, progress)) = from_words(registers.rest(engine)) else {
            return;
        };
        registers.set_rest(engine, [0; REST_WORDS]);
        let Some(transfer) = self.launch_again(unit, launching) else {
            return;
        };
        self.units[unit].transfer = Some(transfer.launched_by(launching).at(progress));
        // FECS writes the registers that the context names first.
        if self.units[unit].list.is_none() {
            self.units[unit].at = self.clock.now().saturating_add(switch_ns);
        }
        self.begin_turn(unit);
    }

    /// The transfer that a method starts with the registers as they are, which it leaves so.
    fn launch_again(&mut self, unit: usize, launching: Launching) -> Option<Transfer> {
        let Launching {
            subchannel,
            method,
            data,
        } = launching;
        let mut registers: Registers = self.units[unit].registers;
        let effect = match self.units[unit].engine {
            Engine::Graph => self.launch_graph_again(&mut registers, launching),
            _ => self.copy_methods(unit)(&mut registers, subchannel, method, data),
        };
        match effect {
            Effect::Start(transfer) => Some(transfer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::{Layout, Side};
    use crate::transfer::{Completion, Interrupt};
    use fermi_spec::addr::GpuVa;
    use proptest::prelude::*;

    fn transfer(pitch: u32, line_bytes: u32, lines: u32) -> Transfer {
        let side = |at| Side::new(GpuVa(at), Layout::Pitch(pitch));
        let completion = Completion {
            release: None,
            interrupt: Interrupt::None,
        };
        Transfer::new(side(0x1000), side(0x9000_0000), line_bytes, lines, completion)
    }

    proptest! {
        #[test]
        fn a_copy_goes_on_where_its_words_say(
            pitch in any::<u32>(),
            line_bytes in any::<u32>(),
            lines in 1u32..,
            parts in proptest::collection::vec(1u64.., 0..5),
            method in any::<u16>(),
            subchannel in 0u8..8,
            data in any::<u32>(),
        ) {
            let fresh = transfer(pitch, line_bytes, lines).launched_by(Launching { subchannel, method, data });
            let mut left = fresh;
            for part in parts {
                if let Some((_, _, bytes)) = left.next_to_fill(1) {
                    left.advance(part.min(bytes));
                }
            }
            let (launching, progress) = from_words(to_words(&left)).expect("there is one");
            prop_assert_eq!(launching, left.launching);
            let again = fresh.at(progress);
            prop_assert_eq!(again.next_to_fill(1), left.next_to_fill(1));
            prop_assert_eq!(again.completion, left.completion);
        }

        #[test]
        fn any_words_are_survived(words in any::<[u32; REST_WORDS]>(), line_bytes in any::<u32>(), lines in any::<u32>()) {
            if let Some((_, progress)) = from_words(words) {
                let next = transfer(7, line_bytes, lines).at(progress).next_to_fill(1);
                prop_assert!(next.is_none_or(|(_, _, bytes)| bytes > 0));
            }
        }
    }

    #[test]
    fn words_that_nobody_wrote_are_no_copy() {
        assert!(from_words([0; REST_WORDS]).is_none());
    }
}
