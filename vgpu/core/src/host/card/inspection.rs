//! The card's part of the state tree.

use super::Card;
use crate::inspect::{Inspect, Tree};

impl Inspect for Card {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.part("arena", &self.arena);
        tree.group("lanes", |tree| {
            tree.part("flush", &self.lanes.flush);
            tree.part("preempt", &self.lanes.fifo);
            tree.part("runlist", &self.lanes.runlist);
        });
        tree.flag("runlist_is_waiting", self.lanes.next_runlist.is_some());
        if let Some((channels, jobs)) = &self.lanes.next_runlist {
            tree.count("channels_of_the_waiting_runlist", channels.len());
            tree.count("jobs_of_the_waiting_runlist", jobs.len());
        }
        tree.count("doorbells_waiting", self.lanes.doorbells.len());
        tree.part("copy_channel", &self.copy);
        tree.flag("copies_by_window", self.copies_by_window);
        tree.flag("engines_were_given_microcode", self.microcode.is_some());
        tree.part("channels_lent", &self.lending);
        let used = || {
            (0_u64..)
                .zip(&*self.channels)
                .filter_map(|(number, user)| Some((number, (*user)?)))
        };
        tree.on_request("channels", used().count(), |tree| {
            for (number, (vm, channel)) in used() {
                tree.group(number, |tree| {
                    tree.name("vm", vm);
                    tree.number("channel_of_the_guest", channel);
                });
            }
        });
    }
}
