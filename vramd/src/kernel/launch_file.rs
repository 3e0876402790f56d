//! `LAUNCH.toml`: a kernel, its grid, constants and buffers. `docs/kernels.md` has the fields and examples.

use std::fmt;
use std::path::{Path, PathBuf};

use fermi_spec::board::Board;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use toml::Spanned;

use super::value::{CONTENT_BYTES_MAX, Content, RawContent, RawValue, Value};
use crate::config::check_card_vram;
use card::CardConfig;
use sizes::Size;
use vramd_vm::config::{ConfigError, ConfigFile, MIB, Wrong, check_name, load};

/// Buffers of a launch.
const BUFFERS_MAX: usize = 64;
const OUTPUTS_MAX: usize = 64;
const VALUES_MAX: usize = 1024;
/// Constant banks and their bytes.
const BANKS: u64 = 18;
pub(super) const BANK_BYTES_MAX: usize = 64 << 10;
/// Limits of the hardware (compute capability 2.0).
const BLOCKS_MAX: u32 = 0xffff;
const THREADS_MAX: u32 = 1024;
const REGISTERS_MAX: u32 = 63;
const SHARED_BYTES_MAX: u64 = 48 << 10;
const BARRIERS_MAX: u32 = 16;
/// Most local memory of a lane: memory for 768 warps lies behind it.
const LOCAL_BYTES_MAX: u64 = 16 << 10;
const STACK_BYTES_MAX: u64 = 64 << 10;
const STACK_UNIT: u64 = 0x200;
const WATCHDOG_MS_DEFAULT: u64 = 1_000;
const WATCHDOG_MS_MAX: u64 = 60_000;
const VRAM_DEFAULT: u64 = 256 * MIB;
/// Virtual addresses that a buffer may have; the windows of shared and local memory lie between.
pub(super) const BUFFER_VA: [std::ops::Range<u64>; 2] = [
    0xa000_0000..guests::driver::SHARED_WINDOW as u64,
    0x1_0000_0000..guests::driver::SPACE_BYTES,
];
const PAGE_BYTES: u64 = 4096;

/// Entry point of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Offset(u32),
    Label(String),
}

/// A constant bank's bytes, or a part of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BankPart {
    pub(super) number: u8,
    pub(super) offset: usize,
    pub(super) values: Vec<Value>,
}

/// Memory that a buffer is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BufferMemory {
    Vram,
    Ram,
}

/// One buffer of the launch.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Buffer {
    pub(super) name: String,
    pub(super) address: Option<u64>,
    /// Size in bytes; without one, as long as the content.
    pub(super) bytes: Option<u64>,
    pub(super) place: BufferMemory,
    pub(super) content: Content,
}

/// A part of a buffer that is shown at the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Output {
    pub(super) buffer: String,
    pub(super) offset: u64,
    /// Length in bytes; without one, to the buffer's end.
    pub(super) bytes: Option<u64>,
}

/// A whole `LAUNCH.toml`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LaunchFile {
    pub(super) code: PathBuf,
    pub(super) entry: Entry,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) registers: Option<u32>,
    pub(super) shared_bytes: Option<u32>,
    pub(super) local_bytes: Option<u32>,
    pub(super) barriers: Option<u32>,
    pub(super) stack_bytes: u32,
    pub(super) card: CardConfig,
    pub(super) watchdog_ms: u64,
    /// Parameters of the kernel.
    pub(super) parameters: Option<Vec<Value>>,
    pub(super) banks: Vec<BankPart>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) outputs: Vec<Output>,
}

impl LaunchFile {
    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        load(path)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLaunch {
    code: PathBuf,
    entry: Option<Spanned<RawEntry>>,
    grid: Spanned<Vec<u32>>,
    block: Spanned<Vec<u32>>,
    registers: Option<Spanned<u32>>,
    shared: Option<Spanned<Size>>,
    local: Option<Spanned<Size>>,
    barriers: Option<Spanned<u32>>,
    stack: Option<Spanned<Size>>,
    #[serde(default)]
    card: RawCard,
    parameters: Option<Spanned<Vec<Spanned<RawValue>>>>,
    #[serde(default)]
    bank: Vec<RawBank>,
    #[serde(default)]
    buffer: Vec<RawBuffer>,
    outputs: Option<Spanned<Vec<Spanned<RawOutput>>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawCard {
    model: Option<Spanned<String>>,
    vram: Option<Spanned<Size>>,
    watchdog_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBank {
    number: Spanned<u64>,
    offset: Option<Spanned<u64>>,
    values: Vec<Spanned<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBuffer {
    name: Spanned<String>,
    address: Option<Spanned<u64>>,
    size: Option<Spanned<Size>>,
    place: Option<BufferMemory>,
    content: Option<Spanned<RawContent>>,
}

/// `N` or `"label"`.
enum RawEntry {
    Offset(u64),
    Label(String),
}

struct EntryVisitor;

impl Visitor<'_> for EntryVisitor {
    type Value = RawEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an offset in bytes, or a label's name")
    }

    fn visit_u64<E: de::Error>(self, offset: u64) -> Result<RawEntry, E> {
        Ok(RawEntry::Offset(offset))
    }

    fn visit_i64<E: de::Error>(self, offset: i64) -> Result<RawEntry, E> {
        let wrong = || E::invalid_value(de::Unexpected::Signed(offset), &self);
        u64::try_from(offset).map(RawEntry::Offset).map_err(|_| wrong())
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<RawEntry, E> {
        Ok(RawEntry::Label(name.to_owned()))
    }
}

impl<'de> Deserialize<'de> for RawEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

/// `"name"` or `{ buffer = "name", offset = N, size = N }`.
struct RawOutput(OutputTable);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputTable {
    buffer: String,
    #[serde(default)]
    offset: u64,
    size: Option<Size>,
}

struct OutputVisitor;

impl<'de> Visitor<'de> for OutputVisitor {
    type Value = RawOutput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a buffer's name, or { buffer = \"…\", offset = N, size = N }")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<RawOutput, E> {
        Ok(RawOutput(OutputTable {
            buffer: name.to_owned(),
            offset: 0,
            size: None,
        }))
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawOutput, M::Error> {
        OutputTable::deserialize(MapAccessDeserializer::new(map)).map(RawOutput)
    }
}

impl<'de> Deserialize<'de> for RawOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OutputVisitor)
    }
}

impl ConfigFile for LaunchFile {
    type Raw = RawLaunch;

    fn validate(raw: RawLaunch) -> Result<Self, Wrong> {
        let grid = triple(&raw.grid, "grid", |blocks| match blocks {
            1..=BLOCKS_MAX => Ok(()),
            _ => Err(format!("{blocks} is not from 1 to {BLOCKS_MAX} blocks")),
        })?;
        let block = triple(&raw.block, "block", |threads| match threads {
            1..=THREADS_MAX => Ok(()),
            _ => Err(format!("{threads} is not from 1 to {THREADS_MAX} threads")),
        })?;
        let threads: u32 = block.iter().product();
        if threads > THREADS_MAX {
            let reason = format!("{threads} threads; a block has at most {THREADS_MAX}");
            return Err(Wrong::new(raw.block.span(), "block", reason));
        }
        let buffers = buffers(raw.buffer)?;
        Ok(Self {
            code: raw.code,
            entry: entry(raw.entry)?,
            grid,
            block,
            registers: at_most(raw.registers, "registers", REGISTERS_MAX)?,
            shared_bytes: size_at_most(raw.shared, "shared", SHARED_BYTES_MAX, 1)?,
            local_bytes: size_at_most(raw.local, "local", LOCAL_BYTES_MAX, 1)?,
            barriers: at_most(raw.barriers, "barriers", BARRIERS_MAX)?,
            stack_bytes: size_at_most(raw.stack, "stack", STACK_BYTES_MAX, STACK_UNIT)?
                .unwrap_or(guests::driver::STACK_BYTES),
            watchdog_ms: watchdog(raw.card.watchdog_ms.as_ref())?,
            card: card(&raw.card)?,
            parameters: match &raw.parameters {
                None => None,
                Some(values) => Some(checked(values.span(), "parameters", values.get_ref(), &buffers)?),
            },
            banks: banks(raw.bank, &buffers)?,
            outputs: outputs(raw.outputs, &buffers)?,
            buffers,
        })
    }
}

/// One to three numbers; those that are not given are 1.
fn triple(
    raw: &Spanned<Vec<u32>>,
    field: &str,
    check: impl Fn(u32) -> Result<(), String>,
) -> Result<[u32; 3], Wrong> {
    let wrong = |reason: String| Wrong::new(raw.span(), field, reason);
    let numbers = raw.get_ref();
    if numbers.is_empty() || numbers.len() > 3 {
        return Err(wrong(format!(
            "{} numbers; 1 to 3 (x, y, z) make it",
            numbers.len()
        )));
    }
    let mut triple = [1; 3];
    for (number, given) in triple.iter_mut().zip(numbers) {
        check(*given).map_err(wrong)?;
        *number = *given;
    }
    Ok(triple)
}

fn at_most(raw: Option<Spanned<u32>>, field: &str, most: u32) -> Result<Option<u32>, Wrong> {
    match raw {
        Some(raw) if *raw.get_ref() > most => {
            let reason = format!("{} is not from 0 to {most}", raw.get_ref());
            Err(Wrong::new(raw.span(), field, reason))
        }
        raw => Ok(raw.map(Spanned::into_inner)),
    }
}

fn size_at_most(raw: Option<Spanned<Size>>, field: &str, most: u64, unit: u64) -> Result<Option<u32>, Wrong> {
    let Some(raw) = raw else {
        return Ok(None);
    };
    let bytes = raw.get_ref().0;
    if bytes > most || !bytes.is_multiple_of(unit) {
        let unit = if unit == 1 {
            String::new()
        } else {
            format!("a multiple of {unit} ")
        };
        let reason = format!("{bytes} bytes are not {unit}from 0 to {most}");
        return Err(Wrong::new(raw.span(), field, reason));
    }
    Ok(Some(bytes as u32))
}

fn entry(raw: Option<Spanned<RawEntry>>) -> Result<Entry, Wrong> {
    let Some(raw) = raw else {
        return Ok(Entry::Offset(0));
    };
    let span = raw.span();
    match raw.into_inner() {
        RawEntry::Label(name) => Ok(Entry::Label(name)),
        RawEntry::Offset(offset) => {
            let wrong = || Wrong::new(span, "entry", format!("{offset} is beyond any code"));
            u32::try_from(offset).map(Entry::Offset).map_err(|_| wrong())
        }
    }
}

fn watchdog(raw: Option<&Spanned<u64>>) -> Result<u64, Wrong> {
    match raw {
        Some(raw) if !(1..=WATCHDOG_MS_MAX).contains(raw.get_ref()) => {
            let reason = format!(
                "{} is not from 1 to {WATCHDOG_MS_MAX} milliseconds",
                raw.get_ref()
            );
            Err(Wrong::new(raw.span(), "card.watchdog_ms", reason))
        }
        raw => Ok(raw.map_or(WATCHDOG_MS_DEFAULT, |raw| *raw.get_ref())),
    }
}

fn card(raw: &RawCard) -> Result<CardConfig, Wrong> {
    let board = match &raw.model {
        None => Board::Gtx480,
        Some(name) => Board::from_name(name.get_ref()).ok_or_else(|| {
            let reason = format!(
                "there is no model {:?}; choose gtx480, quadro6000 or c2050",
                name.get_ref()
            );
            Wrong::new(name.span(), "card.model", reason)
        })?,
    };
    if let Some(vram) = &raw.vram {
        check_card_vram(vram.get_ref().0).map_err(|reason| Wrong::new(vram.span(), "card.vram", reason))?;
    }
    let vram_bytes = raw.vram.as_ref().map_or(VRAM_DEFAULT, |vram| vram.get_ref().0);
    Ok(CardConfig {
        board,
        vram_bytes,
        needs_microcode: false,
        strict: false,
        paced: false,
        workers: 0,
    })
}

fn buffers(raw: Vec<RawBuffer>) -> Result<Vec<Buffer>, Wrong> {
    let mut buffers: Vec<Buffer> = Vec::new();
    for raw in raw {
        let (span, name) = (raw.name.span(), raw.name.into_inner());
        let wrong = |reason: String| Wrong::new(span.clone(), "buffer.name", reason);
        check_name(&name).map_err(wrong)?;
        if buffers.iter().any(|buffer| buffer.name == name) {
            return Err(wrong(format!("{name} is the name of a buffer before")));
        }
        if buffers.len() == BUFFERS_MAX {
            return Err(wrong(format!("there are more than {BUFFERS_MAX} buffers")));
        }
        let address = match raw.address {
            None => None,
            Some(address) => {
                check_address(*address.get_ref())
                    .map_err(|reason| Wrong::new(address.span(), "buffer.address", reason))?;
                Some(address.into_inner())
            }
        };
        let bytes = match raw.size {
            None => None,
            Some(size) => {
                check_size(size.get_ref().0)
                    .map_err(|reason| Wrong::new(size.span(), "buffer.size", reason))?;
                Some(size.into_inner().0)
            }
        };
        let content = match &raw.content {
            None => Content::Zero,
            Some(content) => content
                .get_ref()
                .check()
                .map_err(|reason| Wrong::new(content.span(), "buffer.content", reason))?,
        };
        if bytes.is_none() && matches!(content, Content::Zero | Content::Ramp(_)) {
            return Err(Wrong::new(
                span,
                "buffer.size",
                format!("buffer {name} has neither a size nor a content that has one"),
            ));
        }
        buffers.push(Buffer {
            name,
            address,
            bytes,
            place: raw.place.unwrap_or(BufferMemory::Vram),
            content,
        });
    }
    Ok(buffers)
}

fn check_address(address: u64) -> Result<(), String> {
    let is_free = BUFFER_VA.iter().any(|range| range.contains(&address));
    if is_free && address.is_multiple_of(PAGE_BYTES) {
        return Ok(());
    }
    let [low, high] = BUFFER_VA;
    Err(format!(
        "{address:#x} is not a multiple of 0x1000 from {:#x} to {:#x} or from {:#x} to {:#x}",
        low.start,
        low.end - PAGE_BYTES,
        high.start,
        high.end - PAGE_BYTES
    ))
}

fn check_size(bytes: u64) -> Result<(), String> {
    if bytes == 0 || bytes > CONTENT_BYTES_MAX || !bytes.is_multiple_of(4) {
        let most = Size(CONTENT_BYTES_MAX);
        return Err(format!("{bytes} bytes are not a multiple of 4 from 4 to {most}"));
    }
    Ok(())
}

fn banks(raw: Vec<RawBank>, buffers: &[Buffer]) -> Result<Vec<BankPart>, Wrong> {
    let mut parts = Vec::new();
    for bank in raw {
        let (span, number) = (bank.number.span(), bank.number.into_inner());
        if number >= BANKS {
            let reason = format!("{number} is not from 0 to {}", BANKS - 1);
            return Err(Wrong::new(span, "bank.number", reason));
        }
        let offset = match &bank.offset {
            None => 0,
            Some(offset) => {
                let at = *offset.get_ref();
                if at > BANK_BYTES_MAX as u64 || !at.is_multiple_of(8) {
                    let reason = format!("{at} is not a multiple of 8 from 0 to {BANK_BYTES_MAX}");
                    return Err(Wrong::new(offset.span(), "bank.offset", reason));
                }
                at as usize
            }
        };
        parts.push(BankPart {
            number: number as u8,
            offset,
            values: checked(span, "bank.values", &bank.values, buffers)?,
        });
    }
    Ok(parts)
}

/// Values whose buffers exist.
fn checked(
    span: std::ops::Range<usize>,
    field: &str,
    raw: &[Spanned<RawValue>],
    buffers: &[Buffer],
) -> Result<Vec<Value>, Wrong> {
    if raw.len() > VALUES_MAX {
        let reason = format!(
            "{} values; at most {VALUES_MAX} are taken: use hex for more",
            raw.len()
        );
        return Err(Wrong::new(span, field, reason));
    }
    let mut values = Vec::new();
    for value in raw {
        let wrong = |reason| Wrong::new(value.span(), field, reason);
        let checked = value.get_ref().check().map_err(wrong)?;
        if let Value::Address { buffer, .. } = &checked
            && !buffers.iter().any(|known| known.name == *buffer)
        {
            return Err(wrong(format!("address: there is no buffer {buffer:?}")));
        }
        values.push(checked);
    }
    Ok(values)
}

fn outputs(raw: Option<Spanned<Vec<Spanned<RawOutput>>>>, buffers: &[Buffer]) -> Result<Vec<Output>, Wrong> {
    let Some(raw) = raw else {
        return Ok(Vec::new());
    };
    if raw.get_ref().len() > OUTPUTS_MAX {
        let reason = format!("there are more than {OUTPUTS_MAX}");
        return Err(Wrong::new(raw.span(), "outputs", reason));
    }
    let mut outputs = Vec::new();
    for output in raw.into_inner() {
        let span = output.span();
        let OutputTable { buffer, offset, size } = output.into_inner().0;
        let wrong = |reason: String| Wrong::new(span, "outputs", reason);
        let bytes = size.map(|size| size.0);
        if !buffers.iter().any(|known| known.name == buffer) {
            return Err(wrong(format!("there is no buffer {buffer:?}")));
        }
        if !offset.is_multiple_of(4) || !bytes.unwrap_or(0).is_multiple_of(4) {
            return Err(wrong(format!(
                "offset and size of {buffer} are not multiples of 4"
            )));
        }
        outputs.push(Output {
            buffer,
            offset,
            bytes,
        });
    }
    Ok(outputs)
}
