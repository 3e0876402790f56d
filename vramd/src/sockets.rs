//! The sockets of VMs, of operators and of cards, each with the folder that it lies in.
//!
//! They are made before the process gives up its rights, because to give a file to another user takes root's.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use anyhow::Context as _;
use broker::{SocketAccess, VmSocket};
use card::BoundSocket;
use vmm::sandbox::privileges::User;

use crate::config::{ControlSection, VmSection, usual_mode};

/// Root may connect to every socket: it can also become whoever may.
const ROOT: u32 = 0;

/// Listens for the VMM of `vm`, in a folder that is made if it is missing. `user` is who the process will be.
pub(crate) fn bind(vm: &VmSection, user: Option<&User>) -> anyhow::Result<VmSocket> {
    let access = access(&vm.access, user);
    make_missing_folder(&vm.socket, &access, user).with_context(|| format!("vm {}", vm.config.name))?;
    Ok(VmSocket::bind(&vm.socket, &access, vm.config.clone())?)
}

/// Listens for operators.
pub(crate) fn bind_control(control: &ControlSection, user: Option<&User>) -> anyhow::Result<BoundSocket> {
    let configured = SocketAccess {
        group: control.group,
        mode: Some(usual_mode(control.group)),
        ..SocketAccess::default()
    };
    let access = access(&configured, user);
    make_missing_folder(&control.socket, &access, user).context("control")?;
    BoundSocket::bind(&control.socket, &access).context("control")
}

/// Listens for scrapers of metrics, if there is a port for them.
pub(crate) fn bind_metrics(control: &ControlSection) -> anyhow::Result<Option<TcpListener>> {
    let bind = |address| {
        let bound = TcpListener::bind(address);
        bound.with_context(|| format!("control.metrics: cannot listen at {address}"))
    };
    control.metrics.map(bind).transpose()
}

fn make_missing_folder(socket: &Path, access: &SocketAccess, user: Option<&User>) -> anyhow::Result<()> {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.exists()) {
        Some(folder) => make_folder(folder, access, user)
            .with_context(|| format!("cannot make folder {}", folder.display())),
        None => Ok(()),
    }
}

/// Listens for the clients of a card. `user` is who the process will be.
pub(crate) fn bind_card(
    path: &Path,
    configured: SocketAccess,
    user: Option<&User>,
) -> anyhow::Result<BoundSocket> {
    let mode = configured.mode.or(Some(usual_mode(configured.group)));
    let access = access(&SocketAccess { mode, ..configured }, user);
    Ok(BoundSocket::bind(path, &access)?)
}

/// What `configured` leaves open: the socket is the process's own, and whoever its mode lets may connect; that is its owner alone,
/// so others are told apart even where somebody changed the mode.
fn access(configured: &SocketAccess, user: Option<&User>) -> SocketAccess {
    let own = user.map_or_else(|| rustix::process::geteuid().as_raw(), User::uid);
    let owner = configured.owner.or_else(|| user.map(User::uid));
    let is_owners_alone = configured.mode == Some(0o600);
    let users = configured
        .users
        .clone()
        .or_else(|| is_owners_alone.then(|| vec![owner.unwrap_or(own)]));
    SocketAccess {
        owner,
        group: configured.group.or_else(|| user.map(User::gid)),
        mode: configured.mode,
        users: users.map(|users| [users, vec![ROOT]].concat()),
    }
}

/// Makes a folder that is the process's own, and that the socket's owner or group may enter: nobody else can put anything there.
fn make_folder(folder: &Path, access: &SocketAccess, user: Option<&User>) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)?;
    let made = File::open(folder)?;
    let owner = user.map(User::uid);
    if owner.is_some() || access.group.is_some() {
        fchown(&made, owner, access.group)?;
    }
    // Without a group of its own for it, an owner is one of the others. To enter is enough for them: who may read the folder may lock it, and a
    // broker that takes a dead one's socket over waits for that lock.
    let is_for_others = access.owner != owner || access.mode == Some(0o666);
    let mode = if is_for_others { 0o711 } else { 0o710 };
    made.set_permissions(fs::Permissions::from_mode(mode))
}
