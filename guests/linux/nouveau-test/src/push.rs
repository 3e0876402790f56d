//! Words for a channel: methods, host semaphores, engine bindings.
//!
//! The numbers are `fermi_spec`'s; here is only their order. A [`Push`] is bounded by what one GPFIFO entry can hold.

use fermi_spec::engine::Engine;
use fermi_spec::methods::{SemaphoreD, class, host};
use fermi_spec::pushbuffer;

/// Class that a subchannel has in all tests, so that a push needs no state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// 3D class on the graphics engine.
    ThreeD,
    /// Compute class on the graphics engine.
    Compute,
    /// Memory to memory.
    M2mf,
    /// 2D class on the graphics engine.
    TwoD,
    /// First copy engine.
    Copy0,
    /// Second copy engine.
    Copy1,
}

impl Unit {
    /// All six units.
    pub(crate) const ALL: [Self; 6] = [
        Self::ThreeD,
        Self::Compute,
        Self::M2mf,
        Self::TwoD,
        Self::Copy0,
        Self::Copy1,
    ];

    /// Subchannel; those of Mesa where it has one.
    pub(crate) fn subchannel(self) -> u8 {
        match self {
            Self::ThreeD => 0,
            Self::Compute => 1,
            Self::M2mf => 2,
            Self::TwoD => 3,
            Self::Copy0 => 4,
            Self::Copy1 => 5,
        }
    }

    /// Number of the unit's class.
    pub(crate) fn class(self) -> u16 {
        match self {
            Self::ThreeD => class::THREED,
            Self::Compute => class::COMPUTE,
            Self::M2mf => class::M2MF,
            Self::TwoD => class::TWOD,
            Self::Copy0 => class::COPY,
            Self::Copy1 => class::COPY_1,
        }
    }

    /// Engine that has the class.
    pub(crate) fn engine(self) -> Engine {
        match self {
            Self::ThreeD | Self::Compute | Self::M2mf | Self::TwoD => Engine::Graph,
            Self::Copy0 => Engine::Copy0,
            Self::Copy1 => Engine::Copy1,
        }
    }

    /// Operand of SET_OBJECT: class and engine, as nouveau's own copies bind them.
    pub(crate) fn binding(self) -> u32 {
        u32::from(self.engine().number()) << 16 | u32::from(self.class())
    }
}

/// Condition that an acquire waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquire {
    /// Memory is the payload.
    Equal,
    /// Memory − payload, signed, is not negative.
    AtLeast,
    /// Memory and payload have a common bit.
    AnyBit,
}

impl Acquire {
    fn operation(self) -> u8 {
        match self {
            Self::Equal => 1,
            Self::AtLeast => 4,
            Self::AnyBit => 8,
        }
    }
}

/// Operation number of a release.
const RELEASE: u8 = 2;

/// Words of a pushbuffer, in the order of execution.
#[derive(Clone, Default, Debug)]
pub(crate) struct Push {
    words: Vec<u32>,
}

impl Push {
    /// A push without words.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The words so far.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Any word, valid or not.
    pub(crate) fn raw(&mut self, word: u32) -> &mut Self {
        self.words.push(word);
        self
    }

    /// `data` to consecutive methods.
    #[track_caller]
    pub(crate) fn methods(&mut self, subchannel: u8, method: u16, data: &[u32]) -> &mut Self {
        let count = u16::try_from(data.len()).expect("a header counts 13 bits");
        self.words
            .push(pushbuffer::incrementing(subchannel, method, count));
        self.words.extend_from_slice(data);
        self
    }

    /// `data` to one method.
    #[track_caller]
    pub(crate) fn stream(&mut self, subchannel: u8, method: u16, data: &[u32]) -> &mut Self {
        let count = u16::try_from(data.len()).expect("a header counts 13 bits");
        self.words
            .push(pushbuffer::non_incrementing(subchannel, method, count));
        self.words.extend_from_slice(data);
        self
    }

    /// One method of a unit.
    pub(crate) fn unit(&mut self, unit: Unit, method: u16, data: &[u32]) -> &mut Self {
        self.methods(unit.subchannel(), method, data)
    }

    /// Binds the unit's class to its subchannel.
    pub(crate) fn bind(&mut self, unit: Unit) -> &mut Self {
        self.unit(unit, host::SET_OBJECT, &[unit.binding()])
    }

    fn semaphore(&mut self, address: u64, payload: u32, operand: SemaphoreD) -> &mut Self {
        let [high, low] = high_low(address);
        self.methods(0, host::SEMAPHORE_A, &[high, low, payload, operand.into_bits()])
    }

    /// The channel stops until memory at `address` is as wanted; others go on.
    pub(crate) fn acquire(&mut self, address: u64, how: Acquire, payload: u32) -> &mut Self {
        let operand = SemaphoreD::new()
            .with_operation(how.operation())
            .with_acquire_switch(true);
        self.semaphore(address, payload, operand)
    }

    /// Writes `payload` when everything before is done.
    pub(crate) fn release(&mut self, address: u64, payload: u32) -> &mut Self {
        let operand = SemaphoreD::new().with_operation(RELEASE).with_release_short(true);
        self.semaphore(address, payload, operand)
    }

    /// Writes `payload`, a zero and the time in nanoseconds: 16 bytes.
    pub(crate) fn release_with_time(&mut self, address: u64, payload: u32) -> &mut Self {
        self.semaphore(address, payload, SemaphoreD::new().with_operation(RELEASE))
    }
}

/// The two words of an address, high first, as all units take them.
pub(crate) fn high_low(address: u64) -> [u32; 2] {
    [(address >> 32) as u32, address as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::pushbuffer::{Header, Target};

    #[test]
    fn release_is_four_methods_from_semaphore_a() {
        let mut push = Push::new();
        push.release(0x12_3456_7890, 7);
        let target = Target {
            subchannel: 0,
            method: host::SEMAPHORE_A,
        };
        assert_eq!(
            Header::from_bits(push.words()[0]),
            Header::Incrementing(target, 4)
        );
        assert_eq!(push.words()[1..], [0x12, 0x3456_7890, 7, 0x0100_0002]);
    }

    #[test]
    fn copy_engines_are_bound_by_class_and_engine() {
        assert_eq!(Unit::Copy0.binding(), 0x4_90b5);
        assert_eq!(Unit::Copy1.binding(), 0x5_90b8);
        assert_eq!(Unit::M2mf.binding(), 0x9039);
    }
}
