//! Copy engines (90b5, 90b8) by either microcode, and M2MF (9039).

use fermi_spec::addr::GpuVa;
use fermi_spec::methods::nvidia_copy::{self as nvidia, AddressingMode, LaunchDma};
use fermi_spec::methods::{CopyExec, M2mfLaunch, copy, m2mf};

use crate::compute::is_unconditional;
use crate::observer::{CopyMethods, Look, released};
use crate::pending::Pending;
use crate::registers::{Kept, Registers};
use crate::work::{Copy, Opaque, Target, Work};

/// Methods of nouveau's microcode whose values matter.
static KEPT_NOUVEAU: Kept = Kept::new(&[(copy::SRC_HIGH, copy::QUERY_COUNTER)]);
/// Methods of NVIDIA's microcode whose values matter.
static KEPT_NVIDIA: Kept = Kept::new(&[
    (nvidia::SET_APPLICATION_ID, nvidia::SET_APPLICATION_ID),
    (nvidia::SEMAPHORE_A, nvidia::SEMAPHORE_PAYLOAD),
    (nvidia::ADDRESSING_MODE, nvidia::RENDER_ENABLE_C),
    (nvidia::OFFSET_IN_UPPER, nvidia::LINE_COUNT),
]);
/// Methods of M2MF whose values matter.
static KEPT_M2MF: Kept = Kept::new(&[
    (m2mf::OFFSET_OUT_HIGH, m2mf::OFFSET_OUT_LOW),
    (m2mf::RENDER_ENABLE_OVERRIDE, m2mf::RENDER_ENABLE_OVERRIDE),
    (m2mf::OFFSET_IN_HIGH, m2mf::LINE_COUNT),
    (m2mf::SEMAPHORE_HIGH, m2mf::SEMAPHORE_PAYLOAD),
    (m2mf::RENDER_ENABLE_C, m2mf::RENDER_ENABLE_C),
]);

/// Methods that say what a copy moves: addresses (the high word first), pitches, line and lines.
#[derive(Clone, Copy)]
struct Places {
    from: u16,
    to: u16,
    from_pitch: u16,
    to_pitch: u16,
    line: u16,
    lines: u16,
}

impl Places {
    /// The lines of both sides. `lines`: their number where it is not the method's.
    fn sides(self, registers: &Registers, lines: Option<u32>) -> Option<(Target, Target)> {
        let lines = match lines {
            Some(lines) => lines,
            None => registers.get(self.lines)?,
        };
        let line = registers.get(self.line)?;
        let side = |address, pitch| {
            Some(Target {
                at: GpuVa(registers.address(address)?),
                line: line.into(),
                pitch: registers.get(pitch)?.into(),
                lines: lines.into(),
            })
        };
        Some((side(self.from, self.from_pitch)?, side(self.to, self.to_pitch)?))
    }
}

/// A copy of lines that are there.
fn copied(sides: Option<(Target, Target)>, look: &mut Look<'_>, pending: &mut Pending) {
    let Some((from, to)) = sides else {
        return look.opaque(Opaque::State, pending);
    };
    pending.spoil(to.bytes(), look.entry);
    look.found(Work::Copy(Copy {
        from: Some(from),
        to,
        whole: to.is_whole(),
    }));
}

/// A copy engine.
#[derive(Clone, Debug)]
pub(crate) struct CopyEngine {
    methods: CopyMethods,
    registers: Registers,
}

impl CopyEngine {
    pub(crate) fn new(methods: CopyMethods) -> Self {
        Self {
            methods,
            registers: Registers::new(match methods {
                CopyMethods::Nouveau => &KEPT_NOUVEAU,
                CopyMethods::Nvidia => &KEPT_NVIDIA,
            }),
        }
    }

    pub(crate) fn lose(&mut self) {
        self.registers.lose();
    }

    pub(crate) fn method(
        &mut self,
        method: u16,
        data: Option<u32>,
        look: &mut Look<'_>,
        pending: &mut Pending,
    ) {
        match (self.methods, method, data) {
            (CopyMethods::Nouveau, copy::EXEC, Some(data)) => {
                self.execute(CopyExec::from_bits(data), look, pending);
            }
            (CopyMethods::Nvidia, nvidia::LAUNCH_DMA, Some(data)) => {
                self.launch(LaunchDma::from_bits(data), look, pending);
            }
            (CopyMethods::Nouveau, copy::EXEC, None) | (CopyMethods::Nvidia, nvidia::LAUNCH_DMA, None) => {
                look.opaque(Opaque::State, pending);
            }
            _ => drop(self.registers.set(method, data)),
        }
    }

    /// EXEC of nouveau's microcode.
    fn execute(&mut self, operand: CopyExec, look: &mut Look<'_>, pending: &mut Pending) {
        const PLACES: Places = Places {
            from: copy::SRC_HIGH,
            to: copy::DST_HIGH,
            from_pitch: copy::SRC_PITCH,
            to_pitch: copy::DST_PITCH,
            line: copy::LINE_BYTES,
            lines: copy::LINES,
        };
        if operand.format() || !operand.src_linear() || !operand.dst_linear() {
            look.opaque(Opaque::Tiles, pending);
        } else {
            copied(PLACES.sides(&self.registers, None), look, pending);
        }
        if operand.query() {
            let bytes = if operand.query_short() { 4 } else { 16 };
            self.release(copy::QUERY_HIGH, copy::QUERY_COUNTER, bytes, look, pending);
        }
    }

    /// LAUNCH_DMA of NVIDIA's microcode.
    fn launch(&mut self, operand: LaunchDma, look: &mut Look<'_>, pending: &mut Pending) {
        if operand.transfer() != 0 {
            match self.transfer(operand) {
                Ok(sides) => copied(sides, look, pending),
                Err(why) => look.opaque(why, pending),
            }
        }
        if operand.semaphore() != 0 {
            let is_short = operand.semaphore() == LaunchDma::ONE_WORD;
            let bytes = if is_short { 4 } else { 16 };
            self.release(
                nvidia::SEMAPHORE_A,
                nvidia::SEMAPHORE_PAYLOAD,
                bytes,
                look,
                pending,
            );
        }
    }

    fn transfer(&self, operand: LaunchDma) -> Result<Option<(Target, Target)>, Opaque> {
        const PLACES: Places = Places {
            from: nvidia::OFFSET_IN_UPPER,
            to: nvidia::OFFSET_OUT_UPPER,
            from_pitch: nvidia::PITCH_IN,
            to_pitch: nvidia::PITCH_OUT,
            line: nvidia::LINE_LENGTH_IN,
            lines: nvidia::LINE_COUNT,
        };
        let get = |method| self.registers.get(method).ok_or(Opaque::State);
        let mode = AddressingMode::from_bits(get(nvidia::ADDRESSING_MODE)?);
        if mode.src_physical() || mode.dst_physical() {
            return Err(Opaque::Physical);
        }
        if get(nvidia::SET_APPLICATION_ID)? == nvidia::APPLICATION_LOW_LEVEL {
            return Err(Opaque::Physical);
        }
        if operand.remap() || !operand.src_linear() || !operand.dst_linear() {
            return Err(Opaque::Tiles);
        }
        is_unconditional(&self.registers, nvidia::RENDER_ENABLE_C)?;
        let lines = (!operand.multi_line()).then_some(1);
        Ok(PLACES.sides(&self.registers, lines))
    }

    fn release(&self, address: u16, payload: u16, bytes: u8, look: &mut Look<'_>, pending: &mut Pending) {
        release(&self.registers, [address, payload], bytes, look, pending);
    }
}

fn release(
    registers: &Registers,
    [address, payload]: [u16; 2],
    bytes: u8,
    look: &mut Look<'_>,
    pending: &mut Pending,
) {
    match registers.address(address) {
        Some(at) => released(GpuVa(at), bytes, registers.get(payload), look, pending),
        None => look.opaque(Opaque::State, pending),
    }
}

/// Memory to memory on PGRAPH.
#[derive(Clone, Debug)]
pub(crate) struct M2mf {
    registers: Registers,
    /// Bytes that the pushbuffer still brings, and where they go.
    inline: std::ops::Range<u64>,
}

impl M2mf {
    pub(crate) fn new() -> Self {
        Self {
            registers: Registers::new(&KEPT_M2MF),
            inline: 0..0,
        }
    }

    pub(crate) fn lose(&mut self) {
        self.registers.lose();
        self.inline = 0..0;
    }

    pub(crate) fn method(
        &mut self,
        method: u16,
        data: Option<u32>,
        look: &mut Look<'_>,
        pending: &mut Pending,
    ) {
        match method {
            m2mf::WAIT_FOR_IDLE => look.found(Work::Wait),
            m2mf::LAUNCH => match data {
                Some(data) => self.launch(M2mfLaunch::from_bits(data), look, pending),
                None => {
                    self.inline = 0..0;
                    look.opaque(Opaque::State, pending);
                }
            },
            m2mf::DATA => self.data(data, look, pending),
            _ => drop(self.registers.set(method, data)),
        }
    }

    fn launch(&mut self, operand: M2mfLaunch, look: &mut Look<'_>, pending: &mut Pending) {
        self.inline = 0..0;
        match self.transfer(operand) {
            Ok(Some((_, to))) if operand.inline() => {
                pending.spoil(to.bytes(), look.entry);
                if to.lines == 1 {
                    self.inline = to.bytes();
                }
                look.found(Work::Copy(Copy {
                    from: None,
                    to,
                    whole: to.is_whole(),
                }));
            }
            Ok(sides) => copied(sides, look, pending),
            Err(why) => look.opaque(why, pending),
        }
        if operand.completion() == M2mfLaunch::RELEASE_SEMAPHORE {
            let bytes = if operand.semaphore_short() { 4 } else { 16 };
            let methods = [m2mf::SEMAPHORE_HIGH, m2mf::SEMAPHORE_PAYLOAD];
            release(&self.registers, methods, bytes, look, pending);
        }
    }

    fn transfer(&self, operand: M2mfLaunch) -> Result<Option<(Target, Target)>, Opaque> {
        const PLACES: Places = Places {
            from: m2mf::OFFSET_IN_HIGH,
            to: m2mf::OFFSET_OUT_HIGH,
            from_pitch: m2mf::PITCH_IN,
            to_pitch: m2mf::PITCH_OUT,
            line: m2mf::LINE_LENGTH,
            lines: m2mf::LINE_COUNT,
        };
        const ALWAYS: u32 = 1;
        const NEVER: u32 = 2;
        if !operand.dst_linear() || !operand.inline() && !operand.src_linear() {
            return Err(Opaque::Tiles);
        }
        match self.registers.get(m2mf::RENDER_ENABLE_OVERRIDE) {
            None => return Err(Opaque::State),
            Some(ALWAYS) => {}
            Some(NEVER) => return Err(Opaque::Condition),
            Some(_) => is_unconditional(&self.registers, m2mf::RENDER_ENABLE_C)?,
        }
        Ok(PLACES.sides(&self.registers, None))
    }

    /// A word of inline data.
    fn data(&mut self, data: Option<u32>, look: &Look<'_>, pending: &mut Pending) {
        let start = self.inline.start;
        let count = (self.inline.end - start).min(4) as usize;
        if count > 0 {
            match data {
                Some(data) => pending.store(start, &data.to_le_bytes()[..count], look.entry),
                None => pending.spoil(start..start + count as u64, look.entry),
            }
            self.inline.start += count as u64;
        }
    }
}
