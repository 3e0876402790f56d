// UNSAFETY: the kernel is asked for what it tells of an IOMMU by calls for which no crate has a safe wrapper.
#![expect(unsafe_code)]

//! The limits of the host's IOMMU: usable bus addresses, page sizes, number of maps.
//!
//! ```text
//! type 1 container: VFIO_IOMMU_GET_INFO ─► header ─► capability ─► capability …   (offsets from the header's start)
//! iommufd:          IOMMU_IOAS_IOVA_RANGES ─► array of ranges
//! ```
//!
//! Source of both layouts: Linux `include/uapi/linux/vfio.h` and `iommufd.h`.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use fermi_spec::addr::{Iova, SMALL_PAGE};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
    VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, VFIO_TYPE,
};
use vfio_ioctls::{VfioContainer, VfioIommufd, VfioOps};
use vgpu::{Bus, BusRange};

/// `VFIO_IOMMU_GET_INFO`: no direction, no size.
const GET_INFO: libc::c_ulong = (VFIO_TYPE as libc::c_ulong) << 8 | (VFIO_BASE as libc::c_ulong + 12);
/// Number of the call `IOMMU_IOAS_IOVA_RANGES`.
const IOAS_IOVA_RANGES: libc::c_ulong = (VFIO_TYPE as libc::c_ulong) << 8 | 0x84;
/// Bytes of the container's answer that every kernel gives: the fields before the capabilities.
const HEADER_BYTES: usize = 16;
/// Largest answer that is read: more than a kernel with hundreds of ranges gives.
const INFO_BYTES_MAX: usize = 64 << 10;
/// Most capabilities of one answer. More are a loop.
const CAPABILITIES_MAX: usize = 64;
/// Bytes of a range: first and last address.
const RANGE_BYTES: usize = 16;
/// Most ranges that iommufd is asked for.
const RANGES_MAX: usize = 1024;

/// Limits of an IOMMU; `None` where the kernel reports none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct IommuInfo {
    /// One bit for each size of page.
    page_sizes: Option<u64>,
    ranges: Option<Vec<BusRange>>,
    maps_max: Option<u32>,
}

/// Why the IOMMU cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(
        "its IOMMU maps no pages of 4 KiB, only of sizes {sizes:#x}: boot the host with a kernel of 4 KiB pages"
    )]
    Pages { sizes: u64 },
    #[error(
        "its IOMMU leaves no bus addresses between 4 GiB and 1 TiB, only {ranges}: an IOMMU of more than 32 bits is needed, or \
         one whose reserved ranges (/sys/kernel/iommu_groups/*/reserved_regions) are smaller"
    )]
    NoRoom { ranges: String },
}

impl IommuInfo {
    /// Asks the kernel. Comes after the card is attached: each device narrows the usable range.
    pub(super) fn of(iommu: &dyn VfioOps) -> io::Result<Self> {
        let any: &dyn Any = iommu.as_any();
        if let Some(container) = any.downcast_ref::<VfioContainer>() {
            return Ok(parse(&container_info(container.as_raw_fd())?));
        }
        match any.downcast_ref::<VfioIommufd>() {
            Some(iommufd) => ioas_info(iommufd.iommufd().as_raw_fd(), iommufd.ioas().id()),
            None => Ok(Self::default()),
        }
    }

    /// The limits in the form that the core takes.
    pub(super) fn bus(&self) -> Result<Bus, Unusable> {
        if let Some(sizes) = self.page_sizes
            && (sizes == 0 || sizes.trailing_zeros() > SMALL_PAGE.trailing_zeros())
        {
            return Err(Unusable::Pages { sizes });
        }
        let default = Bus::default();
        let ranges = self.ranges.clone().unwrap_or(default.ranges);
        if ranges.iter().all(|range| range.given_away().is_none()) {
            let ranges: Vec<_> = ranges.iter().map(BusRange::to_string).collect();
            let ranges = if ranges.is_empty() {
                "none at all".to_owned()
            } else {
                ranges.join(", ")
            };
            return Err(Unusable::NoRoom { ranges });
        }
        Ok(Bus {
            ranges,
            maps_max: self.maps_max.unwrap_or(default.maps_max),
            pins: true,
        })
    }
}

impl std::fmt::Display for IommuInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.ranges {
            Some(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(BusRange::to_string).collect();
                write!(f, "bus addresses {}", ranges.join(", "))?;
            }
            None => write!(f, "bus addresses unknown, taken for all from 4 GiB to 1 TiB")?,
        }
        match self.maps_max {
            Some(maps) => write!(f, "; at most {maps} maps"),
            None => write!(f, "; number of maps unknown"),
        }
    }
}

/// The whole answer of a container.
fn container_info(container: RawFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    loop {
        let size = bytes.len() as u32;
        bytes[..4].copy_from_slice(&size.to_ne_bytes());
        // SAFETY: the descriptor is open for as long as the container lives, and the kernel writes at most as many bytes as
        // the first word says, which are there.
        let status = unsafe { libc::ioctl(container, GET_INFO, bytes.as_mut_ptr()) };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        let wanted = word(&bytes, 0).unwrap_or(0) as usize;
        if wanted <= bytes.len() || bytes.len() >= INFO_BYTES_MAX {
            return Ok(bytes);
        }
        bytes = vec![0; wanted.min(INFO_BYTES_MAX)];
    }
}

fn ioas_info(iommufd: RawFd, ioas: u32) -> io::Result<IommuInfo> {
    let mut ranges = vec![[0u64; 2]; RANGES_MAX];
    let mut request = iommufd_bindings::iommufd::iommu_ioas_iova_ranges {
        size: size_of::<iommufd_bindings::iommufd::iommu_ioas_iova_ranges>() as u32,
        ioas_id: ioas,
        num_iovas: RANGES_MAX as u32,
        allowed_iovas: ranges.as_mut_ptr() as u64,
        ..Default::default()
    };
    // SAFETY: the descriptor is open for as long as the caller's object lives. The kernel writes the structure, and at most
    // `num_iovas` ranges of two words to the array, which holds as many.
    let status = unsafe { libc::ioctl(iommufd, IOAS_IOVA_RANGES, &raw mut request) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    ranges.truncate(request.num_iovas as usize);
    Ok(IommuInfo {
        page_sizes: Some(request.out_iova_alignment),
        ranges: Some(
            ranges
                .into_iter()
                .filter_map(|[first, last]| range(first, last))
                .collect(),
        ),
        maps_max: None,
    })
}

fn range(first: u64, last: u64) -> Option<BusRange> {
    // The last one may be the last that 64 bits name.
    let end = last.saturating_add(1);
    (first < end).then_some(BusRange {
        start: Iova(first),
        end: Iova(end),
    })
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    part(bytes, at).map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    part(bytes, at).map(u16::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    part(bytes, at).map(u64::from_ne_bytes)
}

/// Reads a container's answer. A capability that is absent, or too short, is left out.
fn parse(bytes: &[u8]) -> IommuInfo {
    let mut info = IommuInfo::default();
    let flags = word(bytes, 4).unwrap_or(0);
    if flags & VFIO_IOMMU_INFO_PGSIZES != 0 {
        info.page_sizes = long(bytes, 8);
    }
    let first = word(bytes, HEADER_BYTES).filter(|_| flags & VFIO_IOMMU_INFO_CAPS != 0);
    let mut at = first.unwrap_or(0) as usize;
    for _ in 0..CAPABILITIES_MAX {
        // Identity, version, offset of the next.
        let (Some(id), Some(next)) = (half(bytes, at), word(bytes, at.saturating_add(4))) else {
            break;
        };
        if at == 0 {
            break;
        }
        match u32::from(id) {
            VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => info.ranges = ranges(bytes, at + 8),
            VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL => info.maps_max = word(bytes, at + 8),
            _ => {}
        }
        at = next as usize;
    }
    info
}

/// Number, reserved word, then first and last address of each.
fn ranges(bytes: &[u8], at: usize) -> Option<Vec<BusRange>> {
    let count = word(bytes, at)? as usize;
    let rest = bytes.get(at + 8..)?;
    let whole = rest.chunks_exact(RANGE_BYTES).take(count);
    if whole.len() < count {
        return None;
    }
    Some(
        whole
            .filter_map(|pair| range(long(pair, 0)?, long(pair, 8)?))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 1 << 12 | 1 << 21 | 1 << 30;

    /// The answer of a container with ranges (first, last), and a bound on the number of maps.
    fn answer(ranges: &[(u64, u64)], maps: u32) -> Vec<u8> {
        let flags = VFIO_IOMMU_INFO_PGSIZES | VFIO_IOMMU_INFO_CAPS;
        let bounds = 24 + 16 + ranges.len() * RANGE_BYTES;
        let mut bytes = [
            [0, flags].map(u32::to_ne_bytes).concat(),
            PAGES.to_ne_bytes().to_vec(),
        ]
        .concat();
        bytes.extend([24, 0].map(u32::to_ne_bytes).concat());
        bytes.extend([1u16, 1].map(u16::to_ne_bytes).concat());
        bytes.extend(
            [bounds as u32, ranges.len() as u32, 0]
                .map(u32::to_ne_bytes)
                .concat(),
        );
        for (first, last) in ranges {
            bytes.extend([*first, *last].map(u64::to_ne_bytes).concat());
        }
        bytes.extend([3u16, 1].map(u16::to_ne_bytes).concat());
        bytes.extend([0, maps].map(u32::to_ne_bytes).concat());
        bytes
    }

    fn bus_range(start: u64, end: u64) -> BusRange {
        BusRange {
            start: Iova(start),
            end: Iova(end),
        }
    }

    #[test]
    fn ranges_and_bound_of_a_39_bit_unit_are_read() {
        let info = parse(&answer(&[(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)], 65535));
        let bus = info.bus().unwrap();
        assert_eq!(bus.ranges[1], bus_range(0xfef0_0000, 1 << 39));
        assert_eq!((bus.ranges.len(), bus.maps_max), (2, 65535));
        assert_eq!(
            info.to_string(),
            "bus addresses 0x0 to 0xfedfffff, 0xfef00000 to 0x7fffffffff; at most 65535 maps"
        );
    }

    #[test]
    fn last_address_of_64_bits_is_no_overflow() {
        let info = parse(&answer(&[(0xfef0_0000, u64::MAX)], 1));
        assert_eq!(info.ranges, Some(vec![bus_range(0xfef0_0000, u64::MAX)]));
    }

    #[test]
    fn old_kernel_leaves_everything_usable() {
        let bytes = [0u32; 6].map(u32::to_ne_bytes).concat();
        let info = parse(&bytes);
        assert_eq!(info, IommuInfo::default());
        let everything = Bus {
            pins: true,
            ..Bus::default()
        };
        assert_eq!(info.bus().unwrap(), everything);
        assert!(info.to_string().contains("unknown"));
    }

    #[test]
    fn unit_of_32_bits_is_refused_with_its_ranges() {
        let error = parse(&answer(&[(0, 0xfedf_ffff), (0xfef0_0000, 0xffff_ffff)], 1))
            .bus()
            .unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("only 0x0 to 0xfedfffff, 0xfef00000 to 0xffffffff:"),
            "{said}"
        );
        let nothing = parse(&answer(&[], 1)).bus().unwrap_err().to_string();
        assert!(nothing.contains("none at all"), "{nothing}");
    }

    #[test]
    fn unit_without_small_pages_is_refused() {
        let mut bytes = answer(&[(0, 1 << 39)], 1);
        bytes[8..16].copy_from_slice(&(1u64 << 16).to_ne_bytes());
        assert_eq!(parse(&bytes).bus(), Err(Unusable::Pages { sizes: 1 << 16 }));
    }

    #[test]
    fn truncated_ranges_are_none() {
        let bytes = answer(&[(0, 1 << 39), (1 << 40, 1 << 41)], 1);
        assert_eq!(parse(&bytes[..60]).ranges, None);
    }

    proptest! {
        #[test]
        fn any_answer_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), first in 0u32..200) {
            let mut bytes = bytes;
            if bytes.len() >= 20 {
                bytes[4..8].copy_from_slice(&3u32.to_ne_bytes());
                bytes[16..20].copy_from_slice(&first.to_ne_bytes());
            }
            let _ = parse(&bytes).bus();
        }
    }
}
