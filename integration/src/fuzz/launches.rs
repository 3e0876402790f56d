//! Rings, pushbuffers, code and constants of any kind, in memory that changes with each read.
//!
//! Oracle: nothing panics; a look does bounded work, finds a bounded number of things, and gets on.

use fermi_spec::addr::GpuVa;
use fermi_spec::graphics::{compute, front_end, shader};
use fermi_spec::methods::{class, copy, host, m2mf};
use fermi_spec::pushbuffer::{incrementing, non_incrementing};
use kernel_sets::Cache;
use launches::{CopyMethods, GpuMemory, Item, Limits, Looked, Observer, Ring, Unmapped, Work};

use super::input::Input;

/// Bytes of memory, seen again and again in the whole space.
const MEMORY_BYTES: usize = 16 << 10;
/// Every so many pages one is not there.
const HOLES: u64 = 61;
/// Looks of an input.
const LOOKS: u32 = 24;
/// Work of a look, and what one launch may take beyond it.
const WORK: u64 = 4096;
const KERNEL_WORK: u64 = 2048;
/// Bytes that a look reads: 64 for each unit of work, and a launch that begins when hardly any is left.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Memory whose bytes change.
struct Memory {
    bytes: Vec<u8>,
    changes: Vec<u8>,
    reads: usize,
    read_bytes: u64,
}

impl GpuMemory for Memory {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        assert!(
            at.0 % 4096 + bytes.len() as u64 <= 4096,
            "a read stays in its page"
        );
        if (at.0 / 4096).is_multiple_of(HOLES) {
            return Err(Unmapped);
        }
        self.read_bytes += bytes.len() as u64;
        for (place, byte) in (at.0..).zip(bytes.iter_mut()) {
            *byte = self.bytes[place as usize % MEMORY_BYTES];
        }
        self.reads += 1;
        if !self.changes.is_empty() {
            let change = self.changes[self.reads % self.changes.len()];
            let place = (at.0 as usize).wrapping_add(usize::from(change)) % MEMORY_BYTES;
            self.bytes[place] ^= change & 0x11;
        }
        Ok(())
    }
}

/// Methods that start something or say what is started.
const METHODS: [u16; 20] = [
    host::SET_OBJECT,
    host::SEMAPHORE_D,
    compute::LAUNCH,
    compute::CODE_HIGH,
    compute::GRID_XY,
    compute::BLOCK_XY,
    compute::BIND_CONSTANTS,
    compute::GLOBAL_ENTRY,
    shader::CONSTANT_BYTES,
    shader::CONSTANT_DATA,
    shader::REPORT_HIGH,
    copy::SRC_HIGH,
    copy::EXEC,
    m2mf::LAUNCH,
    m2mf::LINE_LENGTH,
    m2mf::DATA,
    front_end::MACRO_CODE_POINTER,
    front_end::MACRO_START_POINTER,
    front_end::MACRO_CALL,
    front_end::MACRO_SCRATCH,
];
const CLASSES: [u16; 7] = [
    class::COMPUTE,
    class::COPY,
    class::M2MF,
    class::THREED,
    class::TWOD,
    class::COPY_1,
    0,
];

/// Memory with headers that mean something here and there.
fn memory(input: &mut Input<'_>) -> Memory {
    let mut bytes = vec![0; MEMORY_BYTES];
    let changes = input.counted(63).to_vec();
    let mut at = 0;
    while !input.is_empty() && at + 64 <= MEMORY_BYTES {
        let (subchannel, count) = (input.u8() & 7, u16::from(input.u8() & 7) + 1);
        let method = input.choose(&METHODS);
        let header = match input.u8() & 7 {
            0 => input.u32(),
            // A row of words of code, or of parameters.
            1 if method == front_end::MACRO_CODE_POINTER => {
                non_incrementing(subchannel, front_end::MACRO_CODE, count)
            }
            1 if method == front_end::MACRO_CALL => non_incrementing(subchannel, method + 4, count),
            _ => incrementing(subchannel, method, count),
        };
        let mut put = |word: u32| {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            at += 4;
        };
        put(header);
        for _ in 0..count {
            put(match (method, input.u8() & 3) {
                (host::SET_OBJECT, _) => input.choose(&CLASSES).into(),
                (_, 0) => input.u32(),
                (_, 1) => 1,
                _ => input.u16().into(),
            });
        }
    }
    Memory {
        bytes,
        changes,
        reads: 0,
        read_bytes: 0,
    }
}

/// Body of the target `launches`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let ring = Ring {
        base: GpuVa(input.u64() & 0xff_ffff_fff8),
        entries_log2: u32::from(input.u8() & 31),
    };
    let methods = input.choose(&[CopyMethods::Nouveau, CopyMethods::Nvidia]);
    let mut memory = memory(&mut input);
    let limits = Limits {
        work: WORK,
        kernel: Some(kernel_sets::Limits {
            instructions: 1024,
            work: KERNEL_WORK,
        }),
        ..Limits::default()
    };
    let (mut observer, mut cache) = (Observer::new(ring, methods, 0), Cache::new(4));
    let mut last = 0;
    for number in 0..LOOKS {
        let range = [
            u32::from(memory.bytes[number as usize]) / 8,
            u32::from(memory.bytes[7]) + number,
        ];
        let mut items: Vec<Item> = Vec::new();
        let (reads, before) = (memory.reads, memory.read_bytes);
        let looked = observer.look(&mut memory, &mut cache, range, limits, &mut items);
        assert!(
            items.len() as u64 <= WORK / 16 + 1,
            "{} things are found",
            items.len()
        );
        assert!(
            memory.read_bytes - before <= READ_BYTES_MAX,
            "a look reads too much"
        );
        // Of a macro it may have sent methods that set state, and no more.
        assert!(
            looked == Looked::Done || memory.reads > reads || !items.is_empty() || observer.work() >= WORK,
            "a look gets on"
        );
        for item in &items {
            assert!(item.entry >= last, "things are in the order of the ring");
            last = item.entry;
            if let Work::Launch(launch) = &item.work {
                let (mut writes, overwrites) = (launch.writes(), launch.overwrites());
                let is_apart = overwrites.windows(2).all(|pair| pair[0].end < pair[1].start);
                assert!(is_apart, "{overwrites:x?} are not apart");
                assert!(
                    overwrites.is_empty() || writes.next().is_some(),
                    "something stores"
                );
            }
        }
    }
}
