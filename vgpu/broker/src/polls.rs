//! Polls of the card's registers that did not hold at once.

use fermi_spec::bar::Bar;
use vgpu::{HostGpu, HostGpuError, Tick, Token};

/// Time between two looks. A copy or preemption takes 10 to 1,000 of these microseconds.
pub(crate) const PERIOD_NS: u64 = 150_000;

/// One condition, until it is met or late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poll {
    pub(crate) token: Token,
    pub(crate) offset: u32,
    pub(crate) mask: u32,
    pub(crate) value: u32,
    pub(crate) deadline: Tick,
}

impl Poll {
    /// Looks once. `Some` when it is over: whether the condition was met. A look at the deadline still counts.
    pub(crate) fn look(&self, gpu: &mut dyn HostGpu, now: Tick) -> Result<Option<bool>, HostGpuError> {
        let mut word = [0; 4];
        gpu.read(Bar::Bar0, u64::from(self.offset), &mut word)?;
        if u32::from_le_bytes(word) & self.mask == self.value {
            return Ok(Some(true));
        }
        Ok((now >= self.deadline).then_some(false))
    }
}
