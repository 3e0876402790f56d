//! Methods of PGRAPH's classes, by the class bound to their subchannel.
//!
//! Classes 9097, 90c0 and 902d keep what every method sets. Compute and 2D have the methods of NVIDIA's headers; of 3D
//! any method in its range exists (assumption: Mesa sends some that no header names). One that all headers have but
//! drivers are known to handle in software is refused.

use super::{UNIT, macros, state::Area};
use crate::{
    context::Registers,
    engine::{Effect, Rejection},
    m2mf,
    model::FermiModel,
    transfer::Launching,
};
use fermi_spec::{
    graphics::{
        BindConstants, BindSampler, BindTexture, ReportSemaphore, UnbindAll, compute, front_end, has_method,
        shader, threed,
    },
    methods::{class, host::SET_OBJECT},
    regs::pgraph::METHOD_MASK,
    target::{Clear, draw, method as target},
    twod::method as twod,
};

/// A class with the words of its methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BoundClass {
    pub(super) subchannel: u8,
    pub(super) class: u16,
    pub(super) area: Area,
}

/// Where the context keeps the methods of a class; M2MF has words of its own for all but the common ones.
fn area_of(name: u16) -> Option<Area> {
    match name {
        class::THREED => Some(Area::THREED),
        class::COMPUTE => Some(Area::COMPUTE),
        class::TWOD => Some(Area::TWOD),
        class::M2MF => Some(Area::M2MF),
        _ => None,
    }
}

/// Whether a class has a method, macro calls apart.
fn exists(class: u16, method: u16) -> bool {
    match class {
        class::COMPUTE => has_method(compute::METHODS, method),
        class::TWOD => has_method(twod::METHODS, method),
        _ => method < front_end::MACRO_CALL,
    }
}

/// Where a class keeps a method: the words of macros are the same for all.
pub(super) fn area_with(area: Area, method: u16) -> Area {
    if method >= front_end::MACRO_SCRATCH {
        Area::THREED
    } else {
        area
    }
}

impl FermiModel {
    /// Executes one method of the channel on PGRAPH.
    pub(crate) fn run_graph_method(&mut self, subchannel: u8, method: u16, data: u32) -> Effect {
        let registers = &mut self.units[UNIT].registers;
        if method == SET_OBJECT {
            let name = data as u16;
            if area_of(name).is_none() {
                return Effect::Reject(Rejection::GraphClass);
            }
            registers.bind(subchannel, name);
            return Effect::None;
        }
        let class = registers.class(subchannel);
        let Some(area) = area_of(class) else {
            return Effect::Reject(Rejection::GraphClass);
        };
        let bound = BoundClass {
            subchannel,
            class,
            area,
        };
        if method >= front_end::MACRO_CALL && class != class::M2MF {
            self.run_macro_method(bound, method, data);
            return Effect::None;
        }
        self.end_waiting_macro();
        if !self.units[UNIT].is_ready() {
            return Effect::None;
        }
        self.run_class_method(bound, method, data)
    }

    /// Executes a method that is no macro call.
    pub(super) fn run_class_method(&mut self, bound: BoundClass, method: u16, data: u32) -> Effect {
        let area = bound.area;
        match method {
            front_end::NO_OPERATION => return self.notify(area),
            front_end::NOTIFY => return self.ask_for_notification(area, data),
            front_end::NOTIFY_HIGH | front_end::NOTIFY_LOW => {
                self.graph.state.set_method(area, method, data);
                return Effect::None;
            }
            _ => {}
        }
        if bound.class == class::M2MF {
            let registers = &mut self.units[UNIT].registers;
            return m2mf::method(registers, method, data);
        }
        if !exists(bound.class, method) {
            return Effect::Reject(Rejection::GraphMethod);
        }
        if macros::upload(&mut self.graph.state, method, data) {
            return Effect::None;
        }
        match (bound.class, method) {
            (class::THREED | class::COMPUTE, shader::SOFTWARE_EXCEPTIONS) => {
                return Effect::Reject(Rejection::GraphMethod);
            }
            (class::THREED, threed::FIRMWARE..=threed::FIRMWARE_LAST)
            | (class::COMPUTE, compute::FIRMWARE..=compute::FIRMWARE_LAST)
            | (class::TWOD, twod::FIRMWARE..=twod::FIRMWARE_LAST) => {
                self.firmware_method(bound, method, data);
                return Effect::None;
            }
            _ => self.graph.state.set_method(area_with(area, method), method, data),
        }
        match (bound.class, method) {
            (class::THREED | class::COMPUTE, shader::REPORT) => {
                self.report(bound, ReportSemaphore::from_bits(data))
            }
            (class::THREED | class::COMPUTE, shader::CONSTANT_DATA..=shader::CONSTANT_DATA_LAST) => {
                self.store_constant(area, data)
            }
            (class::THREED, target::CLEAR) => self.clear_targets(Clear::from_bits(data)),
            (class::THREED, draw::BEGIN | draw::ARRAY | draw::ARRAY_NEXT)
            | (class::THREED, draw::INDEXED..=draw::INDEXED_LAST) => {
                self.mem.counters.unmodelled_draws += 1;
                Effect::None
            }
            (class::TWOD, twod::COPY_START) => self.copy_pixels(),
            (class::COMPUTE, compute::BIND_CONSTANTS) => {
                self.bind_constants(BindConstants::from_bits(data));
                Effect::None
            }
            (class::COMPUTE, compute::BIND_TEXTURE) => {
                self.bind_texture(BindTexture::from_bits(data));
                Effect::None
            }
            (class::COMPUTE, compute::BIND_SAMPLER) => {
                self.bind_sampler(BindSampler::from_bits(data));
                Effect::None
            }
            (class::COMPUTE, compute::UNBIND_ALL) => {
                self.unbind_all(UnbindAll::from_bits(data));
                Effect::None
            }
            (class::COMPUTE, compute::LAUNCH) => self.launch(data),
            _ => Effect::None,
        }
    }

    /// The copy or clear that a method starts in the context on the engine, of which nothing changes but `registers`.
    pub(crate) fn launch_graph_again(&mut self, registers: &mut Registers, launching: Launching) -> Effect {
        let Launching {
            subchannel,
            method,
            data,
        } = launching;
        match (registers.class(subchannel), method) {
            (class::M2MF, _) => m2mf::method(registers, method, data),
            (class::THREED, target::CLEAR) => self.clear_targets(Clear::from_bits(data)),
            (class::TWOD, twod::COPY_START) => self.copy_pixels(),
            _ => Effect::None,
        }
    }

    /// The driver sets a method of the context on the engine through the method port. It starts nothing.
    pub(super) fn set_by_port(&mut self, name: u16, method: u16, data: u32) {
        match area_of(name) {
            Some(Area::M2MF) => m2mf::keep(&mut self.units[UNIT].registers, method, data),
            Some(area) => self.graph.state.set_method(area, method, data),
            None => {}
        }
    }
}

/// GRAPH_TRAPPED_METHOD for a method.
pub(super) fn trapped(subchannel: u8, method: u16) -> u32 {
    u32::from(subchannel) << 16 | u32::from(method) & METHOD_MASK
}
