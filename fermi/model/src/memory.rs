//! The two memories behind the MMU: VRAM in frames that the embedder places, system memory through [`SystemBus`].
//!
//! Nothing here translates or checks rights. A byte without memory reads as ones; a write to it is
//! dropped; both are counted.

use crate::{
    backing::{Backing, SystemBus},
    counters::Counters,
    past_caches,
};
use fermi_spec::addr::{Aperture, FRAME, FrameNo, Iova, PhysAddr, VramAddr};
use std::sync::{Arc, atomic::Ordering};
use vm_memory::{Bytes, VolatileSlice};

/// A physical byte of one of the memories.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Place {
    pub(crate) aperture: Aperture,
    pub(crate) at: PhysAddr,
}

impl Place {
    /// The byte `bytes` further on in the same memory. Past the end of 64 bits it stays at the end, where nothing is.
    pub(crate) fn offset(self, bytes: u64) -> Self {
        Self {
            aperture: self.aperture,
            at: PhysAddr(self.at.0.saturating_add(bytes)),
        }
    }

    /// The byte `bytes` before this one, at least the first of the memory.
    pub(crate) fn before(self, bytes: u64) -> Self {
        Self {
            aperture: self.aperture,
            at: PhysAddr(self.at.0.saturating_sub(bytes)),
        }
    }
}

/// What a copy does with the host's caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stores {
    /// Somebody will look at the bytes soon.
    Cached,
    PastCaches,
}

/// A longest contiguous run of host memory behind a place.
enum Run<'a> {
    Frame {
        backing: &'a Backing,
        offset: usize,
        bytes: usize,
    },
    Sysram(Backing),
    Nowhere {
        bytes: usize,
    },
}

impl Run<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Frame { bytes, .. } | Self::Nowhere { bytes } => *bytes,
            Self::Sysram(backing) => backing.len(),
        }
    }

    /// The first `bytes` bytes, no more than [`Self::len`].
    fn slice(&self, bytes: usize) -> Option<VolatileSlice<'_>> {
        match self {
            Self::Frame { backing, offset, .. } => backing.slice().subslice(*offset, bytes).ok(),
            Self::Sysram(backing) => backing.slice().subslice(0, bytes).ok(),
            Self::Nowhere { .. } => None,
        }
    }
}

/// Location of bytes.
#[derive(Clone)]
struct Map {
    frames: Vec<Option<Backing>>,
    bus: Arc<dyn SystemBus>,
}

impl Map {
    /// The run at `place`, at most `bytes` long and at least 1.
    fn run(&self, place: Place, bytes: usize) -> Run<'_> {
        match place.aperture {
            Aperture::Vram => self.frame_run(VramAddr(place.at.0), bytes),
            Aperture::SysCoherent | Aperture::SysNonCoherent => {
                match self.bus.resolve(Iova(place.at.0), bytes as u64) {
                    Some(backing) if backing.len() <= bytes => Run::Sysram(backing),
                    Some(longer) => longer.part(0, bytes).map_or(Run::Nowhere { bytes }, Run::Sysram),
                    // How far nothing goes is unknown, so by pages.
                    None => Run::Nowhere {
                        bytes: bytes.min(0x1000 - (place.at.0 & 0xfff) as usize),
                    },
                }
            }
            // There is no other card.
            Aperture::Peer => Run::Nowhere { bytes },
        }
    }

    /// Bytes of VRAM that lie in one frame.
    fn frame_slice(&self, place: Place, bytes: usize) -> Option<VolatileSlice<'_>> {
        let at = Some(VramAddr(place.at.0)).filter(|_| place.aperture == Aperture::Vram)?;
        let backing = self.frames.get(FrameNo::of(at)?.0 as usize)?.as_ref()?;
        backing.slice().subslice(at.within(FRAME) as usize, bytes).ok()
    }

    fn frame_run(&self, at: VramAddr, bytes: usize) -> Run<'_> {
        let offset = at.within(FRAME) as usize;
        let bytes = bytes.min(FRAME as usize - offset);
        let backing = FrameNo::of(at).and_then(|frame| self.frames.get(frame.0 as usize)?.as_ref());
        match backing {
            Some(backing) => Run::Frame {
                backing,
                offset,
                bytes,
            },
            None => Run::Nowhere { bytes },
        }
    }
}

/// VRAM and system memory, with the counters of everything.
pub(crate) struct Memory {
    /// Shared with the views that there are.
    map: Arc<Map>,
    pub(crate) counters: Counters,
    /// Grows with every semaphore and piece of data that engines or host store: units that wait
    /// for memory look again.
    pub(crate) stores: u64,
}

impl Memory {
    /// `frames` frames of VRAM without memory yet.
    pub(crate) fn new(frames: u32, bus: Arc<dyn SystemBus>) -> Self {
        let mut places = Vec::new();
        places.resize_with(frames as usize, || None);
        Self {
            map: Arc::new(Map { frames: places, bus }),
            counters: Counters::default(),
            stores: 0,
        }
    }

    /// The same memory as it is now, with counters of its own, for another thread to read from. Frames that are placed later
    /// are not in it.
    pub(crate) fn view(&self) -> Self {
        Self {
            map: Arc::clone(&self.map),
            counters: Counters::default(),
            stores: 0,
        }
    }

    /// Moves frames, bus and counters out; no VRAM is left behind.
    pub(crate) fn take(&mut self) -> Self {
        let bus = Arc::clone(&self.map.bus);
        std::mem::replace(self, Self::new(0, bus))
    }

    pub(crate) fn frames(&self) -> u32 {
        self.map.frames.len() as u32
    }

    /// Whether there is such a frame; it is placed then.
    pub(crate) fn place_frame(&mut self, frame: FrameNo, backing: Option<Backing>) -> bool {
        match Arc::make_mut(&mut self.map).frames.get_mut(frame.0 as usize) {
            Some(slot) => {
                *slot = backing;
                true
            }
            None => false,
        }
    }

    /// Fills `data` from `place` on.
    pub(crate) fn read(&mut self, place: Place, data: &mut [u8]) {
        let mut done = 0;
        while done < data.len() {
            let rest = &mut data[done..];
            let run = self.map.run(place.offset(done as u64), rest.len());
            let bytes = run.len();
            match run.slice(bytes) {
                Some(slice) => {
                    slice.copy_to(&mut rest[..bytes]);
                }
                None => {
                    rest[..bytes].fill(0xff);
                    self.counters.missing_read(place.aperture);
                }
            }
            done += bytes;
        }
    }

    /// Stores `data` from `place` on.
    pub(crate) fn write(&mut self, place: Place, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let run = self.map.run(place.offset(done as u64), rest.len());
            let bytes = run.len();
            match run.slice(bytes) {
                Some(slice) => slice.copy_from(&rest[..bytes]),
                None => self.store_nowhere(place.offset(done as u64), &rest[..bytes]),
            }
            done += bytes;
        }
    }

    /// Whether a load from `place` on would find `data`.
    pub(crate) fn has(&mut self, place: Place, data: &[u8]) -> bool {
        const BYTES: usize = 512;
        data.chunks(BYTES).enumerate().all(|(number, part)| {
            let mut found = [0; BYTES];
            let found = &mut found[..part.len()];
            self.read(place.offset((number * BYTES) as u64), found);
            found == part
        })
    }

    /// Stores what lanes that lie side by side store: one lane's value at once.
    pub(crate) fn store_row(&mut self, place: Place, data: &[u8]) {
        match data.len() {
            bytes @ (1 | 2 | 4 | 8 | 16) => {
                let value = data.iter().rev();
                let value = value.fold(0, |value, byte| value << 8 | u128::from(*byte));
                self.store(place, bytes as u32, value);
            }
            _ => self.write(place, data),
        }
    }

    /// A value of 1, 2, 4, 8 or 16 bytes, aligned to its size, in the low bits: for the shader cores, whose accesses are
    /// ordered by nothing but the grid's end.
    #[inline]
    pub(crate) fn load(&mut self, place: Place, bytes: u32) -> u128 {
        let run = self.map.run(place, bytes as usize);
        if let Some(slice) = run.slice(run.len())
            && let Some(value) = load_from(&slice, bytes)
        {
            return value;
        }
        let mut data = [0; 16];
        self.read(place, &mut data[..bytes.min(16) as usize]);
        u128::from_le_bytes(data)
    }

    /// The same of several lanes, each with its place: where host memory lies is found out for some before any of it is loaded, so that the
    /// host waits for all of these at once.
    pub(crate) fn load_each(
        &mut self,
        places: &[(usize, Place)],
        bytes: u32,
        mut each: impl FnMut(usize, u128),
    ) {
        const AT_ONCE: usize = 8;
        for group in places.chunks(AT_ONCE) {
            let slices: [Option<VolatileSlice<'_>>; AT_ONCE] = std::array::from_fn(|number| {
                let (_, place) = group.get(number)?;
                self.map.frame_slice(*place, bytes as usize)
            });
            let values = slices.map(|slice| load_from(&slice?, bytes));
            for ((lane, place), value) in group.iter().zip(values) {
                let value = value.unwrap_or_else(|| self.load(*place, bytes));
                each(*lane, value);
            }
        }
    }

    /// Stores such a value.
    #[inline]
    pub(crate) fn store(&mut self, place: Place, bytes: u32, value: u128) {
        const RELAXED: Ordering = Ordering::Relaxed;
        let run = self.map.run(place, bytes as usize);
        if let Some(slice) = run.slice(run.len()) {
            let stored = match bytes {
                1 => slice.store(value as u8, 0, RELAXED),
                2 => slice.store((value as u16).to_le(), 0, RELAXED),
                4 => slice.store((value as u32).to_le(), 0, RELAXED),
                8 => slice.store((value as u64).to_le(), 0, RELAXED),
                _ => slice
                    .store((value as u64).to_le(), 0, RELAXED)
                    .and_then(|()| slice.store(((value >> 64) as u64).to_le(), 8, RELAXED)),
            };
            if stored.is_ok() {
                return;
            }
        }
        self.write(place, &value.to_le_bytes()[..bytes.min(16) as usize]);
    }

    /// A word, read in one access where the memory is aligned, ordered before everything after it.
    pub(crate) fn read_u32(&mut self, place: Place) -> u32 {
        let run = self.map.run(place, 4);
        if let Some(slice) = run.slice(run.len())
            && let Ok(word) = slice.load::<u32>(0, Ordering::Acquire)
        {
            return u32::from_le(word);
        }
        let mut bytes = [0; 4];
        self.read(place, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Stores a word in one access where the memory is aligned, ordered after everything before it.
    pub(crate) fn write_u32(&mut self, place: Place, word: u32) {
        let run = self.map.run(place, 4);
        if let Some(slice) = run.slice(run.len())
            && slice.store(word.to_le(), 0, Ordering::Release).is_ok()
        {
            return;
        }
        self.write(place, &word.to_le_bytes());
    }

    /// A table entry, in one access where the memory is aligned.
    pub(crate) fn read_u64(&mut self, place: Place) -> u64 {
        let run = self.map.run(place, 8);
        if let Some(slice) = run.slice(run.len())
            && let Ok(word) = slice.load::<u64>(0, Ordering::Acquire)
        {
            return u64::from_le(word);
        }
        let mut bytes = [0; 8];
        self.read(place, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Moves `bytes` bytes; where the runs of host memory overlap, as if by way of a third.
    pub(crate) fn copy(&mut self, source: Place, target: Place, bytes: usize, stores: Stores) {
        let mut done = 0;
        while done < bytes {
            let from = self.map.run(source.offset(done as u64), bytes - done);
            let to = self.map.run(target.offset(done as u64), from.len());
            let part = to.len();
            match (from.slice(part), to.slice(part)) {
                (Some(from), Some(to)) => match stores {
                    Stores::Cached => from.copy_to_volatile_slice(to),
                    Stores::PastCaches => past_caches::copy(&from, &to),
                },
                (None, Some(to)) => {
                    fill_with_ones(&to);
                    self.counters.missing_read(source.aperture);
                }
                (from, None) => {
                    // As much as leaves the card for nowhere at a time.
                    let mut data = [0xff; 0x1000];
                    let data = &mut data[..part.min(0x1000)];
                    if let Some(from) = from {
                        from.copy_to(data);
                    }
                    self.store_nowhere(target.offset(done as u64), data);
                }
            }
            done += part;
        }
    }

    fn store_nowhere(&mut self, place: Place, data: &[u8]) {
        self.counters.missing_write(place.aperture);
        if matches!(place.aperture, Aperture::SysCoherent | Aperture::SysNonCoherent) {
            self.map.bus.store_nowhere(Iova(place.at.0), data);
        }
    }
}

/// The value at the beginning of a slice that has so many bytes, if it is aligned.
#[inline]
fn load_from(slice: &VolatileSlice<'_>, bytes: u32) -> Option<u128> {
    const RELAXED: Ordering = Ordering::Relaxed;
    let word = |offset| slice.load::<u64>(offset, RELAXED).map(u64::from_le);
    let value = match bytes {
        1 => slice.load::<u8>(0, RELAXED).map(u128::from),
        2 => slice
            .load::<u16>(0, RELAXED)
            .map(|word| u16::from_le(word).into()),
        4 => slice
            .load::<u32>(0, RELAXED)
            .map(|word| u32::from_le(word).into()),
        8 => word(0).map(u128::from),
        _ => word(0).and_then(|low| Ok(u128::from(word(8)?) << 64 | u128::from(low))),
    };
    value.ok()
}

fn fill_with_ones(to: &VolatileSlice<'_>) {
    const ONES: [u8; 0x1000] = [0xff; 0x1000];
    let mut done = 0;
    while let Ok(rest) = to.offset(done)
        && !rest.is_empty()
    {
        let bytes = rest.len().min(ONES.len());
        rest.copy_from(&ONES[..bytes]);
        done += bytes;
    }
}

impl Counters {
    fn missing_read(&mut self, aperture: Aperture) {
        match aperture {
            Aperture::Vram => self.vram_missing_reads += 1,
            _ => self.dma_unmapped_reads += 1,
        }
    }

    fn missing_write(&mut self, aperture: Aperture) {
        match aperture {
            Aperture::Vram => self.vram_missing_writes += 1,
            _ => self.dma_unmapped_writes += 1,
        }
    }
}
