//! What `serve` and `gpu` give up before they start a thread: a client that took such a process over would have its rights, and a core
//! file of it would hold the memory of all guests.

use std::io;

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
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

/// Whether a process goes on with the rights that it was started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// It needs none: a software card, or one that another process serves.
    None,
    /// It opens a card of the host, which only its operator can allow to a user without rights.
    AsStarted,
}

/// Becomes `user`, if there is one; gives up all capabilities, if there is one or `rights` says so; and in any case the
/// way to new ones, core files, and being looked into by other processes of its user.
pub(crate) fn confine(user: Option<&User>, rights: Rights) -> anyhow::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).context("cannot switch core files off")?;
    match (user, rights) {
        (None, Rights::AsStarted) => set_no_new_privs(true).context("cannot renounce new privileges")?,
        (user, _) => give_up(user)?,
    }
    // After the change of user, which sets it anew.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot switch core files off")
}
