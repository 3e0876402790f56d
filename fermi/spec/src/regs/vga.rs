//! VGA ports, as far as drivers for a board without display touch them (envytools PDISPLAY.VGA, 0x3d4 at 0x601000).

use super::units::{UnitRange, unit};

/// Where the ports are.
pub const PRMCIO: UnitRange = unit("PRMCIO", 0x60_1000, 0x1000);

registers! {
    /// The VGA ports.
    pub enum VgaReg {
        /// CRTC: index and data, a byte each.
        VgaCrtc = 0x6013d4, ReadWrite;
    }
}
