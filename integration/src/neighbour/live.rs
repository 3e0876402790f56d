//! A guest's code, written for the simulator, behind a socket in real time.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vgpu::Request;
use vm_memory::{FileOffset, MmapRegion};
use vmm::{LinkError, VfioUserLink, VgpuLink as _};

use super::Place;
use crate::bench::RAM_BYTES;
use sim_host::bus::{Ask, Guest, SimBus};

/// How long a guest rests that waits for the card.
const REST: Duration = Duration::from_micros(50);

/// Connects, maps RAM and runs `code` to its end.
///
/// # Errors
/// The broker lets the VM in no more, or gave it up; or what the code says.
pub(super) fn run(
    place: &Place,
    code: impl FnOnce(&mut SimBus) -> Result<(), String> + Send + 'static,
) -> Result<()> {
    let link = VfioUserLink::connect(&place.socket).context("cannot connect")?;
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
