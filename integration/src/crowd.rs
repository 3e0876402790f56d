//! A guest with more channels than the card has numbers for: each works in turns with all others, and relies on what it has told the card before.

use fermi_spec::addr::LARGE_PAGE;
use fermi_spec::engine::Engine;
use fermi_spec::instance::CHANNELS;
use fermi_spec::methods::{M2mfLaunch, class, copy, host, m2mf};
use fermi_spec::pushbuffer::incrementing;

use vgpu::VmId;

use crate::bench::{Bench, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::rig::{self, DATA_VA, RAM_VA, Rig};
use sim_host::bus::WideBus;

/// Bytes of VRAM that a channel has for itself. Those of the last few take longer to copy than a channel has its engine at a time, so they
/// give up their numbers in the middle of a copy, too.
const SLOT: u64 = 4 << 10;
const LONG_SLOT: u64 = 448 << 10;
const LONG: u8 = 8;
const FIRST_LONG: u8 = ALL - LONG;
/// Bytes of all slots, in whole large pages.
const SLOTS: u64 = FIRST_LONG as u64 * SLOT + LONG as u64 * LONG_SLOT;
const DATA_BYTES: u64 = SLOTS.next_multiple_of(LARGE_PAGE);
const LINE: u32 = 4 << 10;
/// Where the patterns of all channels begin in guest RAM, and what they find again.
const PATTERNS_GPA: u64 = 4 << 20;
const FOUND_GPA: u64 = 8 << 20;
/// Where copy engines keep what they know of channels.
const CONTEXTS_GPA: u64 = 12 << 20;
const CONTEXT_BYTES: u64 = 0x8000;
/// What the places hold where patterns are found again, until they are copied there.
const NOT_COPIED: u8 = 0xee;
/// Asks until a channel's work is given up.
const TURNS: u32 = 100_000;

/// Channels that a guest has.
pub const ALL: u8 = CHANNELS as u8;

fn pattern(seed: u64, channel: u8) -> Vec<u8> {
    let first = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(channel) << 17;
    let words = (0..slot_bytes(channel) / 8).map(|at| (first + at).wrapping_mul(0x2545_f491_4f6c_dd1d));
    words.flat_map(u64::to_le_bytes).collect()
}

/// So many channels use no engine at all, and have no context for one. They are bound first, so they get numbers before the others.
const WITHOUT_ENGINE: u8 = 32;

/// Binds a channel that has a context for the engine that it uses, as drivers of the hardware do.
fn bind(rig: &mut Rig, bus: &mut impl WideBus, channel: u8) {
    rig.write_instance(bus, channel, rig::DIRECTORY);
    let context = RAM_VA + CONTEXTS_GPA + u64::from(channel) * CONTEXT_BYTES;
    let pointer = Rig::instance(channel) + engine_of(channel).context_offset();
    if channel >= WITHOUT_ENGINE {
        rig::put64(bus, pointer, context);
    }
    rig.bind(bus, channel);
}

fn slot_bytes(channel: u8) -> u64 {
    if channel < FIRST_LONG { SLOT } else { LONG_SLOT }
}

fn at_slot(channel: u8) -> u64 {
    u64::from(channel.min(FIRST_LONG)) * SLOT + u64::from(channel.saturating_sub(FIRST_LONG)) * LONG_SLOT
}

/// The engine that a channel uses: all that copy, in turn.
fn engine_of(channel: u8) -> Engine {
    [Engine::Graph, Engine::Copy0, Engine::Copy1][usize::from(channel) % 3]
}

/// Binds the channel's engine to its subchannel.
fn binding(channel: u8) -> Vec<u32> {
    match engine_of(channel) {
        Engine::Graph => vec![incrementing(2, host::SET_OBJECT, 1), class::M2MF.into()],
        engine => rig::bind_words(engine).to_vec(),
    }
}

/// The first copy of a channel: all that there is to be told of it.
fn first_copy(channel: u8, source: u64, target: u64) -> Vec<u32> {
    let lines = slot_bytes(channel) as u32 / LINE;
    if engine_of(channel) != Engine::Graph {
        return rig::copy_words(source, target, LINE, lines);
    }
    let mut words = vec![incrementing(2, m2mf::PITCH_IN, 4), LINE, LINE, LINE, lines];
    words.extend(next_copy(channel, source, target));
    words
}

/// The next copy of a channel: only where from and where to. How many bytes is what it was told before.
fn next_copy(channel: u8, source: u64, target: u64) -> Vec<u32> {
    if engine_of(channel) == Engine::Graph {
        let launch = M2mfLaunch::new().with_src_linear(true).with_dst_linear(true);
        let [from, to] = [source, target].map(|at| [(at >> 32) as u32, at as u32]);
        return vec![
            incrementing(2, m2mf::OFFSET_OUT_HIGH, 2),
            to[0],
            to[1],
            incrementing(2, m2mf::OFFSET_IN_HIGH, 2),
            from[0],
            from[1],
            incrementing(2, m2mf::LAUNCH, 1),
            launch.into_bits(),
        ];
    }
    let whole = rig::copy_words(source, target, 0, 0);
    let exec = whole[whole.len() - 1];
    let mut words = vec![incrementing(4, copy::SRC_HIGH, 4)];
    words.extend(&whole[1..5]);
    words.extend([incrementing(4, copy::EXEC, 1), exec]);
    words
}

/// Submits for all channels, then waits for all.
fn all_do(rig: &mut Rig, bus: &mut impl WideBus, words: impl Fn(u8) -> Vec<u32>) -> Result<(), String> {
    let submit = |channel: u8| {
        let words = if channel < WITHOUT_ENGINE {
            Vec::new()
        } else {
            words(channel)
        };
        (channel, rig.submit_with_release(bus, channel, &words))
    };
    let submitted: Vec<(u8, u32)> = (0..ALL).map(submit).collect();
    for (channel, sequence) in submitted {
        if !rig.wait_turns(bus, channel, sequence, TURNS) {
            return Err(format!("a copy of channel {channel} does not end"));
        }
    }
    Ok(())
}

/// All channels store patterns of their own to VRAM and find them again, so many times.
///
/// # Errors
/// Says which channel came to no end, or found something else.
pub fn all_channels_work(bus: &mut impl WideBus, seed: u64, rounds: u64) -> Result<(), String> {
    let mut rig = Rig::start(bus, DATA_BYTES);
    // The second time each number is another channel's.
    for generation in 0..2 {
        generation_works(&mut rig, bus, seed ^ generation << 16, rounds)?;
        rig.commit(bus, &[]);
        (0..ALL).for_each(|channel| rig.unbind(bus, channel));
    }
    Ok(())
}

/// All channels have copies under way with nothing behind them in their rings: a guest that waits for what a copy itself stores, as one
/// whose last method releases a semaphore does.
///
/// # Errors
/// Says the copies of which channels come to no end.
pub fn copies_alone_end(bus: &mut impl WideBus, seed: u64, rounds: u64) -> Result<(), String> {
    let mut rig = Rig::start(bus, DATA_BYTES);
    (0..ALL).for_each(|channel| bind(&mut rig, bus, channel));
    let all: Vec<u8> = (0..ALL).collect();
    rig.commit(bus, &all);
    all_do(&mut rig, bus, binding)?;
    for round in 0..rounds {
        let expected = |channel| pattern(seed ^ round << 32, channel);
        let mut under_way: Vec<u8> = (WITHOUT_ENGINE..ALL).collect();
        for &channel in &under_way {
            bus.ram_write(PATTERNS_GPA + at_slot(channel), &expected(channel));
            bus.ram_write(
                FOUND_GPA + at_slot(channel),
                &vec![NOT_COPIED; slot_bytes(channel) as usize],
            );
        }
        for &channel in &under_way {
            let [from, to] = [PATTERNS_GPA, FOUND_GPA].map(|at| RAM_VA + at + at_slot(channel));
            rig.submit(bus, channel, &first_copy(channel, from, to));
        }
        for _ in 0..TURNS / 100 {
            under_way.retain(|&channel| {
                let mut found = vec![0; slot_bytes(channel) as usize];
                bus.ram_read(FOUND_GPA + at_slot(channel), &mut found);
                found != expected(channel)
            });
            if under_way.is_empty() {
                break;
            }
            (0..100).for_each(|_| bus.relax());
        }
        if !under_way.is_empty() {
            return Err(format!(
                "copies of channels {under_way:?} do not end in round {round}"
            ));
        }
    }
    Ok(())
}

fn generation_works(rig: &mut Rig, bus: &mut impl WideBus, seed: u64, rounds: u64) -> Result<(), String> {
    (0..ALL).for_each(|channel| bind(rig, bus, channel));
    let all: Vec<u8> = (0..ALL).collect();
    rig.commit(bus, &all);
    all_do(rig, bus, binding)?;
    for round in 0..rounds {
        for channel in 0..ALL {
            let bytes = pattern(seed ^ round << 32, channel);
            bus.ram_write(PATTERNS_GPA + at_slot(channel), &bytes);
            bus.ram_write(
                FOUND_GPA + at_slot(channel),
                &vec![NOT_COPIED; slot_bytes(channel) as usize],
            );
        }
        all_do(rig, bus, |channel| {
            let (source, target) = (
                RAM_VA + PATTERNS_GPA + at_slot(channel),
                DATA_VA + at_slot(channel),
            );
            match round {
                0 => first_copy(channel, source, target),
                _ => next_copy(channel, source, target),
            }
        })?;
        all_do(rig, bus, |channel| {
            let (source, target) = (DATA_VA + at_slot(channel), RAM_VA + FOUND_GPA + at_slot(channel));
            next_copy(channel, source, target)
        })?;
        for channel in WITHOUT_ENGINE..ALL {
            let mut found = vec![0; slot_bytes(channel) as usize];
            bus.ram_read(FOUND_GPA + at_slot(channel), &mut found);
            let expected = pattern(seed ^ round << 32, channel);
            if found != expected {
                return Err(differences(&found, &expected, seed, round, channel));
            }
        }
    }
    check_userd(bus, 1 + 2 * rounds as u32)
}

/// Where a channel has found other bytes than its own, and what these are.
fn differences(found: &[u8], expected: &[u8], seed: u64, round: u64, channel: u8) -> String {
    let before = round
        .checked_sub(1)
        .map(|before| pattern(seed ^ before << 32, channel));
    let kind = |at: usize| {
        let of = |bytes: &[u8]| bytes.get(at..at + 8) == found.get(at..at + 8);
        match () {
            () if of(expected) => "right",
            () if found[at..at + 8] == [NOT_COPIED; 8] => "not copied",
            () if found[at..at + 8] == [0; 8] => "zero",
            () if before.as_deref().is_some_and(of) => "of the round before",
            () => "unknown",
        }
    };
    let mut runs: Vec<(usize, &str)> = Vec::new();
    for at in (0..found.len()).step_by(8) {
        if runs.last().is_none_or(|(_, last)| *last != kind(at)) {
            runs.push((at, kind(at)));
        }
    }
    runs.truncate(12);
    format!("channel {channel} finds other bytes in round {round}, from {runs:x?} on")
}

/// USERD of each channel shows how far its ring was fetched, whether it has a number on the card or not.
fn check_userd(bus: &mut impl WideBus, submissions: u32) -> Result<(), String> {
    for channel in 0..ALL {
        let shows = |bus: &mut _| Rig::fetched(bus, channel) == submissions;
        if !(0..TURNS / 100).any(|_| {
            bus.relax();
            shows(bus)
        }) {
            let fetched = Rig::fetched(bus, channel);
            return Err(format!(
                "channel {channel} shows {fetched} entries as fetched, of {submissions}"
            ));
        }
    }
    Ok(())
}

/// Two VMs with 128 channels each work at once.
///
/// # Errors
/// Says what a channel of which VM does not do.
pub fn all_channels_of_two_vms_work() -> Result<(), Violation> {
    let mut bench = Bench::with(96, gpu_config(), &[vm_config(16), vm_config(16)]);
    let tasks = [0, 1].map(|vm: u16| bench.start(VmId(vm), move |bus| all_channels_work(bus, vm.into(), 1)));
    for (vm, task) in tasks.into_iter().enumerate() {
        bench
            .join(task)
            .map_err(|what| Violation(format!("vm{vm}: {what}")))?;
    }
    bench.world.watch.laws.held()
}
