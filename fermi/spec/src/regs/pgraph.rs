//! PGRAPH: nouveau `gr/gf100.c`, `gr/fuc/hub.fuc` and `macros.fuc`; envytools.
//!
//! What FECS is asked and answers is in [`super::fecs`].

use super::fecs::{FECS, GPCCS};
use super::units::{UnitRange, unit, units};
use crate::engine::Engine;

const PGRAPH_FIRST: u32 = 0x40_0000;
/// Where PGRAPH is, GPCs and all.
pub const PGRAPH: UnitRange = UnitRange {
    parts: PARTS,
    ..unit("PGRAPH", PGRAPH_FIRST, 0x20_0000).enabled_by(&[1 << Engine::Graph.enable_bit()])
};
/// Where the GPCs are, within PGRAPH.
pub const GPC: UnitRange = units("GPC", 0x10_0000, 0x8000, 32, GPC_PARTS);
/// GPCs that a GF100 has.
pub const GPCS: u32 = 4;
/// Where a GPC's falcon is, within the GPC.
pub(crate) const GPC_GPCCS: UnitRange = unit("GPCCS", 0x2000, 0x1000);
/// Bytes of PGRAPH from its first on that a GF100 answers besides its GPCs.
pub const GRAPH_BYTES: u32 = 0x2_0000;
/// First byte of the registers of a GF100's GPCs.
pub const GPCS_BASE: u32 = PGRAPH.first + GPC.first;
/// Bytes of BAR0 that the registers of a GF100's GPCs take.
pub const GPCS_BYTES: u32 = GPC.bytes * GPCS;

/// Parts of a TPC: texture unit, L1, the SM ("MP").
const TPC_PARTS: &[UnitRange] = &[
    unit("POLY", 0x000, 0x100),
    unit("TEX", 0x200, 0x100),
    unit("L1", 0x400, 0x100),
    unit("MP", 0x600, 0x200),
];

/// Parts of a GPC.
const GPC_PARTS: &[UnitRange] = &[
    unit("PROP", 0x0400, 0x100),
    unit("ESETUP", 0x0800, 0x100),
    unit("ZCULL", 0x0900, 0x100),
    unit("CRSTR", 0x0b00, 0x100),
    unit("GPM", 0x0c00, 0x100),
    GPC_GPCCS,
    units("TPC", 0x4000, 0x800, 4, TPC_PARTS),
];

/// Parts of PGRAPH.
const PARTS: &[UnitRange] = &[
    unit("DISPATCH", 0x0_4000, 0x400),
    unit("MACRO", 0x0_4400, 0x200),
    unit("M2MF", 0x0_4600, 0x200),
    unit("SHADER", 0x0_5800, 0x200),
    unit("UNK6000", 0x0_6000, 0x1000),
    unit("SKED", 0x0_7000, 0x1000),
    unit("CCACHE", 0x0_8000, 0x800),
    unit("ROPS", 0x0_8800, 0x800),
    unit("FECS", FECS.first - PGRAPH_FIRST, FECS.bytes),
    units("ROP", 0x1_0000, 0x400, 32, &[]),
    unit("GPCS", 0x1_8000, 0x1000),
    unit("TPCS", 0x1_9000, 0x1000),
    unit("GPCCS", GPCCS.first - PGRAPH_FIRST, GPCCS.bytes),
    GPC,
];

registers! {
    /// Words of PGRAPH that nothing else depends on.
    pub enum PgraphWord {
        /// Internal command: address; sends it.
        GraphBundle = 0x400200, ReadWrite;
        /// Internal command: data.
        GraphBundleData = 0x400204, ReadWrite;
        /// Internal commands on (bit 31).
        GraphBundleControl = 0x400208, ReadWrite;
        /// Trap of the front end (DISPATCH); sub-unit traps are acknowledged by 0xc0000000.
        GraphDispatchTrap = 0x404000, ReadWrite;
        /// Trap of M2MF.
        GraphM2mfTrap = 0x404600, ReadWrite;
    }
}

registers! {
    /// Registers of PGRAPH: what can stop the engine, and how it is asked.
    pub enum PgraphReg: PgraphWord {
        /// Pending interrupts of PGRAPH; they stop it.
        GraphIntr = 0x400100, WriteOneClears;
        /// Sub-units with a trap (interrupt bit 21).
        GraphTrap = 0x400108, WriteOneClears;
        /// Code of the data error.
        GraphDataError = 0x400110, ReadOnly;
        /// GPCs with a trap.
        GraphGpcTrap = 0x400118, WriteOneClears;
        /// Sub-units whose traps raise bit 21 of the interrupts.
        GraphTrapEnable = 0x400138, ReadWrite;
        /// Enables of PGRAPH's interrupts, a bit each.
        GraphIntrEnable = 0x40013c, ReadWrite;
        /// Front end takes methods (bits 0, 16).
        GraphFifoControl = 0x400500, ReadWrite;
        /// Activity; bit 0.
        GraphActivity = 0x40060c, ReadOnly;
        /// Busy units; bit 0 any, bit 2 internal commands.
        GraphStatus = 0x400700, ReadOnly;
        /// Method that failed: \[13:2\] method, \[18:16\] subchannel.
        GraphTrappedMethod = 0x400704, ReadOnly;
        /// Data of the method that failed.
        GraphTrappedData = 0x400708, ReadOnly;
        /// Power mode of the front end; bit 4 is set to start and clear when done.
        GraphPowerMode = 0x404170, ReadWrite;
        /// Class bound to a subchannel.
        GraphSubchannelClass[8, 4] = 0x404200, ReadWrite;
        /// Method port: \[15:0\] class, \[29:16\] method / 4, 31 go.
        GraphMethodPort = 0x404488, ReadWrite;
        /// Method port: data.
        GraphMethodPortData = 0x40448c, ReadWrite;
        /// Trap of the macro processor.
        GraphMacroTrap = 0x404490, ReadWrite;
        /// Where it happened: \[10:0\] word, 28 valid.
        GraphMacroTrapAt = 0x404494, ReadWrite;
        /// The macro's word there.
        GraphMacroTrapWord = 0x40449c, ReadWrite;
        /// Trap of a GPC: \[15:0\] its units, from bit 16 its TPCs.
        GpcTrap[GPCS, GPC.bytes] = 0x502c90, WriteOneClears;
        /// Trap of TPC 0 of a GPC: bit 1 the MP.
        TpcTrap[GPCS, GPC.bytes] = 0x504508, WriteOneClears;
        /// Texture unit of that TPC: bit 31 trapped, what below is written to acknowledge.
        TextureTrap[GPCS, GPC.bytes] = 0x504224, ReadWrite;
        /// MP of that TPC: code of the warp error.
        MpWarpError[GPCS, GPC.bytes] = 0x504648, ReadWrite;
        /// MP of that TPC: errors that concern no warp.
        MpGlobalError[GPCS, GPC.bytes] = 0x504650, WriteOneClears;
        /// ROPs and GPCs: \[20:16\] and \[4:0\].
        GraphUnits = 0x409604, ReadOnly;
        /// TPCs of a GPC.
        GpcTpcs[GPCS, GPC.bytes] = 0x502608, ReadOnly;
    }
}

/// Codes in GRAPH_DATA_ERROR (400110), from nouveau's `nv50_data_error_names`.
pub mod graph_data_error {
    /// A value that cannot be.
    pub const INVALID_VALUE: u32 = 0x4;
    /// A value that is none of its enumeration.
    pub const INVALID_ENUM: u32 = 0x5;
    /// A reserved bit is set.
    pub const INVALID_BITFIELD: u32 = 0xc;
    /// A copy reaches beyond the layers of its surface (envytools `g80_defs.xml`: M2MF at least).
    pub const Z_OUT_OF_BOUNDS: u32 = 0x21;
    /// A copy reaches beyond the lines of its surface, or beyond their ends (envytools likewise).
    pub const XY_OUT_OF_BOUNDS: u32 = 0x23;
}

/// GRAPH_UNITS (409604): ROPs, from this bit up; GPCs below.
pub const UNITS_ROPS_SHIFT: u32 = 16;

/// GRAPH_STATUS (400700): internal commands are under way.
pub const STATUS_COMMANDS: u32 = 1 << 2;

/// Registers that a driver sets up before channels draw or compute: nouveau `gr/ctxgf100.c`, `gr/gf100.c`.
pub mod setup {
    use super::{GPC, GPCS_BASE};

    /// Number of an internal command; the store sends it.
    pub const COMMAND: u32 = 0x40_0200;
    /// Data of an internal command.
    pub const COMMAND_DATA: u32 = 0x40_0204;
    /// Internal commands are let in ([`COMMANDS_ON`]).
    pub const COMMAND_CONTROL: u32 = 0x40_0208;
    /// [`COMMAND_CONTROL`]: commands are let in.
    pub const COMMANDS_ON: u32 = 1 << 31;
    /// Clears the RAM behind constants.
    pub const CONSTANTS_CLEARED: u32 = 0x40_802c;
    /// Resets the units around FECS.
    pub const RESET: u32 = 0x40_9614;
    /// [`RESET`]: in reset.
    pub const RESET_BEGINS: u32 = 0x70;
    /// [`RESET`]: out of it.
    pub const RESET_ENDS: u32 = 0x770;
    /// GRAPH_POWER_MODE (404170): the front end stays on.
    pub const POWER_ON: u32 = 2;

    /// A buffer's size or flag register: the buffer is there.
    pub const BUFFER_VALID: u32 = 1 << 31;
    /// Page pool: address >> 8.
    pub const POOL: u32 = 0x40_800c;
    /// Page pool: [`BUFFER_VALID`].
    pub const POOL_VALID: u32 = 0x40_8010;
    /// Page pool of all TPCs: address >> 8.
    pub const POOL_OF_TPCS: u32 = 0x41_9004;
    /// Page pool of all TPCs: size.
    pub const POOL_OF_TPCS_SIZE: u32 = 0x41_9008;
    /// Bundles: address >> 8.
    pub const BUNDLES: u32 = 0x40_8004;
    /// Bundles: [`BUFFER_VALID`], bytes >> 8.
    pub const BUNDLES_SIZE: u32 = 0x40_8008;
    /// Bundles of all GPCs: address >> 8.
    pub const BUNDLES_OF_GPCS: u32 = 0x41_8808;
    /// Bundles of all GPCs: [`BUFFER_VALID`], bytes >> 8.
    pub const BUNDLES_OF_GPCS_SIZE: u32 = 0x41_880c;
    /// Attributes of all GPCs: [`BUFFER_VALID`], address >> 12.
    pub const ATTRIBUTES_OF_GPCS: u32 = 0x41_8810;
    /// Attributes of all TPCs: [`ATTRIBUTES_VALID`], address >> 12.
    pub const ATTRIBUTES_OF_TPCS: u32 = 0x41_9848;
    /// [`ATTRIBUTES_OF_TPCS`]: the buffer is there.
    pub const ATTRIBUTES_VALID: u32 = 1 << 28;
    /// Attributes that a TPC has, in bits 31:16.
    pub const ATTRIBUTES_EACH: u32 = 0x40_5830;

    /// The attributes of one TPC: how many in bits 31:16, where they begin below.
    pub const fn attributes_of_tpc(gpc: u32, tpc: u32) -> u32 {
        GPCS_BASE + gpc * GPC.bytes + 0x4520 + tpc * 0x800
    }

    /// Exceptions of shaders that all TPCs tell: two masks. nouveau sets both for the method SHADER_EXCEPTIONS (1528), which no engine knows.
    pub const SHADER_EXCEPTIONS: [u32; 2] = [0x41_9e44, 0x41_9e4c];
}

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
/// GRAPH_METHOD_PORT: sends the method.
pub const METHOD_PORT_GO: u32 = 1 << 31;
