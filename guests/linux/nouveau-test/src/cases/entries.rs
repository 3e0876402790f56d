//! Entries that a client may put into a channel's ring: pieces of pushbuffers, odd lengths and addresses, bad lists.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use report::Outcome;

use super::{ANY, Case, Nodes, noisy, quiet};
use crate::binding::{bind, execute, map, open};
use crate::channel::{Channel, reads};
use crate::device::{Device, Mapped, error_number};
use crate::push::{Acquire, Push};
use crate::syncobj::Syncobj;
use crate::uapi::{self, ExecPush, Pushbuf, PushbufPush, PushbufReloc, address_of};

pub(super) const CASES: &[Case] = &[
    quiet("push-pieces", push_pieces),
    quiet("push-split-method", push_split_method),
    quiet("push-relocs", push_relocs),
    noisy("push-refused", ANY, push_refused),
    noisy("ring-entries-odd", ANY, ring_entries_odd),
];

/// Bit of a piece's length that keeps the card from fetching it early.
const NO_PREFETCH: u64 = 1 << 23;

/// Writes `push` into `memory` at `offset`; its bytes.
fn write(memory: &Mapped, offset: u64, push: &Push) -> u64 {
    for (index, word) in push.words().iter().enumerate() {
        memory.memory().write(offset as usize + index * 4, *word);
    }
    push.words().len() as u64 * 4
}

fn log(device: &Device) -> Result<Mapped> {
    let log = device.gart(4096)?;
    (0..4096).step_by(4).for_each(|at| log.memory().write(at, 0));
    Ok(log)
}

/// Hundreds of pieces in one submission run in their order, fetched early or not.
fn push_pieces(nodes: &Nodes) -> Result<Outcome> {
    const PIECES: u64 = 300;
    const STEP: u64 = 64;
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let (log, memory) = (log(&device)?, device.gart(PIECES * STEP)?);
    let mut pieces = Vec::new();
    for index in 0..PIECES {
        let mut push = Push::new();
        // Each waits for the one before, so that the order shows.
        push.acquire(log.address(), Acquire::Equal, index as u32)
            .release(log.address(), index as u32 + 1);
        let length = write(&memory, index * STEP, &push);
        let flag = if index % 3 == 0 { NO_PREFETCH } else { 0 };
        pieces.push(PushbufPush {
            offset: index * STEP,
            length: length | flag,
            ..PushbufPush::default()
        });
    }
    channel.submit_pieces(&memory, &pieces, &[reads(&log)])?;
    memory.wait(true)?;
    let seen = log.memory().read(0);
    ensure!(seen == PIECES as u32, "{seen} of {PIECES} pieces ran");
    Ok(Outcome::Passed)
}

/// A method's header in one piece and its data in the next.
fn push_split_method(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let (log, memory) = (log(&device)?, device.gart(4096)?);
    let mut push = Push::new();
    push.release(log.address(), 0x51)
        .release(log.address() + 16, 0x52);
    write(&memory, 0, &push);
    let cuts = [0, 4, 12, 24, 40];
    let pieces: Vec<PushbufPush> = cuts
        .windows(2)
        .map(|cut| PushbufPush {
            offset: cut[0],
            length: cut[1] - cut[0],
            ..PushbufPush::default()
        })
        .collect();
    channel.submit_pieces(&memory, &pieces, &[reads(&log)])?;
    memory.wait(true)?;
    let seen = [0, 16].map(|at| log.memory().read(at));
    ensure!(seen == [0x51, 0x52], "releases in pieces wrote {seen:x?}");
    Ok(Outcome::Passed)
}

/// Relocations are accepted and change nothing: since Tesla addresses do not move.
fn push_relocs(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let (log, memory) = (log(&device)?, device.gart(4096)?);
    let mut push = Push::new();
    push.release(log.address(), 0x61);
    let length = write(&memory, 0, &push);
    let object = |object: &Mapped| uapi::PushbufObject {
        handle: object.handle(),
        read_domains: object.domains(),
        valid_domains: object.domains(),
        presumed_valid: 1,
        presumed_domain: object.domains(),
        presumed_offset: object.address(),
        ..uapi::PushbufObject::default()
    };
    let objects = [object(&memory), object(&log)];
    let relocs = [PushbufReloc {
        container_offset: 8,
        object: 1,
        flags: 1,
        ..PushbufReloc::default()
    }];
    let pushes = [PushbufPush {
        length,
        ..PushbufPush::default()
    }];
    let mut message = Pushbuf {
        channel: channel.id() as u32,
        object_count: 2,
        objects: address_of(&objects),
        reloc_count: 1,
        relocs: address_of(&relocs),
        push_count: 1,
        pushes: address_of(&pushes),
        ..Pushbuf::default()
    };
    device.call(&uapi::GEM_PUSHBUF, &mut message)?;
    ensure!(message.vram_available > 0, "no VRAM is available");
    memory.wait(true)?;
    let seen = log.memory().read(0);
    ensure!(seen == 0x61, "a push with relocations wrote {seen:#x}");
    Ok(Outcome::Passed)
}

/// The mistake, the channel, its objects, its pieces, and the expected error.
type Try<'a> = (&'a str, u32, &'a [uapi::PushbufObject], &'a [PushbufPush], i32);

/// Lists that the driver refuses; the channel works on.
fn push_refused(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let memory = device.gart(4096)?;
    let object = uapi::PushbufObject {
        handle: memory.handle(),
        read_domains: memory.domains(),
        valid_domains: memory.domains(),
        ..uapi::PushbufObject::default()
    };
    let unknown = uapi::PushbufObject {
        handle: 0x7fff_fff0,
        ..object
    };
    let good = PushbufPush {
        length: 4,
        ..PushbufPush::default()
    };
    let beyond = PushbufPush { object: 9, ..good };
    let number = channel.id() as u32;
    let tries: [Try<'_>; 4] = [
        ("an unknown channel", 4000, &[object], &[good], libc::ENOENT),
        ("an unknown object", number, &[unknown], &[good], libc::ENOENT),
        (
            "an object twice",
            number,
            &[object, object],
            &[good],
            libc::EINVAL,
        ),
        ("a piece of no object", number, &[object], &[beyond], libc::EINVAL),
    ];
    for (what, channel, objects, pushes, wanted) in tries {
        let mut message = Pushbuf {
            channel,
            object_count: objects.len() as u32,
            objects: address_of(objects),
            push_count: pushes.len() as u32,
            pushes: address_of(pushes),
            ..Pushbuf::default()
        };
        match device.call(&uapi::GEM_PUSHBUF, &mut message) {
            Ok(()) => bail!("{what} is accepted"),
            Err(error) => ensure!(error_number(&error) == Some(wanted), "{what}: {error:#}"),
        }
    }
    channel.run(Push::new().raw(0), &[])?;
    Ok(Outcome::Passed)
}

/// Where the pushes of a client with addresses of its own are mapped.
const PUSH_AT: u64 = 0x8000_0000;
/// Bytes of them.
const PUSH_BYTES: u64 = 64 << 10;

/// Ring entries that no good client makes: odd lengths and addresses reach other fields of the entry. The channel may
/// do them or end; a new channel of the same client has to work.
fn ring_entries_odd(nodes: &Nodes) -> Result<Outcome> {
    let device = open(&nodes.render)?;
    let memory = device.gart(PUSH_BYTES)?;
    bind(&device, &[map(&memory, 0, PUSH_AT, PUSH_BYTES)])?;
    let odd: [(u64, u32); 9] = [
        (PUSH_AT, 0),
        (PUSH_AT, 1),
        (PUSH_AT, 2),
        (PUSH_AT, 66),
        (PUSH_AT + 1, 64),
        (PUSH_AT + 2, 64),
        (PUSH_AT + 3, 67),
        (PUSH_AT + PUSH_BYTES - 8, 4096),
        ((1 << 40) - 8, 64),
    ];
    for (index, (address, bytes)) in odd.into_iter().enumerate() {
        let channel = Channel::new(&device)?;
        let done = Syncobj::new(&device)?;
        let piece = ExecPush {
            address,
            bytes,
            flags: index as u32 & 1,
        };
        execute(&device, channel.id(), &[piece], &[], &[done.sync()])
            .with_context(|| format!("entry {address:#x}, {bytes} bytes"))?;
        let ended = done.wait(Duration::from_secs(15))?;
        ensure!(ended, "entry {address:#x}, {bytes} bytes never ends");
        drop(channel);
        works(&device, &memory).with_context(|| format!("after entry {address:#x}, {bytes} bytes"))?;
    }
    Ok(Outcome::Passed)
}

/// Whether a new channel executes what is at the start of `memory`.
fn works(device: &Device, memory: &Mapped) -> Result<()> {
    let channel = Channel::new(device)?;
    let at = PUSH_BYTES / 2;
    let result = PUSH_AT + at + 1024;
    let mut push = Push::new();
    push.release(result, 0x71);
    let bytes = write(memory, at, &push) as u32;
    memory.memory().write((at + 1024) as usize, 0);
    let done = Syncobj::new(device)?;
    let piece = ExecPush {
        address: PUSH_AT + at,
        bytes,
        flags: 0,
    };
    execute(device, channel.id(), &[piece], &[], &[done.sync()])?;
    ensure!(
        done.wait(Duration::from_secs(15))?,
        "nothing ends on a new channel"
    );
    let start = Instant::now();
    while memory.memory().read((at + 1024) as usize) != 0x71 {
        ensure!(
            start.elapsed() < Duration::from_secs(1),
            "a new channel does nothing"
        );
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
