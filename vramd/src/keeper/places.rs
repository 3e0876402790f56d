//! VMs that an operator attaches and detaches.

use std::path::{Path, PathBuf};

use broker::{HappeningKind, LeaveRefusal, SocketAccess};
use control::{Attach, Detached, Refusal, RefusalKind};
use vgpu::{CHANNELS_DEFAULT, Quota, RAM_DEFAULT, VmConfig};
use vramd_vm::config::check_name;

use super::merge::hold_bytes;
use super::state::{GivenPlace, KeptPlace, KeptQuota, KeptVm, State};
use super::{Keeper, answered, unknown_gpu};
use crate::config::{CHUNK_DEFAULT, VmSection, check_guest_vram, socket_mode, usual_mode};
use crate::confinement::files::folder_of;
use crate::control::CONNECTIONS_MAX;
use crate::{descriptors, sockets};

fn refused(message: String) -> Refusal {
    Refusal::new(RefusalKind::PlaceRefused, message)
}

/// A value that no VM has.
fn wrong(field: &str, reason: impl ToString) -> Refusal {
    refused(format!("{field}: {}", reason.to_string()))
}

impl Keeper {
    /// Gives a VM a place: its VMM can connect from then on.
    pub(crate) fn attach(&mut self, attach: &Attach) -> Result<(), Refusal> {
        let name = &attach.name;
        check_name(name).map_err(|reason| wrong("name", reason))?;
        if self.served.contains_key(name) {
            return Err(refused(format!("there is a vm {name} already")).then(format!("vramd show {name}")));
        }
        let in_file = self.file_section(name).cloned();
        let (section, place) = match in_file {
            Some(section) if attach.is_name_alone() => (section, None),
            Some(_) => {
                let message =
                    format!("host.toml has vm {name}: it is attached by its name alone, as it is there");
                return Err(refused(message).then(format!("vramd attach {name}")));
            }
            None => {
                let section = self.section_of(attach)?;
                let place = KeptPlace::Given(Box::new(GivenPlace::of(&section)));
                (section, Some(place))
            }
        };
        let kept = KeptVm {
            place,
            ..self.state.vm(name)
        };
        let state = self.state.with_vm(name, kept.clone());
        self.serve(section, &kept, state)
    }

    /// Has a VM served from now on, and `state` hold if it is.
    pub(super) fn serve(&mut self, section: VmSection, kept: &KeptVm, state: State) -> Result<(), Refusal> {
        let name = section.config.name.clone();
        let config = VmConfig {
            quota: kept.quota.over(section.config.quota),
            ..section.config.clone()
        };
        let next = || format!("vramd list --gpu {}", section.gpu);
        config
            .check()
            .map_err(|reason| refused(format!("vm {name}: {reason}")).then(next()))?;
        let (host, user) = (self.host.clone(), self.user.clone());
        let found = host.brokers.iter().find(|(gpu, _)| *gpu == section.gpu);
        let (_, broker) = found.ok_or_else(|| unknown_gpu(&section.gpu, &host))?;
        answered(|tell| broker.ask_place(config.clone(), tell))?
            .map_err(|why| refused(format!("vm {name}: {why}")).then(next()))?;
        descriptors::provide(host.brokers.len(), self.served.len() + 1, CONNECTIONS_MAX)
            .map_err(|error| refused(format!("vm {name}: {error:#}")))?;
        let bound = VmSection {
            config,
            ..section.clone()
        };
        self.keep_if(state, || {
            let socket = sockets::bind(&bound, user.as_ref())
                .map_err(|error| refused(format!("vm {name}: {error:#}")))?
                .with_hold(hold_bytes(kept.hold));
            answered(|tell| broker.seat(socket, tell))?
                .map_err(|why| refused(format!("vm {name}: {why}")).then(next()))
        })?;
        let text = format!("given a place: {}", section.socket.display());
        // One that has ended is told of elsewhere.
        let _ = broker.tell(Some(name), HappeningKind::Listed, text);
        self.place(section);
        Ok(())
    }

    /// Takes a VM's place from it, and hangs up on its VMM if it is forced.
    pub(crate) fn detach(&mut self, name: &str, is_forced: bool) -> Result<Detached, Refusal> {
        self.served(name)?;
        let is_in_file = self.file_section(name).is_some();
        let kept = match is_in_file {
            true => KeptVm {
                place: Some(KeptPlace::Taken),
                ..self.state.vm(name)
            },
            false => KeptVm::default(),
        };
        let state = self.state.with_vm(name, kept);
        let was_attached = self.unserve(name, is_forced, state)?;
        Ok(Detached {
            name: name.to_owned(),
            was_attached,
            is_in_file,
        })
    }

    /// Has a VM served no more, and `state` hold if it is not. Whether its VMM was connected.
    pub(super) fn unserve(&mut self, name: &str, is_forced: bool, state: State) -> Result<bool, Refusal> {
        let host = self.host.clone();
        let broker = self.broker_of(&host, name)?;
        let left = self.keep_if(state, || {
            answered(|tell| broker.unseat(name.to_owned(), is_forced, tell))?.map_err(|why| match why {
                LeaveRefusal::Connected => {
                    refused(format!("vm {name}: {why}")).then(format!("vramd detach {name} --force"))
                }
                LeaveRefusal::NoSuchVm { .. } => {
                    Refusal::new(RefusalKind::UnknownVm, why.to_string()).then("vramd list")
                }
            })
        })?;
        let text = match left.was_attached {
            true => "its place was taken, and its VMM hung up on",
            false => "its place was taken",
        };
        // One that has ended is told of elsewhere.
        let _ = broker.tell(Some(name.to_owned()), HappeningKind::Unlisted, text.to_owned());
        self.served.remove(name);
        self.show_places();
        Ok(left.was_attached)
    }

    /// A VM that nobody wrote into the file.
    fn section_of(&self, attach: &Attach) -> Result<VmSection, Refusal> {
        let gpu = self.card_of(attach)?;
        let needed = "it is needed: how much VRAM the guest sees, such as 192M";
        let guest_vram = attach
            .guest_vram_bytes
            .ok_or_else(|| wrong("guest_vram_bytes", needed))?;
        check_guest_vram(guest_vram).map_err(|reason| wrong("guest_vram_bytes", reason))?;
        let config = VmConfig {
            name: attach.name.clone(),
            guest_vram,
            chunk_bytes: attach.chunk_bytes.unwrap_or(CHUNK_DEFAULT),
            quota: KeptQuota::default()
                .with(attach.quota, Quota::default(), None)
                .over(Quota::default()),
            ram: attach.ram_bytes.unwrap_or(RAM_DEFAULT),
            channels: attach.channels.unwrap_or(CHANNELS_DEFAULT),
        };
        config.check().map_err(|reason| wrong("vm", reason))?;
        Ok(VmSection {
            gpu,
            socket: self.socket_of(attach)?,
            access: access_of(attach)?,
            config,
        })
    }

    fn card_of(&self, attach: &Attach) -> Result<String, Refusal> {
        let names: Vec<_> = self.host.brokers.iter().map(|(name, _)| name.clone()).collect();
        match (&attach.gpu, names.as_slice()) {
            (Some(gpu), _) if names.contains(gpu) => Ok(gpu.clone()),
            (Some(gpu), _) => Err(unknown_gpu(gpu, &self.host)),
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(wrong(
                "gpu",
                format!("it is needed: there are {}", names.join(", ")),
            )),
        }
    }

    /// The socket that was named, or one beside the operators' own: `serve` may make sockets where it made some when it started.
    fn socket_of(&self, attach: &Attach) -> Result<PathBuf, Refusal> {
        let beside = || Some(folder_of(&self.file.control.as_ref()?.socket));
        let usual = || Some(beside()?.join(format!("{}.sock", attach.name)));
        let socket = attach.socket.as_ref().map(PathBuf::from).or_else(usual);
        let socket = socket.ok_or_else(|| wrong("socket", "it is needed"))?;
        let is_named = socket.file_name().is_some() && !socket.ends_with("..");
        if !is_named {
            return Err(wrong("socket", format!("{} names no file", socket.display())));
        }
        let folders = self.socket_folders();
        if !folders.contains(&folder_of(&socket).as_path()) {
            let names: Vec<_> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            let message = format!(
                "vm {}: serve may make no socket in {}; it may in {}",
                attach.name,
                folder_of(&socket).display(),
                names.join(", ")
            );
            return Err(refused(message));
        }
        let others = self.served.values().chain(&self.file.vms);
        let control = self.file.control.iter().map(|control| &control.socket);
        let mut taken = others.map(|vm| &vm.socket).chain(control);
        match taken.any(|other| *other == socket) {
            true => Err(refused(format!(
                "vm {}: another vm, or control, has the socket {}",
                attach.name,
                socket.display()
            ))),
            false => Ok(socket),
        }
    }

    /// Folders in which sockets were made when the process started: it may open no others.
    fn socket_folders(&self) -> Vec<&Path> {
        let mut folders: Vec<_> = self.folders.iter().map(PathBuf::as_path).collect();
        folders.sort();
        folders.dedup();
        folders
    }
}

/// Whose the socket is, and who may connect.
fn access_of(attach: &Attach) -> Result<SocketAccess, Refusal> {
    let mode = attach.socket_mode.as_deref().map(socket_mode).transpose();
    let mode = mode.map_err(|reason| wrong("socket_mode", reason))?;
    let is_nobody = |id: &u32| *id == u32::MAX;
    if attach.socket_group.as_ref().is_some_and(is_nobody) {
        return Err(wrong("socket_group", "there is no such number"));
    }
    let users = attach.socket_users.clone();
    if users
        .as_ref()
        .is_some_and(|users| users.is_empty() || users.iter().any(is_nobody))
    {
        return Err(wrong("socket_users", "nobody could connect"));
    }
    Ok(SocketAccess {
        owner: None,
        group: attach.socket_group,
        mode: Some(mode.unwrap_or(usual_mode(attach.socket_group))),
        users,
    })
}
