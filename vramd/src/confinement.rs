//! What `serve` and `gpu` give up before they start a thread: a client that took such a process over would have its rights, and a core
//! file of it would hold the memory of all guests.

pub(crate) mod files;

use std::io;

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use vfio_user_server::threads::confine_with;
use vmm::sandbox::Sandbox;
use vmm::sandbox::privileges::{User, give_up};

/// Forbids this thread and all that it starts the system calls that no broker and no card makes, and each thread those that its kind
/// does not make.
pub(crate) fn filter_calls(is_wanted: bool) -> anyhow::Result<()> {
    if is_wanted {
        Sandbox::enter_as_server()?;
        confine_with(|kind| Sandbox::confine_serving(kind).map_err(io::Error::other));
    }
    Ok(())
}

/// Becomes `user`, if there is one; gives up all capabilities, the way to new ones, core files, and being looked into by other processes of
/// its user.
pub(crate) fn confine(user: Option<&User>) -> anyhow::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).context("cannot switch core files off")?;
    give_up(user)?;
    // After the change of user, which sets it anew.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot switch core files off")
}

/// Keeps what a process may lock as it is: without a limit, if it has the right to exceed the limit, which it is about to give up. A card of
/// the host needs the memory of all VMs locked.
pub(crate) fn keep_locked_memory() -> anyhow::Result<()> {
    let may_exceed = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if !may_exceed {
        return Ok(());
    }
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    setrlimit(Resource::Memlock, none).context(
        "cannot lift the limit of locked memory, which takes the capability CAP_SYS_RESOURCE: raise it (ulimit -l, LimitMEMLOCK=)",
    )
}
