//! Faults that can be switched on, for tests and simulation. None happens by itself.

/// Switches that the embedder sets at any time; all off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// GPU time that every preempt takes on top.
    pub preempt_delay_ns: u64,
    /// This many of the next preempts never complete: bit 20 stays until another preempt or a reset of PFIFO, and
    /// the switch time-out (2a18) reports.
    pub refused_preempts: u32,
    /// GPU time that every runlist commit takes on top.
    pub runlist_delay_ns: u64,
    /// GPU time that every flush of the TLB by TLB_INVALIDATE (100cbc) takes; without it, it is done with the store.
    pub flush_delay_ns: u64,
    /// The flush of the TLB with this number from now on, and every later one, never completes and drops nothing; 0 is off.
    pub lost_flush_in: u32,
    /// The same for runlist commits.
    pub lost_runlist_in: u32,
    /// This many of the next messages are lost.
    pub lost_interrupts: u32,
    /// This many of the next copy-engine operations end with a dispatch error instead of copying.
    pub failed_copies: u32,
    /// The same for copy-engine operations of channel 0, whatever the others do.
    pub failed_copies_of_channel_0: u32,
    /// Copies take this many times as long; 1 is the normal speed, 0 counts as 1.
    pub copy_slowdown: u32,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            preempt_delay_ns: 0,
            refused_preempts: 0,
            runlist_delay_ns: 0,
            flush_delay_ns: 0,
            lost_flush_in: 0,
            lost_runlist_in: 0,
            lost_interrupts: 0,
            failed_copies: 0,
            failed_copies_of_channel_0: 0,
            copy_slowdown: 1,
        }
    }
}

/// Counts down to a fault that stays; whether it is there.
pub(crate) fn has_come(left: &mut u32) -> bool {
    match *left {
        0 => false,
        1 => true,
        _ => {
            *left -= 1;
            false
        }
    }
}

/// Takes one from a counter of pending faults; whether there was one.
pub(crate) fn take(pending: &mut u32) -> bool {
    let happens = *pending > 0;
    *pending = pending.saturating_sub(1);
    happens
}
