//! What a guest's store to a register asks the mediator to do.

use fermi_spec::regs::pfifo::{ChannelInstance, RunlistBase};
use shadow_pt::TableAt;

/// Work that a store asks for beyond being remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// The stored value is only remembered.
    None,
    /// TLB flush: of one directory, or of all.
    Flush(Option<TableAt>),
    /// The channel table entry was written.
    ChannelInstance(u8, ChannelInstance),
    /// The channel may or may not run.
    ChannelState(u8, bool),
    /// A runlist is to be taken over: where, how many entries.
    Runlist(RunlistBase, u16),
    /// Take a channel off the engines.
    Preempt(u8),
    /// The guest has acknowledged an error of a channel.
    ErrorSeen,
    /// PFIFO was switched off: all channels go.
    ResetFifo,
    /// No such thing: counted.
    Refused,
}
