//! A bare card of 64 MiB with 16 MiB of RAM, as the machine of a guest's code.
//!
//! Each test program uses a part of it.
#![allow(dead_code, reason = "shared by test programs that use different parts")]

use card::BareMachine;
use fermi_model::{BareCard, Capabilities, CopyMicrocode, ModelConfig, Timing};
use fermi_spec::addr::Iova;
use fermi_spec::board::Board;
use guests::Options;
use guests::driver::{Driver, DriverConfig};
use vm_memory::{Bytes, VolatileMemory};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const VRAM_BYTES: u64 = 64 * MIB;
const RAM_BYTES: u64 = 16 * MIB;

pub(crate) fn small_card() -> BareMachine {
    let config = ModelConfig {
        board: Board::Quadro6000,
        vram_bytes: VRAM_BYTES,
        timing: Timing::of(Board::Quadro6000),
        copy_microcode: CopyMicrocode::default(),
        strict: false,
        capabilities: Capabilities::NONE,
    };
    BareMachine::new(BareCard::new(config, Iova(0), RAM_BYTES).expect("a card"))
}

pub(crate) fn flip_vram_byte(card: &mut BareCard, at: usize) {
    let vram = card.vram.as_volatile_slice();
    let byte: u8 = vram.read_obj(at).expect("a byte");
    vram.write_obj(byte ^ 1, at).expect("a byte");
}

pub(crate) fn started() -> (BareMachine, Driver) {
    let mut bus = small_card();
    let config = DriverConfig::new(MIB..4 * MIB, &Options::default());
    let driver = Driver::start(&mut bus, &config).expect("bring-up");
    (bus, driver)
}
