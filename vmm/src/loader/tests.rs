use std::io::Write as _;

use linux_loader::loader::elf::start_info::hvm_start_info;

use super::bare::{PAGE_TABLES, STACK_END, START_INFO};
use super::page_tables::{LARGE_PAGE, PRESENT_WRITABLE, USER};
use super::start_info::MAGIC as START_MAGIC;
use super::*;

const RAM_BYTES: u64 = 4 << 20;

fn ram() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM_BYTES as usize)]).unwrap()
}

/// An ELF file with one segment of `bytes` bytes of 0x90 at `paddr`, `memory_bytes` long in memory.
fn elf(paddr: u64, bytes: usize, memory_bytes: u64) -> Vec<u8> {
    let mut image = vec![0; 64 + 56];
    image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    image[16..20].copy_from_slice(&[2, 0, 62, 0]);
    image[24..32].copy_from_slice(&paddr.to_le_bytes());
    image[32..40].copy_from_slice(&64u64.to_le_bytes());
    image[54..58].copy_from_slice(&[56, 0, 1, 0]);
    image[64..72].copy_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]);
    image[72..80].copy_from_slice(&120u64.to_le_bytes());
    image[88..96].copy_from_slice(&paddr.to_le_bytes());
    image[96..104].copy_from_slice(&(bytes as u64).to_le_bytes());
    image[104..112].copy_from_slice(&memory_bytes.to_le_bytes());
    image.extend(std::iter::repeat_n(0x90, bytes));
    image
}

fn kernel() -> Kernel {
    Kernel::from_bytes("small", elf(PROGRAM_START, 100, 5000))
}

fn load_with(kernel: &Kernel, inputs: Vec<Input>) -> Result<(GuestMemoryMmap, Entry), LoadError> {
    let ram = ram();
    let entry = load(
        &ram,
        Boot {
            kernel,
            initramfs: None,
            inputs,
            command_line: "tsc_khz=1",
            rsdp: 0,
        },
    )?;
    Ok((ram, entry))
}

fn read_u64(ram: &GuestMemoryMmap, at: u64) -> u64 {
    ram.read_obj(GuestAddress(at)).unwrap()
}

fn read_text(ram: &GuestMemoryMmap, at: u64, bytes: usize) -> String {
    let mut text = vec![0; bytes];
    ram.read_slice(&mut text, GuestAddress(at)).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn program_is_placed_and_entered() {
    let (ram, entry) = load_with(&kernel(), Vec::new()).unwrap();
    assert_eq!(
        entry,
        Entry {
            mode: Mode::Long { cr3: PAGE_TABLES },
            rip: PROGRAM_START,
            rsp: STACK_END,
            rdi: START_INFO,
            ..Entry::default()
        }
    );
    assert_eq!(
        ram.read_obj::<u8>(GuestAddress(PROGRAM_START + 99)).unwrap(),
        0x90
    );
}

#[test]
fn inputs_become_modules_on_page_boundaries() {
    let inputs = vec![
        Input::from_bytes("one", vec![1; 5000]),
        Input::from_bytes("two", vec![2; 3]),
    ];
    let (ram, _) = load_with(&kernel(), inputs).unwrap();
    let info: hvm_start_info = ram.read_obj(GuestAddress(START_INFO)).unwrap();
    assert_eq!(
        (info.magic, info.nr_modules, info.memmap_entries),
        (START_MAGIC, 2, 3)
    );
    let second: hvm_modlist_entry = ram.read_obj(GuestAddress(info.modlist_paddr + 32)).unwrap();
    assert_eq!((second.paddr, second.size), (PROGRAM_START + 0x4000, 3));
    assert_eq!(read_text(&ram, second.cmdline_paddr, 4), "two\0");
    assert_eq!(read_text(&ram, second.paddr, 3), "\x02\x02\x02");
    assert_eq!(read_text(&ram, info.cmdline_paddr, 10), "tsc_khz=1\0");
}

#[test]
fn memory_map_leaves_out_what_is_between_two_ranges() {
    const HIGH: u64 = 1 << 32;
    let ranges = [(GuestAddress(0), RAM_BYTES as usize), (GuestAddress(HIGH), 8192)];
    let ram = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    let map = memory_map(&ram);
    let is_ram = |range: &&MemoryRange| matches!(range.kind, MemoryKind::Ram);
    let told: Vec<_> = map
        .iter()
        .filter(is_ram)
        .map(|range| (range.start, range.end))
        .collect();
    assert_eq!(
        told,
        [(0, LEGACY_HOLE), (PROGRAM_START, RAM_BYTES), (HIGH, HIGH + 8192)]
    );
}

#[test]
fn file_input_is_copied_whole() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"contents").unwrap();
    let input = Input::open(file.path()).unwrap();
    let (ram, _) = load_with(&kernel(), vec![input]).unwrap();
    assert_eq!(read_text(&ram, PROGRAM_START + 0x2000, 8), "contents");
}

#[test]
fn input_that_shrank_is_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"contents").unwrap();
    let input = Input::open(file.path()).unwrap();
    file.as_file().set_len(3).unwrap();
    let error = load_with(&kernel(), vec![input]).unwrap_err();
    assert!(matches!(error, LoadError::CopyInput { bytes: 8, .. }), "{error}");
}

#[test]
fn input_that_fills_ram_exactly_fits_and_one_byte_more_does_not() {
    let room = RAM_BYTES - PROGRAM_START - 0x2000;
    let fitting = Input::from_bytes("big", vec![7; room as usize]);
    assert!(load_with(&kernel(), vec![fitting]).is_ok());
    let larger = Input::from_bytes("big", vec![7; room as usize + 1]);
    let error = load_with(&kernel(), vec![larger]).unwrap_err();
    let text = format!(
        "input big of {} bytes does not fit the {room} bytes of RAM that are left",
        room + 1
    );
    assert_eq!(error.to_string(), text);
}

#[test]
fn too_many_inputs_are_refused() {
    let inputs = |count| (0..count).map(|_| Input::from_bytes("x", Vec::new())).collect();
    assert!(load_with(&kernel(), inputs(INPUTS_MAX)).is_ok());
    let error = load_with(&kernel(), inputs(INPUTS_MAX + 1)).unwrap_err();
    assert!(matches!(error, LoadError::TooManyInputs { .. }));
}

#[test]
fn overlong_name_and_name_with_nul_are_refused() {
    let long = Input::from_bytes(&"n".repeat(20_000), Vec::new());
    assert!(matches!(
        load_with(&kernel(), vec![long]),
        Err(LoadError::TextTooLong { .. })
    ));
    let cut = Input::from_bytes("a\0b", Vec::new());
    assert!(matches!(
        load_with(&kernel(), vec![cut]),
        Err(LoadError::TextHasNul { .. })
    ));
}

#[test]
fn missing_files_and_directories_name_themselves() {
    let missing = Path::new("/nonexistent/file");
    assert_eq!(
        Kernel::open(missing).unwrap_err().to_string(),
        "cannot read kernel /nonexistent/file"
    );
    assert_eq!(
        Input::open(missing).unwrap_err().to_string(),
        "cannot read input /nonexistent/file"
    );
    assert!(matches!(
        Input::open(Path::new("/")),
        Err(LoadError::NotAFile { .. })
    ));
}

#[test]
fn other_files_are_no_kernel() {
    let mut small_class = elf(PROGRAM_START, 1, 1);
    small_class[elf::CLASS_OFFSET] = 1;
    let images = [Vec::new(), b"#!/bin/sh\n".to_vec(), vec![0; 4096], small_class];
    let errors = images.map(|image| load_with(&Kernel::from_bytes("k", image), Vec::new()).unwrap_err());
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, LoadError::UnknownKernel { .. }))
    );
}

#[test]
fn truncated_kernel_is_refused() {
    let whole = elf(PROGRAM_START, 100, 100);
    let cut = [70, 119, 219].map(|end| Kernel::from_bytes("k", whole[..end].to_vec()));
    let errors = cut.map(|kernel| load_with(&kernel, Vec::new()).unwrap_err());
    assert!(
        errors.iter().all(|error| matches!(
            error,
            LoadError::BadKernel { .. } | LoadError::KernelTruncated { .. }
        )),
        "{errors:?}"
    );
}

#[test]
fn kernel_outside_ram_is_refused() {
    let outside = Kernel::from_bytes("k", elf(RAM_BYTES, 100, 100));
    assert!(matches!(
        load_with(&outside, Vec::new()),
        Err(LoadError::BadKernel { .. })
    ));
    let swollen = Kernel::from_bytes("k", elf(PROGRAM_START, 100, RAM_BYTES));
    assert!(matches!(
        load_with(&swollen, Vec::new()),
        Err(LoadError::KernelTooLarge { .. })
    ));
}

/// Walks the tables that the loader wrote, as the CPU does.
fn translate(ram: &GuestMemoryMmap, address: u64) -> Option<u64> {
    let mut table = PAGE_TABLES;
    for shift in [39, 30, 21, 12] {
        let entry = read_u64(ram, table + 8 * ((address >> shift) & 0x1ff));
        if entry & (PRESENT_WRITABLE | USER) != PRESENT_WRITABLE | USER {
            return None;
        }
        let frame = entry & 0x000f_ffff_ffff_f000;
        if shift == 12 || entry & LARGE_PAGE != 0 {
            return Some(frame | address & ((1 << shift) - 1));
        }
        table = frame;
    }
    None
}

#[test]
fn four_gigabytes_but_page_zero_are_mapped_one_to_one() {
    let (ram, _) = load_with(&kernel(), Vec::new()).unwrap();
    let probes = [0x1000, 0x8_fff8, 0x1f_f000, 0x20_0000, 0xc000_0004, 0xffff_fff8];
    assert_eq!(probes.map(|address| translate(&ram, address)), probes.map(Some));
    assert_eq!(
        [0xfff, 0x1_0000_0000].map(|address| translate(&ram, address)),
        [None, None]
    );
}
