//! The moment at which a VM is stopped for a move: one at which none of its channels that can write the chunks is at work.
//!
//! ```text
//!            ┌──── one is at work: again in 100 µs ────┐
//! Awaiting ──┴─► who is on each engine (2640)? ────────┴─► nobody of them, or waited for long enough ─► stopped
//! ```
//!
//! A channel that is taken off the card ends what it has under way first, a grid to its last block, and the VM stands still for that
//! time. VMs that share an engine take turns on it, so for most of the time another one's work is there. Then there is nothing to end.
//! The VM runs while it is waited for: its work, its syncs, its stores.
//!
//! How long that may take goes by the VM ([`Drains`](super::forecast::Drains)). Nothing relies on the answers: between a look and
//! the stop the channel may come onto the engine, and is drained as ever. A look is three loads, and one VM of a card is waited for
//! at a time; so no VM pays for it.
//!
//! The copy itself goes by the same look to the copy engine that is idle, if a guest's transfer is on the other one: nobody waits for the
//! answer, and without it the copy goes where the last one went.
//!
//! unverified: that 2640 says on a real card whose work is on an engine. If not, moves wait in vain, and less and less.

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::EngineStatus;
use planted::Fault;
use shadow_pt::Work;

use super::Cx;
use super::engine_looks::DRIVEN;
use super::forecast::PATIENCE_MAX_NS;
use super::mover::{Head, Move, Stage};
use super::pauses::{LOOK_WORK, is_in_the_way, to_stop};
use super::running::Running;
use crate::device::{SpaceId, Vgpu};
use crate::event::{Action, Token};
use crate::host::PhysChannel;
use crate::notice::MoveId;

/// Time between two looks. Grids of a few hundred microseconds are not worth closer ones.
const LOOK_NS: u64 = 100_000;

/// A look at the engines that the card has not answered in full. It is no state: who comes back without it looks anew.
#[derive(Debug)]
pub(super) struct EnginesAsked {
    id: MoveId,
    /// Answers that have not come.
    tokens: Vec<(Token, Engine)>,
    /// Engines that are at work, and for whom, as far as answers have come.
    at_work: Vec<(Engine, PhysChannel)>,
}

impl Running {
    /// Waits for a moment to stop the VM at, if the move has to stop it.
    pub(super) fn await_moment(&mut self, head: Head, cx: &mut Cx<'_>) {
        let vgpu = self.vms.get(&head.vm).filter(|vgpu| !vgpu.leaves());
        let leaves = self.is_written_by_leaving(&head);
        let stops = vgpu.filter(|vgpu| leaves || !to_stop(vgpu, &head).is_empty());
        let is_for_somebody = head.is_waited_for();
        let patience = stops.map(|vgpu| vgpu.drains.patience(is_for_somebody));
        let stage = Stage::Awaiting {
            until: cx.now.after(patience.unwrap_or(0)),
            look_at: cx.now,
        };
        let moving = Move::new(head, stage, cx.now);
        match patience {
            Some(_) => self.mover.current = Some(moving),
            None => self.stop_for(moving, false, cx),
        }
    }

    /// Looks at the engines when it is time, and gives a VM that leaves its move back. `true` if that changed something.
    pub(super) fn check_moment(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(Move {
            head,
            stage: Stage::Awaiting { look_at, .. },
            ..
        }) = &self.mover.current
        else {
            return false;
        };
        let id = head.id;
        if self.vms.get(&head.vm).is_none_or(|vgpu| vgpu.leaves()) {
            if let Some(moving) = self.mover.current.take() {
                self.stop_for(moving, false, cx);
            }
            return true;
        }
        if cx.now < *look_at || self.are_engines_asked(id) {
            return false;
        }
        self.ask_engines(id, &DRIVEN, cx);
        true
    }

    /// Whether a look for the move has not been answered.
    pub(super) fn are_engines_asked(&self, id: MoveId) -> bool {
        self.volatile.engines_asked.iter().any(|asked| asked.id == id)
    }

    /// Begins a look at engines for a move.
    pub(super) fn ask_engines(&mut self, id: MoveId, engines: &[Engine], cx: &mut Cx<'_>) {
        let mut tokens = Vec::new();
        for &engine in engines {
            let token = self.card.tokens.next();
            tokens.push((token, engine));
            cx.actions.push(Action::HostRead {
                token,
                bar: Bar::Bar0,
                offset: PfifoReg::EngineStatus(engine.number().into()).offset().into(),
                bytes: 4,
            });
        }
        self.volatile.engines_asked.push(EnginesAsked {
            id,
            tokens,
            at_work: Vec::new(),
        });
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn moment_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let all = &mut self.volatile.engines_asked;
        let question = all.iter().enumerate().find_map(|(at, asked)| {
            let place = asked.tokens.iter().position(|(of, _)| *of == token)?;
            Some((at, place))
        });
        let Some((at, place)) = question else {
            return false;
        };
        let asked = &mut all[at];
        let (_, engine) = asked.tokens.swap_remove(place);
        let status = EngineStatus::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
        if status.busy() {
            asked.at_work.push((engine, PhysChannel(status.channel())));
        }
        if asked.tokens.is_empty() {
            let asked = all.swap_remove(at);
            self.looked(&asked, cx);
        }
        true
    }

    /// The engines were looked at.
    fn looked(&mut self, asked: &EnginesAsked, cx: &mut Cx<'_>) {
        let Some(moving) = self.mover.all().find(|moving| moving.head.id == asked.id) else {
            return;
        };
        let is_at_work = asked
            .at_work
            .iter()
            .any(|(_, channel)| self.writes(*channel, &moving.head));
        let is_at_work = is_at_work || self.is_written_by_leaving(&moving.head);
        match moving.stage {
            Stage::Draining { .. } => self.looked_aside(is_at_work, cx),
            Stage::Awaiting { .. } => self.go_on_at_moment(is_at_work, cx),
            Stage::Mapping { .. } => {
                let is_at_work = |engine| asked.at_work.iter().any(|(of, _)| *of == engine);
                self.card.choose_copy_engine(is_at_work);
            }
            _ => {}
        }
    }

    /// Stops the VM, if this is the moment for it.
    fn go_on_at_moment(&mut self, is_at_work: bool, cx: &mut Cx<'_>) {
        let Some(mut moving) = self.mover.current.take() else {
            return;
        };
        // One that leaves cannot be stopped by the move: it is waited for, or the move is given up.
        let leaves = self.is_written_by_leaving(&moving.head);
        let waits = leaves && cx.now < moving.since.after(PATIENCE_MAX_NS);
        if let Stage::Awaiting { until, look_at } = &mut moving.stage
            && is_at_work
            && (waits || cx.now < *until || planted::is(Fault::MomentWithoutEnd))
        {
            *look_at = cx.now.after(LOOK_NS);
            self.mover.current = Some(moving);
            return;
        }
        if let Some(vgpu) = self.vms.get_mut(&moving.head.vm) {
            vgpu.drains.waited(!is_at_work);
        }
        self.stop_for(moving, is_at_work, cx);
    }

    /// Whether the card's channel is one that the move has to stop.
    fn writes(&self, channel: PhysChannel, head: &Head) -> bool {
        let Some((_, v)) = self.bound_as(channel.0).filter(|(vm, _)| *vm == head.vm) else {
            return false;
        };
        let vgpu = self.vms.get(&head.vm);
        vgpu.is_some_and(|vgpu| {
            let channel = vgpu.channels.get(&v);
            channel.is_some_and(|channel| is_stopped(vgpu, channel.space, head))
        })
    }

    /// Whether a channel that leaves the card, because the guest unbound it or to be parked, and that may still be at work, can write the
    /// chunks.
    pub(super) fn is_written_by_leaving(&self, head: &Head) -> bool {
        let of_vm = self.leaving.values().filter(|leaving| leaving.vm == head.vm);
        self.vms.get(&head.vm).is_some_and(|vgpu| {
            let parking = vgpu.channels.values().filter(|channel| channel.parking);
            let leaving = of_vm.map(|leaving| leaving.channel.space);
            let mut spaces = leaving.chain(parking.map(|channel| channel.space));
            spaces.any(|space| is_stopped(vgpu, space, head))
        })
    }
}

fn is_stopped(vgpu: &Vgpu, space: SpaceId, head: &Head) -> bool {
    let (space, mut work) = (vgpu.spaces.get(&space), Work::limited(LOOK_WORK));
    space.is_some_and(|space| is_in_the_way(vgpu, space, head, &mut work))
}
