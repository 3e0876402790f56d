//! The header before each frame, and the values in it that driver and host may use.
//!
//! `struct virtio_net_hdr` of Virtio 1.2 §5.1.6, which taps use too. A driver's header goes to the host's network
//! stack, so a header that uses features without agreement, or names bytes outside of the frame, is refused.

use libc::c_uint;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_HDR_F_DATA_VALID,
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
};

/// Bytes of the header since version 1, with or without the agreed features.
pub(super) const HEADER_BYTES: usize = 12;
/// Offset of the number of chains that a frame is in.
pub(super) const CHAINS_OFFSET: u32 = 10;
/// Bytes of a frame's addresses and type, without and with a VLAN's tag.
const ETHERNET_BYTES: usize = 14;
const TAGGED_BYTES: usize = 18;
/// Longest frame: an IP packet's length has 16 bits.
pub(super) const FRAME_BYTES_MAX: usize = TAGGED_BYTES + u16::MAX as usize;

const NEEDS_CHECKSUM: u8 = VIRTIO_NET_HDR_F_NEEDS_CSUM as u8;
const IS_VALID: u8 = VIRTIO_NET_HDR_F_DATA_VALID as u8;
const WHOLE: u8 = VIRTIO_NET_HDR_GSO_NONE as u8;
const TCP_V4: u8 = VIRTIO_NET_HDR_GSO_TCPV4 as u8;
const TCP_V6: u8 = VIRTIO_NET_HDR_GSO_TCPV6 as u8;

/// Features that driver and device agreed upon.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Agreed(pub(super) u64);

impl Agreed {
    fn has(self, feature: u32) -> bool {
        self.0 & 1 << feature != 0
    }

    /// Whether a frame for the driver may be in several chains.
    pub(super) fn merges(self) -> bool {
        self.has(VIRTIO_NET_F_MRG_RXBUF)
    }

    /// The work that the host may leave to the driver, as TUN_F flags. Without checksums
    /// none (Virtio 1.2 §5.1.3.1).
    pub(super) fn offloads(self) -> c_uint {
        if !self.has(VIRTIO_NET_F_GUEST_CSUM) {
            return 0;
        }
        let segments = [
            (VIRTIO_NET_F_GUEST_TSO4, libc::TUN_F_TSO4),
            (VIRTIO_NET_F_GUEST_TSO6, libc::TUN_F_TSO6),
        ];
        let segments = segments.into_iter().filter(|(feature, _)| self.has(*feature));
        segments.fold(libc::TUN_F_CSUM, |flags, (_, flag)| flags | flag)
    }
}

/// The header's fields. Segments are several packets of one connection in one frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct FrameHeader {
    flags: u8,
    segments: u8,
    headers_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl FrameHeader {
    pub(super) fn decode(bytes: [u8; HEADER_BYTES]) -> FrameHeader {
        let [flags, segments, h0, h1, s0, s1, c0, c1, o0, o1, ..] = bytes;
        FrameHeader {
            flags,
            segments,
            headers_bytes: u16::from_le_bytes([h0, h1]),
            segment_bytes: u16::from_le_bytes([s0, s1]),
            checksum_start: u16::from_le_bytes([c0, c1]),
            checksum_offset: u16::from_le_bytes([o0, o1]),
        }
    }

    /// The bytes, for a frame in one chain.
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let [h0, h1] = self.headers_bytes.to_le_bytes();
        let [s0, s1] = self.segment_bytes.to_le_bytes();
        let [c0, c1] = self.checksum_start.to_le_bytes();
        let [o0, o1] = self.checksum_offset.to_le_bytes();
        [self.flags, self.segments, h0, h1, s0, s1, c0, c1, o0, o1, 1, 0]
    }

    /// The header for the host of the driver's frame of `frame_bytes` bytes; `None` if the host does
    /// not get the frame.
    pub(super) fn checked_for_host(
        self,
        frame_bytes: usize,
        mtu: u16,
        agreed: Agreed,
    ) -> Option<FrameHeader> {
        // Bits that the device does not know are ignored (Virtio 1.2 §5.1.6.2).
        let header = FrameHeader {
            flags: self.flags & NEEDS_CHECKSUM,
            ..self
        };
        let segments = [(TCP_V4, VIRTIO_NET_F_HOST_TSO4), (TCP_V6, VIRTIO_NET_F_HOST_TSO6)];
        header.checked(frame_bytes, mtu, agreed, VIRTIO_NET_F_CSUM, segments)
    }

    /// The header for the driver of a frame of the host.
    pub(super) fn checked_for_driver(
        self,
        frame_bytes: usize,
        mtu: u16,
        agreed: Agreed,
    ) -> Option<FrameHeader> {
        let told = if agreed.has(VIRTIO_NET_F_GUEST_CSUM) {
            NEEDS_CHECKSUM | IS_VALID
        } else {
            // The device must declare work that it leaves to the driver, so a header with more work is refused below.
            NEEDS_CHECKSUM
        };
        let header = FrameHeader {
            flags: self.flags & told,
            ..self
        };
        let segments = [
            (TCP_V4, VIRTIO_NET_F_GUEST_TSO4),
            (TCP_V6, VIRTIO_NET_F_GUEST_TSO6),
        ];
        header.checked(frame_bytes, mtu, agreed, VIRTIO_NET_F_GUEST_CSUM, segments)
    }

    fn checked(
        self,
        frame_bytes: usize,
        mtu: u16,
        agreed: Agreed,
        checksum: u32,
        segments: [(u8, u32); 2],
    ) -> Option<FrameHeader> {
        let mut header = self;
        let needs_checksum = self.flags & NEEDS_CHECKSUM != 0;
        if needs_checksum {
            let end = usize::from(self.checksum_start) + usize::from(self.checksum_offset) + 2;
            if !agreed.has(checksum) || end > frame_bytes {
                return None;
            }
        } else {
            (header.checksum_start, header.checksum_offset) = (0, 0);
        }
        let bytes_max = if self.segments == WHOLE {
            (header.headers_bytes, header.segment_bytes) = (0, 0);
            usize::from(mtu) + TAGGED_BYTES
        } else {
            let (_, feature) = segments.into_iter().find(|(kind, _)| *kind == self.segments)?;
            if !agreed.has(feature) || !needs_checksum || self.segment_bytes == 0 {
                return None;
            }
            // The field is a hint, of which only its being inside can be relied on (Virtio 1.2 §5.1.6.2).
            header.headers_bytes = self
                .headers_bytes
                .min(u16::try_from(frame_bytes).unwrap_or(u16::MAX));
            FRAME_BYTES_MAX
        };
        (ETHERNET_BYTES..=bytes_max)
            .contains(&frame_bytes)
            .then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MTU: u16 = 1500;
    const ALL: Agreed = Agreed(u64::MAX);
    const NONE: Agreed = Agreed(0);

    fn segmented() -> FrameHeader {
        FrameHeader {
            flags: NEEDS_CHECKSUM,
            segments: TCP_V4,
            headers_bytes: 54,
            segment_bytes: 1448,
            checksum_start: 34,
            checksum_offset: 16,
        }
    }

    #[test]
    fn plain_frame_needs_nothing_agreed() {
        let plain = FrameHeader::default();
        for bytes in [14, 1514, 1518] {
            assert_eq!(plain.checked_for_host(bytes, MTU, NONE), Some(plain));
            assert_eq!(plain.checked_for_driver(bytes, MTU, NONE), Some(plain));
        }
        for bytes in [0, 13, 1519, 65536] {
            assert_eq!(plain.checked_for_host(bytes, MTU, ALL), None);
            assert_eq!(plain.checked_for_driver(bytes, MTU, ALL), None);
        }
    }

    #[test]
    fn segments_need_their_feature_and_a_checksum() {
        let header = segmented();
        assert_eq!(header.checked_for_host(65_000, MTU, ALL), Some(header));
        assert_eq!(header.checked_for_host(FRAME_BYTES_MAX + 1, MTU, ALL), None);
        let without = |feature: u32| Agreed(!(1 << feature));
        assert_eq!(
            header.checked_for_host(65_000, MTU, without(VIRTIO_NET_F_HOST_TSO4)),
            None
        );
        assert_eq!(
            header.checked_for_host(65_000, MTU, without(VIRTIO_NET_F_CSUM)),
            None
        );
        assert_eq!(
            header.checked_for_driver(65_000, MTU, without(VIRTIO_NET_F_GUEST_TSO4)),
            None
        );
        for wrong in [
            FrameHeader { flags: 0, ..header },
            FrameHeader {
                segment_bytes: 0,
                ..header
            },
            FrameHeader {
                segments: 3,
                ..header
            },
            FrameHeader {
                checksum_start: 64_990,
                ..header
            },
        ] {
            assert_eq!(wrong.checked_for_host(65_000, MTU, ALL), None, "{wrong:?}");
        }
    }

    #[test]
    fn driver_that_checks_nothing_is_told_nothing() {
        let valid = FrameHeader {
            flags: IS_VALID,
            ..FrameHeader::default()
        };
        assert_eq!(
            valid.checked_for_driver(60, MTU, NONE),
            Some(FrameHeader::default())
        );
        assert_eq!(valid.checked_for_driver(60, MTU, ALL), Some(valid));
        let unfinished = FrameHeader {
            flags: NEEDS_CHECKSUM,
            checksum_start: 34,
            checksum_offset: 6,
            ..FrameHeader::default()
        };
        assert_eq!(unfinished.checked_for_driver(60, MTU, NONE), None);
    }

    #[test]
    fn offloads_of_the_host_follow_the_driver() {
        assert_eq!(NONE.offloads(), 0);
        assert_eq!(Agreed(1 << VIRTIO_NET_F_GUEST_TSO4).offloads(), 0);
        assert_eq!(
            ALL.offloads(),
            libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6
        );
    }

    proptest! {
        #[test]
        fn header_loses_nothing(bytes: [u8; HEADER_BYTES]) {
            let encoded = FrameHeader::decode(bytes).encode();
            prop_assert_eq!(&encoded[..10], &bytes[..10]);
            prop_assert_eq!(&encoded[10..], &[1, 0]);
        }

        /// Headers that reach the host name only bytes of the frame and agreed features.
        #[test]
        fn whatever_the_driver_says_the_host_can_bear(bytes: [u8; HEADER_BYTES], frame_bytes in 0usize..70_000, agreed: u64) {
            let agreed = Agreed(agreed);
            if let Some(header) = FrameHeader::decode(bytes).checked_for_host(frame_bytes, MTU, agreed) {
                prop_assert!(header.flags == 0 || agreed.has(VIRTIO_NET_F_CSUM) && header.flags == NEEDS_CHECKSUM);
                prop_assert!(usize::from(header.headers_bytes) <= frame_bytes);
                let checksum_end = usize::from(header.checksum_start) + usize::from(header.checksum_offset);
                prop_assert!(header.flags == 0 || checksum_end + 2 <= frame_bytes);
                prop_assert!(header.segments == WHOLE || header.segment_bytes > 0 && header.flags != 0);
                prop_assert!(header.segments != WHOLE || frame_bytes <= 1518);
                prop_assert!((14..=FRAME_BYTES_MAX).contains(&frame_bytes));
            }
        }
    }
}
