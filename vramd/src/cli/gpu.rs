//! `vramd gpu`: one software card behind a vfio-user socket, until a signal.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use fermi_spec::board::Board;

use super::GpuArguments;
use crate::confinement::files::{Use, folder_of, restrict};
use crate::confinement::{confine, filter_calls};
use crate::host::WORKERS_MAX;
use crate::observe::{Found, Observers};
use crate::sockets;
use card::CardConfig;
use card::{GpuServer, GpuSetup, SocketAccess};
use sizes::Size;
use vfio_user_server::ThreadKind;
use vfio_user_server::threads::confine_this;
use vmm::sandbox::accounts::{AccountError, Kind, id_of};
use vramd_vm::signals::{install_power_switch, is_power_cut, is_stop_requested};

/// Where the kernel says how many mappings a process may have.
const MAP_LIMIT: &str = "/proc/sys/vm/max_map_count";

pub(super) fn group(text: &str) -> Result<u32, AccountError> {
    id_of(Kind::Group, text)
}

pub(super) fn gpu(arguments: &GpuArguments) -> anyhow::Result<u8> {
    let access = SocketAccess {
        group: arguments.socket_group,
        mode: arguments.socket_mode,
        ..SocketAccess::default()
    };
    let socket = sockets::bind_card(&arguments.socket, access, arguments.user.as_ref())?;
    confine(arguments.user.as_ref())?;
    restrict(&uses(arguments))?;
    filter_calls(!arguments.no_seccomp)?;
    let board = arguments.model;
    let vram_bytes = arguments.vram.unwrap_or(board.vram_bytes());
    let setup = GpuSetup {
        card: CardConfig {
            board,
            vram_bytes,
            needs_microcode: arguments.needs_microcode,
            strict: arguments.strict,
            paced: arguments.paced,
            workers: arguments.workers,
        },
        is_all_trapped: arguments.all_trapped,
        trace: arguments.trace.clone(),
    };
    // Installed before the card is announced, as a client might then send a signal.
    install_power_switch()?;
    let mut server = GpuServer::on(socket, &setup)?;
    let found = arguments.observe.then(Arc::<Mutex<Found>>::default);
    if let Some(found) = &found {
        server.watch_doorbells(Box::new(Observers::new(Arc::clone(found))))?;
    }
    announce(&setup, &arguments.socket).context("cannot write to stdout")?;
    confine_this(ThreadKind::EventLoop).context("cannot confine the thread that serves the card")?;
    let served = server.serve(is_stop_requested, is_power_cut);
    let summary = server.finish();
    served?;
    let found = found.map(|found| found.lock().unwrap_or_else(PoisonError::into_inner).to_string());
    for lines in [Some(summary?), found]
        .into_iter()
        .flatten()
        .filter(|lines| !lines.is_empty())
    {
        writeln!(std::io::stdout(), "{lines}").context("cannot write to stdout")?;
    }
    Ok(0)
}

/// The files that it opens once it is confined.
fn uses(arguments: &GpuArguments) -> Vec<(PathBuf, Use)> {
    let trace = arguments.trace.iter().map(|trace| (folder_of(trace), Use::Write));
    let socket = (folder_of(&arguments.socket), Use::Listen);
    let limits = (PathBuf::from(MAP_LIMIT), Use::Read);
    let uses = [socket, limits].into_iter().chain(trace);
    // Whoever opens what is not there says so.
    uses.filter(|(path, _)| path.exists()).collect()
}

/// The lines that announce the card, and how to attach QEMU.
fn announce(setup: &GpuSetup, socket: &Path) -> std::io::Result<()> {
    let device = serde_json::json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": socket },
    });
    let (board, size) = (setup.card.board.name(), Size(setup.card.vram_bytes));
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{board}: {size} VRAM at {}; QEMU: -device '{device}'",
        socket.display()
    )?;
    out.flush()
}

pub(super) fn board(text: &str) -> Result<Board, String> {
    Board::from_name(text).ok_or_else(|| "choose gtx480, quadro6000 or c2050".to_owned())
}

pub(super) fn workers(text: &str) -> Result<u32, String> {
    let workers = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of threads"))?;
    match workers {
        0..=WORKERS_MAX => Ok(workers),
        _ => Err(format!("{workers} workers are more than {WORKERS_MAX}")),
    }
}
