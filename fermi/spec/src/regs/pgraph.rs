//! Fields of PGRAPH's registers: nouveau `gr/gf100.c`, `gr/fuc/hub.fuc` and `macros.fuc`; envytools.

/// Bits of GRAPH_INTR (400100).
pub mod graph_intr {
    /// A notify asked for one.
    pub const NOTIFY: u32 = 1 << 0;
    /// A class has no such method.
    pub const ILLEGAL_METHOD: u32 = 1 << 4;
    /// No such class.
    pub const ILLEGAL_CLASS: u32 = 1 << 5;
    /// Two notifications were asked for with no operation between.
    pub const DOUBLE_NOTIFY: u32 = 1 << 6;
    /// Firmware method that no microcode took.
    pub const FIRMWARE_METHOD: u32 = 1 << 8;
    /// FECS: see FECS_HOST_INTR.
    pub const CTXCTL: u32 = 1 << 19;
    /// A method's data is wrong; code in GRAPH_DATA_ERROR.
    pub const DATA_ERROR: u32 = 1 << 20;
    /// A sub-unit trapped: see GRAPH_TRAP.
    pub const TRAP: u32 = 1 << 21;
}

/// Bits of GRAPH_TRAP (400108): which sub-unit.
pub mod graph_trap {
    /// Macro processor (GRAPH_MACRO_TRAP).
    pub const MACRO: u32 = 1 << 7;
    /// A GPC (GRAPH_GPC_TRAP).
    pub const GPC: u32 = 1 << 24;
}

/// Bits of GRAPH_MACRO_TRAP (404490).
pub mod macro_trap {
    /// The macro waits for a parameter, and another method came.
    pub const TOO_FEW_PARAMETERS: u32 = 1 << 0;
    /// A parameter came that no macro reads.
    pub const TOO_MANY_PARAMETERS: u32 = 1 << 1;
    /// No such operation.
    pub const ILLEGAL_OPCODE: u32 = 1 << 2;
    /// A branch in a branch's delay slot.
    pub const DOUBLE_BRANCH: u32 = 1 << 3;
    /// It ran too long.
    pub const WATCHDOG: u32 = 1 << 4;
}

/// GRAPH_MACRO_TRAP_AT: the place is valid.
pub const MACRO_TRAP_VALID: u32 = 1 << 28;
/// A sub-unit's trap register: acknowledge. Drivers write it together with the enable.
pub const TRAP_ACKNOWLEDGE: u32 = 1 << 30;
/// A sub-unit's trap register: enabled.
pub const TRAP_ENABLE: u32 = 1 << 31;
/// GPC_TRAP: TPC 0.
pub const GPC_TRAP_TPC0: u32 = 1 << 16;
/// TPC_TRAP: the texture unit.
pub const TPC_TRAP_TEXTURE: u32 = 1 << 0;
/// TEXTURE_TRAP where a texture or sampler is not valid. unverified: what the bits below 31 say; reports of nouveau's
/// users show this value.
pub const TEXTURE_TRAP_INVALID: u32 = 0x8000_0049;
/// TPC_TRAP: the MP.
pub const TPC_TRAP_MP: u32 = 1 << 1;
/// MP_GLOBAL_ERROR: a control stack was full (envytools `gf100_mp.xml`).
pub const MP_GLOBAL_OUT_OF_STACK: u32 = 1 << 3;
/// MP_GLOBAL_ERROR: a warp ran for too long.
pub const MP_GLOBAL_TIMEOUT: u32 = 1 << 8;
/// GRAPH_FIFO_CONTROL as drivers leave it: methods are taken.
pub const FIFO_CONTROL_ON: u32 = 0x0001_0001;
/// GRAPH_POWER_MODE: the mode is being changed.
pub const POWER_MODE_BUSY: u32 = 1 << 4;
/// GRAPH_TRAPPED_METHOD: the method.
pub const METHOD_MASK: u32 = 0x3ffc;
/// GRAPH_METHOD_PORT: go.
pub const METHOD_PORT_GO: u32 = 1 << 31;

/// FECS_INTR_SET: as if PFIFO asked for a context switch.
pub const FECS_SWITCH_REQUEST: u32 = 1 << 8;
/// FECS_CHANNEL, FECS_NEXT_CHANNEL and operands: an instance block is named.
pub const FECS_CHANNEL_VALID: u32 = 1 << 31;
/// The block's address >> 12.
pub const FECS_CHANNEL_FRAME: u32 = 0x0fff_ffff;

/// Bits of FECS_HOST_INTR (409c18).
pub mod fecs_intr {
    /// nouveau's microcode reports an error: code in scratch 5.
    pub const ERROR: u32 = 1 << 0;
    /// NVIDIA's microcode does not know the command (nvgpu `unimp_firmware_method`; unverified on GF100).
    pub const UNKNOWN_COMMAND: u32 = 1 << 17;
}

/// Commands and answers of nouveau's microcode.
pub mod fecs_nouveau {
    /// Makes a channel current without loading its state.
    pub const SET_CHANNEL: u32 = 1;
    /// Saves the current channel's state.
    pub const SAVE: u32 = 2;
    /// Scratch 0: started, or a command is done.
    pub const DONE: u32 = 1 << 31;
    /// Error in scratch 5: no such command, which is in bits 31:16.
    pub const BAD_COMMAND: u32 = 1;
    /// Error in scratch 5: a firmware method came. Scratch 2 has the class, 3 the method, 4 the data.
    pub const BAD_FIRMWARE_METHOD: u32 = 3;
}

/// Commands and answers of NVIDIA's microcode.
pub mod fecs_nvidia {
    /// Binds a channel.
    pub const BIND_CHANNEL: u32 = 0x03;
    /// Halts.
    pub const HALT: u32 = 0x04;
    /// Waits for idle and saves a channel's state as the golden image.
    pub const SAVE_GOLDEN: u32 = 0x09;
    /// Asks for the size of the context image.
    pub const IMAGE_BYTES: u32 = 0x10;
    /// Asks for the size of the zcull image.
    pub const ZCULL_BYTES: u32 = 0x16;
    /// Sets the watchdog.
    pub const WATCHDOG: u32 = 0x21;
    /// Asks for the size of the performance-monitor image.
    pub const MONITOR_BYTES: u32 = 0x25;
    /// Asks for the size of the register-list image.
    pub const LIST_BYTES: u32 = 0x30;
    /// Binds a register list's instance block.
    pub const LIST_BLOCK: u32 = 0x31;
    /// Sets a register list's address.
    pub const LIST_ADDRESS: u32 = 0x32;
    /// Stops context switching.
    pub const STOP_SWITCHING: u32 = 0x38;
    /// Goes on with it.
    pub const START_SWITCHING: u32 = 0x39;
    /// Scratch 0: started; SAVE_GOLDEN worked; a list command worked. Scratch 1: a switching command worked.
    pub const DONE: u32 = 1;
    /// Scratch 0: SAVE_GOLDEN failed.
    pub const FAILED: u32 = 2;
    /// Scratch 0: BIND_CHANNEL worked.
    pub const BOUND: u32 = 1 << 4;
    /// Scratch 0: BIND_CHANNEL failed.
    pub const NOT_BOUND: u32 = 1 << 5;
}

/// First byte of PGRAPH's registers and their number of bytes, without the GPCs'.
pub const GRAPH_BASE: u32 = 0x40_0000;
/// See [`GRAPH_BASE`].
pub const GRAPH_BYTES: u32 = 0x2_0000;
/// First byte of the GPCs' registers and their number of bytes.
pub const GPCS_BASE: u32 = 0x50_0000;
/// See [`GPCS_BASE`].
pub const GPCS_BYTES: u32 = 0x2_0000;
/// Value of FECS's falcon register Caps: 16 KiB of code, 4 KiB of data (envytools); FIFO and slots as a copy engine's.
pub const FECS_CAPS: u32 = 0x2040_2040;
/// The same of a GPC's falcon. unverified: sizes.
pub const GPCCS_CAPS: u32 = 0x2040_2020;
/// Version of both falcons.
pub const FECS_VERSION: u32 = 3;
