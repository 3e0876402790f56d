//! The system calls that each kind of thread makes.
//!
//! Found by strace of runs with the built-in guest and with Linux, and from the code for rarer paths: panics, a
//! broker that goes away, a reset. A call that only glibc or the standard library makes has its reason beside it.

use std::collections::BTreeMap;

use libc::{
    AF_UNIX, CLONE_THREAD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFL, PR_GET_NAME, PR_SET_NAME,
    PR_SET_NO_NEW_PRIVS, PROT_EXEC, SECCOMP_SET_MODE_FILTER, c_long,
};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{SeccompCmpArgLen, SeccompCondition, SeccompRule};

use super::Role;

mod serving;

pub(super) use serving::refused;

/// Rules by system call; a call with an empty list is allowed with any arguments.
pub(super) type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// ioctl numbers of KVM (Linux include/uapi/linux/kvm.h: KVMIO is 0xae, with the direction and size in the upper half).
const KVM_TYPE: u64 = 0xae00;
const IOCTL_TYPE: u64 = 0xff00;
/// KVM calls of a vCPU's thread: it runs, reports where it stood, and moves the vGPU's BARs and interrupt.
const KVM_RUN: u64 = 0xae80;
const KVM_GET_REGS: u64 = 0x8090_ae81;
const KVM_SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;
const KVM_SET_GSI_ROUTING: u64 = 0x4008_ae6a;
const KVM_IRQFD: u64 = 0x4020_ae76;
/// Calls on terminals and descriptors: reading and setting modes, in the three ways
/// there are; non-blocking sockets.
const TERMINAL: [u64; 10] = [
    libc::TCGETS,
    libc::TCSETS,
    libc::TCSETSW,
    libc::TCSETSF,
    libc::TCGETS2,
    libc::TCSETS2,
    libc::TCSETSW2,
    libc::TCSETSF2,
    // rustix uses it to ask whether a descriptor is a terminal.
    libc::TIOCGWINSZ,
    libc::FIONBIO,
];

/// Calls on taps: taking the program's end of one, and the form of frames.
const TAP: [u64; 4] = [
    libc::TUNSETIFF,
    libc::TUNGETIFF,
    libc::TUNSETVNETHDRSZ,
    libc::TUNSETOFFLOAD,
];

/// Calls that `role` may make.
pub(super) fn of(role: Role) -> Rules {
    let mut rules = common();
    match role {
        Role::Main => main(&mut rules),
        Role::Vcpu => {
            allow(&mut rules, &LINK_CALLS);
            let vcpu = [
                KVM_RUN,
                KVM_GET_REGS,
                KVM_SET_USER_MEMORY_REGION,
                KVM_SET_GSI_ROUTING,
                KVM_IRQFD,
            ];
            for request in vcpu {
                allow_if(&mut rules, libc::SYS_ioctl, 1, Eq, request);
            }
        }
        Role::Link => {
            allow(&mut rules, &LINK_CALLS);
            allow(
                &mut rules,
                &[
                    libc::SYS_epoll_create1,
                    libc::SYS_epoll_ctl,
                    libc::SYS_epoll_wait,
                    libc::SYS_epoll_pwait,
                ],
            );
        }
        Role::Keys => allow(&mut rules, &[libc::SYS_ppoll, libc::SYS_shutdown]),
        Role::Screen => {}
        Role::Disk => allow(
            &mut rules,
            &[
                libc::SYS_ppoll,
                libc::SYS_lseek,
                libc::SYS_fdatasync,
                libc::SYS_shutdown,
            ],
        ),
        Role::Net => {
            allow(&mut rules, &[libc::SYS_ppoll, libc::SYS_shutdown]);
            allow_if(&mut rules, libc::SYS_ioctl, 1, Eq, libc::TUNSETOFFLOAD);
        }
        Role::Server => serving::process(&mut rules),
        Role::Serving(kind) => serving::thread(&mut rules, kind),
    }
    rules
}

/// A vGPU behind vfio-user.
const LINK_CALLS: [c_long; 7] = [
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_ppoll,
    libc::SYS_poll,
    libc::SYS_shutdown,
];

/// Calls of any thread of a Rust program: memory, locks, signals, its end, and the message of a panic.
fn common() -> Rules {
    let mut rules = Rules::new();
    allow(
        &mut rules,
        &[
            libc::SYS_brk,
            libc::SYS_close,
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_futex,
            // Where the kernel maps no vDSO.
            libc::SYS_getcpu,
            libc::SYS_getpid,
            // Keys of hash maps.
            libc::SYS_getrandom,
            libc::SYS_gettid,
            libc::SYS_madvise,
            libc::SYS_mremap,
            libc::SYS_munmap,
            libc::SYS_read,
            libc::SYS_restart_syscall,
            libc::SYS_rseq,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_sched_yield,
            libc::SYS_set_robust_list,
            libc::SYS_sigaltstack,
            libc::SYS_write,
            libc::SYS_writev,
        ],
    );
    // Memory, but none that can be executed.
    allow_if(&mut rules, libc::SYS_mmap, 2, MaskedEq(PROT_EXEC as u64), 0);
    allow_if(&mut rules, libc::SYS_mprotect, 2, MaskedEq(PROT_EXEC as u64), 0);
    // Signals to threads of this process: kicks, and the end of a panic that cannot unwind.
    allow_if(&mut rules, libc::SYS_tgkill, 0, Eq, std::process::id().into());
    // In debug builds the standard library checks whether a descriptor that it closes is open; eventfds are cloned.
    for command in [F_GETFD, F_DUPFD_CLOEXEC] {
        allow_if(&mut rules, libc::SYS_fcntl, 1, Eq, command as u64);
    }
    rules
}

/// Main builds a VM, starts its threads and waits; it reads the operator's files and reports the results. It may
/// also make the calls of the others, for they have this filter besides their own.
fn main(rules: &mut Rules) {
    allow(rules, &LINK_CALLS);
    allow(
        rules,
        &[
            // Files that the operator names, KVM, and information about this process.
            libc::SYS_openat,
            libc::SYS_statx,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_lseek,
            libc::SYS_pread64,
            libc::SYS_flock,
            libc::SYS_fdatasync,
            // The user that a tap belongs to.
            libc::SYS_geteuid,
            // Guest RAM.
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
            // A vGPU's socket.
            libc::SYS_connect,
            libc::SYS_setsockopt,
            libc::SYS_getsockopt,
            // Eventfds and waiting for them.
            libc::SYS_eventfd2,
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_wait,
            libc::SYS_epoll_pwait,
        ],
    );
    starter(rules);
    allow_if(rules, libc::SYS_ioctl, 1, MaskedEq(IOCTL_TYPE), KVM_TYPE);
    for request in TAP {
        allow_if(rules, libc::SYS_ioctl, 1, Eq, request);
    }
}

/// What a process needs to start threads, talk to Unix sockets and ask about its descriptors.
fn starter(rules: &mut Rules) {
    allow(
        rules,
        &[
            // Handlers, and the start of threads.
            libc::SYS_rt_sigaction,
            libc::SYS_sched_getaffinity,
            libc::SYS_prlimit64,
            // Answered with ENOSYS by the other filter.
            libc::SYS_clone3,
        ],
    );
    allow_if(rules, libc::SYS_socket, 0, Eq, AF_UNIX as u64);
    allow_if(
        rules,
        libc::SYS_clone,
        0,
        MaskedEq(CLONE_THREAD as u64),
        CLONE_THREAD as u64,
    );
    for request in TERMINAL {
        allow_if(rules, libc::SYS_ioctl, 1, Eq, request);
    }
    for command in [F_GETFL, F_SETFL, libc::F_ADD_SEALS, libc::F_GET_SEALS] {
        allow_if(rules, libc::SYS_fcntl, 1, Eq, command as u64);
    }
    // Names of threads; the promise that a filter needs, and the filter of a kind of thread.
    for option in [PR_SET_NAME, PR_GET_NAME, PR_SET_NO_NEW_PRIVS] {
        allow_if(rules, libc::SYS_prctl, 0, Eq, option as u64);
    }
    allow_if(rules, libc::SYS_seccomp, 0, Eq, SECCOMP_SET_MODE_FILTER.into());
}

fn allow(rules: &mut Rules, calls: &[c_long]) {
    for call in calls {
        rules.insert(*call, Vec::new());
    }
}

/// Allows `call` where argument `argument`, of which a C int is looked at, compares with `value`.
fn allow_if(
    rules: &mut Rules,
    call: c_long,
    argument: u8,
    comparison: seccompiler::SeccompCmpOp,
    value: u64,
) {
    allow_rule(
        rules,
        call,
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, comparison, value),
    );
}

/// Allows `call` where argument `argument`, an address, is none.
fn allow_if_null(rules: &mut Rules, call: c_long, argument: u8) {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, Eq, 0);
    allow_rule(rules, call, condition);
}

fn allow_rule(
    rules: &mut Rules,
    call: c_long,
    condition: Result<SeccompCondition, seccompiler::BackendError>,
) {
    let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
    rules
        .entry(call)
        .or_default()
        .push(rule.expect("a system call has six arguments"));
}
