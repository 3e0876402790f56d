//! Work that waits for its memory, doorbell by doorbell. The card answers every question with zero: whatever it was given has ended.

use fermi_spec::addr::{Aperture, Gpa, GpuVa};
use fermi_spec::bar::Bar;
use fermi_spec::gpfifo::{ENTRY_BYTES, GpEntry};
use fermi_spec::graphics::compute;
use fermi_spec::instance::{offset, userd};
use fermi_spec::methods::{CopyExec, class, copy, host};
use fermi_spec::pte::{Pde, PdeAperture, Pte};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::{Bar0Reg, PfifoReg};

use super::scene::{DATA, DIRECTORY, INSTANCE, MIB, MS, Scene, rings};
use crate::config::GpuConfig;
use crate::event::{Action, HostMemory as _, Place, VmId};
use crate::memory::{ChunkNo, ChunkPlace};
use crate::notice::Notice;
use crate::policy::PolicyName;

const A: VmId = VmId(0);
/// Guest VRAM that the tables show: more than the card has.
const SHOWN: u64 = 60;
/// Where the small-page table of the first directory entry is, which shows RAM at its own address.
const SMALL_TABLE: u64 = 0x22_0000;
const RING: u64 = MIB;
const PUSHBUFFERS: u64 = 2 * MIB;
/// log2 of the ring's entries: as many as a page holds.
const RING_LOG2: u32 = 9;
const CHUNK: u64 = 2 * MIB;

fn put_ram(scene: &mut Scene, at: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(scene.memory.write(Place::Ram { vm: A, gpa: Gpa(at) }, &bytes));
}

/// A VM with more than fits, and a channel whose ring lies in RAM.
fn scene(policy: PolicyName) -> Scene {
    let mut scene = Scene::with(GpuConfig {
        policy,
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    });
    scene.attach(A, 64);
    let entry = scene.prepare(A, SHOWN);
    for page in [RING, PUSHBUFFERS].map(|at| at >> 12) {
        let pte = Pte::new()
            .with_valid(true)
            .with_aperture(Aperture::SysCoherent)
            .with_volatile(true)
            .with_frame(page as u32);
        scene.put(A, SMALL_TABLE + page * 8, &pte.into_bits().to_le_bytes());
    }
    let pde = Pde::new()
        .with_small_aperture(PdeAperture::Vram)
        .with_small_frame((SMALL_TABLE >> 12) as u32);
    scene.put(A, DIRECTORY, &pde.into_bits().to_le_bytes());
    scene.put(A, INSTANCE + offset::GP_BASE_LO, &(RING as u32).to_le_bytes());
    scene.put(A, INSTANCE + offset::GP_BASE_HI, &(RING_LOG2 << 16).to_le_bytes());
    scene.register(A, Bar0Reg::from(PfifoReg::ChannelInstance(0)), entry.into_bits());
    scene.run_channel(A);
    // What did not fit was given host RAM.
    scene.pass(300 * MS);
    assert!(is_out(&mut scene).next().is_some(), "all fits");
    scene
}

/// Chunks in host RAM that the tables show.
fn is_out(scene: &mut Scene) -> impl Iterator<Item = ChunkNo> + use<> {
    let chunks = scene.chunks_of(A);
    let first = (DATA / CHUNK) as u32;
    let all = (first..).map(ChunkNo).take((SHOWN * MIB / CHUNK) as usize);
    let out: Vec<_> = all
        .filter(|of| *chunks.place(*of) == ChunkPlace::Spilled)
        .collect();
    out.into_iter()
}

/// Hands the channel a copy within a chunk, as entry `entry` of its ring, and rings for it.
fn submit(scene: &mut Scene, entry: u32, chunk: ChunkNo) {
    let va = (128 << 20) + u64::from(chunk.0) * CHUNK - DATA;
    let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
    let words = [
        incrementing(4, host::SET_OBJECT, 1),
        u32::from(class::COPY),
        incrementing(4, copy::SRC_HIGH, 8),
        0,
        va as u32,
        0,
        va as u32 + 0x1000,
        0x1000,
        0x1000,
        0x1000,
        1,
        incrementing(4, copy::EXEC, 1),
        exec.into_bits(),
    ];
    submit_words(scene, entry, &words);
}

/// The same with these words.
fn submit_words(scene: &mut Scene, entry: u32, words: &[u32]) {
    let at = PUSHBUFFERS + u64::from(entry % 32) * 0x80;
    put_ram(scene, at, words);
    let segment = GpEntry::fetch(GpuVa(at), words.len() as u32);
    put_ram(
        scene,
        RING + u64::from(entry) * ENTRY_BYTES,
        &[segment as u32, (segment >> 32) as u32],
    );
    scene.take();
    scene.doorbell(A, entry + 1);
}

/// Work of the guest has run. What lacks memory after it waits.
fn known(policy: PolicyName) -> (Scene, u32) {
    let mut scene = scene(policy);
    let inside = ChunkNo((DATA / CHUNK) as u32);
    let out: Vec<_> = is_out(&mut scene).collect();
    let near = (inside.0..)
        .map(ChunkNo)
        .find(|of| !out.contains(of))
        .expect("some fit");
    for entry in 0..6 {
        submit(&mut scene, entry, near);
        scene.pass(5 * MS);
    }
    (scene, 6)
}

fn rung(scene: &Scene) -> Vec<u32> {
    let puts = scene.actions.iter().filter(|action| rings(action, 1));
    let put = |action: &Action| match action {
        Action::HostWrite { data, .. } => u32::from_le_bytes(data[..4].try_into().expect("a word")),
        _ => 0,
    };
    puts.map(put).collect()
}

fn waits(scene: &Scene) -> Vec<bool> {
    let waits = scene.notices().filter_map(|notice| match notice {
        Notice::WorkWaited { in_vain, .. } => Some(*in_vain),
        _ => None,
    });
    waits.collect()
}

/// Pages of 4 KiB that were read from VRAM since the last submission.
fn pages_read(scene: &Scene) -> usize {
    let is_page = |action: &&Action| matches!(action, Action::HostRead { bytes, .. } if *bytes == 0x1000);
    scene.actions.iter().filter(is_page).count()
}

#[test]
fn code_in_vram_is_read_once_for_many_launches() {
    let (mut scene, mut entry) = known(PolicyName::GdmAlways);
    let out: Vec<_> = is_out(&mut scene).collect();
    let first = (DATA / CHUNK) as u32;
    let inside = (first..).map(ChunkNo).find(|of| !out.contains(of));
    let code = (128 << 20) + u64::from(inside.expect("some fit").0) * CHUNK - DATA;
    let mut words = vec![incrementing(1, host::SET_OBJECT, 1), u32::from(class::COMPUTE)];
    for (method, operands) in [
        (compute::SHARED_WINDOW, &[0xfe00_0000][..]),
        (compute::LOCAL_WINDOW, &[0xff00_0000]),
        (compute::CODE_HIGH, &[0, code as u32]),
        (compute::ENTRY, &[0]),
        (compute::BLOCK_XY, &[32 | 1 << 16, 1]),
        (compute::GRID_XY, &[4 | 1 << 16, 1]),
        (compute::LAUNCH, &[compute::LAUNCH_OPERAND]),
    ] {
        words.push(incrementing(1, method, operands.len() as u16));
        words.extend_from_slice(operands);
    }
    let mut launch = |scene: &mut Scene| {
        submit_words(scene, entry, &words);
        scene.pass(5 * MS);
        entry += 1;
        pages_read(scene)
    };
    assert_eq!(launch(&mut scene), 1);
    assert_eq!([(); 20].map(|()| launch(&mut scene)), [0; 20]);
    scene.pass(300 * MS);
    assert_eq!(launch(&mut scene), 1, "it may be other code by now");
}

#[test]
fn work_whose_memory_is_out_is_given_when_it_has_come() {
    let (mut scene, entry) = known(PolicyName::GdmAlways);
    let out = is_out(&mut scene).next().expect("some do not fit");
    scene.memory_for_moves = Some(true);
    submit(&mut scene, entry, out);
    scene.pass(15 * MS);
    assert!(!scene.chunks_of(A).is_out(out), "its chunk is in host RAM");
    // Once: another chunk has gone for it in the same suspension.
    assert_eq!((rung(&scene), waits(&scene)), (vec![entry + 1], vec![false]));
}

#[test]
fn work_that_waits_in_vain_is_given_all_the_same_and_guests_read_what_they_stored() {
    let (mut scene, entry) = known(PolicyName::GdmAlways);
    let out = is_out(&mut scene).next().expect("some do not fit");
    // Moves do not get their memory.
    scene.memory_for_moves = None;
    submit(&mut scene, entry, out);
    scene.pass(10 * MS);
    assert_eq!(rung(&scene), Vec::<u32>::new(), "the card has work that waits");
    let read = scene.load(A, Bar::Bar1, userd::GP_PUT, 4);
    assert_eq!(read, (entry + 1).to_le_bytes());
    scene.pass(15 * MS);
    assert_eq!((rung(&scene), waits(&scene)), (vec![entry + 1], vec![true]));
    // The next one does not wait.
    submit(&mut scene, entry + 1, out);
    assert_eq!(rung(&scene), [entry + 2]);
}

#[test]
fn work_that_the_guest_takes_back_is_not_given() {
    let (mut scene, entry) = known(PolicyName::GdmAlways);
    let out = is_out(&mut scene).next().expect("some do not fit");
    scene.memory_for_moves = None;
    submit(&mut scene, entry, out);
    scene.doorbell(A, entry);
    scene.pass(30 * MS);
    assert!(rung(&scene).iter().all(|put| *put == entry), "{:?}", rung(&scene));
}

#[test]
fn no_ring_is_read_and_nothing_waits_under_policies_that_do_not_go_by_launches() {
    let (mut scene, entry) = known(PolicyName::Gpuswap);
    let out = is_out(&mut scene).next().expect("some do not fit");
    submit(&mut scene, entry, out);
    assert_eq!(rung(&scene), [entry + 1]);
    assert!(scene.running().vms[&A].work.channels.is_empty());
}

#[test]
fn rings_are_read_and_nothing_ever_waits_under_a_policy_that_wants_looks_alone() {
    let (mut scene, entry) = known(PolicyName::Adaptive);
    let out = is_out(&mut scene).next().expect("some do not fit");
    // Nothing moves, so a question to the policy would not be answered.
    scene.memory_for_moves = None;
    for entry in entry..entry + 300 {
        submit(&mut scene, entry, out);
        assert_eq!(rung(&scene), [entry + 1]);
        scene.pass(5 * MS);
        assert!(waits(&scene).is_empty());
    }
    let launches = scene.chunks_of(A).history(out).launches;
    assert!(launches > 100, "{launches}");
}

/// A look that finds out what work uses asks the card first whether what went before has ended.
#[test]
fn work_that_is_not_to_wait_is_not_kept_waiting_by_looks() {
    let state = PfifoReg::ChannelState(1).offset();
    let asks =
        |action: &Action| matches!(action, Action::HostRead { offset, .. } if *offset == u64::from(state));
    for (policy, expected) in [(PolicyName::GdmAlways, 390..=400), (PolicyName::Gdm, 1..=200)] {
        let (mut scene, first) = known(policy);
        let out: Vec<_> = is_out(&mut scene).collect();
        let mut all = ((DATA / CHUNK) as u32..).map(ChunkNo);
        let near = all.find(|of| !out.contains(of)).expect("some fit");
        let mut looked_at = 0;
        for entry in 0..400 {
            submit(&mut scene, first + entry, near);
            looked_at += usize::from(scene.actions.iter().any(asks));
            assert_eq!(rung(&scene), [first + entry + 1], "its memory is there");
            scene.pass(MS);
        }
        assert!(expected.contains(&looked_at), "{policy}: {looked_at} of 400");
    }
}

/// A ring whose entries all name the same words, which set nothing. Together they are half a million words.
fn ring_without_end(scene: &mut Scene) -> u32 {
    let words = 0x3f0;
    put_ram(
        scene,
        PUSHBUFFERS,
        &vec![incrementing(0, host::NOP, 0); words as usize],
    );
    let segment = GpEntry::fetch(GpuVa(PUSHBUFFERS), words);
    for entry in 0..1 << RING_LOG2 {
        let at = RING + entry * ENTRY_BYTES;
        put_ram(scene, at, &[segment as u32, (segment >> 32) as u32]);
    }
    (1 << RING_LOG2) - 1
}

#[test]
fn own_access_waits_for_one_look_and_not_for_all_that_was_submitted() {
    const B: VmId = VmId(1);
    let mut scene = scene(PolicyName::Adaptive);
    scene.attach(B, 32);
    scene.gives_turns = false;
    let put = ring_without_end(&mut scene);
    scene.doorbell(A, put);
    for _ in 0..3 {
        scene.take();
        let request = scene.register(A, Bar0Reg::from(PfifoReg::PfifoIntr), 0);
        // A look takes half a millisecond of the VM's time, and the VM has a half of all time.
        scene.pass(2 * MS);
        assert!(scene.reply(request).is_some(), "it waits for its own looks");
        let read = scene.memory.read_bytes;
        scene.pass(2 * MS);
        assert!(
            scene.memory.read_bytes > read,
            "the ring is not all looked at yet"
        );
    }
}

/// The judge counts bytes of memory, not the core's own units.
#[test]
fn ring_without_end_is_looked_at_in_turns_and_nobody_waits_behind_it() {
    const B: VmId = VmId(1);
    let mut scene = scene(PolicyName::GdmAlways);
    scene.attach(B, 32);
    scene.gives_turns = false;
    let put = ring_without_end(&mut scene);
    let (work, read) = (
        scene.manager.work(A).expect("attached").0,
        scene.memory.read_bytes,
    );
    scene.most_read = 0;
    scene.doorbell(A, put);
    for _ in 0..20 {
        scene.take();
        let request = scene.register(B, Bar0Reg::from(PfifoReg::PfifoIntr), 0);
        assert!(scene.reply(request).is_some(), "a neighbour waits");
        scene.pass(10 * MS);
    }
    let (work, read) = (
        scene.manager.work(A).expect("attached").0 - work,
        scene.memory.read_bytes - read,
    );
    assert!(
        scene.most_read <= 128 << 10,
        "{} bytes in one event",
        scene.most_read
    );
    let words = u64::from(put) * 0x3f0 * 4;
    assert!(read >= words, "{read} bytes: it was not looked at to its end");
    assert!(work >= read / 2, "{work} units for {read} bytes");
    assert_eq!(scene.manager.work(B).map(|of| of.0 < 100_000), Some(true));
}
