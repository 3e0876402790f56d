//! A guest's code, written for the simulator, behind a socket in real time.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use fermi_spec::bar::Bar;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vgpu::Request;
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};
use vmm::{LinkError, VfioUserLink, VgpuLink as _};

use super::Place;
use crate::bench::RAM_BYTES;
use sim_host::bus::{Ask, Guest, SimBus};

/// How long a guest rests that waits for the card.
const REST: Duration = Duration::from_micros(50);

/// How a guest reaches BAR1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bar1 {
    /// Each access is a message.
    ByMessages,
    /// It is memory, as the broker offers it.
    InMemory,
}

/// Memory of BAR1 from its first byte on.
pub(crate) fn bar1_memory(link: &VfioUserLink) -> Result<MmapRegion> {
    let offered = link.region_memory(Bar::Bar1.number());
    let offered = offered
        .context("BAR1 cannot be asked for")?
        .context("BAR1 is no memory")?;
    let part = offered.parts.first().context("no part of BAR1 is memory")?;
    let file = FileOffset::new(offered.descriptor.into(), part.file_offset);
    MmapRegion::from_file(file, part.bytes as usize).context("cannot map BAR1")
}

/// Connects, maps RAM and runs `code` to its end.
///
/// # Errors
/// The broker lets the VM in no more, or gave it up; or what the code says.
pub(super) fn run(
    place: &Place,
    bar1: Bar1,
    code: impl FnOnce(&mut SimBus) -> Result<(), String> + 'static,
) -> Result<()> {
    let link = VfioUserLink::connect(&place.socket).context("cannot connect")?;
    let bar1 = match bar1 {
        Bar1::ByMessages => None,
        Bar1::InMemory => Some(bar1_memory(&link)?),
    };
    let file = memfd_create("neighbour", MemfdFlags::CLOEXEC).context("cannot make RAM")?;
    ftruncate(&file, RAM_BYTES).context("cannot make RAM")?;
    let file = std::fs::File::from(file);
    link.dma_map(0, RAM_BYTES, file.as_fd(), 0)
        .context("cannot map RAM")?;
    let ram =
        MmapRegion::from_file(FileOffset::new(file, 0), RAM_BYTES as usize).context("cannot make RAM")?;
    let guest = Guest::start(Arc::new(ram), code);
    let start = Instant::now();
    loop {
        let ask = guest.next();
        let asked = Instant::now();
        let answer = match ask {
            Ask::Done(outcome) => return outcome.map_err(|reason| anyhow!(reason)),
            Ask::Read(Bar::Bar1, offset, bytes) if bar1.is_some() => {
                let mut word = [0; 8];
                let data = word.get_mut(..bytes).context("a load of more than 8 bytes")?;
                let memory = bar1.as_ref().context("it is there")?.as_volatile_slice();
                memory
                    .read_slice(data, offset as usize)
                    .context("a load outside of BAR1")?;
                Ok(u64::from_le_bytes(word))
            }
            Ask::Write(Bar::Bar1, offset, data) if bar1.is_some() => {
                let memory = bar1.as_ref().context("it is there")?.as_volatile_slice();
                memory
                    .write_slice(&data, offset as usize)
                    .context("a store outside of BAR1")?;
                Ok(0)
            }
            Ask::Read(bar, offset, bytes) => {
                let mut word = [0; 8];
                let data = word.get_mut(..bytes).context("a load of more than 8 bytes")?;
                link.region_read(bar.number(), offset, data)
                    .map(|()| u64::from_le_bytes(word))
            }
            Ask::Write(bar, offset, data) => link.region_write(bar.number(), offset, &data).map(|()| 0),
            Ask::Machine(Request::Reset) => link.reset().map(|()| 0),
            Ask::Relax => {
                thread::sleep(REST);
                guest.answer(0);
                continue;
            }
            Ask::Now => Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Ask::Report(_) | Ask::Interrupts(_) | Ask::Entry(..) | Ask::Machine(_) => Ok(0),
            Ask::Post(_) | Ask::Ring(_) | Ask::MapWindows => Ok(0),
        };
        place.meter.note_wait(asked.elapsed());
        match answer {
            Ok(value) => guest.answer(value),
            // A load or store that the broker knows nothing to do with.
            Err(LinkError::Refused { .. }) => guest.answer(0),
            Err(error) => return Err(error).context("the vGPU is lost"),
        }
    }
}
