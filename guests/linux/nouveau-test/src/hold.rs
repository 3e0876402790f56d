//! Keeps VRAM filled while another program acts on the card, and checks the contents afterwards.
//!
//! The contents of VRAM have to survive a suspend, in which the driver saves them to system memory and the card loses
//! them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cases::Nodes;
use crate::channel::{Channel, reads, writes};
use crate::copy::{Copier, copy_range};
use crate::device::{Device, Object};
use crate::pattern::Pattern;
use crate::push::{Push, Unit};
use crate::uapi::domain;

/// Objects that are held.
const OBJECTS: u32 = 24;
/// Bytes of each.
const BYTES: u64 = 1 << 20;
/// Longest wait for the sign to go on.
const PATIENCE: Duration = Duration::from_secs(300);

fn copy(channel: &Channel, source: &Object, target: &Object) -> Result<()> {
    let mut push = Push::new();
    copy_range(&mut push, Copier::M2mf, source.address(), target.address(), BYTES);
    channel.run(&push, &[reads(source), writes(target)])
}

/// Fills VRAM, prints `held`, waits until `sign` exists, and verifies on the old channel and on a new one.
pub(crate) fn run(nodes: &Nodes, sign: &Path) -> Result<()> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let buffer = device.gart(BYTES)?;
    let mut held = Vec::new();
    for index in 0..OBJECTS {
        Pattern(index).fill(buffer.memory());
        let object = device.object(domain::VRAM, BYTES)?;
        copy(&channel, &buffer, &object)?;
        held.push(object);
    }
    println!("held {OBJECTS} objects of {BYTES} bytes");
    let start = Instant::now();
    while !sign.exists() {
        ensure!(
            start.elapsed() < PATIENCE,
            "no {} after {PATIENCE:?}",
            sign.display()
        );
        thread::sleep(Duration::from_millis(20));
    }
    let fresh = Channel::with_units(&device, &[Unit::M2mf]).context("no new channel")?;
    for (name, channel) in [("old", &channel), ("new", &fresh)] {
        for (index, object) in held.iter().enumerate() {
            Pattern(!0).fill(buffer.memory());
            copy(channel, object, &buffer)
                .and_then(|()| Pattern(index as u32).check(buffer.memory()))
                .with_context(|| format!("object {index} by the {name} channel"))?;
        }
    }
    println!("ok hold {}", start.elapsed().as_millis());
    Ok(())
}
