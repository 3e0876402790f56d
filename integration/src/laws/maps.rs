//! RAM that VMMs have mapped, by what they asked and were told: kept here anew, it shares nothing with the core's.

use std::collections::BTreeMap;

use vgpu::{Action, Event, Refusal, Reply, Request, RequestId, VmId};

use crate::checkers::Violation;

const PAGE: u64 = 4096;
/// Addresses of guest RAM end here.
const END: u64 = 1 << 40;

/// What VMMs have mapped.
#[derive(Default)]
pub(super) struct Maps {
    /// Requests that are not answered: whether RAM comes, its start and bytes.
    asked: BTreeMap<(VmId, RequestId), (bool, u64, u64)>,
    /// Start and end of each map.
    there: BTreeMap<VmId, BTreeMap<u64, u64>>,
}

impl Maps {
    /// Looks at what was asked and answered.
    pub(super) fn after(&mut self, event: &Event, actions: &[Action]) -> Result<(), Violation> {
        match event {
            Event::Attach { vm, .. } | Event::Detach { vm } => {
                self.asked.retain(|(of, _), _| of != vm);
                self.there.remove(vm);
            }
            Event::Request { vm, id, request } => {
                let asked = match request {
                    Request::MapRam { gpa, bytes, .. } => Some((true, gpa.0, *bytes)),
                    Request::UnmapRam { gpa, bytes } => Some((false, gpa.0, *bytes)),
                    _ => None,
                };
                self.asked.extend(asked.map(|asked| ((*vm, *id), asked)));
            }
            _ => {}
        }
        for action in actions {
            if let Action::Reply { vm, request, reply } = action
                && let Some(asked) = self.asked.remove(&(*vm, *request))
            {
                self.answered(*vm, asked, reply)?;
            }
        }
        Ok(())
    }

    fn answered(
        &mut self,
        vm: VmId,
        (comes, start, bytes): (bool, u64, u64),
        reply: &Reply,
    ) -> Result<(), Violation> {
        let maps = self.there.entry(vm).or_default();
        let end = start.checked_add(bytes).filter(|end| *end > start);
        let within = |end: u64| maps.range(start..end).map(|(start, end)| (*start, *end));
        let is_right = match comes {
            true => end.is_some_and(|end| {
                let reaches_in = maps
                    .range(..start)
                    .next_back()
                    .is_some_and(|(_, end)| *end > start);
                let is_aligned = start.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && end <= END;
                is_aligned && !reaches_in && within(end).next().is_none()
            }),
            // Whole maps, with or without gaps between them.
            false => end.is_some_and(|end| {
                let first = within(end).next().is_some_and(|(first, _)| first == start);
                first && within(end).next_back().is_some_and(|(_, last)| last == end)
            }),
        };
        let what = if comes { "map" } else { "unmap" };
        match (reply, end) {
            (Reply::Done, Some(end)) if is_right => {
                maps.retain(|at, _| !(start..end).contains(at));
                maps.extend(comes.then_some((start, end)));
                Ok(())
            }
            (Reply::Refused(Refusal::BadRange | Refusal::NoSuchMap), _) if !is_right => Ok(()),
            // Bounds that are looked at elsewhere.
            (
                Reply::Refused(
                    Refusal::TooManyMaps
                    | Refusal::TooMuchRam
                    | Refusal::TooManyWaiting
                    | Refusal::NotAttached,
                ),
                _,
            ) => Ok(()),
            _ => Err(Violation(format!(
                "{vm} is answered {reply:?} to a {what} of {bytes:#x} bytes at {start:#x}, which is {}",
                if is_right { "right" } else { "wrong" }
            ))),
        }
    }
}
