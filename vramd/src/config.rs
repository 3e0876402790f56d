//! `host.toml` of a broker, cards by name, and bounds of VRAM sizes. How such files are read is
//! [`vramd_vm::config`]'s part; `docs/examples` has a commented file of each kind.

mod account;
mod device;
mod host;
mod settings;

pub(crate) use device::Device;
pub(crate) use host::{CHUNK_DEFAULT, socket_mode, usual_mode};
pub use host::{ControlSection, GpuSection, HostConfig, VmSection};
use sizes::Size;
use vramd_vm::config::MIB;

/// Least VRAM of a card: below, the broker's own tables leave nothing to share.
pub(crate) const CARD_VRAM_MIN: u64 = 16 * MIB;
/// Most VRAM of a card.
pub(crate) const CARD_VRAM_MAX: u64 = 64 << 30;

/// Whether a software card can have this much VRAM.
pub(crate) fn check_card_vram(bytes: u64) -> Result<(), String> {
    if !(CARD_VRAM_MIN..=CARD_VRAM_MAX).contains(&bytes) || !bytes.is_multiple_of(MIB) {
        return Err(format!("{} is not a multiple of 1M from 16M to 64G", Size(bytes)));
    }
    Ok(())
}

/// Whether a guest can have this much VRAM.
pub(crate) fn check_guest_vram(bytes: u64) -> Result<(), String> {
    if !(vgpu::GUEST_VRAM_MIN..=CARD_VRAM_MAX).contains(&bytes) || !bytes.is_multiple_of(MIB) {
        let min = Size(vgpu::GUEST_VRAM_MIN);
        return Err(format!(
            "{} is not a multiple of 1M from {min} to 64G",
            Size(bytes)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
