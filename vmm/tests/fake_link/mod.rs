//! A vGPU made of memory: configuration space with three BARs and an MSI capability, and BARs that note each access.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use vfio_user_server::message::CommandCode;
use vmm::link::CONFIG_REGION;
use vmm::{LinkError, VgpuLink};
use vmm_sys_util::eventfd::EventFd;

/// Value of BAR0 at offset 0.
pub(crate) const BOOT_0: u32 = 0x0c0c_00a3;
const BAR_BYTES: [u64; 6] = [32 << 20, 128 << 20, 0, 64 << 20, 0, 0];
const MSI: usize = 0x68;

/// One load or store of a BAR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read { region: u32, offset: u64, bytes: usize },
    Write { region: u32, offset: u64, data: Vec<u8> },
}

/// RAM as the VM gave it.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) file: File,
    pub(crate) gpa: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
}

pub(crate) struct FakeLink {
    config: Mutex<[u8; 256]>,
    accesses: Mutex<Vec<Access>>,
    /// Loads of BAR1 wait until `close`, as behind a broker that hangs.
    hangs: AtomicBool,
    is_closed: Mutex<bool>,
    closed: Condvar,
    /// Our end of what stands for a connection to a broker, and the broker's.
    connection: UnixStream,
    broker: Mutex<Option<UnixStream>>,
    pub(crate) ram: Mutex<Vec<Mapped>>,
    pub(crate) msi: Mutex<Option<EventFd>>,
}

impl FakeLink {
    pub(crate) fn new() -> FakeLink {
        let mut config = [0; 256];
        config[0..4].copy_from_slice(&[0xde, 0x10, 0xc0, 0x06]);
        config[0x06] = 0x10;
        config[0x0a..0x0c].copy_from_slice(&[0x00, 0x03]);
        config[0x14] = 0x0c;
        config[0x1c] = 0x0c;
        config[0x24] = 0x01;
        config[0x34] = 0x60;
        config[0x60..0x62].copy_from_slice(&[0x01, MSI as u8]);
        config[MSI..MSI + 4].copy_from_slice(&[0x05, 0x00, 0x80, 0x00]);
        let (connection, broker) = UnixStream::pair().unwrap();
        FakeLink {
            connection,
            broker: Mutex::new(Some(broker)),
            config: Mutex::new(config),
            accesses: Mutex::default(),
            hangs: AtomicBool::new(false),
            is_closed: Mutex::new(false),
            closed: Condvar::new(),
            ram: Mutex::default(),
            msi: Mutex::new(None),
        }
    }

    pub(crate) fn accesses(&self) -> Vec<Access> {
        self.accesses.lock().unwrap().clone()
    }

    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// The broker dies.
    pub(crate) fn hang_up(&self) {
        drop(self.broker.lock().unwrap().take());
    }

    /// Waits until the guest touches a BAR.
    pub(crate) fn wait_for_access(&self) {
        let start = Instant::now();
        while self.accesses.lock().unwrap().is_empty() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the guest touches no BAR"
            );
            std::thread::yield_now();
        }
    }

    /// Bits of a BAR register that hold the address; the rest are fixed.
    fn bar_mask(register: usize) -> Option<u32> {
        let bar = register.checked_sub(0x10)? / 4;
        let low = |bytes: u64| (!(bytes - 1)) as u32;
        match bar {
            0 | 1 | 3 => Some(low(BAR_BYTES[bar])),
            2 | 4 => Some(u32::MAX),
            5 => Some(!0x7f),
            _ => None,
        }
    }

    fn note(&self, access: Access) {
        let mut accesses = self.accesses.lock().unwrap();
        if accesses.len() < 1000 {
            accesses.push(access);
        }
    }
}

impl VgpuLink for FakeLink {
    fn region_size(&self, region: u32) -> u64 {
        BAR_BYTES
            .get(region as usize)
            .copied()
            .unwrap_or(if region == CONFIG_REGION { 4096 } else { 0 })
    }

    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        if region == CONFIG_REGION {
            let from = offset as usize;
            data.copy_from_slice(&self.config.lock().unwrap()[from..from + data.len()]);
            return Ok(());
        }
        self.note(Access::Read {
            region,
            offset,
            bytes: data.len(),
        });
        if region == 0 && self.hangs.load(Ordering::SeqCst) {
            let closed = self
                .closed
                .wait_while(self.is_closed.lock().unwrap(), |closed| !*closed)
                .unwrap();
            assert!(*closed);
            return Err(LinkError::Down);
        }
        match (region, offset) {
            (0, 0) => data.copy_from_slice(&BOOT_0.to_le_bytes()[..data.len()]),
            (3, _) => {
                return Err(LinkError::Refused {
                    command: CommandCode::RegionRead,
                    errno: libc::EINVAL,
                });
            }
            _ => (0..).zip(data).for_each(|(index, byte)| *byte = 0x10 + index),
        }
        Ok(())
    }

    fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        if region != CONFIG_REGION {
            self.note(Access::Write {
                region,
                offset,
                data: data.to_vec(),
            });
            return Ok(());
        }
        let mut config = self.config.lock().unwrap();
        let register = offset as usize;
        match FakeLink::bar_mask(register) {
            Some(mask) => {
                let old = u32::from_le_bytes(config[register..register + 4].try_into().unwrap());
                let new = u32::from_le_bytes(data.try_into().unwrap()) & mask | old & !mask;
                config[register..register + 4].copy_from_slice(&new.to_le_bytes());
            }
            None => config[register..register + data.len()].copy_from_slice(data),
        }
        // The read-only start of the MSI capability.
        config[MSI..MSI + 2].copy_from_slice(&[0x05, 0x00]);
        config[MSI + 2] |= 0x80;
        Ok(())
    }

    fn dma_map(&self, gpa: u64, bytes: u64, file: BorrowedFd<'_>, offset: u64) -> Result<(), LinkError> {
        self.ram.lock().unwrap().push(Mapped {
            file: file.try_clone_to_owned().unwrap().into(),
            gpa,
            bytes,
            offset,
        });
        Ok(())
    }

    fn dma_unmap(&self, _gpa: u64, _bytes: u64) -> Result<(), LinkError> {
        Ok(())
    }

    fn set_msi(&self, eventfd: &EventFd) -> Result<(), LinkError> {
        *self.msi.lock().unwrap() = Some(eventfd.try_clone().unwrap());
        Ok(())
    }

    fn reset(&self) -> Result<(), LinkError> {
        Ok(())
    }

    fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
        self.closed.notify_all();
    }

    fn hangup_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.connection.as_fd())
    }
}
