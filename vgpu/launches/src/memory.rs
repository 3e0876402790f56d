//! Memory of a channel's address space, read once.

use fermi_spec::addr::{GpuVa, SMALL_PAGE};

/// Nothing is mapped at an address, or it cannot be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped;

/// Reads memory as the channel sees it.
pub trait GpuMemory {
    /// Fills `bytes` from `at` on. All of them lie in one page of 4 KiB.
    ///
    /// # Errors
    /// No memory is there.
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped>;

    /// The same of a kernel's code. What stood there a short time ago will do: guests seldom change it, and what is found out is a hint.
    ///
    /// # Errors
    /// No memory is there.
    fn read_code(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.read(at, bytes)
    }
}

/// Fills `bytes` from `at` on, page by page.
pub(crate) fn read(memory: &mut dyn GpuMemory, at: u64, bytes: &mut [u8]) -> Result<(), Unmapped> {
    by_pages(at, bytes, |at, bytes| memory.read(at, bytes))
}

/// The same of code.
pub(crate) fn read_code(memory: &mut dyn GpuMemory, at: u64, bytes: &mut [u8]) -> Result<(), Unmapped> {
    by_pages(at, bytes, |at, bytes| memory.read_code(at, bytes))
}

fn by_pages(
    at: u64,
    bytes: &mut [u8],
    mut read: impl FnMut(GpuVa, &mut [u8]) -> Result<(), Unmapped>,
) -> Result<(), Unmapped> {
    let mut done = 0;
    while done < bytes.len() {
        let place = at.checked_add(done as u64).ok_or(Unmapped)?;
        if place >> fermi_spec::addr::VA_BITS != 0 {
            return Err(Unmapped);
        }
        let left = bytes.len() - done;
        let count = left.min((SMALL_PAGE - place % SMALL_PAGE) as usize);
        read(GpuVa(place), &mut bytes[done..done + count])?;
        done += count;
    }
    Ok(())
}
