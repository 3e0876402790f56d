//! What a program asks of a GPU, call by call, recorded from a run on a card of its own: copies, launches, what they changed.

use kernels::signature::{Hash, Signing};
use kernels::{Buffers, Gpu, Kernel, Launch, Match, Noise, Parameters, Role, Stopped, programs};

use crate::device::{Device, DeviceBuffer};
use crate::host::LabError;

/// Threads of a block of [`Program::updater`]'s kernel.
const THREADS: u32 = 256;

/// Bytes of a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) buffer: usize,
    pub(crate) bytes: std::ops::Range<u64>,
}

/// A buffer that a launch reaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    pub(crate) buffer: usize,
    /// Which of its bytes, if not all.
    pub(crate) bytes: Option<std::ops::Range<u64>>,
    /// Its code has a store through a pointer to it.
    pub(crate) stores: bool,
    /// Blocks of the buffer whose bytes are others afterwards.
    pub(crate) changed: Vec<u32>,
}

/// What a program asks for at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    CopyIn(Part),
    Launch {
        /// Its time on the card's clock.
        ns: u64,
        reaches: Vec<Reach>,
    },
    CopyOut(Part),
}

/// A whole run of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Bytes of each buffer.
    pub(crate) buffers: Vec<u64>,
    pub(crate) calls: Vec<Call>,
}

/// Notes what a plan asks for, and does it.
struct Recorder {
    device: Device,
    buffers: Vec<DeviceBuffer>,
    block_words: usize,
    calls: Vec<Call>,
    error: Option<LabError>,
}

impl Recorder {
    fn part(&self, buffer: usize, first: usize, words: usize) -> (DeviceBuffer, Part) {
        let at = first as u64 * 4;
        let va = self.buffers[buffer].va + at;
        let bytes = at..at + words as u64 * 4;
        (DeviceBuffer { va, words }, Part { buffer, bytes })
    }

    /// Appends a copy, or lengthens the last one.
    fn note(&mut self, part: Part, is_in: bool) {
        let last = match self.calls.last_mut() {
            Some(Call::CopyIn(last)) if is_in => Some(last),
            Some(Call::CopyOut(last)) if !is_in => Some(last),
            _ => None,
        };
        let next = last.filter(|last| last.buffer == part.buffer && last.bytes.end == part.bytes.start);
        match next {
            Some(last) => last.bytes.end = part.bytes.end,
            None if is_in => self.calls.push(Call::CopyIn(part)),
            None => self.calls.push(Call::CopyOut(part)),
        }
    }

    fn whole(&self, buffer: usize) -> Part {
        Part {
            buffer,
            bytes: 0..self.buffers[buffer].words as u64 * 4,
        }
    }

    /// Buffers that a launch reaches by its pointers, and whether it stores to them.
    fn reached(&self, launch: &Launch<'_>) -> Vec<(usize, bool)> {
        let mut reached: Vec<(usize, bool)> = Vec::new();
        for pointer in launch.program.pointers {
            let Some(va) = launch.parameters.long_at(pointer.offset) else {
                continue;
            };
            let of = |buffer: &DeviceBuffer| (buffer.va..buffer.va + buffer.words as u64 * 4).contains(&va);
            let Some(buffer) = self.buffers.iter().position(of) else {
                continue;
            };
            if !pointer.is_loaded && !pointer.is_stored {
                continue;
            }
            match reached.iter_mut().find(|(known, _)| *known == buffer) {
                Some((_, stores)) => *stores |= pointer.is_stored,
                None => reached.push((buffer, pointer.is_stored)),
            }
        }
        reached
    }

    fn run(&mut self, launch: &Launch<'_>) -> Result<(), LabError> {
        let reached = self.reached(launch);
        let stored: Vec<usize> = reached
            .iter()
            .filter(|(_, stores)| *stores)
            .map(|(buffer, _)| *buffer)
            .collect();
        let read = |recorder: &Self| -> Result<Vec<Vec<u32>>, LabError> {
            let buffers = stored.iter().map(|buffer| recorder.buffers[*buffer]);
            buffers.map(|buffer| recorder.device.read(buffer)).collect()
        };
        let before = read(self)?;
        let ns = self.device.run(launch)?;
        let after = read(self)?;
        let changed = |buffer: usize| {
            let at = stored.iter().position(|stored| *stored == buffer)?;
            let blocks = before[at]
                .chunks(self.block_words)
                .zip(after[at].chunks(self.block_words));
            let changed = blocks.enumerate().filter(|(_, (before, after))| before != after);
            Some(changed.map(|(block, _)| block as u32).collect())
        };
        let reaches = reached.iter().map(|&(buffer, stores)| Reach {
            buffer,
            bytes: None,
            stores,
            changed: changed(buffer).unwrap_or_default(),
        });
        let reaches = reaches.collect();
        self.calls.push(Call::Launch { ns, reaches });
        Ok(())
    }

    fn told<T>(&mut self, result: Result<T, LabError>) -> Result<T, Stopped> {
        result.map_err(|error| {
            self.error = Some(error);
            Stopped
        })
    }
}

impl Gpu for Recorder {
    fn address(&self, buffer: usize) -> u64 {
        self.buffers[buffer].va
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped> {
        let ran = self.run(launch);
        self.told(ran)
    }

    fn load(&mut self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), Stopped> {
        let (place, part) = self.part(buffer, first, words.len());
        let read = self.device.read(place);
        words.copy_from_slice(&self.told(read)?);
        self.note(part, false);
        Ok(())
    }

    fn store(&mut self, buffer: usize, first: usize, words: &[u32]) -> Result<(), Stopped> {
        let (place, part) = self.part(buffer, first, words.len());
        let written = self.device.write(place, words);
        self.told(written)?;
        self.note(part, true);
        Ok(())
    }
}

impl Program {
    /// Runs a kernel of `kernels` and checks its results. Its inputs are copied in before the plan, its outputs out behind it.
    pub(crate) fn record(name: &'static str, footprint: u64, block_bytes: u64) -> Result<Self, LabError> {
        let fault = |what: String| LabError::Fault { what };
        let instance = kernels::make(name, footprint).ok_or_else(|| fault(format!("no kernel {name}")))?;
        let kernel = instance.kernel();
        let list = Buffers::of(kernel);
        let mut recorder = Self::recorder(list.iter().map(|(_, buffer)| buffer.words), block_bytes)?;
        let noise = Noise::new(1);
        for (number, buffer) in list.iter().filter(|(_, buffer)| buffer.role == Role::Input) {
            let mut words = vec![0; buffer.words];
            kernel.fill(noise, number, 0, &mut words);
            recorder.device.write(recorder.buffers[number], &words)?;
            recorder.calls.push(Call::CopyIn(recorder.whole(number)));
        }
        if kernel.run(&mut recorder).is_err() {
            let unknown = || fault(format!("{name} stopped"));
            return Err(recorder.error.take().unwrap_or_else(unknown));
        }
        let outputs = list.iter().filter(|(_, buffer)| buffer.role == Role::Output);
        let outputs: Vec<usize> = outputs.map(|(number, _)| number).collect();
        if !recorder.is_right(kernel, noise, &outputs)? {
            return Err(fault(format!("{name} has wrong results")));
        }
        for number in outputs {
            recorder.calls.push(Call::CopyOut(recorder.whole(number)));
        }
        Ok(recorder.program(name))
    }

    /// A program that has one buffer and updates all of it by each of its launches.
    pub(crate) fn updater(bytes: u64, block_bytes: u64) -> Result<Self, LabError> {
        let words = bytes as usize / 4;
        let mut recorder = Self::recorder(std::iter::once(words), block_bytes)?;
        let buffer = recorder.buffers[0];
        recorder.device.write(buffer, &vec![1.0f32.to_bits(); words])?;
        recorder.calls.push(Call::CopyIn(recorder.whole(0)));
        let parameters = Parameters::new()
            .long(buffer.va)
            .long(buffer.va)
            .long(buffer.va)
            .word(3.0f32.to_bits())
            .word(words as u32);
        recorder.run(&Launch {
            program: &programs::TRIAD,
            blocks: [(words as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions: 22,
            parameters: &parameters,
        })?;
        Ok(recorder.program("updater"))
    }

    fn recorder(words: impl Iterator<Item = usize>, block_bytes: u64) -> Result<Recorder, LabError> {
        let words: Vec<usize> = words.collect();
        // Each buffer begins a page, and has guards around it.
        let bytes = words
            .iter()
            .map(|words| *words as u64 * 4 + 2 * fermi_spec::addr::SMALL_PAGE);
        let mut device = Device::start(bytes.sum())?;
        let buffers = words.iter().map(|words| device.allocate(*words));
        let buffers = buffers.collect::<Result<_, _>>()?;
        Ok(Recorder {
            device,
            buffers,
            block_words: block_bytes as usize / 4,
            calls: Vec::new(),
            error: None,
        })
    }

    /// Bytes of all buffers, each in blocks of its own.
    pub(crate) fn bytes(&self, block_bytes: u64) -> u64 {
        let buffers = self.buffers.iter();
        buffers.map(|bytes| bytes.next_multiple_of(block_bytes)).sum()
    }
}

impl Recorder {
    fn is_right(&self, kernel: &dyn Kernel, noise: Noise, outputs: &[usize]) -> Result<bool, LabError> {
        let mut memory = vec![0; kernel.reference_words()];
        kernel.reference(noise, &mut memory);
        for &number in outputs {
            let got = self.device.read(self.buffers[number])?;
            let mut want = vec![0; got.len()];
            kernel.expected(noise, &memory, number, 0, &mut want);
            let matching: Match = kernel.matching(number);
            if !want
                .iter()
                .zip(&got)
                .all(|(want, got)| matching.holds(*want, *got))
            {
                return Ok(false);
            }
        }
        self.device.guards_hold()
    }

    fn program(self, name: &'static str) -> Program {
        let buffers = self.buffers.iter().map(|buffer| buffer.words as u64 * 4);
        Program {
            name,
            buffers: buffers.collect(),
            calls: self.calls,
        }
    }
}

/// Blocks in a card's memory that are signed there.
pub(crate) struct SignedBlocks {
    device: Device,
    memory: DeviceBuffer,
    frames: DeviceBuffer,
    signatures: DeviceBuffer,
    block_bytes: u64,
    count: u32,
}

impl SignedBlocks {
    pub(crate) fn start(count: u32, block_bytes: u64) -> Result<Self, LabError> {
        let bytes = u64::from(count) * block_bytes;
        let mut device = Device::start(2 * bytes + (1 << 20))?;
        Ok(Self {
            memory: device.allocate(bytes as usize / 4)?,
            frames: device.allocate(count as usize)?,
            signatures: device.allocate(count as usize * 1024)?,
            device,
            block_bytes,
            count,
        })
    }

    /// Stores all words.
    pub(crate) fn fill(&mut self, words: &[u32]) -> Result<(), LabError> {
        self.device.write(self.memory, words)
    }

    /// Signs all blocks, in an order of our choice: the signatures of each, and the card's time.
    pub(crate) fn sign(&mut self, hash: Hash, frames: &[u32]) -> Result<(Vec<Vec<u32>>, u64), LabError> {
        self.device.write(self.frames, frames)?;
        let call = Signing {
            hash,
            memory: self.memory.va,
            block_bytes: self.block_bytes as u32,
            frames: self.frames.va,
            count: self.count,
            signatures: self.signatures.va,
        }
        .call();
        let ns = self.device.run(&call.launch())?;
        let words = self.device.read(self.signatures)?;
        let of_block = hash.words() * kernels::signature::PARTS as usize;
        let blocks = words.chunks(of_block).take(self.count as usize);
        let blocks = blocks.map(<[u32]>::to_vec).collect();
        match self.device.guards_hold()? {
            true => Ok((blocks, ns)),
            false => Err(LabError::Fault {
                what: "signing stored beside its signatures".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use md5::{Digest as _, Md5};

    const BLOCK: u64 = 64 << 10;

    fn half_sip<const C: u32, const D: u32>(key: [u32; 2], words: impl Iterator<Item = u32>) -> [u32; 2] {
        let mut v = [key[0], key[1] ^ 0xee, 0x6c79_6765 ^ key[0], 0x7465_6462 ^ key[1]];
        let mut bytes = 0u32;
        let take = |v: &mut [u32; 4], word: u32| {
            v[3] ^= word;
            (0..C).for_each(|_| sip_round(v));
            v[0] ^= word;
        };
        for word in words {
            take(&mut v, word);
            bytes = bytes.wrapping_add(4);
        }
        take(&mut v, bytes << 24);
        v[2] ^= 0xee;
        (0..D).for_each(|_| sip_round(&mut v));
        let low = v[1] ^ v[3];
        v[1] ^= 0xdd;
        (0..D).for_each(|_| sip_round(&mut v));
        [low, v[1] ^ v[3]]
    }

    fn sip_round(v: &mut [u32; 4]) {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(5) ^ v[0];
        v[0] = v[0].rotate_left(16);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(8) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(7) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[2];
        v[2] = v[2].rotate_left(16);
    }

    /// `vectors_hsip64` of the authors' `halfsiphash.c`: HalfSipHash-2-4 of no bytes under the key 0, 1, … 7.
    #[test]
    fn half_sip_here_is_its_authors() {
        let key = [0x0302_0100, 0x0706_0504];
        assert_eq!(half_sip::<2, 4>(key, [].into_iter()), [0x591f_8d21, 0xc83c_b8b9]);
    }

    /// Against HalfSipHash above, and a library's MD5.
    #[test]
    fn card_signs_each_part_as_it_is_defined() {
        let mut blocks = SignedBlocks::start(3, BLOCK).unwrap();
        let noise = Noise::new(5);
        let memory: Vec<u32> = (0..3 * BLOCK as usize / 4).map(|at| noise.word(at)).collect();
        blocks.fill(&memory).unwrap();
        let key = [0x1234_5678, 0x9abc_def0];
        let order = [2, 0, 1];
        let parts = |frame: u32| {
            let words = &memory[frame as usize * BLOCK as usize / 4..][..BLOCK as usize / 4];
            (0..256).map(move |part| words.iter().copied().skip(part).step_by(256))
        };
        let (sip, _) = blocks.sign(Hash::Sip { key }, &order).unwrap();
        let (md5, _) = blocks.sign(Hash::Md5, &order).unwrap();
        for ((frame, sip), md5) in order.into_iter().zip(sip).zip(md5) {
            for ((part, sip), md5) in parts(frame).zip(sip.chunks(2)).zip(md5.chunks(4)) {
                assert_eq!(sip, half_sip::<1, 3>(key, part.clone()), "{frame}");
                let bytes: Vec<u8> = part.flat_map(u32::to_le_bytes).collect();
                let wanted = Md5::digest(bytes);
                let got: Vec<u8> = md5.iter().flat_map(|word| word.to_le_bytes()).collect();
                assert_eq!(got, wanted[..], "{frame}");
            }
        }
    }

    #[test]
    fn program_has_its_copies_its_launches_and_what_they_changed() {
        let program = Program::record("triad", 12 * BLOCK, BLOCK).unwrap();
        assert_eq!(program.buffers, [4 * BLOCK; 3]);
        let whole = |buffer| Part {
            buffer,
            bytes: 0..4 * BLOCK,
        };
        let [
            Call::CopyIn(b),
            Call::CopyIn(c),
            Call::Launch { ns, reaches },
            Call::CopyOut(a),
        ] = &program.calls[..]
        else {
            panic!("{:?}", program.calls);
        };
        assert_eq!([b, c, a], [&whole(1), &whole(2), &whole(0)]);
        assert!(*ns > 0);
        let mut reaches = reaches.clone();
        reaches.sort_by_key(|reach| reach.buffer);
        let reached = |buffer, stores, changed: &[u32]| Reach {
            buffer,
            bytes: None,
            stores,
            changed: changed.to_vec(),
        };
        assert_eq!(
            reaches,
            [
                reached(0, true, &[0, 1, 2, 3]),
                reached(1, false, &[]),
                reached(2, false, &[])
            ]
        );
        let updater = Program::updater(4 * BLOCK, BLOCK).unwrap();
        let Some(Call::Launch { reaches, .. }) = updater.calls.last() else {
            panic!("{:?}", updater.calls);
        };
        assert_eq!(reaches[..], [reached(0, true, &[0, 1, 2, 3])]);
    }
}
