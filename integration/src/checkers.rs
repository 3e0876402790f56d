//! The laws, checked against the card's own tables by code that shares nothing with the core.

use std::collections::BTreeMap;

use fermi_spec::addr::{FRAME, FrameNo, VramAddr};
use fermi_spec::pte::{LARGE_PT_ENTRIES, PD_ENTRIES, Pde, Pte, SMALL_PT_ENTRIES};
use vgpu::{Audit, FrameOwner, VmAudit, VmId};

use crate::watch::World;

/// A violation of a law.
#[derive(Clone, Debug)]
pub struct Violation(pub String);

/// Checks ownership and conservation: cheap, after every event.
pub(crate) fn check_frames(world: &World) -> Result<(), Violation> {
    let Some(audit) = world.manager.audit() else {
        return Ok(());
    };
    world.watch.laws.held()?;
    world.watch.laws.check_lines(&audit)?;
    check_accesses(world)?;
    let mut owners: BTreeMap<FrameNo, String> = BTreeMap::new();
    let mut held = 0;
    for vm in &audit.vms {
        for &(frame, at) in &vm.frames {
            held += 1;
            if let Some(other) = owners.insert(frame, vm.vm.to_string()) {
                return Err(Violation(format!("{frame:?} belongs to {} and {other}", vm.vm)));
            }
            if (audit.arena.0..audit.arena.0 + audit.arena.1).contains(&frame.0) {
                return Err(Violation(format!(
                    "{} holds {frame:?} of the broker's arena",
                    vm.vm
                )));
            }
            if world.owner(frame) != (FrameOwner::Vm { vm: vm.vm, at }) {
                return Err(Violation(format!(
                    "{} thinks it holds {frame:?}, placed as {:?}",
                    vm.vm,
                    world.owner(frame)
                )));
            }
        }
        check_sums(vm, audit.moving)?;
        if !vm.suspended.is_empty() && ![audit.moving, audit.aside].contains(&Some(vm.vm)) {
            return Err(Violation(format!(
                "channels {:?} of {} are suspended and nothing moves",
                vm.suspended, vm.vm
            )));
        }
    }
    let free = u64::from(audit.free_frames) * FRAME;
    if let Some((vm, bytes)) = audit.claim.filter(|&(_, bytes)| bytes > free) {
        return Err(Violation(format!(
            "{bytes} bytes are collected for {vm} and {free} are free"
        )));
    }
    if held + audit.free_frames > audit.usable_frames {
        let (free, usable) = (audit.free_frames, audit.usable_frames);
        return Err(Violation(format!(
            "{held} frames held and {free} free of {usable}"
        )));
    }
    Ok(())
}

/// Checks that the sums which a VM's chunks are kept with fit its frames: a chunk in VRAM is in use, idle or on its way, unless it moves.
fn check_sums(vm: &VmAudit, moving: Option<VmId>) -> Result<(), Violation> {
    let held = vm.frames.len() as u64 * FRAME;
    let summed = vm.active + vm.idle + vm.split;
    let is_moving = moving == Some(vm.vm);
    if vm.resident != held || summed > held || (summed < held && !is_moving) || vm.wanted > vm.spilled {
        return Err(Violation(format!(
            "{} holds {held} bytes; its sums say {} in VRAM, {} in use, {} idle, {} split, {} of {} in host RAM wanted",
            vm.vm, vm.resident, vm.active, vm.idle, vm.split, vm.wanted, vm.spilled
        )));
    }
    Ok(())
}

/// Checks that nothing outlives its memory: no engine, window or table walk of the card has ever touched a frame
/// without an owner, or a bus address without a map.
fn check_accesses(world: &World) -> Result<(), Violation> {
    let counters = world.model.counters();
    let strays = [
        ("loads from free frames", counters.vram_missing_reads),
        ("stores to free frames", counters.vram_missing_writes),
        ("loads from unmapped bus addresses", counters.dma_unmapped_reads),
        ("stores to unmapped bus addresses", counters.dma_unmapped_writes),
    ];
    match strays.iter().find(|(_, count)| *count > 0) {
        Some((what, count)) => Err(Violation(format!("the card did {count} {what}"))),
        None => Ok(()),
    }
}

/// Checks isolation: every entry of every shadow table points to its VM's own frames, image or RAM, but for the host's, which point to parts
/// of the arena that no other VM has.
pub(crate) fn check_shadows(world: &World) -> Result<(), Violation> {
    let Some(audit) = world.manager.audit() else {
        return Ok(());
    };
    let mut tables = BTreeMap::new();
    let mut pages: BTreeMap<VramAddr, VmId> = BTreeMap::new();
    for vm in &audit.vms {
        for &directory in &vm.directories {
            own_table(&mut tables, &audit, vm, directory, directory)?;
            for table in walk_directory(world, vm, directory)? {
                own_table(&mut tables, &audit, vm, directory, table)?;
            }
            for page in host_pages(world, vm, directory)? {
                if let Some(other) = pages.insert(page, vm.vm).filter(|other| *other != vm.vm) {
                    let vm = vm.vm;
                    return Err(Violation(format!(
                        "{vm} and {other} share the host's page {page}"
                    )));
                }
            }
        }
        check_contexts(world, vm)?;
    }
    let blocks = audit.vms.iter().flat_map(|vm| &vm.blocks);
    let inside = |at: VramAddr| pages.contains_key(&VramAddr(at.0 / FRAME * FRAME));
    match tables.keys().chain(blocks).find(|at| inside(**at)) {
        Some(at) => Err(Violation(format!(
            "channels see the table or instance block at {at} in the host's part of their space"
        ))),
        None => Ok(()),
    }
}

/// First address of the host's part of each address space, and its bytes.
const HOST_PART: (u64, u64) = (0xff_f800_0000, 128 << 20);

/// Checks that PGRAPH finds contexts in the host's part alone: an image or a list of registers that a guest writes is as good as any register
/// of the card.
fn check_contexts(world: &World, vm: &VmAudit) -> Result<(), Violation> {
    let (first, bytes) = HOST_PART;
    for &block in &vm.blocks {
        let pointer = world.read_arena_words(VramAddr(block.0 + 0x210), 1)[0];
        if pointer != 0 && !(first..first + bytes).contains(&pointer) {
            return Err(Violation(format!(
                "{}: PGRAPH loads a context from {pointer:#x}, which is the guest's",
                vm.vm
            )));
        }
    }
    Ok(())
}

/// The pages that the host's directory entry shows: parts of the arena that the VM holds, and but for what rendering goes through no channel's to read.
fn host_pages(world: &World, vm: &VmAudit, directory: VramAddr) -> Result<Vec<VramAddr>, Violation> {
    /// Pages of the buffers that channels reach: those of attributes.
    const OPEN: std::ops::Range<usize> = 1..4;
    let entry = VramAddr(directory.0 + (HOST_PART.0 >> 27) * 8);
    let pde = Pde::from_bits(world.read_arena_words(entry, 1)[0]);
    let Some((_, table)) = pde.large_table() else {
        return Ok(Vec::new());
    };
    let holds = |at: u64| {
        let held = |(start, bytes): &(VramAddr, u64)| start.0 <= at && at + FRAME <= start.0 + bytes;
        vm.arena.iter().any(held)
    };
    let mut pages = Vec::new();
    for (number, raw) in world
        .read_arena_words(VramAddr(table.0), LARGE_PT_ENTRIES)
        .into_iter()
        .enumerate()
    {
        let pte = Pte::from_bits(raw);
        if !pte.valid() {
            continue;
        }
        let is_its = pte.aperture() == fermi_spec::addr::Aperture::Vram && holds(pte.address().0);
        if !is_its || !(pte.privileged() || OPEN.contains(&number)) {
            return Err(Violation(format!("{}: host's entry {number} is {pte:?}", vm.vm)));
        }
        pages.push(VramAddr(pte.address().0));
    }
    Ok(pages)
}

/// Checks that a table belongs to one directory and lies in the arena: one that was given away too
/// early has two users.
fn own_table(
    tables: &mut BTreeMap<VramAddr, VramAddr>,
    audit: &Audit,
    vm: &VmAudit,
    directory: VramAddr,
    table: VramAddr,
) -> Result<(), Violation> {
    let first = u64::from(audit.arena.0) * FRAME;
    let end = first + u64::from(audit.arena.1) * FRAME;
    if !(first..end).contains(&table.0) {
        return Err(Violation(format!(
            "{}: shadow table {table} outside of the arena",
            vm.vm
        )));
    }
    match tables.insert(table, directory) {
        Some(other) if other != directory => Err(Violation(format!(
            "{}: shadow table {table} under {directory} and {other}",
            vm.vm
        ))),
        _ => Ok(()),
    }
}

/// The tables of a directory; their entries are checked.
fn walk_directory(world: &World, vm: &VmAudit, directory: VramAddr) -> Result<Vec<VramAddr>, Violation> {
    let mut tables = Vec::new();
    let is_leaving = vm.directories_leaving.contains(&directory);
    for (number, raw) in (0_u64..).zip(world.read_arena_words(directory, PD_ENTRIES)) {
        let pde = Pde::from_bits(raw);
        let is_hosts = number == HOST_PART.0 >> 27;
        for (table, entries, page) in [
            (pde.large_table(), LARGE_PT_ENTRIES, FRAME),
            (pde.small_table(), SMALL_PT_ENTRIES, 0x1000),
        ] {
            let Some((aperture, at)) = table else { continue };
            if aperture != fermi_spec::addr::Aperture::Vram {
                return Err(Violation(format!("{}: a shadow table in system memory", vm.vm)));
            }
            tables.push(VramAddr(at.0));
            if is_hosts {
                // What it leads to is for `host_pages`.
                continue;
            }
            for raw in world.read_arena_words(VramAddr(at.0), entries) {
                check_entry(world, vm, is_leaving, Pte::from_bits(raw), page)?;
            }
        }
    }
    Ok(tables)
}

/// Checks an entry. Nothing walks a table that `is_leaving`; it may lead to frames that a move has emptied, which nobody else has before
/// both are flushed. So may any entry of a VM as long as the move has not pointed all of them to the new place.
fn check_entry(world: &World, vm: &VmAudit, is_leaving: bool, pte: Pte, page: u64) -> Result<(), Violation> {
    if !pte.valid() {
        return Ok(());
    }
    let at = pte.address().0;
    let inside = |start: u64, bytes: u64| at >= start && at + page <= start + bytes;
    let own = match pte.aperture() {
        fermi_spec::addr::Aperture::Vram => {
            let emptied = vm.emptied.iter().filter(|_| is_leaving || vm.is_pointed);
            let mut all = vm.frames.iter().map(|(frame, _)| frame).chain(emptied);
            all.any(|frame| inside(frame.base().0, FRAME))
        }
        fermi_spec::addr::Aperture::Peer => false,
        _ if !world.is_mapped(fermi_spec::addr::Iova(at), page) => {
            return Err(Violation(format!(
                "{}: shadow entry {pte:?} points to memory that is not mapped",
                vm.vm
            )));
        }
        _ if !pte.read_only() && !world.is_writable(fermi_spec::addr::Iova(at)) => {
            return Err(Violation(format!(
                "{}: shadow entry {pte:?} allows stores to memory that is mapped read-only",
                vm.vm
            )));
        }
        _ => std::iter::once(&vm.image)
            .chain(&vm.ram)
            .any(|(iova, bytes)| inside(iova.0, *bytes)),
    };
    if own {
        Ok(())
    } else {
        Err(Violation(format!(
            "{}: shadow entry {pte:?} points to foreign memory",
            vm.vm
        )))
    }
}

/// Checks that nothing is left of VMs that have gone.
pub(crate) fn check_empty(world: &World) -> Result<(), Violation> {
    let Some(audit) = world.manager.audit() else {
        return Ok(());
    };
    if !audit.vms.is_empty() || audit.free_frames != audit.usable_frames {
        let (vms, free, usable) = (audit.vms.len(), audit.free_frames, audit.usable_frames);
        return Err(Violation(format!(
            "{vms} VMs left, {free} of {usable} frames free"
        )));
    }
    match world.dma_maps() {
        // The broker's own memory.
        1 => Ok(()),
        maps => Err(Violation(format!("{maps} DMA maps left"))),
    }
}

/// Whether the core says so of a VM.
pub(crate) fn is_so_of(world: &World, vm: VmId, says: impl Fn(&VmAudit) -> bool) -> bool {
    let audit = world.manager.audit().unwrap_or_default();
    audit.vms.iter().any(|of| of.vm == vm && says(of))
}
