//! Verbs that give a VM of a running broker a place, or take it.

use clap::Args;
use control::{Attach, Detached, client};

use super::control::{Asked, size};
use super::serve::qemu_device;

#[derive(Args, Debug)]
pub(super) struct AttachArguments {
    #[command(flatten)]
    vm: Attach,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct DetachArguments {
    /// Name of the VM
    vm: String,
    /// Hang up on its VMM, if one is connected: its guest loses its GPU
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    asked: Asked,
}

/// `vramd attach VM`: its VMM can connect from now on.
pub(super) fn attach(arguments: &AttachArguments) -> anyhow::Result<u8> {
    let vm = arguments.asked.ask(&client::attach(&arguments.vm))?;
    arguments.asked.print(&vm, || {
        format!(
            "{}: {} guest VRAM on {} at {}; QEMU: {}\n",
            vm.name,
            size(vm.guest_vram_bytes),
            vm.gpu,
            vm.socket,
            qemu_device(vm.socket.as_ref())
        )
    })
}

/// `vramd detach VM`: nobody can connect as this VM any more.
pub(super) fn detach(arguments: &DetachArguments) -> anyhow::Result<u8> {
    let detached = arguments
        .asked
        .ask(&client::detach(&arguments.vm, arguments.force))?;
    arguments.asked.print(&detached, || sentence(&detached))
}

fn sentence(detached: &Detached) -> String {
    let Detached {
        name,
        was_attached,
        is_in_file,
    } = detached;
    let vmm = match was_attached {
        true => "its VMM was hung up on",
        false => "no VMM was connected",
    };
    let again = match is_in_file {
        true => format!("; vramd attach {name} has it again as host.toml has it"),
        false => String::new(),
    };
    format!("{name} is detached: {vmm}{again}\n")
}
