//! The layout of a launch: its file with the program read, sizes known and addresses assigned.
//!
//! ```text
//! virtual   0x80000000 code │ banks │ local memory and stacks      0xa0000000 … buffers …
//! VRAM      the driver's │ code │ banks │ local memory and stacks │ buffers in their order
//! RAM       the driver's │ buffers that are placed there
//! ```

use std::ops::Range;
use std::path::Path;

use fermi_spec::addr::{LARGE_PAGE, SMALL_PAGE};
use guests::driver::{ComputeMemory, Driver, SPACE_BYTES, USER_VA};

use super::RunError;
use super::launch_file::{BANK_BYTES_MAX, BUFFER_VA, BankPart, Buffer, BufferMemory, Entry, LaunchFile};
use super::program::Program;
use super::value::{Content, Value, lay_out};
use sizes::Size;

/// Address of the code; the other memory of the launch follows.
pub(super) const CODE_VA: u64 = USER_VA;
/// First byte of RAM that buffers get; below is the driver's.
pub(super) const RAM_START: u64 = 4 << 20;
/// Most RAM that buffers get together.
const RAM_BYTES_MAX: u64 = 1 << 30;
/// The end of VRAM is the board's firmware's on a card.
const VRAM_TOP_BYTES: u64 = 1 << 20;
/// Most bytes that outputs show together.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// Local memory of a lane has multiples of this.
pub(super) const LOCAL_UNIT: u32 = 16;
/// First byte of parameters in bank 0, as the assembler and the CUDA compiler have it.
const PARAMETERS_OFFSET: usize = 0x20;
/// Constant buffers have multiples of this.
const BANK_UNIT: usize = 0x100;

/// A piece of memory with a virtual address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub(super) va: u64,
    /// Used bytes; whole pages are mapped.
    pub(super) bytes: u64,
    pub(super) place: BufferMemory,
    /// Address in VRAM or RAM.
    pub(super) at: u64,
}

impl Region {
    /// Bytes that are mapped.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(SMALL_PAGE)
    }

    /// Whether large pages end where it ends.
    pub(super) fn fits_large_pages(&self) -> bool {
        self.place == BufferMemory::Vram && (self.va | self.at | self.bytes).is_multiple_of(LARGE_PAGE)
    }
}

/// A constant bank with its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bank {
    pub(super) number: u8,
    pub(super) data: Vec<u8>,
    pub(super) region: Region,
}

/// A part of a buffer that is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    pub(super) buffer: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A launch, ready to be put on a card.
pub(super) struct Plan {
    pub(super) file: LaunchFile,
    pub(super) program: Program,
    pub(super) entry: u32,
    pub(super) code: Region,
    pub(super) banks: Vec<Bank>,
    pub(super) compute: Region,
    /// In the order of the file.
    pub(super) buffers: Vec<Region>,
    pub(super) shown: Vec<Shown>,
    /// End of RAM.
    pub(super) ram_end: u64,
}

/// Gives out VRAM, RAM and the launch's own virtual addresses.
struct Room {
    vram: u64,
    ram: u64,
    va: u64,
}

impl Room {
    fn take(&mut self, place: BufferMemory, bytes: u64) -> u64 {
        let next = match place {
            BufferMemory::Vram => &mut self.vram,
            BufferMemory::Ram => &mut self.ram,
        };
        let at = *next;
        *next += bytes.next_multiple_of(LARGE_PAGE);
        at
    }

    /// Memory of the launch itself.
    fn own(&mut self, bytes: u64) -> Region {
        let region = Region {
            va: self.va,
            bytes,
            place: BufferMemory::Vram,
            at: self.take(BufferMemory::Vram, bytes),
        };
        // A page without an entry behind each.
        self.va += bytes.next_multiple_of(LARGE_PAGE) + LARGE_PAGE;
        region
    }
}

impl Plan {
    /// Reads the files that it names; `path` is the launch file's.
    pub(super) fn new(path: &Path, file: LaunchFile) -> Result<Self, RunError> {
        let wrong = |field: &str, reason: String| RunError::Field {
            path: path.to_owned(),
            field: field.to_owned(),
            reason,
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let program = Program::load(&folder.join(&file.code))?;
        let entry = entry(&file.entry, &program).map_err(|reason| wrong("entry", reason))?;
        if let Some(values) = &file.parameters {
            check_parameters(values, &program).map_err(|reason| wrong("parameters", reason))?;
        }
        let mut room = Room {
            vram: Driver::data_start(),
            ram: RAM_START,
            va: CODE_VA,
        };
        let code = room.own(8 * program.needs().words.len() as u64);
        let local = file
            .local_bytes
            .unwrap_or(program.needs().local_bytes)
            .next_multiple_of(LOCAL_UNIT);
        let compute = ComputeMemory::bytes_for(local, file.stack_bytes).next_multiple_of(LARGE_PAGE);
        let compute = room.own(compute);
        let sizes = sizes(folder, &file.buffers).map_err(|(name, reason)| wrong(&name, reason))?;
        let places = addresses(&file.buffers, &sizes).map_err(|(name, reason)| wrong(&name, reason))?;
        let mut plan = Self {
            program,
            entry,
            code,
            banks: Vec::new(),
            compute,
            buffers: Vec::new(),
            shown: Vec::new(),
            ram_end: 0,
            file,
        };
        for (buffer, pages) in plan.file.buffers.iter().zip(places) {
            let bytes = pages.end - pages.start;
            plan.buffers.push(Region {
                va: pages.start,
                bytes,
                place: buffer.place,
                at: room.take(buffer.place, bytes),
            });
        }
        let banks = plan.bank_bytes().map_err(|reason| wrong("bank", reason))?;
        for (number, data) in banks {
            let region = room.own(data.len() as u64);
            plan.banks.push(Bank { number, data, region });
        }
        plan.shown = plan.outputs().map_err(|reason| wrong("outputs", reason))?;
        plan.ram_end = room.ram;
        check_room(&room, plan.file.card.vram_bytes).map_err(|(field, reason)| wrong(field, reason))?;
        Ok(plan)
    }

    /// Contents of a buffer at the start, if it is not all zero.
    pub(super) fn content(&self, path: &Path, index: usize) -> Result<Option<Vec<u8>>, RunError> {
        let (buffer, region) = (&self.file.buffers[index], &self.buffers[index]);
        let wrong = |reason: String| RunError::Field {
            path: path.to_owned(),
            field: format!("buffer {}", buffer.name),
            reason,
        };
        let data = match &buffer.content {
            Content::Zero => return Ok(None),
            Content::Ramp(ramp) => ramp.bytes(region.bytes as usize),
            Content::Values(values) => {
                lay_out(values, |name, offset| self.address(name, offset)).map_err(wrong)?
            }
            Content::File(file) => {
                let folder = path.parent().unwrap_or(Path::new(""));
                super::read_bytes(&folder.join(file), region.bytes as usize)?
            }
        };
        if data.len() as u64 > region.bytes {
            return Err(wrong(format!(
                "{} bytes of content do not fit its size, {}",
                data.len(),
                region.bytes
            )));
        }
        Ok(Some(data))
    }

    /// Virtual address of a place in a buffer. The place behind the last byte counts.
    fn address(&self, name: &str, offset: u64) -> Option<u64> {
        let index = self.file.buffers.iter().position(|buffer| buffer.name == name)?;
        let region = &self.buffers[index];
        (offset <= region.bytes).then(|| region.va + offset)
    }

    /// Banks that have bytes, ascending.
    fn bank_bytes(&self) -> Result<Vec<(u8, Vec<u8>)>, String> {
        let mut banks: std::collections::BTreeMap<u8, Vec<u8>> = std::collections::BTreeMap::new();
        let parameters = self.file.parameters.clone().map(|values| BankPart {
            number: 0,
            offset: PARAMETERS_OFFSET,
            values,
        });
        for part in parameters.iter().chain(&self.file.banks) {
            let data = lay_out(&part.values, |name, offset| self.address(name, offset))
                .map_err(|reason| format!("bank {}: {reason}", part.number))?;
            let end = part.offset + data.len();
            if end > BANK_BYTES_MAX {
                return Err(format!(
                    "bank {} would have {end} bytes; {BANK_BYTES_MAX} fit",
                    part.number
                ));
            }
            let bank = banks.entry(part.number).or_default();
            bank.resize(bank.len().max(end), 0);
            bank[part.offset..end].copy_from_slice(&data);
        }
        for bank in banks.values_mut() {
            bank.resize(bank.len().next_multiple_of(BANK_UNIT).max(BANK_UNIT), 0);
        }
        Ok(banks.into_iter().collect())
    }

    fn outputs(&self) -> Result<Vec<Shown>, String> {
        let mut shown = Vec::new();
        for output in &self.file.outputs {
            let is_named = |buffer: &Buffer| buffer.name == output.buffer;
            let Some(buffer) = self.file.buffers.iter().position(is_named) else {
                continue;
            };
            let size = self.buffers[buffer].bytes;
            let bytes = output.bytes.unwrap_or(size.saturating_sub(output.offset));
            if output.offset.checked_add(bytes).is_none_or(|end| end > size) || bytes == 0 {
                return Err(format!(
                    "{bytes} bytes at {} of {} are not inside its {size}",
                    output.offset, output.buffer
                ));
            }
            shown.push(Shown {
                buffer,
                offset: output.offset,
                bytes,
            });
        }
        let total: u64 = shown.iter().map(|shown| shown.bytes).sum();
        if total > OUTPUT_BYTES_MAX {
            let most = Size(OUTPUT_BYTES_MAX);
            return Err(format!("{total} bytes; at most {most} are shown: name parts"));
        }
        Ok(shown)
    }
}

/// Whether the values are those that the code has names for, if it has.
fn check_parameters(values: &[Value], program: &Program) -> Result<(), String> {
    let wanted = &program.needs().parameters;
    if wanted.is_empty() {
        return Ok(());
    }
    if wanted.len() != values.len() {
        let names: Vec<_> = wanted.iter().map(|parameter| parameter.name.as_str()).collect();
        return Err(format!(
            "{} values; the code has {}: {}",
            values.len(),
            wanted.len(),
            names.join(", ")
        ));
    }
    for (value, parameter) in values.iter().zip(wanted) {
        if value.bytes() != parameter.bytes as usize {
            return Err(format!(
                "{} has {} bytes; the value for it has {}",
                parameter.name,
                parameter.bytes,
                value.bytes()
            ));
        }
    }
    Ok(())
}

fn entry(entry: &Entry, program: &Program) -> Result<u32, String> {
    let needs = program.needs();
    let offset = match entry {
        Entry::Offset(offset) => *offset,
        Entry::Label(name) => *needs
            .labels
            .get(name)
            .ok_or_else(|| format!("there is no label {name:?} in the code"))?,
    };
    let end = 8 * needs.words.len() as u32;
    if offset >= end || !offset.is_multiple_of(8) {
        return Err(format!(
            "{offset} is not a multiple of 8 below {end}, the end of the code"
        ));
    }
    Ok(offset)
}

pub(super) type BufferError = (String, String);

/// Bytes of each buffer.
fn sizes(folder: &Path, buffers: &[Buffer]) -> Result<Vec<u64>, BufferError> {
    let mut sizes = Vec::new();
    let mut in_ram = 0;
    for buffer in buffers {
        let wrong = |reason: String| (format!("buffer {}", buffer.name), reason);
        let content = match (&buffer.content, buffer.bytes) {
            (_, Some(bytes)) => bytes,
            // Checked: those have a size.
            (Content::Zero | Content::Ramp(_), None) => 0,
            (Content::Values(values), None) => {
                let data = lay_out(values, |_, _| Some(0)).map_err(wrong)?;
                data.len() as u64
            }
            (Content::File(file), None) => {
                let path = folder.join(file);
                let failed = |error| wrong(format!("cannot read {}: {error}", path.display()));
                let metadata = path.metadata().map_err(failed)?;
                if !metadata.is_file() {
                    return Err(wrong(format!(
                        "{} is not a regular file: give a size",
                        path.display()
                    )));
                }
                metadata.len()
            }
        };
        if content == 0 || content > super::value::CONTENT_BYTES_MAX {
            let most = Size(super::value::CONTENT_BYTES_MAX);
            return Err(wrong(format!(
                "{content} bytes of content are not from 1 to {most}"
            )));
        }
        let bytes = content.next_multiple_of(4);
        if buffer.place == BufferMemory::Ram {
            in_ram += bytes.next_multiple_of(LARGE_PAGE);
        }
        if in_ram > RAM_BYTES_MAX {
            let most = Size(RAM_BYTES_MAX);
            return Err(wrong(format!(
                "buffers up to it take {in_ram} bytes of RAM; {most} there are"
            )));
        }
        sizes.push(bytes);
    }
    Ok(sizes)
}

/// Virtual addresses of the buffers: as given, or in the order of the file from 4 GiB on with a gap behind each.
pub(super) fn addresses(buffers: &[Buffer], sizes: &[u64]) -> Result<Vec<Range<u64>>, BufferError> {
    let pages = |va: u64, bytes: u64| va..va + bytes.next_multiple_of(SMALL_PAGE);
    let meets = |one: &Range<u64>, other: &Range<u64>| one.start < other.end && other.start < one.end;
    let mut given: Vec<(&str, Range<u64>)> = Vec::new();
    for (buffer, bytes) in buffers.iter().zip(sizes) {
        let Some(va) = buffer.address else {
            continue;
        };
        let wrong = |reason: String| (format!("buffer {}", buffer.name), reason);
        let range = pages(va, *bytes);
        if !BUFFER_VA
            .iter()
            .any(|free| free.contains(&va) && range.end <= free.end)
        {
            return Err(wrong(format!(
                "it would end at {:#x}; {:#x} to {:#x} are the windows of shared and local memory, and {SPACE_BYTES:#x} is \
                 the end of the space",
                range.end, BUFFER_VA[0].end, BUFFER_VA[1].start
            )));
        }
        if let Some((name, _)) = given.iter().find(|(_, other)| meets(&range, other)) {
            return Err(wrong(format!("it shares a page of 4K with buffer {name}")));
        }
        given.push((&buffer.name, range));
    }
    let mut next = BUFFER_VA[1].start;
    let mut ranges = Vec::new();
    for (buffer, bytes) in buffers.iter().zip(sizes) {
        let va = match buffer.address {
            Some(va) => va,
            None => {
                while let Some((_, other)) =
                    given.iter().find(|(_, other)| meets(&pages(next, *bytes), other))
                {
                    next = other.end.next_multiple_of(LARGE_PAGE) + LARGE_PAGE;
                }
                let va = next;
                next += bytes.next_multiple_of(LARGE_PAGE) + LARGE_PAGE;
                va
            }
        };
        if va + bytes > SPACE_BYTES {
            let reason = format!("no room is left for it below {SPACE_BYTES:#x}");
            return Err((format!("buffer {}", buffer.name), reason));
        }
        ranges.push(va..va + bytes);
    }
    Ok(ranges)
}

fn check_room(room: &Room, vram_bytes: u64) -> Result<(), (&'static str, String)> {
    let needed = room.vram + VRAM_TOP_BYTES;
    if needed > vram_bytes {
        return Err((
            "card.vram",
            format!(
                "{} are too little; code, constants, local memory, stacks and buffers need {needed} bytes with the \
                 driver's part",
                Size(vram_bytes)
            ),
        ));
    }
    if room.va > BUFFER_VA[0].start {
        let reason = format!("what lies below the buffers would reach {:#x}", room.va);
        return Err(("local", reason));
    }
    Ok(())
}
