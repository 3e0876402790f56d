//! A PCI function with 4 KiB of memory behind BAR0, served on a socket: `ramdev PATH`.

use std::path::Path;
use std::process::ExitCode;

use vfio_user_server::serve::serve_listener;
use vfio_user_server::{
    Bar, ConfigSpace, Errno, FunctionInfo, IrqChange, Listener, PciFunction, PciIdentity, Region, RegionInfo,
};

const MEMORY_BYTES: u64 = 4096;

struct RamDevice {
    config: ConfigSpace,
    memory: Vec<u8>,
}

impl PciFunction for RamDevice {
    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match region {
            Region::Config => self.config.read(offset, data),
            // Accesses arrive checked against `FunctionInfo`, so the range exists.
            _ => data.copy_from_slice(&self.memory[offset as usize..][..data.len()]),
        }
        Ok(())
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            Region::Config => drop(self.config.write(offset, data)),
            _ => self.memory[offset as usize..][..data.len()].copy_from_slice(data),
        }
        Ok(())
    }

    fn change_irqs(&mut self, _change: IrqChange) -> Result<(), Errno> {
        Ok(()) // It announces no interrupts, so nothing is left to change.
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.config.reset();
        self.memory.fill(0);
        Ok(())
    }
}

fn serve(path: &Path) -> anyhow::Result<()> {
    // Red Hat's vendor ID with a device ID kept for experiments; class "memory controller, other".
    let identity = PciIdentity {
        vendor: 0x1b36,
        device: 0x00f0,
        class: 0x05_80_00,
        ..PciIdentity::default()
    };
    let bar = Bar::Memory32 {
        bytes: MEMORY_BYTES,
        is_prefetchable: false,
    };
    let config = ConfigSpace::new(identity).with_bar(0, bar)?;
    let info = FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(MEMORY_BYTES))
        .with_region(Region::Config, RegionInfo::read_write(config.len_bytes()));
    let memory = vec![0; MEMORY_BYTES as usize];
    let mut device = RamDevice { config, memory };
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
