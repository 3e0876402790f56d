//! The GMMU: from a virtual address of an address space to a place in memory.
//!
//! A translation comes from the TLB of its client or from a walk through the tables as they are at that moment;
//! nothing but a flush makes a TLB look again. Limit and rights are checked at every access. Large pages win over
//! small ones under the same directory entry (unverified: the precedence on silicon). A change of the large pages' size
//! (100c80, bit 0) empties the TLBs, as their entries are of the old one (assumption: no driver for GF100 makes one).

use crate::{
    access_counts::AccessCounts,
    memory::{Memory, Place},
    tlb::{Page, Tlb, Translation},
};
use fermi_spec::regs::pffb;
use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr, SMALL_PAGE, VA_BITS},
    fault::Reason,
    instance::{AddressSpacePointer, offset},
    pte::{self, LargePages, Pde, Pte},
};

/// An address space as a unit has loaded it from an instance block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddressSpace {
    pub(crate) directory: Place,
    pub(crate) limit: u64,
}

impl AddressSpace {
    /// Whether an address is one that the space can have.
    fn check_limit(&self, va: GpuVa) -> Result<(), Reason> {
        match va.0 > self.limit || va.0 >> VA_BITS != 0 {
            true => Err(Reason::BeyondLimit),
            false => Ok(()),
        }
    }

    /// Reads the pointer in the instance block at `instance`.
    pub(crate) fn load(mem: &mut Memory, instance: Place) -> Self {
        let mut words = [0; 4];
        for (index, word) in words.iter_mut().enumerate() {
            *word = mem.read_u32(instance.offset(offset::PD_LO + 4 * index as u64));
        }
        let pointer = AddressSpacePointer::from_words(words);
        Self {
            directory: Place {
                aperture: pointer.aperture,
                at: pointer.directory,
            },
            limit: pointer.limit,
        }
    }
}

/// TLB that an access goes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlbClient {
    Bar1,
    Bar3,
    Peephole,
    /// Host and engines.
    Engines,
}

/// Rights that an access needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) client: TlbClient,
    pub(crate) write: bool,
    /// May use supervisor pages.
    pub(crate) privileged: bool,
}

impl Access {
    /// A channel reads.
    pub(crate) const READ: Self = Self {
        client: TlbClient::Engines,
        write: false,
        privileged: false,
    };
    /// A channel writes.
    pub(crate) const WRITE: Self = Self {
        write: true,
        ..Self::READ
    };

    fn refusal(self, va: GpuVa, reason: Reason) -> Refusal {
        Refusal {
            va,
            reason,
            write: self.write,
        }
    }
}

/// An access that the MMU refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) va: GpuVa,
    pub(crate) reason: Reason,
    pub(crate) write: bool,
}

/// Entries that a flush removes from the TLBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    Nothing,
    /// Everything under a page directory.
    Directory(Place),
    All,
}

/// TLBs and the MMU's registers.
pub(crate) struct Mmu {
    bar1: Tlb,
    bar3: Tlb,
    peephole: Tlb,
    engines: Tlb,
    /// Stored bits of MMU_CONFIG.
    config: u32,
    /// Value of TLB_DIRECTORY (100cb8).
    pub(crate) flush_directory: u32,
    under_way: Option<FlushUnderWay>,
    /// Of a card that counts accesses.
    pub(crate) counts: Option<AccessCounts>,
}

/// A flush that is not done with the store that began it.
struct FlushUnderWay {
    /// What was stored to TLB_INVALIDATE, and TLB_DIRECTORY by then.
    command: u32,
    directory: u32,
    /// GPU time in nanoseconds; `None`: it never completes.
    done_at: Option<u64>,
}

impl Mmu {
    /// With or without access counters.
    pub(crate) fn new(counts_accesses: bool) -> Self {
        Self {
            bar1: Tlb::new(),
            bar3: Tlb::new(),
            peephole: Tlb::new(),
            engines: Tlb::new(),
            config: 0,
            flush_directory: 0,
            under_way: None,
            counts: counts_accesses.then(AccessCounts::default),
        }
    }

    /// MMU_CONFIG: ready for a flush, and done with the last one unless that is under way.
    pub(crate) fn config(&self) -> u32 {
        let ready = match self.under_way {
            Some(_) => pffb::MMU_CONFIG_READY & !pffb::MMU_CONFIG_FLUSHED,
            None => pffb::MMU_CONFIG_READY,
        };
        ready | self.config
    }

    /// A flush begins that is done later, or never. One that never ends is not followed by another.
    pub(crate) fn begin_flush(&mut self, command: u32, done_at: Option<u64>) {
        if self
            .under_way
            .as_ref()
            .is_none_or(|before| before.done_at.is_some())
        {
            self.under_way = Some(FlushUnderWay {
                command,
                directory: self.flush_directory,
                done_at,
            });
        }
    }

    /// When the flush under way is done.
    pub(crate) fn flush_done_at(&self) -> Option<u64> {
        self.under_way.as_ref()?.done_at
    }

    /// Ends the flush under way, if it ends.
    #[must_use]
    pub(crate) fn finish_flush(&mut self, mem: &mut Memory) -> Flushed {
        match self.under_way.take_if(|flush| flush.done_at.is_some()) {
            Some(flush) => self.flush_as_told(mem, flush.command, flush.directory),
            None => Flushed::Nothing,
        }
    }

    #[must_use]
    pub(crate) fn set_config(&mut self, value: u32) -> Flushed {
        let before = self.large_pages();
        self.config = value & pffb::MMU_CONFIG_STORED;
        if self.large_pages() == before {
            return Flushed::Nothing;
        }
        for tlb in self.tlbs() {
            tlb.flush();
        }
        Flushed::All
    }

    pub(crate) fn large_pages(&self) -> LargePages {
        if self.config & pffb::MMU_CONFIG_64K_PAGES != 0 {
            LargePages::Kib64
        } else {
            LargePages::Kib128
        }
    }

    fn tlbs(&mut self) -> [&mut Tlb; 4] {
        [
            &mut self.bar1,
            &mut self.bar3,
            &mut self.peephole,
            &mut self.engines,
        ]
    }

    /// TLB_INVALIDATE. Hub-only flushes drop everything that the others do: the model has no GPC TLB.
    pub(crate) fn invalidate(&mut self, mem: &mut Memory, command: u32) -> Flushed {
        self.flush_as_told(mem, command, self.flush_directory)
    }

    fn flush_as_told(&mut self, mem: &mut Memory, command: u32, directory: u32) -> Flushed {
        let all = command & pffb::TLB_ALL_DIRECTORIES != 0;
        self.flush(mem, (!all).then(|| directory_of(directory)))
    }

    /// Drops everything that the TLBs keep.
    #[must_use]
    pub(crate) fn flush_all(&mut self, mem: &mut Memory) -> Flushed {
        self.flush(mem, None)
    }

    /// Drops what the TLBs keep under `directory`, or everything.
    fn flush(&mut self, mem: &mut Memory, directory: Option<Place>) -> Flushed {
        mem.counters.tlb_flushes += 1;
        for tlb in self.tlbs() {
            match directory {
                Some(directory) => tlb.flush_directory(directory),
                None => tlb.flush(),
            }
        }
        directory.map_or(Flushed::All, Flushed::Directory)
    }

    /// MEM_OP_B's invalidation: of the directory in MEM_OP_A (bits 29:2 address >> 12, 31:30 aperture) or of all.
    pub(crate) fn invalidate_by_method(&mut self, mem: &mut Memory, operand: u32, all: bool) -> Flushed {
        let directory = Place {
            aperture: Aperture::from_bits((operand >> 30) as u8),
            at: PhysAddr::from_page_number(operand >> 2),
        };
        self.flush(mem, (!all).then_some(directory))
    }

    /// Drops what one client's TLB keeps.
    pub(crate) fn flush_client(&mut self, client: TlbClient) {
        self.tlb(client).flush();
    }

    /// What host and engines may use without another look at the tables.
    pub(crate) fn translations(&self) -> impl Iterator<Item = Translation> {
        self.engines.translations()
    }

    fn tlb(&mut self, client: TlbClient) -> &mut Tlb {
        match client {
            TlbClient::Bar1 => &mut self.bar1,
            TlbClient::Bar3 => &mut self.bar3,
            TlbClient::Peephole => &mut self.peephole,
            TlbClient::Engines => &mut self.engines,
        }
    }

    /// Counts an access to each page of a range, if the card counts.
    #[inline]
    pub(crate) fn count_range(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        va: GpuVa,
        bytes: u64,
        is_store: bool,
    ) {
        if let Some(counts) = &mut self.counts {
            mem.counters.uncounted_accesses += counts.count_range(space.directory, va, bytes, is_store);
        }
    }

    /// Translates the start of `bytes` bytes at `va`: the place, and how many bytes lie there in one piece (at least
    /// one, across page borders where the pages are contiguous).
    pub(crate) fn translate(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        access: Access,
        va: GpuVa,
        bytes: u64,
    ) -> Result<(Place, u64), Refusal> {
        let (place, mut run) = self.translate_page(mem, space, access, va)?;
        while run < bytes {
            let Some(next) = va.checked_add(run) else { break };
            match self.translate_page(mem, space, access, next) {
                Ok((beyond, more)) if beyond == place.offset(run) => run += more,
                // A refusal further on is reported when the access gets there.
                _ => break,
            }
        }
        Ok((place, run.min(bytes)))
    }

    fn translate_page(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        access: Access,
        va: GpuVa,
    ) -> Result<(Place, u64), Refusal> {
        let refuse = |reason| access.refusal(va, reason);
        space.check_limit(va).map_err(refuse)?;
        let large_pages = self.large_pages();
        let page = match self.tlb(access.client).find(space.directory, va, large_pages) {
            Some(page) => {
                mem.counters.tlb_hits += 1;
                page
            }
            None => {
                mem.counters.tlb_misses += 1;
                let page = walk(mem, space, large_pages, va).map_err(refuse)?;
                self.tlb(access.client).insert(space.directory, va, page);
                page
            }
        };
        check(page.pte, access).map_err(refuse)?;
        Ok(place_in(page, space, va))
    }

    /// The same past the TLB: entries of tables are looked at anew, and nothing is kept. Where a long run of small pages is used once, that
    /// takes a fraction of the time.
    pub(crate) fn translate_past_tlb(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        access: Access,
        va: GpuVa,
        bytes: u64,
    ) -> Result<(Place, u64), Refusal> {
        let refuse = |reason| access.refusal(va, reason);
        space.check_limit(va).map_err(refuse)?;
        let large_pages = self.large_pages();
        let page = walk(mem, space, large_pages, va).map_err(refuse)?;
        check(page.pte, access).map_err(refuse)?;
        let (place, mut run) = place_in(page, space, va);
        let pde = pde_of(mem, space, large_pages, va);
        // A large page hides small ones.
        if page.bytes == SMALL_PAGE && pde.large_table().is_none() {
            let entries = (large_pages.pde_span() >> pde.size()) / SMALL_PAGE;
            for index in large_pages.small_index(va) as u64 + 1..entries {
                if run >= bytes || va.0 + run > space.limit {
                    break;
                }
                let pte = Pte::from_bits(mem.read_u64(page.table.offset(index * 8)));
                let (beyond, more) = place_in(Page { pte, ..page }, space, GpuVa(va.0 + run));
                // A refusal further on is reported when the access gets there.
                if !pte.valid() || check(pte, access).is_err() || beyond != place.offset(run) {
                    break;
                }
                run += more;
            }
        }
        Ok((place, run.min(bytes)))
    }

    /// Fills `data` from `va` on; what lies before a refused page has been read then.
    pub(crate) fn read(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        access: Access,
        va: GpuVa,
        data: &mut [u8],
    ) -> Result<(), Refusal> {
        let mut done = 0;
        while done < data.len() {
            let at = advance(va, done, access)?;
            let (place, run) = self.translate(mem, space, access, at, (data.len() - done) as u64)?;
            mem.read(place, &mut data[done..done + run as usize]);
            done += run as usize;
        }
        Ok(())
    }

    /// Stores `data` from `va` on; what lies before a refused page has been stored then.
    pub(crate) fn write(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        access: Access,
        va: GpuVa,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let mut done = 0;
        while done < data.len() {
            let at = advance(va, done, access)?;
            let (place, run) = self.translate(mem, space, access, at, (data.len() - done) as u64)?;
            mem.write(place, &data[done..done + run as usize]);
            done += run as usize;
        }
        Ok(())
    }

    /// Releases a semaphore at `va`, a multiple of 4: the payload alone, or payload, zero and time in 16 bytes. The
    /// payload is stored last, so a reader that sees it sees the rest.
    pub(crate) fn release(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        va: GpuVa,
        payload: u32,
        time: Option<u64>,
    ) -> Result<(), Refusal> {
        if let Some(time) = time {
            let mut rest = [0; 12];
            rest[4..].copy_from_slice(&time.to_le_bytes());
            self.write(mem, space, Access::WRITE, advance(va, 4, Access::WRITE)?, &rest)?;
        }
        let (place, _) = self.translate(mem, space, Access::WRITE, va, 4)?;
        mem.write_u32(place, payload);
        mem.stores += 1;
        Ok(())
    }

    /// The word at `va`, a multiple of 4.
    pub(crate) fn read_word(
        &mut self,
        mem: &mut Memory,
        space: &AddressSpace,
        va: GpuVa,
    ) -> Result<u32, Refusal> {
        let (place, _) = self.translate(mem, space, Access::READ, va, 4)?;
        Ok(mem.read_u32(place))
    }
}

/// `va + bytes`; beyond 64 bits is beyond any limit.
fn advance(va: GpuVa, bytes: usize, access: Access) -> Result<GpuVa, Refusal> {
    va.checked_add(bytes as u64)
        .ok_or(access.refusal(va, Reason::BeyondLimit))
}

/// The page directory that TLB_DIRECTORY (100cb8) names: bits 31:4 address >> 12, 1:0 aperture.
fn directory_of(word: u32) -> Place {
    Place {
        aperture: Aperture::from_bits(word as u8),
        at: PhysAddr(u64::from(word >> 4) << 12),
    }
}

/// Looks the page of `va` up in the tables.
pub(crate) fn walk(
    mem: &mut Memory,
    space: &AddressSpace,
    large_pages: LargePages,
    va: GpuVa,
) -> Result<Page, Reason> {
    if space.directory.aperture == Aperture::Peer {
        return Err(Reason::NoChannel);
    }
    let pde = pde_of(mem, space, large_pages, va);
    let (large, small) = (pde.large_table(), pde.small_table());
    if large.is_none() && small.is_none() {
        return Err(Reason::PdeNotPresent);
    }
    let span = large_pages.pde_span();
    if va.within(span) >= span >> pde.size() {
        return Err(Reason::TableTooShort);
    }
    let mut entry = |table: Option<(Aperture, PhysAddr)>, index: usize| {
        let (aperture, at) = table?;
        let table = Place { aperture, at };
        let pte = Pte::from_bits(mem.read_u64(table.offset(index as u64 * 8)));
        pte.valid().then_some((pte, table))
    };
    let large = entry(large, large_pages.large_index(va));
    let small = entry(small, large_pages.small_index(va));
    if large.is_some() && small.is_some() {
        mem.counters.overlapping_entries += 1;
    }
    match (large, small) {
        (Some((pte, table)), _) => Ok(Page {
            pte,
            bytes: large_pages.bytes(),
            table,
        }),
        (None, Some((pte, table))) => Ok(Page {
            pte,
            bytes: SMALL_PAGE,
            table,
        }),
        (None, None) => Err(Reason::PageNotPresent),
    }
}

/// Where an address is by the tables as they are, for whoever has no TLB.
pub(crate) fn look_up(
    mem: &mut Memory,
    space: &AddressSpace,
    large_pages: LargePages,
    access: Access,
    va: GpuVa,
) -> Result<Place, Refusal> {
    let refuse = |reason| access.refusal(va, reason);
    space.check_limit(va).map_err(refuse)?;
    let page = walk(mem, space, large_pages, va).map_err(refuse)?;
    check(page.pte, access).map_err(refuse)?;
    Ok(place_in(page, space, va).0)
}

/// The entry of the directory for an address.
fn pde_of(mem: &mut Memory, space: &AddressSpace, large_pages: LargePages, va: GpuVa) -> Pde {
    let index = large_pages.pde_index(va) as u64;
    Pde::from_bits(mem.read_u64(space.directory.offset(index * 8)))
}

/// Where a byte of a page is, and how many bytes follow it there.
fn place_in(page: Page, space: &AddressSpace, va: GpuVa) -> (Place, u64) {
    let inside = va.within(page.bytes);
    let left = (page.bytes - inside).min(space.limit - va.0 + 1);
    // The low bits of a large page's frame do not take part.
    let first = page.pte.address().align_down(page.bytes);
    let place = Place {
        aperture: page.pte.aperture(),
        at: PhysAddr(first.0 + inside),
    };
    (place, left)
}

fn check(pte: Pte, access: Access) -> Result<(), Reason> {
    if pte.privileged() && !access.privileged {
        return Err(Reason::Privileged);
    }
    if pte.read_only() && access.write {
        return Err(Reason::ReadOnly);
    }
    match pte::uncompressed_kind(pte.kind()) {
        None => Err(Reason::InvalidKind),
        Some(kind) if kind != pte.kind() && pte.aperture().is_sysram() => Err(Reason::CompressedSysram),
        Some(_) => Ok(()),
    }
}
