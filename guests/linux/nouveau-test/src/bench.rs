//! Measurements: what a submission, a channel and a copied byte cost in this machine.
//!
//! One line each: `bench NAME VALUE UNIT`, the median of several runs.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cases::Nodes;
use crate::channel::{Channel, reads, writes};
use crate::copy::{Copier, copy_range};
use crate::device::Device;
use crate::push::{Push, Unit};
use crate::uapi::domain;

/// Runs of each measurement.
const RUNS: usize = 15;
/// Bytes of a measured copy.
const COPY_BYTES: u64 = 8 << 20;

/// Runs all measurements and prints them.
pub(crate) fn run(nodes: &Nodes) -> Result<()> {
    let device = Device::open(&nodes.render)?;
    channels(&device)?;
    submissions(&device)?;
    copies(&device)?;
    windows(&device)
}

fn print(name: &str, value: f64, unit: &str) {
    println!("bench {name} {value:.1} {unit}");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The median of [`RUNS`] runs.
fn measure(mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let times: Result<Vec<_>> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run()?;
            Ok(start.elapsed())
        })
        .collect();
    Ok(median(times?))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn channels(device: &Device) -> Result<()> {
    let (mut made, mut graphics, mut freed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let channel = Channel::new(device)?;
        made.push(start.elapsed());
        let start = Instant::now();
        channel.add_unit(Unit::M2mf)?;
        graphics.push(start.elapsed());
        let start = Instant::now();
        drop(channel);
        freed.push(start.elapsed());
    }
    print("channel-create", milliseconds(median(made)), "ms");
    print("graphics-object", milliseconds(median(graphics)), "ms");
    print("channel-destroy", milliseconds(median(freed)), "ms");
    Ok(())
}

fn submissions(device: &Device) -> Result<()> {
    let channel = Channel::with_units(device, &[Unit::M2mf])?;
    let mut push = Push::new();
    push.raw(0);
    let time = measure(|| channel.run(&push, &[]))?;
    print("submit-and-wait", time.as_secs_f64() * 1e6, "us");
    const BURST: u32 = 100;
    let time = measure(|| {
        let mut last = None;
        for _ in 0..BURST {
            last = Some(channel.submit(&push, &[])?);
        }
        last.map_or(Ok(()), |ticket| ticket.wait())
    })?;
    print(
        "submit-in-burst",
        time.as_secs_f64() * 1e6 / f64::from(BURST),
        "us",
    );
    Ok(())
}

fn copies(device: &Device) -> Result<()> {
    let gart = device.object(domain::GART, COPY_BYTES)?;
    let (first, second) = (
        device.object(domain::VRAM, COPY_BYTES)?,
        device.object(domain::VRAM, COPY_BYTES)?,
    );
    let channel = Channel::with_units(device, &Copier::ALL.map(Copier::unit))?;
    for who in Copier::ALL {
        let name = match who {
            Copier::M2mf => "m2mf",
            Copier::Engine(Unit::Copy0) => "engine-0",
            Copier::Engine(_) => "engine-1",
        };
        for (path, source, target) in [
            ("vram-vram", &first, &second),
            ("gart-vram", &gart, &first),
            ("vram-gart", &first, &gart),
        ] {
            let mut push = Push::new();
            copy_range(&mut push, who, source.address(), target.address(), COPY_BYTES);
            let time = measure(|| channel.run(&push, &[reads(source), writes(target)]))?;
            let rate = COPY_BYTES as f64 / time.as_secs_f64() / f64::from(1 << 20);
            print(&format!("copy-{name}-{path}"), rate, "MiB/s");
        }
    }
    Ok(())
}

/// Time of a word through BAR1.
fn windows(device: &Device) -> Result<()> {
    const WORDS: usize = 4096;
    let object = device.vram(WORDS as u64 * 4)?;
    let each = |time: Duration| time.as_secs_f64() * 1e9 / WORDS as f64;
    let time = measure(|| {
        (0..WORDS).for_each(|index| object.memory().write(index * 4, index as u32));
        Ok(())
    })?;
    print("bar1-write", each(time), "ns");
    let time = measure(|| {
        (0..WORDS).for_each(|index| _ = std::hint::black_box(object.memory().read(index * 4)));
        Ok(())
    })?;
    print("bar1-read", each(time), "ns");
    Ok(())
}
