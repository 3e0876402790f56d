//! A client that is not ours attaches and uses a function: that of the `vfio_user` crate.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_user_server::serve::serve_client;
use vfio_user_server::{
    Accepted, Area, CloseReason, DmaMap, Errno, FunctionInfo, IrqChange, IrqEvent, IrqIndex, IrqOperation,
    Listener, MappableRegion, PciFunction, Region, RegionInfo,
};

/// Records all requests; a write to BAR0 offset 0 fires MSI 0.
struct Recorder {
    config: Vec<u8>,
    bar: Vec<u8>,
    msi: Option<IrqEvent>,
    maps: Vec<(u64, u64, u64)>,
    unmapped: usize,
    resets: usize,
}

impl PciFunction for Recorder {
    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let bytes = match region {
            Region::Config => &self.config,
            _ => &self.bar,
        };
        data.copy_from_slice(&bytes[offset as usize..][..data.len()]);
        Ok(())
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if region == Region::Config {
            self.config[offset as usize..][..data.len()].copy_from_slice(data);
            return Ok(());
        }
        self.bar[offset as usize..][..data.len()].copy_from_slice(data);
        match &self.msi {
            Some(msi) if offset == 0 => msi.signal(),
            _ => Ok(()),
        }
    }

    fn change_irqs(&mut self, change: IrqChange) -> Result<(), Errno> {
        match change {
            IrqChange::Vectors {
                operation: IrqOperation::Connect(events),
                ..
            } => {
                self.msi = events.into_iter().next();
            }
            _ => self.msi = None,
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.resets += 1;
        Ok(())
    }

    fn dma_map(&mut self, map: &Arc<DmaMap>) -> Result<(), Errno> {
        let file = map.file.as_ref().ok_or(Errno::INVAL)?;
        self.maps.push((map.iova, map.bytes, file.offset));
        Ok(())
    }

    fn dma_unmap(&mut self, _map: &Arc<DmaMap>) {
        self.unmapped += 1;
    }
}

fn info() -> FunctionInfo {
    let shared = memfd_create("bar", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&shared, 0x2000).unwrap();
    let areas = vec![Area {
        offset: 0x1000,
        bytes: 0x1000,
    }];
    let mappable = Some(MappableRegion {
        descriptor: Arc::new(shared),
        offset: 0,
        areas,
    });
    FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(0x1000))
        .with_region(
            Region::Bar1,
            RegionInfo {
                mappable,
                ..RegionInfo::read_write(0x2000)
            },
        )
        .with_region(Region::Config, RegionInfo::read_write(256))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1)
}

/// Serves one client on a thread; joining returns the requests that the function saw.
fn server() -> (tempfile::TempDir, PathBuf, JoinHandle<(Recorder, CloseReason)>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("function.sock");
    let mut listener = Listener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let mut config = vec![0; 256];
        config[..4].copy_from_slice(&[0xde, 0x10, 0xc0, 0x06]);
        let mut function = Recorder {
            config,
            bar: vec![0; 0x1000],
            msi: None,
            maps: Vec::new(),
            unmapped: 0,
            resets: 0,
        };
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(
                &listener,
                rustix::event::PollFlags::IN,
            )],
            None,
        )
        .unwrap();
        let Some(Accepted::Client(client)) = listener.accept(&info()).unwrap() else {
            panic!("refused")
        };
        let reason = serve_client(*client, &mut function).unwrap();
        (function, reason)
    });
    (directory, path, thread)
}

#[test]
fn client_of_the_vfio_user_crate_attaches_and_uses_the_function() {
    let (_directory, path, thread) = server();
    let mut client = vfio_user::Client::new(&path).unwrap();

    let sizes: Vec<_> = (0..9).map(|index| client.region(index).unwrap().size).collect();
    assert_eq!(sizes, [0x1000, 0x2000, 0, 0, 0, 0, 0, 256, 0]);
    let sparse = client.region(1).unwrap();
    assert!(sparse.file_offset.is_some());
    assert_eq!(
        (sparse.sparse_areas[0].offset, sparse.sparse_areas[0].size),
        (0x1000, 0x1000)
    );
    let counts: Vec<_> = (0..5)
        .map(|index| client.get_irq_info(index).unwrap().count)
        .collect();
    assert_eq!(counts, [1, 1, 0, 0, 0]);

    let mut id = [0; 4];
    client.region_read(7, 0, &mut id).unwrap();
    assert_eq!(id, [0xde, 0x10, 0xc0, 0x06]);

    let ram = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&ram, 0x4000).unwrap();
    client
        .dma_map(0x1000, 0x10_0000, 0x2000, ram.as_raw_fd())
        .unwrap();
    client.dma_map(0, 0x20_0000, 0x1000, ram.as_raw_fd()).unwrap();

    let msi = eventfd(0, EventfdFlags::empty()).unwrap();
    client.set_irqs(1, 4 | 32, 0, 1, &[msi.as_raw_fd()]).unwrap();
    client.region_write(0, 0, &[1, 2, 3, 4]).unwrap();
    let mut count = [0; 8];
    rustix::io::read(&msi, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    let mut data = [0; 8];
    client.region_read(0, 0, &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 4, 0, 0, 0, 0]);

    client.dma_unmap(0x10_0000, 0x2000).unwrap();
    client.reset().unwrap();
    client.shutdown().unwrap();
    let (function, reason) = thread.join().unwrap();
    assert!(matches!(reason, CloseReason::HungUp), "{reason}");
    assert_eq!(
        function.maps,
        [(0x10_0000, 0x2000, 0x1000), (0x20_0000, 0x1000, 0)]
    );
    // One by the client's request, one because the client left.
    assert_eq!(function.unmapped, 2);
    assert_eq!(function.resets, 1);
    assert!(function.msi.is_none(), "an eventfd outlived its client");
}
