//! The system calls of processes that serve VMs or a card, and of each kind of their threads.
//!
//! Found by strace of brokers and cards, and from the code for rarer paths: memory that a client takes away, a lost card, a panic. A
//! thread has the process's filter and that of its kind.

use libc::{F_GETFL, F_SETFL, O_ACCMODE, O_CREAT, O_EXCL, O_WRONLY, c_long};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use vfio_user_server::ThreadKind;

use super::{LINK_CALLS, Role, Rules, allow, allow_if, allow_if_null, starter};

/// A broker, or a card of its own process: files of its folders, memory files of its own and of clients, Unix sockets, events. What
/// no part of it does today is there where it does no harm: a filter that is too narrow costs all VMs.
pub(super) fn process(rules: &mut Rules) {
    allow(rules, &LINK_CALLS);
    allow(rules, PROCESS_CALLS);
    starter(rules);
    allow_if(rules, libc::SYS_fcntl, 1, Eq, libc::F_SETFD as u64);
    // A thread that gives way to others: that far, and no other.
    let niceness = ThreadKind::Control.niceness();
    allow_if(rules, libc::SYS_setpriority, 2, Eq, niceness as u64);
    vfio(rules);
}

/// A card of the host, which was opened before: its memory mapped for DMA and unmapped, its interrupts, its reset, and its end.
fn vfio(rules: &mut Rules) {
    for number in VFIO {
        allow_if(rules, libc::SYS_ioctl, 1, Eq, VFIO_TYPE | number);
    }
}

/// ioctl numbers of VFIO and iommufd (Linux include/uapi/linux/vfio.h and iommufd.h): both are of one type, without direction and size.
const VFIO_TYPE: u64 = 0x3b00;
const VFIO: [u64; 9] = [
    // VFIO_GROUP_UNSET_CONTAINER; VFIO_DEVICE_SET_IRQS; VFIO_DEVICE_RESET; VFIO_DEVICE_DETACH_IOMMUFD_PT.
    105, 110, 111, 120, // VFIO_IOMMU_MAP_DMA and UNMAP_DMA.
    113, 114, // IOMMU_DESTROY; IOMMU_IOAS_MAP and IOMMU_IOAS_UNMAP.
    0x80, 0x85, 0x86,
];

const PROCESS_CALLS: &[c_long] = &[
    // Files: host.toml's folders, /proc and /sys, what a backtrace reads of this program.
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_stat,
    libc::SYS_statfs,
    libc::SYS_statx,
    // A socket's file, made when a VM is attached, or removed at the end; its group and mode.
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    // What operators say: a new file takes the old one's name.
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    // Memory files.
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_msync,
    // Sockets of VMs, and of a card.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_setsockopt,
    // Events, timers, and eventfds signalled by the kernel.
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_io_destroy,
    libc::SYS_io_getevents,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_nanosleep,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // This process: its limits, its rights, and where its threads run.
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_membarrier,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// One kind of thread. Each may handle the loss of a client's memory, which maps other memory in its place and writes to an eventfd, and
/// write to the log.
pub(super) fn thread(rules: &mut Rules, kind: ThreadKind) {
    // The C library asks for the number of processors as it divides memory among threads.
    allow(rules, &[libc::SYS_sched_getaffinity]);
    // A line of the log to the journal, by a socket that was made before.
    allow(rules, &[libc::SYS_sendto]);
    // Whether the log is a terminal.
    for request in [libc::TCGETS, libc::TIOCGWINSZ] {
        allow_if(rules, libc::SYS_ioctl, 1, Eq, request);
    }
    match kind {
        ThreadKind::EventLoop => event_loop(rules),
        ThreadKind::Signaller => allow(rules, &RING),
        ThreadKind::Reaper | ThreadKind::Populator => allow(rules, &[libc::SYS_fallocate]),
        ThreadKind::FlightWriter => {
            let (new, rest) = (O_CREAT | O_EXCL | O_WRONLY, O_ACCMODE | O_CREAT | O_EXCL);
            allow_if(rules, libc::SYS_openat, 2, MaskedEq(rest as u64), new as u64);
            // Answered with EPERM by the other filter.
            allow_if(rules, libc::SYS_openat, 2, MaskedEq(O_CREAT as u64), 0);
        }
        ThreadKind::Control => control(rules),
        // It reads memory that is mapped, and waits.
        ThreadKind::CardWorker => {}
        ThreadKind::Card => {
            // A served card's interrupts, and pages that move between VRAM and the file of a window.
            allow(rules, &RING);
            allow(
                rules,
                &[libc::SYS_fallocate, libc::SYS_pread64, libc::SYS_pwrite64],
            );
        }
    }
    for call in refused(Role::Serving(kind)).into_keys() {
        rules.entry(call).or_default();
    }
}

/// Calls that fail with EPERM instead of ending the process: those by which a panic with RUST_BACKTRACE looks for names. It has its
/// message without them.
pub(crate) fn refused(role: Role) -> Rules {
    let mut rules = Rules::new();
    let Role::Serving(kind) = role else { return rules };
    let mut names = vec![libc::SYS_getcwd, libc::SYS_open];
    match kind {
        ThreadKind::EventLoop => names.push(libc::SYS_openat),
        ThreadKind::FlightWriter => {
            names.extend(LOOKS);
            allow_if(&mut rules, libc::SYS_openat, 2, MaskedEq(O_CREAT as u64), 0);
        }
        _ => {
            names.extend(LOOKS);
            names.push(libc::SYS_openat);
        }
    }
    allow(&mut rules, &names);
    rules
}

/// Questions about files by their paths.
const LOOKS: [c_long; 6] = [
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_stat,
    libc::SYS_statx,
];

/// The eventfds of clients, signalled by asynchronous requests of the kernel. Who lets go of the last one ends the requests.
const RING: [c_long; 3] = [libc::SYS_io_submit, libc::SYS_io_getevents, libc::SYS_io_destroy];

/// Answers the operator: connections, events and time. It drives no card and has no file: what it is asked, the event loop does.
fn control(rules: &mut Rules) {
    allow(rules, &LINK_CALLS);
    allow(
        rules,
        &[
            libc::SYS_accept4,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_wait,
            // Who an operator is.
            libc::SYS_getsockopt,
            libc::SYS_readv,
        ],
    );
    allow_if(rules, libc::SYS_ioctl, 1, Eq, libc::FIONBIO);
}

/// Serves clients and drives the card. It opens nothing, connects to nobody and starts no thread: what a client could want it to be.
fn event_loop(rules: &mut Rules) {
    allow(rules, &LINK_CALLS);
    allow(rules, &LOOKS);
    allow(rules, &RING);
    allow(
        rules,
        &[
            // Clients, and who they are.
            libc::SYS_accept4,
            libc::SYS_getsockopt,
            libc::SYS_setsockopt,
            libc::SYS_getpeername,
            libc::SYS_getsockname,
            // What their descriptors are.
            libc::SYS_fstat,
            libc::SYS_fstatfs,
            libc::SYS_lseek,
            // Events, and the clock of the core.
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_wait,
            libc::SYS_eventfd2,
            libc::SYS_timerfd_gettime,
            libc::SYS_timerfd_settime,
            // Memory files: images of VMs, windows of a served card.
            libc::SYS_fallocate,
            libc::SYS_ftruncate,
            libc::SYS_memfd_create,
            libc::SYS_pread64,
            libc::SYS_preadv,
            // Reads an eventfd without waiting, whatever its owner set.
            libc::SYS_preadv2,
            libc::SYS_pwrite64,
            libc::SYS_pwritev,
            libc::SYS_readv,
            // The socket's file, at the end.
            libc::SYS_unlink,
            libc::SYS_unlinkat,
        ],
    );
    for command in [F_GETFL, F_SETFL, libc::F_ADD_SEALS, libc::F_GET_SEALS] {
        allow_if(rules, libc::SYS_fcntl, 1, Eq, command as u64);
    }
    allow_if(rules, libc::SYS_ioctl, 1, Eq, libc::FIONBIO);
    // The first client's memory has the handler of its loss installed.
    allow_if(rules, libc::SYS_rt_sigaction, 0, Eq, libc::SIGBUS as u64);
    vfio(rules);
    // Limits are read for messages, not set.
    allow_if_null(rules, libc::SYS_prlimit64, 2);
}
