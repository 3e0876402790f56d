//! A card of this host: [`vgpu::HostGpu`] over VFIO.
//!
//! ```text
//! open: /sys checks ► container, group, device ► what the IOMMU allows ► BARs ► reset ► bus master ► MSI ► eventfd
//! ```
//!
//! Where the kernel has `/dev/iommu` and the card a device of its own, maps go through iommufd, elsewhere through a
//! type 1 container. A driver may have used the card before: it is reset first if it can be, and nothing is assumed
//! of its memory. BARs are mapped where the kernel allows that, and called otherwise.
//!
//! When it goes, the card is cut off before anything else: no bus master, reset, no map left in the IOMMU. A card that
//! has left the bus hears nothing of the first two; the third does not depend on it.

mod bar;
mod iommu;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fermi_spec::addr::{FrameNo, GuestVramAddr, Iova};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::regs::PbusReg;
use fermi_spec::regs::pieces::bus_pieces;
use rustix::process::{Resource, getrlimit};
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioIommufd, VfioOps};
use vgpu::{Bus, Capabilities, DmaMemory, FrameOwner, HostGpu, HostGpuError, VmId};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::pci_card::{board_of, chain, check_bars, config, read_answering};
use crate::pci_host::{PciAddress, PciFunction, PciHostError};
use bar::MappedBar;
use iommu::IommuInfo;

/// Why a card of this host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VfioGpuError {
    /// The function does not exist, is not a card, or is not free.
    #[error(transparent)]
    Host(#[from] PciHostError),
    /// VFIO refuses the function.
    #[error("cannot get {at} from VFIO: {hint}")]
    Vfio {
        /// Address of the function.
        at: PciAddress,
        /// The probable cause.
        hint: &'static str,
        /// Error of VFIO.
        #[source]
        source: VfioError,
    },
    /// The function lacks a property of a card.
    #[error("{at} is not a GF100 card: {what}")]
    NotACard {
        /// Address of the function.
        at: PciAddress,
        /// Its property that no card has.
        what: String,
    },
    /// The IOMMU is too small, or maps other pages.
    #[error("{at} cannot be used: {reason}")]
    Iommu {
        /// Address of the function.
        at: PciAddress,
        /// The missing feature.
        reason: String,
    },
    /// The kernel does not map a BAR.
    #[error("cannot {what} of {at}")]
    System {
        /// Address of the function.
        at: PciAddress,
        /// The operation that failed.
        what: &'static str,
        /// Error of the host's kernel.
        #[source]
        source: io::Error,
    },
}

/// A card of this host. Dropping it resets the card and gives it back to VFIO.
pub struct VfioGpu {
    at: PciAddress,
    board: Board,
    /// Unmapped before the device is closed.
    mapped: BTreeMap<Bar, MappedBar>,
    device: VfioDevice,
    iommu: Arc<dyn VfioOps>,
    bus: Bus,
    /// Maps by bus address; the memory has to stay for as long as the card can reach it.
    maps: BTreeMap<u64, DmaMemory>,
    interrupt: EventFd,
}

impl std::fmt::Debug for VfioGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfioGpu")
            .field("at", &self.at)
            .field("board", &self.board)
            .field("maps", &self.maps.len())
            .finish_non_exhaustive()
    }
}

impl VfioGpu {
    /// Opens the card at `at`, resets it, and lets it interrupt. Bring-up is the core's.
    pub fn open(at: PciAddress) -> Result<Self, VfioGpuError> {
        let function = PciFunction::find(at)?;
        function.check()?;
        let refused = |hint| move |source| VfioGpuError::Vfio { at, hint, source };
        let not_a_card = |what| VfioGpuError::NotACard { at, what };
        let iommu = open_iommu(&function.folder()).map_err(refused(
            "is the module vfio_pci loaded, and may this user open /dev/vfio?",
        ))?;
        let device = VfioDevice::new(&function.folder(), iommu.clone(), true)
            .map_err(refused("is another program using it?"))?;
        let system = |what| move |source| VfioGpuError::System { at, what, source };
        let info = IommuInfo::of(&*iommu).map_err(system("ask the IOMMU"))?;
        log::info!("{at}: {info}");
        let bus = info.bus().map_err(|reason| VfioGpuError::Iommu {
            at,
            reason: reason.to_string(),
        })?;
        check_bars(|bar| device.get_region_size(bar.number())).map_err(not_a_card)?;
        let mut ids = [0; 4];
        device.region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut ids, config::IDS);
        let board = board_of(ids).map_err(not_a_card)?;
        // Not every card can be reset. Bring-up copes with whatever state it finds.
        device.reset();
        let command = config::COMMAND_BITS.to_le_bytes();
        device.region_write(VFIO_PCI_CONFIG_REGION_INDEX, &command, config::COMMAND);
        let mut mapped = BTreeMap::new();
        for bar in Bar::ALL {
            if let Some(map) = MappedBar::new(&device, bar.number()).map_err(system("map a BAR"))? {
                mapped.insert(bar, map);
            }
        }
        let interrupt = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(system("create the interrupt"))?;
        device
            .enable_msi(vec![&interrupt])
            .map_err(refused("it has no message-signalled interrupt"))?;
        Ok(Self {
            at,
            board,
            mapped,
            device,
            iommu,
            bus,
            maps: BTreeMap::new(),
            interrupt,
        })
    }

    /// Board of the card.
    pub fn board(&self) -> Board {
        self.board
    }

    /// Signalled whenever the card raises its interrupt.
    pub fn interrupt(&self) -> Result<EventFd, VfioGpuError> {
        self.interrupt.try_clone().map_err(|source| VfioGpuError::System {
            at: self.at,
            what: "create a descriptor for the interrupt",
            source,
        })
    }

    fn load(&self, bar: Bar, offset: u64, data: &mut [u8]) {
        let bytes = self.device.get_region_size(bar.number());
        if offset
            .checked_add(data.len() as u64)
            .is_none_or(|end| end > bytes)
        {
            // As a bus does without an answer.
            data.fill(0xff);
            return;
        }
        match self.mapped.get(&bar) {
            Some(map) => map.load(offset, data),
            None => {
                data.fill(0xff);
                self.device.region_read(bar.number(), data, offset);
            }
        }
    }

    fn store(&self, bar: Bar, offset: u64, data: &[u8]) {
        let bytes = self.device.get_region_size(bar.number());
        if offset
            .checked_add(data.len() as u64)
            .is_none_or(|end| end > bytes)
        {
            return;
        }
        match self.mapped.get(&bar) {
            Some(map) => map.store(offset, data),
            None => self.device.region_write(bar.number(), data, offset),
        }
    }

    /// The error of a card that does not answer any more.
    fn gone(&self) -> String {
        format!(
            "{} reads ones everywhere: it has left the bus or lost its power. The host's kernel log (dmesg) may say why; \
             start again once lspci -s {} shows it",
            self.at, self.at
        )
    }

    fn map_failed(&self, iova: Iova, bytes: u64, error: &VfioError) -> HostGpuError {
        let limit = getrlimit(Resource::Memlock).current;
        let limit = limit.map_or("none".to_owned(), |bytes| format!("{bytes:#x} bytes"));
        HostGpuError::Map {
            iova,
            bytes,
            reason: format!(
                "{}. Mapped memory is locked; the limit is {limit} (ulimit -l, LimitMEMLOCK=)",
                chain(error)
            ),
        }
    }
}

/// The maps that a range is made of without a gap, by bus address; `None` if it is not.
fn whole_maps(maps: &BTreeMap<u64, DmaMemory>, iova: u64, bytes: u64) -> Option<Vec<u64>> {
    let end = iova.checked_add(bytes)?;
    let mut at = iova;
    let mut found = Vec::new();
    for (&start, memory) in maps.range(iova..end) {
        if start != at {
            return None;
        }
        found.push(start);
        at = start.checked_add(memory.bytes)?;
    }
    (at == end && !found.is_empty()).then_some(found)
}

/// iommufd where both the kernel and the card have it.
fn open_iommu(folder: &Path) -> Result<Arc<dyn VfioOps>, VfioError> {
    let has_cdev = folder.join("vfio-dev").is_dir();
    if has_cdev && PathBuf::from("/dev/iommu").exists() {
        let iommufd = iommufd_ioctls::IommuFd::new().map_err(VfioError::IommufdIoctlError);
        return Ok(Arc::new(VfioIommufd::new(Arc::new(iommufd?), None, None)?));
    }
    Ok(Arc::new(VfioContainer::new(None)?))
}

impl HostGpu for VfioGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            graph: None,
            bar1_bytes: self.device.get_region_size(Bar::Bar1.number()),
            bar3_bytes: self.device.get_region_size(Bar::Bar3.number()),
            frames_arrive_zeroed: false,
            bus: self.bus.clone(),
            follows_mappings: false,
        }
    }

    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError> {
        let load = |bar, offset, data: &mut [u8]| {
            self.load(bar, offset, data);
            Ok(())
        };
        read_answering(bar, offset, data, load, || self.gone())
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError> {
        if bar != Bar::Bar0 {
            self.store(bar, offset, data);
            return Ok(());
        }
        for (at, piece) in bus_pieces(offset, data.len()) {
            self.store(bar, at, &data[piece]);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), HostGpuError> {
        // Stores are on their way when they are made.
        Ok(())
    }

    fn map_dma(&mut self, iova: Iova, memory: DmaMemory, writable: bool) -> Result<(), HostGpuError> {
        let bytes = memory.bytes;
        if !writable {
            return Err(HostGpuError::Map {
                iova,
                bytes,
                reason: "VFIO maps memory for reading and writing only".to_owned(),
            });
        }
        bar::map_dma(&*self.iommu, iova, &memory).map_err(|error| self.map_failed(iova, bytes, &error))?;
        self.maps.insert(iova.0, memory);
        Ok(())
    }

    fn unmap_dma(&mut self, iova: Iova, bytes: u64) -> Result<(), HostGpuError> {
        let failed = |reason: String| HostGpuError::Map { iova, bytes, reason };
        let maps = whole_maps(&self.maps, iova.0, bytes);
        let maps = maps.ok_or_else(|| failed("there are no such maps".to_owned()))?;
        self.iommu
            .vfio_dma_unmap(iova.0, bytes as usize)
            .map_err(|error| failed(chain(&error)))?;
        for iova in maps {
            self.maps.remove(&iova);
        }
        Ok(())
    }

    fn place_memory(&mut self, _: VmId, _: GuestVramAddr) -> Option<DmaMemory> {
        None
    }

    fn place_frames(&mut self, _: &[FrameNo], _: FrameOwner) -> Result<(), HostGpuError> {
        // The card holds its own memory.
        Ok(())
    }

    fn take_interrupt(&mut self) -> bool {
        self.interrupt.read().is_ok()
    }
}

impl Drop for VfioGpu {
    fn drop(&mut self) {
        let command = |bits: u16| {
            let bits = bits.to_le_bytes();
            self.device
                .region_write(VFIO_PCI_CONFIG_REGION_INDEX, &bits, config::COMMAND);
        };
        // It reaches no memory any more; only then may the maps go.
        command(config::COMMAND_BITS & !config::BUS_MASTER);
        // Not every card can be reset, and the next driver must find no window open into the VMs' old memory.
        for window in [PbusReg::Bar1Block, PbusReg::Bar3Block] {
            self.store(Bar::Bar0, window.offset().into(), &[0; 4]);
        }
        command(0);
        self.device.reset();
        for (iova, memory) in std::mem::take(&mut self.maps) {
            if let Err(error) = self.iommu.vfio_dma_unmap(iova, memory.bytes as usize) {
                log::warn!("{}: cannot unmap {iova:#x}: {}", self.at, chain(&error));
            }
        }
        log::debug!(
            "{} (descriptor {}) is given back",
            self.at,
            self.device.as_raw_fd()
        );
    }
}
