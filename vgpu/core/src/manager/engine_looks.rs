//! Who is on an engine, asked while nobody else can come onto it.
//!
//! ```text
//! blocked (2630) ─► asked who is on it ─┬─ the one to blame, or nobody ─► reset ─┬─► blocked no more
//!                                       └─ somebody else ────────────────────────┘
//! ```
//!
//! A reset ends what the engine does and forgets what it knows, so it must hit nobody else: between the question and the
//! reset no channel may take the engine from another. What a reset costs others is therefore some microseconds in which
//! they do not get the engine; their contexts are in memory, or kept by the card. PGRAPH, which loses its microcode, stays
//! blocked until that was given again and answers.

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pbdma::CHANNEL_ACTIVE;
use fermi_spec::regs::pfifo::{CHANNEL_ID_MASK, EngineStatus};
use planted::Fault;

use super::Cx;
use super::running::Running;
use crate::event::{Action, Token, VmId};
use crate::host::PhysChannel;
use crate::host::card::OWN_CHANNEL;
use crate::reason::ChannelFault;

/// Engines that channels drive.
pub(super) const DRIVEN: [Engine; 3] = [Engine::Graph, Engine::Copy0, Engine::Copy1];

/// A question that the card has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    engine: Engine,
    purpose: Purpose,
}

/// Use of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A channel that is to go does not let go of the engine.
    Evict(PhysChannel),
    /// A fault of the channel left the engine standing.
    Restore(PhysChannel),
    /// A channel works on and on while others wait: it is stopped for good.
    Stop(PhysChannel),
    /// An owner is gone. What it left on the engine goes too, unless somebody's context has come over it.
    Clear,
}

impl Running {
    /// A leaving channel does not go: the engines that it holds are reset, and no others.
    pub(super) fn evict(&mut self, channel: PhysChannel, cx: &mut Cx<'_>) {
        for engine in DRIVEN {
            self.look_at_engine(engine, Purpose::Evict(channel), cx);
        }
    }

    /// A VM has no channel any more: nothing of its work stays on an engine for the next one.
    pub(super) fn clear_engines(&mut self, cx: &mut Cx<'_>) {
        if planted::is(Fault::EngineNotCleared) {
            return;
        }
        for engine in DRIVEN {
            self.look_at_engine(engine, Purpose::Clear, cx);
        }
    }

    pub(super) fn look_at_engine(&mut self, engine: Engine, purpose: Purpose, cx: &mut Cx<'_>) {
        let token = self.card.tokens.next();
        self.volatile.looks.insert(token, Look { engine, purpose });
        self.block_engines(cx);
        let number = u16::from(engine.number());
        let asked = match purpose {
            Purpose::Stop(_) => PfifoReg::EngineStatus(number),
            Purpose::Evict(_) | Purpose::Restore(_) | Purpose::Clear => PfifoReg::EngineChannel(number),
        };
        cx.actions.push(Action::HostRead {
            token,
            bar: Bar::Bar0,
            offset: asked.offset().into(),
            bytes: 4,
        });
    }

    /// Nobody comes onto an engine that is asked about.
    fn block_engines(&self, cx: &mut Cx<'_>) {
        let asked = self.volatile.looks.values().map(|look| look.engine);
        let starting = self.card.graph.is_starting().then_some(Engine::Graph);
        let mask = asked
            .chain(starting)
            .fold(0, |mask, engine| mask | 1 << engine.number());
        cx.actions.register(PfifoReg::EngineBlock, mask);
    }

    /// Takes the answer; `false` if the value belongs to another question.
    pub(super) fn engine_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let Some(Look { engine, purpose }) = self.volatile.looks.get(&token).copied() else {
            return false;
        };
        let word = u32::from_le_bytes(data.try_into().unwrap_or_default());
        let on_it = (word & CHANNEL_ACTIVE != 0).then_some(PhysChannel((word & CHANNEL_ID_MASK) as u8));
        match purpose {
            Purpose::Evict(channel) => {
                let leaves = channel == OWN_CHANNEL || self.leaving.contains_key(&channel);
                if leaves && on_it == Some(channel) {
                    self.reset_at_once(engine, cx);
                }
            }
            // The entry of the channel may have gone meanwhile, and the engine knows nobody.
            Purpose::Restore(channel) if on_it.is_none_or(|on_it| on_it == channel) => {
                self.reset_at_once(engine, cx);
            }
            Purpose::Restore(_) => {}
            Purpose::Stop(channel) => {
                let status = EngineStatus::from_bits(word);
                if status.busy() && status.channel() == channel.0 {
                    self.stop_for_good(channel, engine, cx);
                }
            }
            Purpose::Clear if on_it.is_none() => self.reset_at_once(engine, cx),
            Purpose::Clear => {}
        }
        self.volatile.looks.remove(&token);
        self.block_engines(cx);
        true
    }

    fn reset_at_once(&mut self, engine: Engine, cx: &mut Cx<'_>) {
        for op in self.card.engine_reset_steps(engine) {
            op.perform(cx.actions);
        }
        if engine == Engine::Graph && self.card.graph.has_microcode() {
            self.card.await_graph();
        }
    }

    /// FECS answers again after a reset: channels may come onto PGRAPH.
    pub(super) fn graph_restarted(&mut self, cx: &mut Cx<'_>) {
        self.card.graph.started();
        self.block_engines(cx);
    }

    /// The watchdog's end: the engine is free within this event, the channel is lost, its guest is told as a card tells
    /// of an engine that does not switch.
    fn stop_for_good(&mut self, channel: PhysChannel, engine: Engine, cx: &mut Cx<'_>) {
        let Some((vm, v)) = self.bound_as(channel.0) else {
            return;
        };
        let held_ns = self.volatile.watchdog.held_ns(engine);
        self.volatile.watchdog.forget(engine);
        self.reset_at_once(engine, cx);
        self.tell_of_hang(vm, v, engine);
        self.kill(vm, v, None, ChannelFault::HeldEngine { engine, held_ns }, cx);
    }

    fn tell_of_hang(&mut self, vm: VmId, v: u8, engine: Engine) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.units.pfifo.hang(engine, v);
        }
    }
}
