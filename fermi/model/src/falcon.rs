//! A falcon as the host sees it: memories behind ports, a start switch, interrupts and scratch words.
//!
//! The model runs no microcode: what an engine does for its channels is written in this crate. An upload lands in real
//! memories and reads back, and a start is reported to whoever owns the falcon ([`FalconEvent::Started`]), who answers
//! in the microcode's place.
//!
//! ```text
//!   stopped ──Control bit 1──► running (asleep)
//!      ▲                           │
//!      └────────── reset ──────────┘
//! ```

use fermi_spec::regs::falcon::{
    CODE_PAGE_BYTES, CODE_PORTS, CONTROL_SLEEPING, CONTROL_START, CONTROL_STOPPED, Caps, DATA_PORTS,
    FalconReg, MEMORY_PORTS, PortIndex,
};

const PAGE_WORDS: usize = CODE_PAGE_BYTES as usize / 4;
/// The bit of `BlockOnFifo` that is kept; the others tell of memories being cleared, which takes no time here.
const BLOCK_ON_FIFO_STORED: u32 = 1;

/// Properties in which falcons differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FalconShape {
    /// Memory sizes that the driver reads.
    pub(crate) caps: Caps,
    /// Version that the driver reads.
    pub(crate) version: u32,
    /// Routing of interrupts as its microcode would leave it (assumption: the model runs none, and an error must reach
    /// the host).
    pub(crate) route: u32,
}

/// Work that a write leaves to the falcon's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum FalconEvent {
    /// The write has no further effect.
    None,
    /// The microcode was started.
    Started,
    /// Interrupts were acknowledged.
    Acknowledged,
}

/// One falcon, with what the host sees of it.
#[derive(Clone, Debug)]
pub(crate) struct Falcon {
    shape: FalconShape,
    code: Vec<u32>,
    /// Virtual page of each page of code.
    tags: Vec<u16>,
    data: Vec<u32>,
    code_ports: [PortIndex; CODE_PORTS],
    data_ports: [PortIndex; DATA_PORTS],
    memory_ports: [u32; MEMORY_PORTS],
    is_running: bool,
    intr: u32,
    intr_mode: u32,
    intr_enable: u32,
    route: u32,
    scratch: [u32; 4],
    access: u32,
    channels: [u32; 2],
    entry: u32,
    block_on_fifo: u32,
}

impl Falcon {
    /// A falcon after power-on: stopped, with empty memories.
    pub(crate) fn new(shape: FalconShape) -> Self {
        let words = |pages: u16| usize::from(pages) * PAGE_WORDS;
        Self {
            shape,
            code: vec![0; words(shape.caps.code_pages())],
            tags: vec![0; usize::from(shape.caps.code_pages())],
            data: vec![0; words(shape.caps.data_pages())],
            code_ports: [PortIndex::default(); CODE_PORTS],
            data_ports: [PortIndex::default(); DATA_PORTS],
            memory_ports: [0; MEMORY_PORTS],
            is_running: false,
            intr: 0,
            intr_mode: 0,
            intr_enable: 0,
            route: shape.route,
            scratch: [0; 4],
            access: 0,
            channels: [0; 2],
            entry: 0,
            block_on_fifo: 0,
        }
    }

    /// A reset of the unit around it: as after power-on.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.shape);
    }

    /// Whether anything was uploaded as code.
    pub(crate) fn has_code(&self) -> bool {
        self.code.iter().any(|word| *word != 0)
    }

    /// The data memory.
    pub(crate) fn data(&self) -> &[u32] {
        &self.data
    }

    /// Whether the microcode was started.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    /// The microcode ends, as what is started without code does at once.
    pub(crate) fn stop(&mut self) {
        self.is_running = false;
    }

    /// Interrupts pending, whether or not they go anywhere.
    pub(crate) fn pending(&self) -> u32 {
        self.intr
    }

    /// Interrupts that reach the host. The enables are the microcode's business, so they are not asked.
    pub(crate) fn host_interrupts(&self) -> u32 {
        self.intr & self.route & !(self.route >> 16)
    }

    /// Raises interrupts as the microcode would.
    pub(crate) fn raise(&mut self, mask: u32) {
        self.intr |= mask;
    }

    /// Raises interrupts with an error in the first two scratch words.
    pub(crate) fn raise_error(&mut self, mask: u32, code: u32, data: u32) {
        self.scratch[0] = code;
        self.scratch[1] = data;
        self.raise(mask);
    }

    /// Reads the register; ports that advance do so.
    pub(crate) fn read(&mut self, reg: FalconReg) -> u32 {
        match reg {
            FalconReg::IntrTrigger
            | FalconReg::IntrAck
            | FalconReg::IntrEnableSet
            | FalconReg::IntrEnableClear
            | FalconReg::Busy => 0,
            FalconReg::Intr => self.intr,
            FalconReg::IntrMode => self.intr_mode,
            FalconReg::IntrEnable => self.intr_enable,
            FalconReg::IntrRoute => self.route,
            FalconReg::Scratch0 => self.scratch[0],
            FalconReg::Scratch1 => self.scratch[1],
            FalconReg::Scratch2 => self.scratch[2],
            FalconReg::Scratch3 => self.scratch[3],
            FalconReg::AccessEnable => self.access,
            FalconReg::ChannelCurrent => self.channels[0],
            FalconReg::ChannelNext => self.channels[1],
            FalconReg::Control | FalconReg::ControlAlias if self.is_running => CONTROL_SLEEPING,
            FalconReg::Control | FalconReg::ControlAlias => CONTROL_STOPPED,
            FalconReg::Entry => self.entry,
            FalconReg::Caps => self.shape.caps.into_bits(),
            FalconReg::BlockOnFifo => self.block_on_fifo,
            FalconReg::Version => self.shape.version,
            FalconReg::CodeIndex(port) => self.code_ports[usize::from(port)].into_bits(),
            FalconReg::CodeData(port) => {
                let word = advance(&mut self.code_ports[usize::from(port)], false);
                self.code.get(word).copied().unwrap_or(0)
            }
            FalconReg::CodeTag(port) => {
                let page = usize::from(self.code_ports[usize::from(port)].word()) / PAGE_WORDS;
                self.tags.get(page).map_or(0, |tag| u32::from(*tag))
            }
            FalconReg::DataIndex(port) => self.data_ports[usize::from(port)].into_bits(),
            FalconReg::DataData(port) => {
                let word = advance(&mut self.data_ports[usize::from(port)], false);
                self.data.get(word).copied().unwrap_or(0)
            }
            FalconReg::MemoryPort(port) => self.memory_ports[usize::from(port)],
        }
    }

    /// Writes the register; ports that advance do so. What lies beyond a memory is dropped.
    pub(crate) fn write(&mut self, reg: FalconReg, value: u32) -> FalconEvent {
        match reg {
            FalconReg::IntrTrigger => self.raise(value),
            FalconReg::IntrAck => {
                self.intr &= !value;
                return FalconEvent::Acknowledged;
            }
            FalconReg::IntrMode => self.intr_mode = value,
            FalconReg::IntrEnableSet => self.intr_enable |= value,
            FalconReg::IntrEnableClear => self.intr_enable &= !value,
            FalconReg::IntrRoute => self.route = value,
            FalconReg::Scratch0 => self.scratch[0] = value,
            FalconReg::Scratch1 => self.scratch[1] = value,
            FalconReg::Scratch2 => self.scratch[2] = value,
            FalconReg::Scratch3 => self.scratch[3] = value,
            FalconReg::AccessEnable => self.access = value,
            FalconReg::ChannelCurrent => self.channels[0] = value,
            FalconReg::ChannelNext => self.channels[1] = value,
            FalconReg::Control | FalconReg::ControlAlias => {
                if value & CONTROL_START != 0 {
                    self.is_running = true;
                    return FalconEvent::Started;
                }
            }
            FalconReg::Entry => self.entry = value,
            FalconReg::BlockOnFifo => self.block_on_fifo = value & BLOCK_ON_FIFO_STORED,
            FalconReg::Intr
            | FalconReg::IntrEnable
            | FalconReg::Busy
            | FalconReg::Caps
            | FalconReg::Version => {}
            FalconReg::CodeIndex(port) => set(&mut self.code_ports, port, PortIndex::from_bits(value)),
            FalconReg::CodeData(port) => {
                if let Some(index) = self.code_ports.get_mut(usize::from(port)) {
                    store(&mut self.code, advance(index, true), value);
                }
            }
            FalconReg::CodeTag(port) => {
                if let Some(index) = self.code_ports.get(usize::from(port)) {
                    store(
                        &mut self.tags,
                        usize::from(index.word()) / PAGE_WORDS,
                        value as u16,
                    );
                }
            }
            FalconReg::DataIndex(port) => set(&mut self.data_ports, port, PortIndex::from_bits(value)),
            FalconReg::DataData(port) => {
                if let Some(index) = self.data_ports.get_mut(usize::from(port)) {
                    store(&mut self.data, advance(index, true), value);
                }
            }
            FalconReg::MemoryPort(port) => set(&mut self.memory_ports, port, value),
        }
        FalconEvent::None
    }
}

/// The word that a port points at; moves it on if it advances.
fn advance(index: &mut PortIndex, is_write: bool) -> usize {
    let word = index.word();
    let advances = if is_write {
        index.advance_on_write()
    } else {
        index.advance_on_read()
    };
    if advances {
        // 14 bits: past the end it begins again, as any counter does.
        index.set_word(word.wrapping_add(1) & 0x3fff);
    }
    usize::from(word)
}

fn set<T>(values: &mut [T], index: u16, value: T) {
    store(values, usize::from(index), value);
}

fn store<T>(values: &mut [T], index: usize, value: T) {
    if let Some(place) = values.get_mut(index) {
        *place = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn falcon() -> Falcon {
        Falcon::new(FalconShape {
            caps: Caps::new().with_code_pages(2).with_data_pages(1),
            version: 3,
            route: 0,
        })
    }

    /// Writes, and ignores the work that is left to the owner.
    fn write(falcon: &mut Falcon, reg: FalconReg, value: u32) {
        let _ = falcon.write(reg, value);
    }

    #[test]
    fn uploaded_code_reads_back_with_its_tags() {
        let mut falcon = falcon();
        write(&mut falcon, FalconReg::CodeIndex(0), 1 << 24);
        for word in 0..128 {
            if word % 64 == 0 {
                write(&mut falcon, FalconReg::CodeTag(0), 7 + word / 64);
            }
            write(&mut falcon, FalconReg::CodeData(0), 0x100 + word);
        }
        write(&mut falcon, FalconReg::CodeIndex(1), 1 << 25 | 0xfc);
        assert_eq!(falcon.read(FalconReg::CodeTag(1)), 7);
        assert_eq!(falcon.read(FalconReg::CodeData(1)), 0x13f);
        assert_eq!(falcon.read(FalconReg::CodeTag(1)), 8);
        assert_eq!(falcon.read(FalconReg::CodeData(1)), 0x140);
    }

    #[test]
    fn port_without_the_advance_bit_stays() {
        let mut falcon = falcon();
        write(&mut falcon, FalconReg::DataIndex(0), 8);
        write(&mut falcon, FalconReg::DataData(0), 1);
        write(&mut falcon, FalconReg::DataData(0), 2);
        assert_eq!(falcon.read(FalconReg::DataData(0)), 2);
        assert_eq!(falcon.read(FalconReg::DataData(0)), 2);
    }

    #[test]
    fn upload_beyond_the_memory_is_dropped() {
        let mut falcon = falcon();
        write(&mut falcon, FalconReg::DataIndex(0), 1 << 24 | 0xfc);
        write(&mut falcon, FalconReg::DataData(0), 1);
        write(&mut falcon, FalconReg::DataData(0), 2);
        write(&mut falcon, FalconReg::DataIndex(0), 0x100);
        assert_eq!(falcon.read(FalconReg::DataData(0)), 0);
    }

    #[test]
    fn start_is_reported_and_reset_stops() {
        let mut falcon = falcon();
        assert_eq!(falcon.read(FalconReg::Control), CONTROL_STOPPED);
        assert_eq!(falcon.write(FalconReg::Control, 2), FalconEvent::Started);
        assert_eq!(falcon.read(FalconReg::Control), CONTROL_SLEEPING);
        falcon.reset();
        assert!(!falcon.is_running());
    }

    #[test]
    fn interrupt_reaches_the_host_only_by_its_route() {
        let mut falcon = falcon();
        falcon.raise_error(0x50, 3, 4);
        assert_eq!(falcon.host_interrupts(), 0);
        write(&mut falcon, FalconReg::IntrRoute, 0x0040_0050);
        assert_eq!(falcon.host_interrupts(), 0x10);
        assert_eq!(falcon.write(FalconReg::IntrAck, 0x10), FalconEvent::Acknowledged);
        assert_eq!(falcon.pending(), 0x40);
        assert_eq!(falcon.read(FalconReg::Scratch1), 4);
    }
}
