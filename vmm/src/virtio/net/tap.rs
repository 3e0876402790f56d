//! Taps: network interfaces of the host whose other end is a program.
//!
//! A tap is made by the operator and belongs to the user that a VM's process runs as, so that no capability is needed to
//! open it. None is made here. How they are opened: Linux Documentation/networking/tuntap.rst and
//! include/uapi/linux/if_tun.h.

// UNSAFETY: ioctls of /dev/net/tun, which no maintained crate wraps safely.
#![expect(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use libc::{c_int, c_uint};
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref, ioctl_with_val};

use super::Wire;
use super::header::HEADER_BYTES;

const DEVICE: &str = "/dev/net/tun";
/// Longest name of an interface.
const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;
/// Frames as they are on a wire, behind a virtio header.
const FLAGS: u16 = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
/// Flag of an interface that stays when its program leaves (if_tun.h: IFF_PERSIST).
const IFF_PERSIST: u16 = 0x0800;
/// MTU of Ethernet, for a host that does not report one.
const MTU_DEFAULT: u16 = 1500;
/// Least and largest MTU that virtio can announce (Virtio 1.2 §5.1.4.1).
const MTU_MIN: u16 = 68;

/// `struct ifreq` (Linux include/uapi/linux/if.h) as TUNSETIFF and TUNGETIFF use it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    _rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// Why a tap cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No interface can have this name.
    #[error("{name:?} cannot be the name of a tap: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'")]
    Name {
        /// The name as given.
        name: String,
    },
    /// The host has no driver for taps.
    #[error("cannot open tap {name}: there is no {DEVICE}: `modprobe tun`")]
    NoDriver {
        /// Name of the tap.
        name: String,
    },
    /// The host's device cannot be opened.
    #[error(
        "cannot open tap {name}: {DEVICE} must be readable and writable for user {user}: `chmod 666 {DEVICE}`"
    )]
    OpenDevice {
        /// Name of the tap.
        name: String,
        /// User id of this process.
        user: u32,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// There is no such interface.
    #[error("there is no tap {name}: make it with `ip tuntap add dev {name} mode tap user {user}`")]
    Missing {
        /// Name of the tap.
        name: String,
        /// User id of this process.
        user: u32,
    },
    /// The tap belongs to another user.
    #[error(
        "tap {name} is not user {user}'s: make it anew with `ip tuntap add dev {name} mode tap user {user}`, or run as its \
         owner (`--user`)"
    )]
    NotOwned {
        /// Name of the tap.
        name: String,
        /// User id of this process.
        user: u32,
    },
    /// Another program has the tap.
    #[error("tap {name} is in use by another program; a tap serves one VM")]
    InUse {
        /// Name of the tap.
        name: String,
    },
    /// The interface is of another kind.
    #[error(
        "interface {name} is not a tap with one queue: make one with `ip tuntap add dev NAME mode tap`, without `multi_queue`"
    )]
    NotATap {
        /// Name of the interface.
        name: String,
    },
    /// The host refused a step.
    #[error("cannot {what} of tap {name}")]
    Refused {
        /// Name of the tap.
        name: String,
        /// The step that was refused.
        what: &'static str,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
}

/// The program's end of a tap, which no other program has meanwhile.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    mtu: u16,
}

impl Tap {
    /// Whether an interface can have that name; the error says what is wrong with it.
    pub fn check_name(name: &str) -> Result<(), TapError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_right = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
        if is_right && name != "." && name != ".." {
            return Ok(());
        }
        Err(TapError::Name {
            name: name.chars().take(40).collect(),
        })
    }

    /// Opens the tap that is called `name`. Frames come and go without offloads.
    pub fn open(name: &str) -> Result<Tap, TapError> {
        Tap::check_name(name)?;
        let user = rustix::process::geteuid().as_raw();
        let named = || name.to_owned();
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(DEVICE);
        let file = opened.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoDriver { name: named() },
            _ => TapError::OpenDevice {
                name: named(),
                user,
                source,
            },
        })?;
        let refused = |what| {
            move |source| TapError::Refused {
                name: named(),
                what,
                source,
            }
        };
        let of_host = Path::new("/sys/class/net").join(name);
        attach(&file, name).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) if of_host.exists() => TapError::NotOwned { name: named(), user },
            Some(libc::EPERM) => TapError::Missing { name: named(), user },
            Some(libc::EBUSY) => TapError::InUse { name: named() },
            Some(libc::EINVAL) => TapError::NotATap { name: named() },
            _ => refused("take the program's end")(source),
        })?;
        // With capabilities the host creates a missing interface, and removes it when it is closed.
        if flags(&file).map_err(refused("read the flags"))? & IFF_PERSIST == 0 {
            return Err(TapError::Missing { name: named(), user });
        }
        set_header_bytes(&file).map_err(refused("set the header"))?;
        let mtu = std::fs::read_to_string(of_host.join("mtu")).ok();
        let mtu = mtu.and_then(|text| text.trim().parse().ok());
        let mut tap = Tap {
            file,
            name: named(),
            mtu: mtu.unwrap_or(MTU_DEFAULT).max(MTU_MIN),
        };
        // The program before may have left other offloads.
        tap.set_offloads(0).map_err(refused("set the offloads"))?;
        Ok(tap)
    }

    /// Name of the tap.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Wire for Tap {
    fn receive(&mut self, frame: &mut [u8]) -> io::Result<usize> {
        self.file.read(frame)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<usize> {
        self.file.write(frame)
    }

    fn set_offloads(&mut self, offloads: c_uint) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its argument as a number.
        let result = unsafe { ioctl_with_val(&self.file, libc::TUNSETOFFLOAD, offloads.into()) };
        outcome(result)
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}

fn outcome(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes `file` the program's end of the tap `name`, which has been checked.
fn attach(file: &File, name: &str) -> io::Result<()> {
    let mut request = request();
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    request.flags = FLAGS;
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `request` is, and keeps no address of it.
    outcome(unsafe { ioctl_with_mut_ref(file, libc::TUNSETIFF, &mut request) })
}

fn flags(file: &File) -> io::Result<u16> {
    let mut request = request();
    // SAFETY: TUNGETIFF writes one `struct ifreq`, which `request` is; all bit patterns of it are values.
    outcome(unsafe { ioctl_with_mut_ref(file, libc::TUNGETIFF, &mut request) })?;
    Ok(request.flags)
}

fn set_header_bytes(file: &File) -> io::Result<()> {
    let bytes = HEADER_BYTES as c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    outcome(unsafe { ioctl_with_ref(file, libc::TUNSETVNETHDRSZ, &bytes) })
}

fn request() -> InterfaceRequest {
    InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags: 0,
        _rest: [0; 22],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes to a network of its own and makes a tap `name` that stays; `None` where this user may not.
    fn made(name: &str, flags: u16) -> Option<()> {
        // SAFETY: the calling thread is the test's, and has no socket.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            eprintln!("NOTE: no network of one's own: taps were NOT tried");
            return None;
        }
        let Ok(file) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
            eprintln!("NOTE: no {DEVICE}: taps were NOT tried");
            return None;
        };
        let mut request = request();
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request.flags = flags;
        // SAFETY: as in `attach`; TUNSETPERSIST takes a number.
        outcome(unsafe { ioctl_with_mut_ref(&file, libc::TUNSETIFF, &mut request) }).unwrap();
        // SAFETY: TUNSETPERSIST takes its argument as a number.
        outcome(unsafe { ioctl_with_val(&file, libc::TUNSETPERSIST, 1) }).unwrap();
        Some(())
    }

    fn complaint(name: &str) -> String {
        Tap::open(name).unwrap_err().to_string()
    }

    #[test]
    fn names_that_no_interface_has_are_refused() {
        for name in ["", "sixteen-letters-", "a/b", "a b", "tap%d", "..", "t\0"] {
            assert!(
                complaint(name).contains("cannot be the name of a tap"),
                "{name:?}"
            );
        }
        assert!(Tap::check_name("fifteen-letters").is_ok());
    }

    #[test]
    fn tap_is_one_programs_at_a_time() {
        if made("tried0", FLAGS).is_none() {
            return;
        }
        let mut first = Tap::open("tried0").unwrap();
        first
            .set_offloads(libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6)
            .unwrap();
        let nothing = first.receive(&mut [0; 100]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(complaint("tried0").contains("tap tried0 is in use"));
        drop(first);
        assert_eq!(Tap::open("tried0").unwrap().name(), "tried0");
    }

    #[test]
    fn tap_that_is_not_there_is_not_made() {
        if made("tried0", FLAGS).is_none() {
            return;
        }
        assert!(complaint("tried1").contains("there is no tap tried1: make it with `ip tuntap"));
        assert!(complaint("tried1").contains("there is no tap tried1"));
    }

    #[test]
    fn interfaces_of_other_kinds_are_refused() {
        let tun = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
        if made("tried0", tun).is_none() {
            return;
        }
        assert!(complaint("tried0").contains("interface tried0 is not a tap"));
        assert!(complaint("lo").contains("interface lo is not a tap"));
    }
}
