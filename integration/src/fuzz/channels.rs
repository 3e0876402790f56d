//! Submissions of channels' users: any entries of the ring and any words of the pushbuffer.
//!
//! The driver handles errors as nouveau does. With any submissions of the others, the channel of a user who made
//! no error makes progress.

use super::input::Input;
use crate::card::{APART_DATA, Card, CardSetup, DATA_VA, LARGE_VA, RAM_VA};
use fermi_model::Stepped;
use fermi_spec::engine::Engine;
use fermi_spec::methods::{SemaphoreD, class, copy, host, m2mf};
use fermi_spec::pushbuffer::{immediate, incrementing, non_incrementing};
use fermi_spec::regs::pbdma;
use fermi_spec::regs::{PbdmaReg, PcopyReg, PfifoReg, PgraphReg, PmcReg};

/// The user who makes no error.
pub(super) const INNOCENT: u16 = 0;
const CHANNELS: u16 = 4;
/// Work of one step.
const WORK: u32 = 500;
/// Most actions of an input.
const ACTIONS_MAX: usize = 500;
/// Steps after which the innocent channel's work is done: the others have slices of a millisecond.
const PATIENCE: u32 = 3_000;
/// Subchannels of the others and the classes bound there.
const OBJECTS: [u32; 6] = [
    class::THREED as u32,
    class::COMPUTE as u32,
    class::M2MF as u32,
    class::TWOD as u32,
    class::COPY as u32 | 4 << 16,
    class::COPY_1 as u32 | 5 << 16,
];

/// An address that often lies in the data.
pub(super) fn address(input: &mut Input<'_>) -> u64 {
    let inside = input.below(0x11_0000);
    match input.u8() & 7 {
        0 => input.u64() >> 24,
        1 => RAM_VA + inside,
        2 => LARGE_VA + inside,
        _ => DATA_VA + inside,
    }
}

fn split(va: u64) -> [u32; 2] {
    [(va >> 32) as u32, va as u32]
}

/// Methods that start something, with operands that are often valid.
fn command(input: &mut Input<'_>) -> Vec<u32> {
    let ([sh, sl], [th, tl]) = (split(address(input)), split(address(input)));
    match input.u8() % 4 {
        0 => {
            let payload = u32::from(input.u8() & 3);
            let operation = SemaphoreD::from_bits(input.u32() & 0x110_100f | 1 << (input.u8() & 3));
            vec![
                incrementing(6, host::SEMAPHORE_A, 4),
                sh,
                sl,
                payload,
                operation.into_bits(),
            ]
        }
        1 => {
            let subchannel = 4 + (input.u8() & 1);
            let [pitch_in, pitch_out, bytes] = [(); 3].map(|()| u32::from(input.u16()));
            let lines = u32::from(input.u8());
            let exec = input.u32() & 0x3111 | 0x110;
            vec![
                incrementing(subchannel, copy::SRC_HIGH, 8),
                sh,
                sl,
                th,
                tl,
                pitch_in,
                pitch_out,
                bytes,
                lines,
                incrementing(subchannel, copy::EXEC, 1),
                exec,
            ]
        }
        2 => {
            let (pitch, bytes, lines) = (
                u32::from(input.u16()),
                u32::from(input.u16()),
                u32::from(input.u8()),
            );
            vec![
                incrementing(2, m2mf::OFFSET_OUT_HIGH, 2),
                th,
                tl,
                incrementing(2, m2mf::OFFSET_IN_HIGH, 6),
                sh,
                sl,
                pitch,
                pitch,
                bytes,
                lines,
                incrementing(2, m2mf::LAUNCH, 1),
                input.u32(),
            ]
        }
        _ => {
            let op = host::NON_STALL_INTERRUPT;
            let method = input.choose(&[
                op,
                host::SET_REFERENCE,
                host::YIELD,
                host::MEM_OP_A,
                host::MEM_OP_B,
            ]);
            vec![incrementing(input.u8() & 7, method, 1), input.u32()]
        }
    }
}

/// A piece of a pushbuffer.
pub(super) fn words(input: &mut Input<'_>) -> Vec<u32> {
    match input.u8() % 8 {
        0 => vec![input.u32()],
        1 => (0..input.u8() & 15).map(|_| input.u32()).collect(),
        2 => {
            let count = u16::from(input.u8() & 7);
            let header = incrementing(input.u8() & 7, input.u16() & 0x3ffc, count);
            std::iter::once(header)
                .chain((0..count).map(|_| input.u32()))
                .collect()
        }
        3 => {
            let count = u16::from(input.u8() & 7);
            let header = non_incrementing(input.u8() & 7, input.u16() & 0x3ffc, count);
            std::iter::once(header)
                .chain((0..count).map(|_| input.u32()))
                .collect()
        }
        4 => vec![immediate(
            input.u8() & 7,
            input.u16() & 0x3ffc,
            input.u16() & 0x1fff,
        )],
        _ => command(input),
    }
}

/// Handles interrupts as nouveau does: it acknowledges the error and removes the channel that caused it.
pub(super) fn service(card: &mut Card) {
    let faults = card.read(PfifoReg::FaultUnits);
    card.write(PfifoReg::FaultUnits, faults);
    for pbdma in 0..3 {
        let intr = card.read(PbdmaReg::PbdmaIntr(pbdma));
        if intr == 0 {
            continue;
        }
        let channel = card.read(PbdmaReg::PbdmaChannel(pbdma)) as u16 & 0x7f;
        // Read as nouveau does: without checking whether there is a channel.
        assert_ne!(channel, INNOCENT, "PBDMA {pbdma} blames the innocent: {intr:#x}");
        card.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
        card.write(PbdmaReg::PbdmaIntr(pbdma), intr);
    }
    for index in 0..2 {
        let intr = card.read(PcopyReg::CopyIntr(index));
        card.write(PcopyReg::CopyIntrAck(index), intr);
    }
    let intr = card.read(PgraphReg::GraphIntr);
    card.write(PgraphReg::GraphIntr, intr);
    let faulted = card.read(PfifoReg::EngineFault);
    for engine in [Engine::Graph, Engine::Copy0, Engine::Copy1] {
        if faulted & 1 << engine.number() != 0 {
            let enable = card.read(PmcReg::PmcEnable);
            card.write(PmcReg::PmcEnable, enable & !(1 << engine.enable_bit()));
            card.write(PmcReg::PmcEnable, enable);
        }
    }
    card.write(PfifoReg::EngineFault, faulted);
    for reg in [PfifoReg::PfifoIntr, PfifoReg::RunlistIntr] {
        let intr = card.read(reg);
        card.write(reg, intr);
    }
}

fn act(card: &mut Card, input: &mut Input<'_>) {
    let id = 1 + u16::from(input.u8()) % (CHANNELS - 1);
    match input.u8() % 8 {
        0 => card.push_entry(id, input.u64()),
        1 => card.ring_with(id, u32::from(input.u8())),
        2 => {
            card.step(WORK);
            service(card);
        }
        3 => card.bind(id),
        _ => {
            // No switch, level, synchronous: the flags of an entry.
            let flags = u64::from(input.u8() & 3) | u64::from(input.u8() & 3) << 40;
            let pieces: Vec<u32> = (0..1 + (input.u8() & 3)).flat_map(|_| words(input)).collect();
            card.push(id, &pieces, flags);
            card.ring(id);
        }
    }
}

/// Work of the user without errors: a release.
fn innocent_words(payload: u32) -> Vec<u32> {
    vec![
        incrementing(0, host::SEMAPHORE_A, 4),
        0,
        DATA_VA as u32,
        payload,
        SemaphoreD::new()
            .with_operation(2)
            .with_release_short(true)
            .into_bits(),
    ]
}

/// Body of the target `channels`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut card = Card::with_channels_but_one(CHANNELS, CardSetup::fuzzed(input.microcode()));
    card.step(WORK);
    for id in 1..CHANNELS {
        let objects: Vec<u32> = (0..)
            .zip(OBJECTS)
            .flat_map(|(subchannel, object)| [incrementing(subchannel, host::SET_OBJECT, 1), object])
            .collect();
        card.push(id, &objects, 0);
        card.ring(id);
    }
    let mut payload = 0;
    for turn in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        if turn % 64 == 0 {
            payload += 1;
            card.push(INNOCENT, &innocent_words(payload), 0);
            card.ring(INNOCENT);
        }
        act(&mut card, &mut input);
    }
    for _ in 0..PATIENCE {
        if card.vram_u32(APART_DATA) == payload {
            return;
        }
        if card.step(WORK) != Stepped::Busy {
            service(&mut card);
        }
    }
    panic!("the innocent channel does not get on");
}
