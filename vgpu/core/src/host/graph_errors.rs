//! PGRAPH's account of an error: which registers of the card have it, and how it is acknowledged there.

use fermi_spec::bar::Bar;
use fermi_spec::regs::PgraphReg;
use fermi_spec::regs::pgraph::{
    FIFO_CONTROL_ON, TRAP_ACKNOWLEDGE, TRAP_ENABLE, graph_intr, graph_trap, setup,
};

use crate::channel_error::{GPCS, GpcTrap, GraphError, subchannel_of};
use crate::event::{Action, Actions};

/// The registers of the macro processor's trap.
const MACROS: [PgraphReg; 3] = [
    PgraphReg::GraphMacroTrap,
    PgraphReg::GraphMacroTrapAt,
    PgraphReg::GraphMacroTrapWord,
];

/// Those of a GPC, in the order of [`GpcTrap`].
fn of_gpc(gpc: u16) -> [PgraphReg; 5] {
    [
        PgraphReg::GpcTrap(gpc),
        PgraphReg::TpcTrap(gpc),
        PgraphReg::TextureTrap(gpc),
        PgraphReg::MpWarpError(gpc),
        PgraphReg::MpGlobalError(gpc),
    ]
}

/// Registers that tell of the error, as far as those that were read say so: `word` is zero for one that was not. Asked again when these
/// have been read, it may name more.
pub(super) fn registers(word: impl Fn(PgraphReg) -> u32) -> Vec<PgraphReg> {
    let intr = word(PgraphReg::GraphIntr);
    if intr & !graph_intr::NOTIFY == 0 {
        return Vec::new();
    }
    let subchannel = subchannel_of(word(PgraphReg::GraphTrappedMethod));
    let mut registers = vec![
        PgraphReg::GraphDataError,
        PgraphReg::GraphSubchannelClass(subchannel),
    ];
    if intr & graph_intr::TRAP != 0 {
        registers.push(PgraphReg::GraphTrap);
    }
    if word(PgraphReg::GraphTrap) & graph_trap::MACRO != 0 {
        registers.extend(MACROS);
    }
    if word(PgraphReg::GraphTrap) & graph_trap::GPC != 0 {
        registers.push(PgraphReg::GraphGpcTrap);
    }
    let gpcs = word(PgraphReg::GraphGpcTrap);
    let trapped = (0..GPCS as u16).filter(|gpc| gpcs & 1 << gpc != 0);
    registers.extend(trapped.flat_map(of_gpc));
    registers
}

/// The error that the registers tell; `None` if they tell of none.
pub(super) fn error(word: impl Fn(PgraphReg) -> u32) -> Option<GraphError> {
    let intr = word(PgraphReg::GraphIntr) & !graph_intr::NOTIFY;
    let method = word(PgraphReg::GraphTrappedMethod);
    let class = PgraphReg::GraphSubchannelClass(subchannel_of(method));
    (intr != 0).then(|| GraphError {
        intr,
        data_error: word(PgraphReg::GraphDataError),
        method,
        data: word(PgraphReg::GraphTrappedData),
        class: word(class),
        trap: word(PgraphReg::GraphTrap),
        gpc_trap: word(PgraphReg::GraphGpcTrap),
        macros: MACROS.map(&word),
        gpcs: std::array::from_fn(|gpc| {
            let [gpc, tpc, texture, warp, global] = of_gpc(gpc as u16).map(&word);
            GpcTrap {
                gpc,
                tpc,
                texture,
                warp,
                global,
            }
        }),
    })
}

/// Acknowledges it on the card, from the sub-units up, so that nothing of it is left for the next VM; then the engine goes on. What a driver
/// has to do for a method is done before, while the channel's context is on the engine.
pub(super) fn acknowledge(error: &GraphError, actions: &mut Actions) {
    if let Some(wanted) = error.wants_exceptions() {
        let mask: u32 = if wanted { !0 } else { 0 };
        for at in setup::SHADER_EXCEPTIONS {
            actions.push(Action::HostWrite {
                bar: Bar::Bar0,
                offset: at.into(),
                data: mask.to_le_bytes().to_vec(),
            });
        }
    }
    let mut write = |reg: PgraphReg, found: u32, value: u32| {
        if found != 0 {
            actions.register(reg, value);
        }
    };
    for (gpc, traps) in (0..).zip(&error.gpcs) {
        write(PgraphReg::MpWarpError(gpc), traps.warp, 0);
        write(PgraphReg::MpGlobalError(gpc), traps.global, traps.global);
        write(
            PgraphReg::TextureTrap(gpc),
            traps.texture,
            TRAP_ACKNOWLEDGE | TRAP_ENABLE,
        );
        write(PgraphReg::TpcTrap(gpc), traps.tpc, traps.tpc);
        write(PgraphReg::GpcTrap(gpc), traps.gpc, traps.gpc);
    }
    write(PgraphReg::GraphGpcTrap, error.gpc_trap, error.gpc_trap);
    let [macros, ..] = error.macros;
    write(
        PgraphReg::GraphMacroTrap,
        macros & !TRAP_ENABLE,
        TRAP_ACKNOWLEDGE | TRAP_ENABLE,
    );
    write(PgraphReg::GraphTrap, error.trap, error.trap);
    write(PgraphReg::GraphIntr, error.intr, error.intr);
    // The front end takes no methods after an error (nouveau `gr/gf100.c`, end of the interrupt's handler).
    actions.register(PgraphReg::GraphFifoControl, FIFO_CONTROL_ON);
}
