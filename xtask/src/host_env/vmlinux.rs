//! The kernel within a bzImage, uncompressed: what VMMs boot by PVH.
//!
//! Linux Documentation/arch/x86/boot.rst ("The Real-Mode Kernel Header") has the header: how many sectors of setup come
//! before the protected-mode part, and where in that the payload is. The payload's last four bytes are its length once
//! it is unpacked.

use std::io::Read as _;

use anyhow::{Context, Result, ensure};
use ruzstd::decoding::StreamingDecoder;

const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_BYTES: usize = 0x24c;
const SECTOR_BYTES: usize = 512;
/// First bytes of zstd's frames (RFC 8878, 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Limit of the window: larger than the largest that Linux' own decompressor takes.
const WINDOW_BYTES_MAX: u64 = 1 << 28;

/// The ELF file that `image` holds.
pub(super) fn of_bzimage(image: &[u8]) -> Result<Vec<u8>> {
    ensure!(
        image.get(MAGIC..MAGIC + 4) == Some(b"HdrS"),
        "it is not a bzImage"
    );
    let field = |at| number(image, at).context("its header is cut off");
    let setup_sectors = match image[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * SECTOR_BYTES + field(PAYLOAD_OFFSET)?;
    let payload = image.get(start..start + field(PAYLOAD_BYTES)?);
    let payload = payload.context("it is shorter than its header says")?;
    ensure!(
        payload.starts_with(&ZSTD),
        "its payload is not compressed by zstd"
    );
    let length = payload.len().checked_sub(4).and_then(|at| number(payload, at));
    let length = length.context("its payload is too short")?;
    let decoder = StreamingDecoder::new_with_max_window_size(payload, WINDOW_BYTES_MAX);
    let mut kernel = Vec::with_capacity(length);
    let mut decoder = decoder.context("its payload cannot be decompressed")?;
    decoder
        .read_to_end(&mut kernel)
        .context("its payload is damaged")?;
    ensure!(
        kernel.len() == length && kernel.starts_with(b"\x7fELF"),
        "its payload is not the ELF file of {length} bytes that it should be"
    );
    Ok(kernel)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(word) as usize)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// One sector of setup, and eight bytes before the payload.
    fn bzimage(kernel: &[u8]) -> Vec<u8> {
        let mut payload = compress_to_vec(kernel, CompressionLevel::Fastest);
        payload.extend((kernel.len() as u32).to_le_bytes());
        let mut image = vec![0; 2 * SECTOR_BYTES + 8];
        image[SETUP_SECTORS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET] = 8;
        image[PAYLOAD_BYTES..PAYLOAD_BYTES + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn kernel_comes_out_as_it_went_in() {
        let kernel: Vec<u8> = b"\x7fELF"
            .iter()
            .copied()
            .chain((0..100_000).map(|n| n as u8))
            .collect();
        assert_eq!(of_bzimage(&bzimage(&kernel)).unwrap(), kernel);
    }

    #[test]
    fn image_without_a_kernel_is_refused() {
        let cut = bzimage(b"\x7fELF and more");
        assert!(of_bzimage(&cut[..cut.len() - 5]).is_err());
        assert!(of_bzimage(&bzimage(b"no ELF file")).is_err());
        assert!(of_bzimage(&[0; 600]).is_err());
        assert!(of_bzimage(b"").is_err());
    }
}
