//! A PCI function with 4 KiB of memory behind BAR0, served on a socket: `ramdev PATH`.

use std::path::Path;
use std::process::ExitCode;

use vfio_user_server::serve::serve_listener;
use vfio_user_server::{Errno, FunctionInfo, IrqChange, Listener, PciFunction, Region, RegionInfo};

const MEMORY_BYTES: u64 = 4096;

const CONFIG_BYTES: usize = 256;

/// Bytes that can be written, and their bits: the command register's lower half, and the address bits of BAR0 above
/// its 4 KiB.
const WRITEABLE: [(usize, u8); 4] = [(0x04, 0b110), (0x11, 0xf0), (0x12, 0xff), (0x13, 0xff)];

/// A configuration space with one BAR, and no capability.
struct Config([u8; CONFIG_BYTES]);

impl Config {
    fn new() -> Self {
        let mut bytes = [0; CONFIG_BYTES];
        // Red Hat's vendor ID with a device ID kept for experiments; class "memory controller, other".
        bytes[..4].copy_from_slice(&[0x36, 0x1b, 0xf0, 0x00]);
        bytes[0x0a..0x0c].copy_from_slice(&[0x80, 0x05]);
        Self(bytes)
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, new) in (offset as usize..).zip(data) {
            let mask = WRITEABLE
                .iter()
                .find(|(byte, _)| *byte == at)
                .map_or(0, |(_, mask)| *mask);
            self.0[at] = (self.0[at] & !mask) | (new & mask);
        }
    }
}

struct RamDevice {
    config: Config,
    memory: Vec<u8>,
}

impl PciFunction for RamDevice {
    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        // Accesses arrive checked against `FunctionInfo`, so the range exists.
        let bytes = match region {
            Region::Config => self.config.0.as_slice(),
            _ => &self.memory,
        };
        data.copy_from_slice(&bytes[offset as usize..][..data.len()]);
        Ok(())
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            Region::Config => self.config.write(offset, data),
            _ => self.memory[offset as usize..][..data.len()].copy_from_slice(data),
        }
        Ok(())
    }

    fn change_irqs(&mut self, _change: IrqChange) -> Result<(), Errno> {
        Ok(()) // It announces no interrupts, so nothing is left to change.
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.config = Config::new();
        self.memory.fill(0);
        Ok(())
    }
}

fn serve(path: &Path) -> anyhow::Result<()> {
    let info = FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(MEMORY_BYTES))
        .with_region(Region::Config, RegionInfo::read_write(CONFIG_BYTES as u64));
    let memory = vec![0; MEMORY_BYTES as usize];
    let mut device = RamDevice {
        config: Config::new(),
        memory,
    };
    Ok(serve_listener(&mut Listener::bind(path)?, &info, &mut device)?)
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: ramdev PATH");
        return ExitCode::from(2);
    };
    match serve(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ramdev: {error:#}");
            ExitCode::FAILURE
        }
    }
}
