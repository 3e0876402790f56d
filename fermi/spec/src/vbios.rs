//! A VBIOS image of our own making: the smallest that nouveau takes for one.
//!
//! It holds what a driver looks for before it trusts an image (ROM signature, PCI data structure, checksum) and a BIT
//! with an identification and an initialisation entry, the latter without scripts. NVIDIA's images hold far more; what
//! is absent here (connectors, voltages, thermal limits, PLLs) a driver does without.
//!
//! Sources: PCI Firmware Specification 3.0 §5.1 (expansion ROM header, PCI data structure); BIT and its entries:
//! envytools `docs/hw/bios.rst`, nouveau `nvkm/subdev/bios/{bit,image,version,init}.c`.

use crate::board::{Board, REVISION, VENDOR};

/// Bytes of the image.
pub const BYTES: usize = 512;
/// Bytes of the blocks that a ROM image's length is counted in.
const BLOCK: usize = 512;
/// First bytes of an expansion ROM.
pub const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Offset of the pointer to the PCI data structure in an expansion ROM.
pub(crate) const PCIR_POINTER: usize = 0x18;
/// First bytes of a BIT.
pub(crate) const BIT_SIGNATURE: [u8; 6] = *b"\xff\xb8BIT\0";
/// VBIOS version of GF100 boards: chip 70, then minor, micro, patch; ours are zero.
const VERSION: [u8; 5] = [0x00, 0x00, 0x00, 0x70, 0x01];

/// PCI data structure. A driver looks for another one ("NPDE") at the next multiple of 16 after its end.
const PCIR: usize = 0x40;
const PCIR_BYTES: usize = 0x18;
const BIT: usize = 0x80;
const BIT_HEADER_BYTES: usize = 12;
const BIT_ENTRY_BYTES: usize = 6;
/// Identification: version, feature byte, DAC table pointer.
const IDENTITY: usize = 0x100;
const IDENTITY_BYTES: usize = 16;
/// Pointers to initialisation tables and scripts, all null: the card comes up initialised (POST1, bit 1).
const INIT: usize = 0x120;
const INIT_BYTES: usize = 28;

const fn put<const N: usize>(image: &mut [u8; BYTES], at: usize, bytes: [u8; N]) {
    let mut index = 0;
    while index < N {
        image[at + index] = bytes[index];
        index += 1;
    }
}

const fn put_u16(image: &mut [u8; BYTES], at: usize, value: usize) {
    assert!(value <= u16::MAX as usize, "a pointer within the image");
    put(image, at, (value as u16).to_le_bytes());
}

const fn put_entry(image: &mut [u8; BYTES], index: usize, id: u8, version: u8, bytes: usize, at: usize) {
    let entry = BIT + BIT_HEADER_BYTES + index * BIT_ENTRY_BYTES;
    put(image, entry, [id, version]);
    put_u16(image, entry + 2, bytes);
    put_u16(image, entry + 4, at);
}

/// The image of a board: bytes add up to zero modulo 256.
const fn image(board: Board) -> [u8; BYTES] {
    let mut image = [0; BYTES];
    put(&mut image, 0, SIGNATURE);
    put(&mut image, 2, [(BYTES / BLOCK) as u8]);
    put_u16(&mut image, PCIR_POINTER, PCIR);

    put(&mut image, PCIR, *b"PCIR");
    put(&mut image, PCIR + 0x04, VENDOR.to_le_bytes());
    put(&mut image, PCIR + 0x06, board.device_id().to_le_bytes());
    put_u16(&mut image, PCIR + 0x0a, PCIR_BYTES);
    let [interface, sub_class, base_class, _] = board.class().to_le_bytes();
    put(&mut image, PCIR + 0x0d, [interface, sub_class, base_class]);
    put_u16(&mut image, PCIR + 0x10, BYTES / BLOCK);
    put(&mut image, PCIR + 0x12, [REVISION, 0]);
    // Code type 0 (PC-AT), last image.
    put(&mut image, PCIR + 0x14, [0x00, 0x80]);

    put(&mut image, BIT, BIT_SIGNATURE);
    put(&mut image, BIT + 6, [0x00, 0x01]);
    put(
        &mut image,
        BIT + 8,
        [BIT_HEADER_BYTES as u8, BIT_ENTRY_BYTES as u8, 2],
    );
    put_entry(&mut image, 0, b'i', 2, IDENTITY_BYTES, IDENTITY);
    put_entry(&mut image, 1, b'I', 1, INIT_BYTES, INIT);
    put(&mut image, IDENTITY, VERSION);

    let mut sum = 0u8;
    let mut index = 0;
    while index < BYTES {
        sum = sum.wrapping_add(image[index]);
        index += 1;
    }
    image[BYTES - 1] = sum.wrapping_neg();
    image
}

/// The image of a board, made once.
pub const fn image_of(board: Board) -> &'static [u8; BYTES] {
    match board {
        Board::Gtx480 => const { &image(Board::Gtx480) },
        Board::Quadro6000 => const { &image(Board::Quadro6000) },
        Board::TeslaC2050 => const { &image(Board::TeslaC2050) },
    }
}

/// A load from the PROM window, `inside` bytes into it: bytes behind the image, and all while `is_visible` is false, read ones.
pub fn read_prom(image: &[u8; BYTES], is_visible: bool, inside: usize, data: &mut [u8]) {
    for (index, byte) in data.iter_mut().enumerate() {
        let at = inside.checked_add(index).filter(|_| is_visible);
        *byte = at.and_then(|at| image.get(at)).copied().unwrap_or(0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of a BIT: version and body.
    fn bit_entry(image: &[u8], id: u8) -> Option<(u8, &[u8])> {
        let bit = image.windows(6).position(|bytes| bytes == BIT_SIGNATURE)?;
        let (entry_bytes, count) = (usize::from(image[bit + 9]), usize::from(image[bit + 10]));
        let entries = image.get(bit + 12..)?.chunks_exact(entry_bytes).take(count);
        let entry = entries.into_iter().find(|entry| entry[0] == id)?;
        let word = |at: usize| usize::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
        Some((entry[1], image.get(word(4)..word(4) + word(2))?))
    }

    fn u16_at(image: &[u8], at: usize) -> u16 {
        u16::from_le_bytes([image[at], image[at + 1]])
    }

    #[test]
    fn image_has_signature_length_and_checksum() {
        for board in Board::ALL {
            let image = image(board);
            assert_eq!(u16_at(&image, 0), 0xaa55);
            assert_eq!(usize::from(image[2]) * 512, BYTES);
            assert_eq!(image.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        }
    }

    #[test]
    fn pci_data_structure_names_the_board_and_ends_the_rom() {
        for board in Board::ALL {
            let image = image(board);
            let pcir = usize::from(u16_at(&image, PCIR_POINTER));
            assert_eq!(&image[pcir..pcir + 4], b"PCIR");
            assert_eq!(u16_at(&image, pcir + 4), VENDOR);
            assert_eq!(u16_at(&image, pcir + 6), board.device_id());
            assert_eq!(usize::from(u16_at(&image, pcir + 0x10)) * 512, BYTES);
            assert_eq!([image[pcir + 0x14], image[pcir + 0x15]], [0, 0x80]);
        }
    }

    #[test]
    fn nothing_after_the_pci_data_structure_looks_like_an_extension_of_it() {
        let image = image(Board::Gtx480);
        let pcir = usize::from(u16_at(&image, PCIR_POINTER));
        let after = (pcir + usize::from(u16_at(&image, pcir + 0x0a))).next_multiple_of(16);
        assert_ne!(&image[after..after + 4], b"NPDE");
    }

    #[test]
    fn bit_entries_are_long_enough_and_in_the_image() {
        let image = image(Board::TeslaC2050);
        let (version, identity) = bit_entry(&image, b'i').unwrap();
        assert_eq!(version, 2);
        assert_eq!(identity[..5], VERSION);
        assert!(identity.len() >= 15);
        let (version, init) = bit_entry(&image, b'I').unwrap();
        assert_eq!(version, 1);
        assert!(init.len() >= 14 && init.iter().all(|byte| *byte == 0));
    }
}
