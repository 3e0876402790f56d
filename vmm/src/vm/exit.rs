//! The reasons why a VM stopped.

use super::ResetCause;
use crate::bus::BusError;
use crate::sandbox::SandboxError;

/// Why a VM stopped.
#[derive(Debug, thiserror::Error)]
pub enum VmExit {
    /// The guest ended it. 0 is success.
    #[error("the guest ended with status {0}")]
    Guest(u32),
    /// An operating system switched its machine off.
    #[error("the guest switched itself off")]
    PowerOff,
    /// An operating system asked for a reset.
    #[error("the guest asked for a reset by {0}")]
    Reset(ResetCause),
    /// The owner called [`RunningVm::kill`](super::RunningVm::kill).
    #[error("the VM was killed")]
    Killed,
    /// A fault that the guest has no handler for.
    #[error("vCPU {vcpu} met a triple fault at {rip:#x}")]
    TripleFault {
        /// Number of the vCPU.
        vcpu: usize,
        /// Address of the next instruction.
        rip: u64,
    },
    /// A device of the VM failed.
    #[error("a device of the VM failed")]
    Bus(#[from] BusError),
    /// KVM could not go on.
    #[error("KVM cannot run vCPU {vcpu}")]
    Run {
        /// Number of the vCPU.
        vcpu: usize,
        /// Error of KVM.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// KVM left the guest for a reason that no guest of this VMM has.
    #[error("vCPU {vcpu} left KVM at {rip:#x} with {what}")]
    Unexpected {
        /// Number of the vCPU.
        vcpu: usize,
        /// Address of the next instruction.
        rip: u64,
        /// Exit reason of KVM.
        what: String,
    },
    /// The filter of a thread could not be installed, so the thread did nothing.
    #[error("thread {thread} cannot be confined")]
    Unconfined {
        /// Name of the thread.
        thread: String,
        /// Error of the filter.
        #[source]
        source: SandboxError,
    },
    /// A thread of the VM panicked: a bug of ours.
    #[error("thread {thread} panicked")]
    Panicked {
        /// Name of the thread.
        thread: String,
    },
}

impl VmExit {
    /// Whether the guest ended by itself and successfully.
    pub fn is_success(&self) -> bool {
        matches!(self, VmExit::Guest(0) | VmExit::PowerOff)
    }
}
