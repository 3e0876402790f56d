//! What is kept of one VM, for whoever looks while the recorder goes on: entries are copied, text is made of them later.

use super::{Entry, FlightRecorder, Line, Order, Ring, SAYINGS, Saying, Told};
use crate::event::{Tick, VmId};
use crate::notice::Notice;

/// Entries about one VM.
#[derive(Clone, Debug, Default)]
pub struct Excerpt {
    entries: Vec<(Order, Tick, Told)>,
    /// Place up to which this tells: where to go on.
    pub until: u64,
    /// Whether entries between the place that was given and the first of these may be gone.
    pub has_gap: bool,
    /// Whether there is more of it already.
    pub has_more: bool,
}

/// An entry where it is kept: it is copied if it is wanted.
enum Kept<'a> {
    Entry(&'a Entry),
    Notice(&'a Notice),
}

impl Excerpt {
    /// The lines of a flight file that these entries make.
    pub fn lines(self) -> Vec<Line> {
        let line = |(order, now, told): (Order, Tick, Told)| Line::new(now, order.event(), told);
        self.entries.into_iter().map(line).collect()
    }
}

impl<const LENGTH: usize> Ring<LENGTH> {
    fn about(&self, vm: VmId) -> impl Iterator<Item = (Order, Tick, Kept<'_>)> {
        let entries = self.iter().filter(move |entry| entry.happened.vm() == Some(vm));
        entries.map(|entry| (entry.order, entry.now, Kept::Entry(entry)))
    }

    /// The first entry that is kept, if there were others before it.
    fn cut_at(&self) -> Option<Order> {
        (self.count > LENGTH).then(|| self.entries[self.count & Self::MASK].order)
    }
}

impl FlightRecorder {
    /// At most `most` entries about a VM that is there since `from`: the newest, or what came after an excerpt whose
    /// [`Excerpt::until`] was `after`, the oldest first. A place that was not reached yet is another run's: then all that is kept.
    ///
    /// This looks at each entry of the rings, some 9,000, and copies what it returns.
    pub fn excerpt(&self, vm: VmId, from: Tick, after: Option<u64>, most: usize) -> Excerpt {
        let after = after.map(|place| Order(if place > self.order.0 { 0 } else { place }));
        let notices = self
            .sayings
            .iter()
            .filter_map(|(now, order, saying)| match saying {
                Saying::Notice(notice) if notice.vm() == Some(vm) => {
                    Some((*order, *now, Kept::Notice(notice)))
                }
                Saying::Notice(_) | Saying::Remark(_) => None,
            });
        let all = self
            .accesses
            .about(vm)
            .chain(self.others.about(vm))
            .chain(notices);
        // The number of a VM that has gone may be another's now.
        let is_meant = |(order, now, _): &(Order, Tick, Kept<'_>)| {
            *now >= from && after.is_none_or(|place| *order > place)
        };
        let mut found: Vec<_> = all.filter(is_meant).collect();
        // Three runs, each of them in order.
        found.sort_by_key(|(order, ..)| *order);
        let surplus = found.len().saturating_sub(most);
        match after {
            Some(_) => found.truncate(most),
            None => drop(found.drain(..surplus)),
        }
        let has_more = after.is_some() && surplus > 0;
        let last = found.last().filter(|_| has_more);
        Excerpt {
            until: last.map_or(self.order.0, |(order, ..)| order.0),
            has_gap: after.is_some_and(|place| self.is_cut_after(place)),
            has_more,
            entries: found
                .into_iter()
                .map(|(order, now, kept)| (order, now, kept.told()))
                .collect(),
        }
    }

    /// Whether something that came after a place may not be kept any more.
    fn is_cut_after(&self, place: Order) -> bool {
        let first = self.sayings.front().filter(|_| self.sayings.len() == SAYINGS);
        let cuts = [
            self.accesses.cut_at(),
            self.others.cut_at(),
            first.map(|(_, order, _)| *order),
        ];
        cuts.into_iter().flatten().any(|first| first > place)
    }
}

impl Kept<'_> {
    fn told(self) -> Told {
        match self {
            Kept::Entry(entry) => Told::Happened(entry.happened),
            Kept::Notice(notice) => Told::Notice {
                notice: notice.clone(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    const VM: VmId = VmId(1);

    /// So many events of the VM and of another in turn, a nanosecond apart.
    fn recorded(events: u64) -> FlightRecorder {
        let mut recorder = FlightRecorder::default();
        for at in 1..=events {
            let vm = VmId(1 + (at % 2) as u16);
            recorder.event(Tick(at), &Event::Detach { vm });
        }
        recorder
    }

    fn times(excerpt: &Excerpt) -> Vec<u64> {
        excerpt.entries.iter().map(|(_, now, _)| now.0).collect()
    }

    #[test]
    fn newest_of_one_vm_are_told_and_then_what_comes() {
        let mut recorder = recorded(9);
        let first = recorder.excerpt(VM, Tick(0), None, 3);
        assert_eq!(
            (times(&first), first.has_more, first.has_gap),
            (vec![4, 6, 8], false, false)
        );
        assert_eq!(
            recorder.excerpt(VM, Tick(0), Some(first.until), 3).entries.len(),
            0
        );
        recorder.event(Tick(20), &Event::Detach { vm: VmId(2) });
        for at in [21, 22, 23] {
            recorder.event(Tick(at), &Event::Detach { vm: VM });
        }
        let next = recorder.excerpt(VM, Tick(0), Some(first.until), 2);
        assert_eq!((times(&next), next.has_more), (vec![21, 22], true));
        let last = recorder.excerpt(VM, Tick(0), Some(next.until), 2);
        assert_eq!(
            (times(&last), last.has_more, last.has_gap),
            (vec![23], false, false)
        );
        assert_eq!(
            last.lines()[0].to_string(),
            "       0.000023       13 vm1 is to leave"
        );
    }

    #[test]
    fn entries_of_the_vm_that_had_the_number_before_are_not_its() {
        let recorder = recorded(9);
        assert_eq!(times(&recorder.excerpt(VM, Tick(5), None, 9)), [6, 8]);
        assert_eq!(times(&recorder.excerpt(VM, Tick(5), Some(0), 9)), [6, 8]);
    }

    #[test]
    fn reader_that_is_too_slow_is_told_so() {
        let mut recorder = recorded(9);
        let place = recorder.excerpt(VM, Tick(0), None, 9).until;
        (0..5000).for_each(|at| recorder.event(Tick(10 + at), &Event::Detach { vm: VM }));
        let rest = recorder.excerpt(VM, Tick(0), Some(place), 10_000);
        assert_eq!((rest.entries.len(), rest.has_gap), (super::super::OTHERS, true));
        // A place of another run, which had come further.
        assert_eq!(
            recorder.excerpt(VM, Tick(0), Some(u64::MAX), 10).entries.len(),
            10
        );
    }
}
