//! Values that engines write on request: query results, times, and constants, as Mesa uses them.

use anyhow::{Result, ensure};
use fermi_spec::methods::{CopyExec, M2mfLaunch, copy, m2mf};
use report::Outcome;

use super::{Case, Nodes, quiet};
use crate::channel::{Channel, reads, writes};
use crate::device::{Device, Mapped};
use crate::pattern::Pattern;
use crate::push::{Push, Unit, high_low};

pub(super) const CASES: &[Case] = &[
    quiet("query-3d", |nodes| query(nodes, Unit::ThreeD)),
    quiet("query-compute", |nodes| query(nodes, Unit::Compute)),
    quiet("semaphore-m2mf", semaphore_m2mf),
    quiet("query-engine-0", |nodes| query_engine(nodes, Unit::Copy0)),
    quiet("query-engine-1", |nodes| query_engine(nodes, Unit::Copy1)),
    quiet("constants-3d", |nodes| constants(nodes, Unit::ThreeD)),
    quiet("constants-compute", |nodes| constants(nodes, Unit::Compute)),
];

/// Methods that 3D and compute have in common (envytools `rnndb/graph/gf100_3d.xml`, `gf100_compute.xml`).
mod shared {
    /// Query address high, low, payload, control.
    pub(super) const QUERY: u16 = 0x1b00;
    /// Bytes of the constant buffer, its address high, low.
    pub(super) const CONSTANTS: u16 = 0x2380;
    /// Byte position in the constant buffer.
    pub(super) const CONSTANTS_AT: u16 = 0x238c;
    /// Words for it.
    pub(super) const CONSTANTS_DATA: u16 = 0x2390;
}

/// Query control of a fence in Mesa: 4 bytes, after everything.
const QUERY_FENCE: u32 = 0x1000_f010;
/// Query control of a time stamp of the 3D class in Mesa: 16 bytes.
const QUERY_TIME: u32 = 0x0000_5002;
/// The same of the compute class, which has no counters to choose from.
const QUERY_TIME_COMPUTE: u32 = 0;

/// A page of ones.
fn page(device: &Device) -> Result<Mapped> {
    let memory = device.gart(4096)?;
    for at in (0..4096).step_by(4) {
        memory.memory().write(at, u32::MAX);
    }
    Ok(memory)
}

fn query(nodes: &Nodes, unit: Unit) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[unit])?;
    let memory = page(&device)?;
    let mut push = Push::new();
    let mut ask = |at: u64, payload, control| {
        let [high, low] = high_low(memory.address() + at);
        push.unit(unit, shared::QUERY, &[high, low, payload, control]);
    };
    ask(0, 0x55, QUERY_FENCE);
    let with_time = match unit {
        Unit::Compute => QUERY_TIME_COMPUTE,
        _ => QUERY_TIME,
    };
    ask(32, 7, with_time);
    ask(64, 8, with_time);
    channel.run(&push, &[writes(&memory)])?;
    let seen = (memory.memory().read(0), memory.memory().read(4));
    ensure!(seen == (0x55, u32::MAX), "a fence of 4 bytes wrote {seen:x?}");
    let times = [40, 72].map(|at| memory.memory().read_wide(at));
    ensure!(
        times[0] != u64::MAX && times[0] > 0 && times[1] >= times[0],
        "times are {times:?}"
    );
    let behind = memory.memory().read(48);
    ensure!(
        behind == u32::MAX,
        "a query wrote {behind:#x} behind its 16 bytes"
    );
    Ok(Outcome::Passed)
}

/// A copy that releases a semaphore at its end.
fn semaphore_m2mf(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let memory = page(&device)?;
    Pattern(1).fill_range(memory.memory(), 0, 256);
    let launch = M2mfLaunch::new()
        .with_src_linear(true)
        .with_dst_linear(true)
        .with_completion(2);
    let address = memory.address();
    let mut push = Push::new();
    let mut copy = |at: u64, payload, launch: M2mfLaunch| {
        let [high, low] = high_low(address + at);
        push.unit(Unit::M2mf, m2mf::OFFSET_OUT_HIGH, &high_low(address + 1024 + at))
            .unit(Unit::M2mf, m2mf::OFFSET_IN_HIGH, &high_low(address))
            .unit(Unit::M2mf, m2mf::PITCH_IN, &[256, 256, 64, 1])
            .unit(Unit::M2mf, m2mf::SEMAPHORE_HIGH, &[high, low, payload])
            .unit(Unit::M2mf, m2mf::LAUNCH, &[launch.into_bits()]);
    };
    copy(512, 0x31, launch);
    copy(768, 0x32, launch.with_semaphore_short(true));
    channel.run(&push, &[writes(&memory)])?;
    for at in [512, 768] {
        Pattern(1).check_range(memory.memory(), 1024 + at, 64, 0)?;
    }
    let (long, short) = (memory.memory().read(512), memory.memory().read(768));
    ensure!(
        (long, short) == (0x31, 0x32),
        "semaphores are {long:#x}, {short:#x}"
    );
    let (time, rest) = (memory.memory().read_wide(520), memory.memory().read(772));
    ensure!(
        time != u64::MAX && time > 0,
        "a long semaphore has no time: {time:#x}"
    );
    ensure!(
        rest == u32::MAX,
        "a short semaphore wrote {rest:#x} behind itself"
    );
    Ok(Outcome::Passed)
}

/// A copy engine's own query.
fn query_engine(nodes: &Nodes, unit: Unit) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[unit])?;
    let memory = page(&device)?;
    Pattern(2).fill_range(memory.memory(), 0, 256);
    let exec = CopyExec::new()
        .with_src_linear(true)
        .with_dst_linear(true)
        .with_query(true);
    let address = memory.address();
    let mut push = Push::new();
    let mut copy = |at: u64, payload, exec: CopyExec| {
        let ([from_high, from_low], [to_high, to_low]) = (high_low(address), high_low(address + 1024 + at));
        let lines = [from_high, from_low, to_high, to_low, 256, 256, 64, 1];
        let [high, low] = high_low(address + at);
        push.unit(unit, copy::SRC_HIGH, &lines)
            .unit(unit, copy::QUERY_HIGH, &[high, low, payload])
            .unit(unit, copy::EXEC, &[exec.into_bits()]);
    };
    copy(512, 0x41, exec);
    copy(768, 0x42, exec.with_query_short(true));
    channel.run(&push, &[writes(&memory)])?;
    for at in [512, 768] {
        Pattern(2).check_range(memory.memory(), 1024 + at, 64, 0)?;
    }
    let (long, short) = (memory.memory().read(512), memory.memory().read(768));
    ensure!((long, short) == (0x41, 0x42), "queries are {long:#x}, {short:#x}");
    let rest = memory.memory().read(772);
    ensure!(rest == u32::MAX, "a short query wrote {rest:#x} behind itself");
    Ok(Outcome::Passed)
}

/// Words written into a constant buffer arrive in its memory, and nowhere else.
fn constants(nodes: &Nodes, unit: Unit) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[unit])?;
    let memory = page(&device)?;
    let [high, low] = high_low(memory.address() + 1024);
    let words = Pattern(3).words(40);
    let mut push = Push::new();
    push.unit(unit, shared::CONSTANTS, &[1024, high, low])
        .unit(unit, shared::CONSTANTS_AT, &[64])
        .stream(unit.subchannel(), shared::CONSTANTS_DATA, &words[..20])
        .stream(unit.subchannel(), shared::CONSTANTS_DATA, &words[20..]);
    channel.run(&push, &[reads(&memory)])?;
    Pattern(3).check_range(memory.memory(), 1024 + 64, 160, 0)?;
    for at in [1020, 1024, 1024 + 60, 1024 + 64 + 160, 2048] {
        let found = memory.memory().read(at);
        ensure!(found == u32::MAX, "{found:#x} at {at}, where no constant belongs");
    }
    Ok(Outcome::Passed)
}
