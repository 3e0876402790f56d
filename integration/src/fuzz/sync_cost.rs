//! What syncs of some VMs cost the others: tables of any content and any number, read again at each flush.
//!
//! * No event takes more of the broker's time for a VM than a slice and the last step.
//! * The tables that are followed for a VM stay within their bound.
//! * A VM's own sync ends within a bounded number of turns, whatever others have under way.
//! * What the card finds in a shadow is what the guest's tables say, by walks that share no code with the core.

use std::collections::BTreeMap;

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::pte::uncompressed_kind;
use fermi_spec::regs::{PffbReg, pffb};
use guests::GuestBus as _;
use shadow_pt::Work;
use vgpu::inspect::{Node, Value};
use vgpu::{Audit, Notice, RequestId, VmAudit, VmId};
use vm_memory::VolatileMemory as _;

use super::input::Input;
use super::poster::{Pace, Poster};
use crate::bench::{Bench, gpu_config, vm_config};
use crate::rig::{self, DATA, DIRECTORY, LARGE_TABLE, Rig, SMALL_TABLE};
use crate::watch::{World, check_sums};

const MIB: u64 = 1 << 20;
/// VRAM of each VM, and of a card on which nothing has to move: a move's redirect is one step.
const GUEST: u64 = 16;
const CARD: u64 = 96;
const VICTIM: VmId = VmId(0);
const VMS: [VmId; 3] = [VICTIM, VmId(1), VmId(2)];
/// VRAM behind the tables, all of it mapped and so all of it backed before the input begins.
const DATA_BYTES: u64 = GUEST * MIB - DATA;
/// Directories of a hostile VM, and how many entries of each are touched.
const DIRECTORIES: u64 = 6;
const ENTRIES: u64 = 64;
/// Entries of the victim's directory that are compared: the rig's.
const VICTIMS_ENTRIES: u64 = 2;
/// Tables of each kind of place: stored to through PRAMIN, in memory of engines, in RAM.
const TABLES: u64 = 4;
const TABLE_BYTES: u64 = 0x4_0000;
const TABLES_IN_RAM: u64 = 6 * MIB;
/// Most actions of an input.
const ACTIONS_MAX: usize = 80;
/// Work that a VM may have on its account, and the tables that are followed for it, as the core is documented.
const SLICE: u64 = 100_000;
const TABLES_FOLLOWED: usize = 256;
/// What an event may take beyond a slice: the last step of a sync with the pages that it fetches, and requests.
const EXCESS: u64 = Work::EXCESS_MAX + 64 * 3_000 + 10_000;
/// Turns within which a sync ends that has little to do.
const TURNS_OF_A_SMALL_SYNC: u32 = 20_000;
/// Turns within which any sync ends.
const TURNS_OF_A_SYNC: u32 = 1_000_000;
/// Distance between pages that are compared: each table is looked at in many places.
const STRIDE: usize = 61;

/// A figure of the core's tree.
fn figure(world: &World, vm: VmId, name: &str) -> Option<u64> {
    let path = format!("vms/{vm}/{name}");
    let node: Node = world.manager.inspect(world.now, &path)?;
    match node.value_at(&path)? {
        Value::Quantity(number, _) => Some(*number),
        _ => None,
    }
}

/// Checks after each event that it took no more than it may.
fn watch(world: &mut World) {
    let mut before: BTreeMap<VmId, u64> = BTreeMap::new();
    world.watch.observer = Some(Box::new(move |world, event| {
        for vm in VMS {
            let Some((work, tables)) = world.manager.work(vm) else {
                continue;
            };
            let took = work - before.insert(vm, work).unwrap_or(work);
            assert!(took <= SLICE + EXCESS, "{event:?} took {took} of {vm}'s time");
            assert!(tables <= TABLES_FOLLOWED, "{tables} tables of {vm} are followed");
        }
    }));
}

/// Where the directory of a number lies; the first is the rig's.
fn directory(number: u64) -> u64 {
    match number % DIRECTORIES {
        0 => DIRECTORY,
        number => 0x29_0000 + number * 0x1_0000,
    }
}

/// The place of a table: as a directory entry says it, and its address.
fn table(input: &mut Input<'_>) -> (u64, u64) {
    let number = u64::from(input.u8()) % TABLES * TABLE_BYTES;
    match input.u8() % 4 {
        0 => (1, 0x30_0000 + number),
        1 => (1, DATA + number),
        2 => (2, TABLES_IN_RAM + number),
        _ => (1, [SMALL_TABLE, LARGE_TABLE][usize::from(input.u8() & 1)]),
    }
}

fn entry(input: &mut Input<'_>) -> u64 {
    let vram = DATA + input.below(DATA_BYTES);
    match input.u8() & 7 {
        0 => input.u64(),
        1 => 0,
        2 => rig::vram_pte(vram & !0xfff).with_read_only(true).into_bits(),
        3 => rig::ram_pte(input.below(20 * MIB) & !0xfff).into_bits(),
        4 => rig::vram_pte(vram & !0xfff).into_bits(),
        _ => rig::vram_pte(vram & !0x1_ffff).into_bits(),
    }
}

fn act(rig: &mut Rig, bus: &mut Poster<'_>, input: &mut Input<'_>) {
    match input.u8() % 12 {
        0..3 => {
            let [(large_in, large), (small_in, small)] = [(); 2].map(|()| table(input));
            let which = input.u8();
            let large = if which & 1 == 0 { large_in | large >> 8 } else { 0 };
            let small = if which & 2 == 0 {
                small_in << 32 | small << 24
            } else {
                0
            };
            let size = if which & 12 == 12 {
                u64::from(which >> 4 & 3) << 2
            } else {
                0
            };
            let first = u64::from(input.u8()) % ENTRIES;
            let count = 1 + u64::from(input.u8()) % (ENTRIES - first);
            let entries = (large | small | size).to_le_bytes().repeat(count as usize);
            // The rig's own entries stay, or its channels are of no use.
            let first = if which & 0xe0 == 0 { first } else { first.max(2) };
            rig::put(bus, directory(input.u8().into()) + first * 8, &entries);
        }
        3..6 => {
            let (place, at) = table(input);
            let slot = u64::from(input.u16() & 0x7fff);
            let count = (1 + u64::from(input.u8()) * 2).min(0x8000 - slot);
            let (first, step) = (entry(input), u64::from(input.u8() & 1) << 4);
            let entries: Vec<u8> = (0..count)
                .flat_map(|number| first.wrapping_add(number * step).to_le_bytes())
                .collect();
            match place {
                1 => rig::put(bus, at + slot * 8, &entries),
                _ => bus.ram_write(at + slot * 8, &entries),
            }
        }
        6 | 7 => {
            let channel = 1 + input.u8() % 12;
            rig.write_instance(bus, channel, directory(input.u8().into()));
            rig.bind(bus, channel);
        }
        8 => {
            let channel = 1 + input.u8() % 12;
            rig.unbind(bus, channel);
        }
        9 => {
            for _ in 0..=input.u8() & 63 {
                flush_all(bus);
            }
        }
        10 => (0..=input.u8() & 15).for_each(|_| rig::flush(bus, directory(input.u8().into()))),
        _ => (0..u32::from(input.u8()) * 4).for_each(|_| bus.bench.turn()),
    }
}

/// A flush of all directories; the id names its answer.
fn flush_all(bus: &mut Poster<'_>) -> RequestId {
    let what = pffb::TLB_GO | pffb::TLB_ALL_PAGES | pffb::TLB_ALL_DIRECTORIES;
    rig::write(bus, PffbReg::TlbInvalidate, what);
    bus.posted
}

fn wait(bench: &mut Bench, vm: VmId, request: RequestId, turns: u32) {
    for _ in 0..turns {
        if bench.world.take_reply(vm, request).is_some() {
            return;
        }
        assert!(!bench.world.is_lost, "the card was given up");
        bench.turn();
    }
    panic!("a sync of {vm} does not end within {turns} turns");
}

fn poster(bench: &mut Bench, vm: VmId) -> Poster<'_> {
    Poster::new(bench, vm, Pace::After(0))
}

/// The victim remaps a few pages, and finds its flush done soon and its shadow right.
fn sync_of_the_victim(bench: &mut Bench, round: u64) {
    let mut bus = poster(bench, VICTIM);
    let entries: Vec<u8> = (0..8)
        .map(|page| rig::ram_pte((round % 64 * 8 + page) << 12))
        .flat_map(|pte| pte.into_bits().to_le_bytes())
        .collect();
    rig::put(&mut bus, SMALL_TABLE + (round % 512 * 8) * 8, &entries);
    let request = flush_all(&mut bus);
    wait(bench, VICTIM, request, TURNS_OF_A_SMALL_SYNC);
    check(&bench.world, VICTIM);
}

/// Body of the target `sync_cost`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bench = Bench::with(CARD, gpu_config(), &VMS.map(|_| vm_config(GUEST)));
    let mut rigs = VMS.map(|vm| {
        let mut bus = poster(&mut bench, vm);
        let mut rig = Rig::start(&mut bus, DATA_BYTES);
        rig.open(&mut bus, 0);
        let request = flush_all(&mut bus);
        wait(&mut bench, vm, request, TURNS_OF_A_SYNC);
        rig
    });
    watch(&mut bench.world);
    for round in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let who = 1 + usize::from(input.u8() & 1);
        let mut bus = poster(&mut bench, VMS[who]);
        act(&mut rigs[who], &mut bus, &mut input);
        if input.u8() & 3 == 0 {
            sync_of_the_victim(&mut bench, round as u64);
        }
    }
    sync_of_the_victim(&mut bench, ACTIONS_MAX as u64);
    for vm in VMS {
        let request = flush_all(&mut poster(&mut bench, vm));
        wait(&mut bench, vm, request, TURNS_OF_A_SYNC);
        check(&bench.world, vm);
    }
    check_sums(&bench.world).unwrap_or_else(|broken| panic!("{}", broken.0));
    bench.end();
}

/// A page as its guest names it: in RAM or in VRAM; and whether engines may only load from it.
type Page = Option<(bool, u64, bool)>;

/// Compares all spaces of a VM with its guest's tables, whose last sync has ended.
fn check(world: &World, vm: VmId) {
    let audit = world.manager.audit().expect("the card is up");
    let of = audit.vms.iter().find(|of| of.vm == vm).expect("it is attached");
    // What the VM was told of may be absent.
    let incomplete = vm != VICTIM
        && (is_told(world, vm)
            || figure(world, vm, "shadow_tables/held")
                > figure(world, vm, "shadow_tables/max").map(|max| max / 2));
    let walker = Walker { world, of };
    for (guest, shadow) in spaces(world, &audit, vm) {
        for va in pages(if vm == VICTIM { VICTIMS_ENTRIES } else { ENTRIES }) {
            let (expected, found) = (walker.guest(guest, va), walker.card(shadow, va));
            assert!(
                found == expected || incomplete && found.is_none(),
                "{vm}, directory {guest:#x}, {va:#x}: found {found:x?}, the guest says {expected:x?}"
            );
        }
    }
}

fn is_told(world: &World, vm: VmId) -> bool {
    let mut notices = world.notices.iter();
    notices.any(|(_, notice)| matches!(notice, Notice::GuestError { vm: of, .. } if *of == vm))
}

fn pages(entries: u64) -> impl Iterator<Item = u64> {
    let every = |entry: u64| {
        (0..0x8000)
            .step_by(STRIDE)
            .map(move |page| entry << 27 | page << 12)
    };
    (0..entries).flat_map(every)
}

/// The guest's directory and the shadow's of each space.
fn spaces(world: &World, audit: &Audit, vm: VmId) -> Vec<(u64, u64)> {
    let path = format!("vms/{vm}/spaces");
    let tree = world.manager.inspect(world.now, &path).expect("a VM has spaces");
    let Some(Node::Group(parts)) = tree.at(&path) else {
        return Vec::new();
    };
    let address = |part: &Node, name: &str| match part.value_at(name) {
        Some(Value::Address(at, _)) => *at,
        other => panic!("{name} of a space is {other:?}"),
    };
    let spaces: Vec<(u64, u64)> = parts
        .iter()
        .map(|(_, part)| {
            (
                address(part, "directory_of_the_guest"),
                address(part, "directory"),
            )
        })
        .collect();
    let of = audit.vms.iter().find(|of| of.vm == vm).expect("it is attached");
    assert!(
        spaces
            .iter()
            .all(|(_, at)| of.directories.iter().any(|own| own.0 == *at))
    );
    spaces
}

struct Walker<'a> {
    world: &'a World,
    of: &'a VmAudit,
}

impl Walker<'_> {
    /// A word of guest VRAM (place 1) or RAM; nothing is where no memory is.
    fn word(&self, place: u64, at: u64) -> u64 {
        let memory = self.world.vm(self.of.vm);
        let in_frame = || self.of.frames.iter().any(|(_, start)| at >> 17 == start.0 >> 17);
        let region = match place {
            0 => return 0,
            1 if in_frame() => &memory.vram,
            1 => &memory.image,
            _ => &memory.ram,
        };
        let mut word = [0; 8];
        match region.get_slice(at as usize, 8) {
            Ok(slice) => slice.copy_to(&mut word[..]),
            Err(_) => return 0,
        };
        u64::from_le_bytes(word)
    }

    /// What the guest's tables say.
    fn guest(&self, directory: u64, va: u64) -> Page {
        let pde = self.word(1, directory + (va >> 27) * 8);
        let (large, small) = (va >> 17 & 0x3ff, va >> 12 & 0x7fff);
        let size = pde >> 2 & 3;
        if large < 1024 >> size {
            let entry = self.word(pde & 3, (pde << 8 & 0xff_ffff_f000) + large * 8);
            if entry & 1 == 1 {
                return (entry >> 4 & 31 == 0).then(|| self.named(entry, small & 31))?;
            }
        }
        if small < 32768 >> size {
            let entry = self.word(pde >> 32 & 3, (pde >> 24 & 0xff_ffff_f000) + small * 8);
            if entry & 1 == 1 {
                return self.named(entry, 0);
            }
        }
        None
    }

    fn named(&self, entry: u64, page: u64) -> Page {
        uncompressed_kind((entry >> 36) as u8)?;
        let at = ((entry >> 4 & 0xfff_ffff) + page) * SMALL_PAGE;
        let ram: u64 = self.of.ram.iter().map(|(_, bytes)| bytes).sum();
        match entry >> 33 & 3 {
            0 if at < GUEST * MIB => Some((false, at, entry & 4 != 0)),
            2 | 3 if at < ram => Some((true, at, entry & 4 != 0)),
            _ => None,
        }
    }

    fn card_word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.world.read_arena(fermi_spec::addr::VramAddr(at), &mut word);
        u64::from_le_bytes(word)
    }

    /// Where the card's walk of the shadow ends, as the guest would name it.
    fn card(&self, directory: u64, va: u64) -> Page {
        let pde = self.card_word(directory + (va >> 27) * 8);
        let (large, small) = (va >> 17 & 0x3ff, va >> 12 & 0x7fff);
        let entry = match pde & 3 {
            0 => 0,
            _ => self.card_word((pde << 8 & 0xff_ffff_f000) + large * 8),
        };
        if entry & 1 == 1 {
            return self.placed(entry, small & 31);
        }
        let entry = match pde >> 32 & 3 {
            0 => 0,
            _ => self.card_word((pde >> 24 & 0xff_ffff_f000) + small * 8),
        };
        (entry & 1 == 1).then(|| self.placed(entry, 0))?
    }

    /// The guest's name of the memory behind a shadow entry.
    fn placed(&self, entry: u64, page: u64) -> Page {
        let at = ((entry >> 4 & 0xfff_ffff) + page) * SMALL_PAGE;
        let is_read_only = entry & 4 != 0;
        if entry >> 33 & 3 == 0 {
            let mut frames = self.of.frames.iter();
            let (frame, start) = frames.find(|(frame, _)| frame.base().0 >> 17 == at >> 17)?;
            return Some((false, start.0 + (at - frame.base().0), is_read_only));
        }
        let inside = |(start, bytes): (fermi_spec::addr::Iova, u64)| {
            at.checked_sub(start.0).filter(|offset| *offset < bytes)
        };
        if let Some(offset) = inside(self.of.image) {
            return Some((false, offset, is_read_only));
        }
        let offset = self.of.ram.iter().find_map(|part| inside(*part))?;
        Some((true, offset, is_read_only))
    }
}
