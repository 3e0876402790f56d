//! The system calls that the threads of a VM's process may make: seccomp filters, one for each kind of thread. And those of a
//! process that serves VMs or a card.
//!
//! ```text
//! main ──filter of main──► starts threads, each of which inherits it and adds the narrower one of its kind
//! any other system call ─► SIGSYS ─► report: one line that names thread and call ─► exit status 4
//!                                 └─ blocked, as while a thread is started ─► the kernel ends the process by it
//! ```
//!
//! A guest that takes over a thread of its VMM gets the calls of that thread and no more: a vCPU's thread talks to
//! KVM, to the vGPU's socket and to eventfds, and opens nothing. Main's filter still allows the calls for building
//! a VM, as a guest may be started anew; it never allows new programs, new processes, other sockets than Unix ones,
//! or executable memory. A process that serves has a filter of that kind, too ([`Sandbox::enter_as_server`]), and each of its threads
//! adds the one of its kind ([`Sandbox::confine_serving`]): the thread that serves clients opens nothing and starts nothing.
//! `privileges` handles capabilities and the user.

pub mod accounts;
pub mod privileges;
mod report;
mod rules;

use std::sync::Arc;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use vfio_user_server::ThreadKind;

/// Kinds of threads, by their work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Builds VMs and waits for their ends.
    Main,
    /// Runs a vCPU and answers its exits.
    Vcpu,
    /// Notices when the broker goes away, and makes doorbells trap while the guest is quiet.
    Link,
    /// Hands keys to the guest.
    Keys,
    /// Writes the guest's console.
    Screen,
    /// Serves a disk.
    Disk,
    /// Serves a network device.
    Net,
    /// A process that serves VMs or a card, until a thread takes a kind of its own.
    Server,
    /// A thread of such a process.
    Serving(ThreadKind),
}

impl Role {
    /// Those of a VM's process.
    const OF_A_VM: [Role; 7] = [
        Role::Main,
        Role::Vcpu,
        Role::Link,
        Role::Keys,
        Role::Screen,
        Role::Disk,
        Role::Net,
    ];

    /// Name of the kind in messages.
    fn name(self) -> &'static str {
        match self {
            Role::Main => "main",
            Role::Vcpu => "vcpu",
            Role::Link => "link",
            Role::Keys => "keys",
            Role::Screen => "console",
            Role::Disk => "disk",
            Role::Net => "net",
            Role::Server => "server",
            Role::Serving(kind) => kind.name(),
        }
    }
}

/// Why filters could not be made or installed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// One of our rules is invalid.
    #[error("cannot compile the filter of system calls")]
    Compile(#[source] seccompiler::BackendError),
    /// The kernel refused a filter.
    #[error("cannot install the filter of system calls; `--no-seccomp` does without")]
    Install(#[source] seccompiler::Error),
    /// The handler for SIGSYS could not be installed.
    #[error("cannot install the handler of forbidden system calls")]
    Handler(#[source] vmm_sys_util::errno::Error),
}

/// The filters of one process, compiled; or none of them. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    filters: Option<Arc<Vec<Vec<BpfProgram>>>>,
}

impl Sandbox {
    /// No thread is filtered.
    pub fn none() -> Sandbox {
        Sandbox::default()
    }

    /// Compiles the filters, installs the handler that reports forbidden calls, and filters the calling thread as
    /// main. New threads are filtered as main until they take their own role.
    pub fn enter() -> Result<Sandbox, SandboxError> {
        report::install().map_err(SandboxError::Handler)?;
        let compiled = Role::OF_A_VM.into_iter().map(programs).collect::<Result<_, _>>();
        let sandbox = Sandbox {
            filters: Some(Arc::new(compiled.map_err(SandboxError::Compile)?)),
        };
        sandbox.confine(Role::Main)?;
        Ok(sandbox)
    }

    /// Installs the handler that reports forbidden calls, and filters the calling thread and those that it starts as a
    /// process that serves VMs or a card.
    pub fn enter_as_server() -> Result<(), SandboxError> {
        report::install().map_err(SandboxError::Handler)?;
        report::set_role_of_process(Role::Server.name());
        install(&programs(Role::Server).map_err(SandboxError::Compile)?)
    }

    /// Restricts the calling thread of such a process to the calls of its kind. This cannot be undone.
    pub fn confine_serving(kind: ThreadKind) -> Result<(), SandboxError> {
        report::set_role(kind.name());
        install(&programs(Role::Serving(kind)).map_err(SandboxError::Compile)?)
    }

    /// Restricts the calling thread to the calls of `role`. This cannot be undone.
    pub(crate) fn confine(&self, role: Role) -> Result<(), SandboxError> {
        let Some(filters) = &self.filters else {
            return Ok(());
        };
        report::set_role(role.name());
        let kind = Role::OF_A_VM.iter().position(|known| *known == role);
        kind.and_then(|kind| filters.get(kind))
            .map_or(Ok(()), |programs| install(programs))
    }
}

fn install(programs: &[BpfProgram]) -> Result<(), SandboxError> {
    programs
        .iter()
        .try_for_each(|program| apply_filter(program).map_err(SandboxError::Install))
}

/// Filters to install, in this order.
fn programs(role: Role) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let allowed = SeccompFilter::new(
        rules::of(role),
        SeccompAction::Trap,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    // Of several filters the strictest one counts; the ones with other answers let a call that they do not name pass. The narrowest is
    // installed last, for afterwards no other could be installed.
    let mut programs = Vec::new();
    if matches!(role, Role::Main | Role::Server) {
        // Flags of clone3 lie in memory, where no filter looks. The C library goes on with clone, whose flags can
        // be checked.
        programs.push(answering([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS)?);
    }
    let refused = rules::refused(role);
    if !refused.is_empty() {
        programs.push(answering(refused, libc::EPERM)?);
    }
    programs.push(BpfProgram::try_from(allowed)?);
    Ok(programs)
}

/// A filter that answers the calls of `rules` with an error, and lets all others pass.
fn answering(rules: rules::Rules, errno: libc::c_int) -> Result<BpfProgram, seccompiler::BackendError> {
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        TargetArch::x86_64,
    )?;
    BpfProgram::try_from(filter)
}

#[cfg(test)]
mod tests;
