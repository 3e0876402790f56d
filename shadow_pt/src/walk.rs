//! One software walk of a guest's tables, for CPU windows (BAR1, BAR3) whose pages are resolved one by one.

use crate::store::{GuestDirectory, TableAt, TableRead, TableStore};
use fermi_spec::addr::{GpuVa, LARGE_PAGE, PhysAddr, SMALL_PAGE, VA_BITS};
use fermi_spec::pte::{Pde, Pte, large_index, pde_index, small_index, uncompressed_kind};
use zerocopy::{FromZeros, IntoBytes};

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// The walk found a page.
    Page(WalkedPage),
    /// Beyond the address space's limit (fault reason 3).
    BeyondLimit,
    /// No table is there (fault reason 0).
    NoTable,
    /// The table ends before the address (fault reason 1).
    TableTooShort,
    /// No valid entry is there (fault reason 2).
    NotPresent,
    /// The entry names another card's memory, which does not exist here.
    Peer,
    /// The entry's kind does not exist (fault reason 0xc).
    InvalidKind,
    /// This 4 KiB page of the tables is not at hand: fetch it and walk again.
    Missing(TableAt),
}

/// A page found by a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkedPage {
    /// The byte that the walked address names, in the guest's VRAM or RAM: a claim of the guest's, not yet checked.
    pub target: TableAt,
    /// Bytes from there to the end of the page.
    pub bytes_left: u64,
    /// Writes fault (reason 6).
    pub read_only: bool,
    /// Only privileged clients may access it.
    pub privileged: bool,
    /// Storage kind as the guest wrote it.
    pub kind: u8,
}

/// Walks the guest's tables for one address. A valid large entry hides the small ones (nouveau's generic `mmu/vmm.c`
/// is built on that). Tables outside of the guest's memory are absent.
pub fn walk(directory: GuestDirectory, va: GpuVa, store: &mut dyn TableStore) -> Walk {
    if va.0 > directory.limit || va.0 >> VA_BITS != 0 {
        return Walk::BeyondLimit;
    }
    let pde = match read_entry::<Pde>(store, directory.at.offset(pde_index(va) as u64 * 8)) {
        Ok(pde) => pde.unwrap_or_default(),
        Err(page) => return Walk::Missing(page),
    };
    let tables = [
        (
            pde.large_table(),
            large_index(va),
            pde.large_entries(),
            LARGE_PAGE,
        ),
        (
            pde.small_table(),
            small_index(va),
            pde.small_entries(),
            SMALL_PAGE,
        ),
    ];
    let mut end = Walk::NoTable;
    for (table, index, entries, page_bytes) in tables {
        let Some((aperture, address)) = table else {
            continue;
        };
        let Some(table) = TableAt::from_aperture(aperture, address) else {
            continue;
        };
        if index >= entries {
            end = Walk::TableTooShort;
            continue;
        }
        match read_entry::<Pte>(store, table.offset(index as u64 * 8)) {
            Ok(Some(pte)) if pte.valid() => return resolve(pte, va, page_bytes),
            Ok(Some(_)) => end = Walk::NotPresent,
            Ok(None) => {}
            Err(page) => return Walk::Missing(page),
        }
    }
    end
}

fn resolve(pte: Pte, va: GpuVa, page_bytes: u64) -> Walk {
    if uncompressed_kind(pte.kind()).is_none() {
        return Walk::InvalidKind;
    }
    let within = va.within(page_bytes);
    // The low bits of a large page's frame must be zero; entries that break this are dropped by the shadow as well.
    if !pte.address().is_aligned(page_bytes) {
        return Walk::NotPresent;
    }
    let address = PhysAddr(pte.address().0 + within);
    match TableAt::from_aperture(pte.aperture(), address) {
        Some(target) => Walk::Page(WalkedPage {
            target,
            bytes_left: page_bytes - within,
            read_only: pte.read_only(),
            privileged: pte.privileged(),
            kind: pte.kind(),
        }),
        None => Walk::Peer,
    }
}

/// Reads one entry: `None` outside of the guest's memory, `Err` with the page when it is not at hand.
fn read_entry<T: FromZeros + zerocopy::FromBytes + IntoBytes>(
    store: &mut dyn TableStore,
    at: TableAt,
) -> Result<Option<T>, TableAt> {
    let mut entry = T::new_zeroed();
    match store.read(at, entry.as_mut_bytes()) {
        TableRead::Done => Ok(Some(entry)),
        TableRead::Outside => Ok(None),
        TableRead::Missing => Err(at.page()),
    }
}
