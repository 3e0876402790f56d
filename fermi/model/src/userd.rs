//! USERD: doorbells from the polling area, and the words that the host writes back for the driver.

use crate::{memory::Place, model::FermiModel, pbdma::Activity, pfifo::ChannelId};
use fermi_spec::{
    addr::SMALL_PAGE,
    instance::{CHANNELS, USERD_BYTES, offset, userd},
    regs::pfifo::USERD_BASE_VALID,
};

/// Part of a doorbell word that a store covered.
const WORD: u64 = 4;

impl FermiModel {
    /// A store to BAR1 was done: rings the doorbells that it covers.
    ///
    /// The host snoops this BAR1 range, so it learns the channel from the offset; stores that reach the same memory
    /// by another way ring nothing (unverified: inferred from what drivers do).
    pub(crate) fn snoop_bar1_store(&mut self, at: u64, data: &[u8]) {
        if self.pfifo.userd_base & USERD_BASE_VALID == 0 {
            return;
        }
        let base = u64::from(self.pfifo.userd_base & (USERD_BASE_VALID - 1)) * SMALL_PAGE;
        let end = at.saturating_add(data.len() as u64);
        let area_end = base.saturating_add(CHANNELS as u64 * USERD_BYTES);
        if end <= base || at >= area_end {
            return;
        }
        let first = at.saturating_sub(base) / USERD_BYTES;
        let last = ((end - 1 - base) / USERD_BYTES).min(CHANNELS as u64 - 1);
        for number in first..=last {
            let doorbell = base + number * USERD_BYTES + userd::GP_PUT;
            let overlaps = at < doorbell + WORD && end > doorbell;
            if let (true, Some(id)) = (overlaps, ChannelId::new(number as u32)) {
                self.ring(id, covered_word(at, data, doorbell));
            }
        }
    }

    /// The doorbell of a channel; `put` is `None` when the store covered only a part of the word, which is then
    /// taken from memory.
    fn ring(&mut self, id: ChannelId, put: Option<u32>) {
        self.mem.counters.doorbells += 1;
        let channel = self.pfifo.channel(id);
        if !channel.table.valid() || !channel.table.poll() {
            return;
        }
        let put = put.unwrap_or_else(|| {
            let place = userd_of(&mut self.mem, channel.instance());
            self.mem.read_u32(place.offset(userd::GP_PUT))
        });
        let instance = channel.instance();
        self.show_doorbell(id, instance, put);
        let channel = self.pfifo.channel_mut(id);
        channel.has_work = true;
        if let Some(pbdma) = channel.loaded {
            self.pbdmas[pbdma].set_put(put);
            if self.pbdmas[pbdma].is_idle() {
                let wait = self.time_of(Some(id), self.timing.doorbell_ns);
                let at = self.clock.now().saturating_add(wait);
                self.pbdmas[pbdma].state = Activity::Running { at };
            }
        }
        self.pfifo.refresh(id);
    }
}

/// Address of the USERD page that an instance block names.
pub(crate) fn userd_of(mem: &mut crate::memory::Memory, instance: Place) -> Place {
    let low = mem.read_u32(instance.offset(offset::USERD_LO));
    let high = mem.read_u32(instance.offset(offset::USERD_HI));
    userd_place(low, high)
}

/// Decodes the two USERD words of RAMFC.
pub(crate) fn userd_place(low: u32, high: u32) -> Place {
    Place {
        aperture: fermi_spec::addr::Aperture::from_bits(low as u8),
        at: fermi_spec::addr::PhysAddr(u64::from(low & 0xffff_f000) | u64::from(high & 0xff) << 32),
    }
}

/// The word at `doorbell` of a store, if the store covers all of it.
fn covered_word(at: u64, data: &[u8], doorbell: u64) -> Option<u32> {
    let start = usize::try_from(doorbell.checked_sub(at)?).ok()?;
    let bytes = data.get(start..start.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}
