//! The vGPU as a PCI function: configuration space forwarded to the link, and the effects of writes to it.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::EventFd;

use super::doorbells::DoorbellTrap;
use super::msi::{MsiMessage, MsiRoute, MsiState};
use super::window_memory::WindowMemory;
use super::{MMIO_WINDOW, PciError, intx};
use crate::bus::{BusError, MmioBus, MmioHandler, Window};
use crate::link::{CONFIG_REGION, LinkError, VgpuLink};

/// Registers of a type 0 header (PCI Local Bus 3.0 §6.1).
mod register {
    pub(super) const VENDOR: u16 = 0x00;
    pub(super) const COMMAND: u16 = 0x04;
    pub(super) const STATUS: u16 = 0x06;
    pub(super) const BAR0: u16 = 0x10;
    pub(super) const BARS_END: u16 = 0x28;
    pub(super) const CAPABILITIES: u16 = 0x34;
    pub(super) const INTERRUPT_PIN: u16 = 0x3d;
}

/// Configuration space without what PCI Express adds (PCI Local Bus 3.0 §6.1).
const CONFIG_BYTES: usize = 256;
const BARS: u32 = 6;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR_IS_IO: u32 = 1;
const BAR_TYPE: u32 = 0b110;
const BAR_TYPE_64: u32 = 0b100;
const BAR_ADDRESS: u64 = !0xf;
/// Capability id of MSI, and how many capabilities fit a configuration space: the bound of the walk.
const CAPABILITY_MSI: u8 = 5;
const CAPABILITIES_MAX: u32 = 48;
const PIN_INTA: u8 = 1;
const MSI_ENABLE: u16 = 1 << 0;
const MSI_64_BIT: u16 = 1 << 7;
/// Longest MSI capability without mask bits.
const MSI_BYTES: u16 = 14;

/// One memory BAR as found by sizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    number: u32,
    is_64_bit: bool,
    bytes: u64,
}

impl Bar {
    fn register(self) -> u16 {
        register::BAR0 + 4 * self.number as u16
    }
}

/// The function at 00:01.0.
pub(crate) struct VgpuFunction {
    link: Arc<dyn VgpuLink>,
    mmio: Arc<MmioBus>,
    msi: MsiRoute,
    msi_register: Option<u16>,
    /// Its interrupt pin leads somewhere.
    has_pin: bool,
    bars: Vec<Bar>,
    memory: Arc<WindowMemory>,
    /// Held from a configuration write until its consequences stand, so that those of two vCPUs do not mix.
    config_write: Mutex<()>,
}

impl VgpuFunction {
    /// Sizes and places the BARs, switches the function on, and puts it on the bus.
    pub(crate) fn power_on(
        link: Arc<dyn VgpuLink>,
        mmio: Arc<MmioBus>,
        msi: MsiRoute,
        vm: Arc<VmFd>,
    ) -> Result<VgpuFunction, PciError> {
        let config = Config(link.as_ref());
        let found = config.look().map_err(PciError::Config)?;
        if found.word16(register::VENDOR) == u16::MAX {
            return Err(PciError::NoFunction);
        }
        let bars = size_bars(&config, &found).map_err(PciError::Config)?;
        let placed = place_bars(&bars)?;
        switch_on(&config, &found, &placed).map_err(PciError::Config)?;
        let msi_register = find_msi(&found);
        let has_pin = found.byte(register::INTERRUPT_PIN) == PIN_INTA && intx::connect(link.as_ref(), &vm)?;
        let memory = WindowMemory::of(link.as_ref(), bars.iter().map(|bar| bar.number), vm)?;
        let memory = Arc::new(memory);
        let function = VgpuFunction {
            link,
            mmio,
            msi,
            msi_register,
            has_pin,
            bars,
            memory,
            config_write: Mutex::new(()),
        };
        function.move_windows().map_err(PciError::Place)?;
        Ok(function)
    }

    pub(crate) fn msi_state(&self) -> MsiState {
        self.msi.state()
    }

    /// The trap of its doorbells, if the link has one. `quiet` is what the link signals.
    pub(crate) fn doorbell_trap(&self, quiet: EventFd) -> Result<Option<DoorbellTrap>, LinkError> {
        DoorbellTrap::of(self.link.clone(), self.memory.clone(), quiet)
    }

    pub(crate) fn config_read(&self, register: u16, data: &mut [u8]) -> Result<(), BusError> {
        answer_read(self.link.region_read(CONFIG_REGION, register.into(), data), data)?;
        if !self.has_pin {
            hide_pin(register, data);
        }
        Ok(())
    }

    pub(crate) fn config_write(&self, register: u16, data: &[u8]) -> Result<(), BusError> {
        let _order = self.config_write.lock().unwrap_or_else(PoisonError::into_inner);
        answer_write(self.link.region_write(CONFIG_REGION, register.into(), data))?;
        let written = register..register.saturating_add(data.len() as u16);
        let touches = |range: Range<u16>| written.start < range.end && range.start < written.end;
        if touches(register::COMMAND..register::STATUS) || touches(register::BAR0..register::BARS_END) {
            self.move_windows()?;
        }
        if let Some(from) = self
            .msi_register
            .filter(|from| touches(*from..from.saturating_add(MSI_BYTES)))
        {
            self.msi
                .program(msi_message(&Config(self.link.as_ref()).look()?, from))?;
        }
        Ok(())
    }

    /// Puts the BARs on the bus where configuration space has them.
    fn move_windows(&self) -> Result<(), BusError> {
        let config = Config(self.link.as_ref()).look()?;
        let (mut windows, mut starts) = (Vec::new(), Vec::new());
        if config.word16(register::COMMAND) & COMMAND_MEMORY != 0 {
            for bar in &self.bars {
                let start = config.bar(*bar) & BAR_ADDRESS;
                if let Some(end) = start.checked_add(bar.bytes) {
                    starts.push((bar.number, start));
                    let handler = Arc::new(BarWindow {
                        link: self.link.clone(),
                        region: bar.number,
                    });
                    windows.push(Window {
                        gpas: start..end,
                        handler,
                    });
                }
            }
        }
        self.mmio.place(windows);
        self.memory.place(&starts).map_err(BusError::Memory)
    }
}

/// Configuration space over the link. A look at all of it is one exchange with the vGPU, as a load of one register would be.
struct Config<'a>(&'a dyn VgpuLink);

impl Config<'_> {
    fn look(&self) -> Result<Look, LinkError> {
        let mut bytes = [0; CONFIG_BYTES];
        self.0.region_read(CONFIG_REGION, 0, &mut bytes)?;
        Ok(Look(bytes))
    }

    fn write16(&self, register: u16, value: u16) -> Result<(), LinkError> {
        self.0
            .region_write(CONFIG_REGION, register.into(), &value.to_le_bytes())
    }

    fn write32(&self, register: u16, value: u32) -> Result<(), LinkError> {
        self.0
            .region_write(CONFIG_REGION, register.into(), &value.to_le_bytes())
    }

    fn write_bar(&self, bar: Bar, value: u64) -> Result<(), LinkError> {
        self.write32(bar.register(), value as u32)?;
        if bar.is_64_bit {
            self.write32(bar.register() + 4, (value >> 32) as u32)
        } else {
            Ok(())
        }
    }
}

/// What configuration space held at a look. What is beyond its end reads as zero.
struct Look([u8; CONFIG_BYTES]);

impl Look {
    fn bytes<const BYTES: usize>(&self, register: u16) -> [u8; BYTES] {
        let from = self.0.get(usize::from(register)..).unwrap_or_default();
        from.first_chunk().copied().unwrap_or([0; BYTES])
    }

    fn byte(&self, register: u16) -> u8 {
        u8::from_le_bytes(self.bytes(register))
    }

    fn word16(&self, register: u16) -> u16 {
        u16::from_le_bytes(self.bytes(register))
    }

    fn word32(&self, register: u16) -> u32 {
        u32::from_le_bytes(self.bytes(register))
    }

    fn bar(&self, bar: Bar) -> u64 {
        let high = if bar.is_64_bit {
            self.word32(bar.register() + 4)
        } else {
            0
        };
        u64::from(self.word32(bar.register())) | u64::from(high) << 32
    }
}

/// Finds the memory BARs by writing all ones to each; they are left so, with memory decoding off.
fn size_bars(config: &Config<'_>, found: &Look) -> Result<Vec<Bar>, LinkError> {
    let command = found.word16(register::COMMAND);
    if command & COMMAND_MEMORY != 0 {
        config.write16(register::COMMAND, command & !COMMAND_MEMORY)?;
    }
    let mut bars = Vec::new();
    let mut number = 0;
    while number < BARS {
        let kind = found.word32(register::BAR0 + 4 * number as u16);
        let is_64_bit = kind & (BAR_IS_IO | BAR_TYPE) == BAR_TYPE_64 && number + 1 < BARS;
        let bar = Bar {
            number,
            is_64_bit,
            bytes: 0,
        };
        if kind & BAR_IS_IO == 0 {
            config.write_bar(bar, u64::MAX)?;
            bars.push(bar);
        }
        number += if is_64_bit { 2 } else { 1 };
    }
    let masks = config.look()?;
    for bar in &mut bars {
        let mask = masks.bar(*bar) & BAR_ADDRESS;
        // The lowest address bit that can be set is the size; none at all is an absent BAR.
        bar.bytes = mask & mask.wrapping_neg();
    }
    bars.retain(|bar| bar.bytes != 0);
    Ok(bars)
}

/// Gives each BAR an address aligned to its size. The largest come first, so none leaves a gap.
fn place_bars(bars: &[Bar]) -> Result<Vec<(Bar, u64)>, PciError> {
    let mut by_size = bars.to_vec();
    by_size.sort_by_key(|bar| (Reverse(bar.bytes), bar.number));
    let mut next = MMIO_WINDOW.start;
    by_size
        .into_iter()
        .map(|bar| {
            let start = next.checked_next_multiple_of(bar.bytes);
            let placed = start.zip(start.and_then(|start| start.checked_add(bar.bytes)));
            let (start, end) = placed
                .filter(|(_, end)| *end <= MMIO_WINDOW.end)
                .ok_or(PciError::NoRoom {
                    bar: bar.number,
                    bytes: bar.bytes,
                })?;
            next = end;
            Ok((bar, start))
        })
        .collect()
}

fn switch_on(config: &Config<'_>, found: &Look, placed: &[(Bar, u64)]) -> Result<(), LinkError> {
    for (bar, start) in placed {
        config.write_bar(*bar, *start)?;
    }
    let command = found.word16(register::COMMAND);
    config.write16(register::COMMAND, command | COMMAND_MEMORY | COMMAND_BUS_MASTER)
}

fn find_msi(found: &Look) -> Option<u16> {
    if found.word16(register::STATUS) & STATUS_CAPABILITIES == 0 {
        return None;
    }
    let mut next = found.byte(register::CAPABILITIES);
    for _ in 0..CAPABILITIES_MAX {
        let at = u16::from(next & !3);
        if at == 0 {
            break;
        }
        let [id, following] = found.bytes(at);
        if id == CAPABILITY_MSI {
            return Some(at);
        }
        next = following;
    }
    None
}

/// The MSI capability at `from`: control at 2, address at 4, data after the address.
fn msi_message(config: &Look, from: u16) -> MsiMessage {
    let control = config.word16(from + 2);
    let low = u64::from(config.word32(from + 4));
    let (high, data) = if control & MSI_64_BIT != 0 {
        (u64::from(config.word32(from + 8)), config.word16(from + 12))
    } else {
        (0, config.word16(from + 8))
    };
    let is_enabled = control & MSI_ENABLE != 0;
    MsiMessage {
        is_enabled,
        address: low | high << 32,
        data: data.into(),
    }
}

/// A BAR on the memory bus: every access goes to the link with its width.
struct BarWindow {
    link: Arc<dyn VgpuLink>,
    region: u32,
}

impl MmioHandler for BarWindow {
    fn mmio_read(&self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        answer_read(self.link.region_read(self.region, offset, data), data)
    }

    fn mmio_write(&self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        answer_write(self.link.region_write(self.region, offset, data))
    }
}

/// A refused access is a mistake of the guest, and answered as a bus does: all ones.
fn answer_read(outcome: Result<(), LinkError>, data: &mut [u8]) -> Result<(), BusError> {
    match outcome {
        Err(LinkError::Refused { .. }) => data.fill(0xff),
        other => other?,
    }
    Ok(())
}

/// A pin that leads nowhere: what is read from `register` on has none (PCI Local Bus 3.0 §6.2.4), and the guest takes MSI.
fn hide_pin(register: u16, data: &mut [u8]) {
    let pin = register::INTERRUPT_PIN.checked_sub(register);
    if let Some(byte) = pin.and_then(|at| data.get_mut(usize::from(at))) {
        *byte = 0;
    }
}

fn answer_write(outcome: Result<(), LinkError>) -> Result<(), BusError> {
    match outcome {
        Err(LinkError::Refused { .. }) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bar(number: u32, bytes: u64) -> Bar {
        Bar {
            number,
            is_64_bit: number != 0,
            bytes,
        }
    }

    #[test]
    fn largest_bar_is_placed_first() {
        let placed = place_bars(&[bar(0, 32 << 20), bar(1, 128 << 20), bar(3, 64 << 20)]).unwrap();
        let starts: Vec<_> = placed.iter().map(|(bar, start)| (bar.number, *start)).collect();
        assert_eq!(starts, [(1, 0xc000_0000), (3, 0xc800_0000), (0, 0xcc00_0000)]);
    }

    #[test]
    fn pin_is_hidden_from_loads_of_any_width() {
        for register in 0x38..0x40 {
            for bytes in 1..=4 {
                let mut data = vec![0xaa; bytes];
                hide_pin(register, &mut data);
                for (at, byte) in (register..).zip(data) {
                    assert_eq!(byte == 0, at == 0x3d, "{at:#x} of {bytes} from {register:#x}");
                }
            }
        }
    }

    #[test]
    fn bar_larger_than_the_window_is_refused() {
        let error = place_bars(&[bar(0, 16 << 20), bar(1, 1 << 63)]).unwrap_err();
        assert!(matches!(error, PciError::NoRoom { bar: 1, .. }));
    }

    proptest! {
        #[test]
        fn placed_bars_are_aligned_apart_and_inside(sizes in prop::collection::vec(4u32..64, 0..6)) {
            let bars: Vec<_> = (0..).zip(&sizes).map(|(number, log2)| bar(number, 1 << log2)).collect();
            if let Ok(placed) = place_bars(&bars) {
                prop_assert_eq!(placed.len(), bars.len());
                for (bar, start) in &placed {
                    prop_assert_eq!(start % bar.bytes, 0);
                    prop_assert!(MMIO_WINDOW.start <= *start && start + bar.bytes <= MMIO_WINDOW.end);
                }
                for pair in placed.windows(2) {
                    prop_assert!(pair[0].1 + pair[0].0.bytes <= pair[1].1);
                }
            }
        }
    }
}
