//! Methods of PGRAPH's classes, by the class bound to their subchannel.
//!
//! Classes 9097, 90c0 and 902d keep what every method sets: any method in the range of the class exists, except those
//! that hardware is known to refuse.

use super::{UNIT, state::Area};
use crate::{
    engine::{Effect, Rejection},
    m2mf,
    model::FermiModel,
};
use fermi_spec::methods::{class, host::SET_OBJECT};

/// Where the context keeps the methods of a class that stores them.
fn area_of(name: u16) -> Option<Area> {
    match name {
        class::THREED => Some(Area::THREED),
        class::COMPUTE => Some(Area::COMPUTE),
        class::TWOD => Some(Area::TWOD),
        _ => None,
    }
}

impl FermiModel {
    /// Executes one method of the channel on PGRAPH.
    pub(crate) fn run_graph_method(&mut self, subchannel: u8, method: u16, data: u32) -> Effect {
        let registers = &mut self.units[UNIT].registers;
        if method == SET_OBJECT {
            let name = data as u16;
            if name != class::M2MF && area_of(name).is_none() {
                return Effect::Reject(Rejection::GraphClass);
            }
            registers.bind(subchannel, name);
            return Effect::None;
        }
        match registers.class(subchannel) {
            class::M2MF => m2mf::method(registers, subchannel, method, data),
            name => match area_of(name) {
                None => Effect::Reject(Rejection::GraphClass),
                Some(area) if method >= area.bytes() => Effect::Reject(Rejection::GraphMethod),
                Some(area) => {
                    self.graph.state.set_method(area, method, data);
                    Effect::None
                }
            },
        }
    }

    /// The driver sets a method of the context on the engine through the method port. It starts nothing.
    pub(super) fn set_by_port(&mut self, name: u16, method: u16, data: u32) {
        match area_of(name) {
            Some(area) => self.graph.state.set_method(area, method, data),
            None if name == class::M2MF => self.units[UNIT].registers.set(method, data),
            None => {}
        }
    }
}
