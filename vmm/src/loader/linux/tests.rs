use std::io::Write as _;
use std::path::Path;

use linux_loader::loader::elf::start_info::hvm_start_info;
use proptest::prelude::*;

use super::super::{Initramfs, Input, KernelKind, load};
use super::*;

const RAM_BYTES: u64 = 8 << 20;
const LOAD: u64 = 0x20_0000;
const INIT_BYTES: u32 = 0x10_0000;
const RSDP: u64 = 0xe_0000;

/// A bzImage of one setup sector and `system` behind it, with what a Linux of today has in its header.
fn bzimage(system: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 2 * SECTOR_BYTES as usize];
    let header = setup_header {
        setup_sects: 1,
        syssize: system.len().div_ceil(16) as u32,
        boot_flag: BOOT_FLAG,
        // Jumps over the header to 0x26c.
        jump: 0x6aeb,
        header: HEADER_MAGIC,
        version: 0x20f,
        loadflags: 1,
        code32_start: 0x10_0000,
        initrd_addr_max: 0x7fff_ffff,
        kernel_alignment: 0x20_0000,
        relocatable_kernel: 1,
        xloadflags: XLOADFLAG_KERNEL_64,
        cmdline_size: 2047,
        pref_address: LOAD,
        init_size: INIT_BYTES,
        ..Default::default()
    };
    image[HEADER_OFFSET..HEADER_OFFSET + size_of::<setup_header>()].copy_from_slice(header.as_slice());
    image.extend(system);
    image.resize(image.len().next_multiple_of(16), 0);
    image
}

/// The same with a field of its header changed.
fn with_header(change: impl FnOnce(&mut setup_header)) -> Vec<u8> {
    let mut image = bzimage(&[0x90; 1000]);
    let bytes = &mut image[HEADER_OFFSET..HEADER_OFFSET + size_of::<setup_header>()];
    change(setup_header::from_mut_slice(bytes).unwrap());
    image
}

/// An ELF file with a segment at [`LOAD`] and, as its second one, a note that names `entry`.
fn pvh(entry: u32) -> Vec<u8> {
    let (code, note) = (176usize, 176 + 64);
    let mut image = vec![0; 64 + 2 * 56];
    image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    image[16..20].copy_from_slice(&[2, 0, 62, 0]);
    image[24..32].copy_from_slice(&LOAD.to_le_bytes());
    image[32..40].copy_from_slice(&64u64.to_le_bytes());
    image[54..58].copy_from_slice(&[56, 0, 2, 0]);
    for (at, kind, offset, bytes) in [(64, 1, code, 64u64), (120, 4, note, 20)] {
        image[at] = kind;
        image[at + 8..at + 16].copy_from_slice(&(offset as u64).to_le_bytes());
        image[at + 24..at + 32].copy_from_slice(&LOAD.to_le_bytes());
        image[at + 32..at + 40].copy_from_slice(&bytes.to_le_bytes());
        image[at + 40..at + 48].copy_from_slice(&bytes.to_le_bytes());
    }
    image.extend([0x90; 64]);
    // Sizes of name and descriptor, type 18 (XEN_ELFNOTE_PHYS32_ENTRY).
    for word in [4, 4, 18, u32::from_le_bytes(*b"Xen\0"), entry] {
        image.extend(word.to_le_bytes());
    }
    image
}

fn ram() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM_BYTES as usize)]).unwrap()
}

fn load_image(
    image: Vec<u8>,
    initramfs: Option<Initramfs>,
    command_line: &str,
) -> Result<(GuestMemoryMmap, Entry), LoadError> {
    let (ram, kernel) = (ram(), Kernel::from_bytes("k", image));
    let boot = Boot {
        kernel: &kernel,
        initramfs,
        inputs: Vec::new(),
        command_line,
        rsdp: RSDP,
    };
    let entry = load(&ram, boot)?;
    Ok((ram, entry))
}

fn refusal(image: Vec<u8>) -> LoadError {
    load_image(image, None, "").unwrap_err()
}

/// An initramfs of `bytes` that starts with gzip's magic number.
fn initramfs(bytes: u64) -> Initramfs {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"\x1f\x8b").unwrap();
    file.as_file().set_len(bytes).unwrap();
    Initramfs::open(file.path()).unwrap()
}

fn zero_page(ram: &GuestMemoryMmap) -> boot_params {
    ram.read_obj(GuestAddress(BOOT_STRUCTURES)).unwrap()
}

#[test]
fn kinds_are_told_from_the_content() {
    let kind = |image| Kernel::from_bytes("k", image).kind();
    assert_eq!(kind(bzimage(&[])), Some(KernelKind::BzImage));
    assert_eq!(kind(pvh(0)), Some(KernelKind::Pvh));
    assert_eq!(Kernel::bare().kind(), Some(KernelKind::Bare));
    assert_eq!(kind(vec![0; 4096]), None);
}

#[test]
fn bzimage_is_placed_where_it_wants_and_entered_in_64_bit_mode() {
    let (ram, entry) = load_image(bzimage(&[7; 1000]), None, "quiet").unwrap();
    assert_eq!(
        (entry.mode, entry.rip, entry.rsi),
        (Mode::Long { cr3: PAGE_TABLES }, LOAD + 0x200, BOOT_STRUCTURES)
    );
    assert_eq!(ram.read_obj::<u8>(GuestAddress(LOAD + 999)).unwrap(), 7);
    let code: u64 = ram.read_obj(GuestAddress(GDT + 16)).unwrap();
    assert_eq!((entry.gdt, code >> 53 & 1), (Some(GDT), 1));
}

#[test]
fn zero_page_tells_memory_command_line_and_tables() {
    let (ram, _) = load_image(bzimage(&[7; 1000]), None, "console=ttyS0").unwrap();
    let params = zero_page(&ram);
    let (magic, line, rsdp) = (params.hdr.header, params.hdr.cmd_line_ptr, params.acpi_rsdp_addr);
    assert_eq!((magic, u64::from(line), rsdp), (HEADER_MAGIC, COMMAND_LINE, RSDP));
    let mut text = [0; 14];
    ram.read_slice(&mut text, GuestAddress(COMMAND_LINE)).unwrap();
    assert_eq!(&text, b"console=ttyS0\0");
    let map: Vec<_> = params.e820_table[..usize::from(params.e820_entries)]
        .iter()
        .map(|entry| (entry.addr, entry.addr + entry.size, entry.r#type))
        .collect();
    assert_eq!(
        map,
        [
            (0, 0xa_0000, 1),
            (0xa_0000, 0x10_0000, 2),
            (0x10_0000, RAM_BYTES, 1)
        ]
    );
}

#[test]
fn header_of_an_older_protocol_is_cut_at_its_end() {
    // The header ends after `pref_address`: what would be `init_size` is code already.
    let image = with_header(|header| {
        header.jump = 0x5eeb;
        header.kernel_info_offset = 0x9090_9090;
    });
    let (ram, _) = load_image(image, None, "").unwrap();
    assert_eq!({ zero_page(&ram).hdr.kernel_info_offset }, 0);
}

#[test]
fn initramfs_lies_as_high_as_the_kernel_can_reach() {
    let (ram, _) = load_image(bzimage(&[]), Some(initramfs(5000)), "").unwrap();
    let header = zero_page(&ram).hdr;
    assert_eq!(
        ({ header.ramdisk_image }, { header.ramdisk_size }),
        (RAM_BYTES as u32 - 0x2000, 5000)
    );
    let limited = with_header(|header| header.initrd_addr_max = 0x5f_ffff);
    let (ram, _) = load_image(limited, Some(initramfs(5000)), "").unwrap();
    assert_eq!({ zero_page(&ram).hdr.ramdisk_image }, 0x60_0000 - 0x2000);
}

#[test]
fn initramfs_that_would_reach_into_the_kernel_is_refused() {
    let room = RAM_BYTES - LOAD - u64::from(INIT_BYTES);
    assert!(load_image(bzimage(&[]), Some(initramfs(room)), "").is_ok());
    let error = load_image(bzimage(&[]), Some(initramfs(room + 1)), "").unwrap_err();
    assert!(matches!(error, LoadError::InitramfsTooLarge { .. }), "{error}");
}

#[test]
fn command_line_longer_than_the_kernel_reads_is_refused() {
    let line = "x".repeat(2048);
    assert!(load_image(bzimage(&[]), None, &line[..2047]).is_ok());
    let error = load_image(bzimage(&[]), None, &line).unwrap_err();
    assert!(
        matches!(error, LoadError::CommandLineTooLong { max: 2048, .. }),
        "{error}"
    );
}

#[test]
fn truncated_bzimage_says_how_much_is_missing() {
    let mut image = bzimage(&[7; 1000]);
    image.truncate(1500);
    assert_eq!(
        refusal(image).to_string(),
        "kernel k is truncated: 1500 bytes of 2032; copy it again"
    );
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let bad = |change: fn(&mut setup_header)| refusal(with_header(change));
    let errors = [
        bad(|header| header.version = 0x20b),
        bad(|header| header.xloadflags = 0),
        bad(|header| header.pref_address = 0x1000),
        bad(|header| header.pref_address += 1),
        bad(|header| header.kernel_alignment = 0),
    ];
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, LoadError::KernelHeader { .. })),
        "{errors:?}"
    );
}

#[test]
fn kernel_that_needs_more_ram_is_refused() {
    let errors = [
        refusal(with_header(|header| header.init_size = u32::MAX)),
        refusal(with_header(|header| header.pref_address = u64::MAX << 21)),
    ];
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, LoadError::KernelTooLarge { .. })),
        "{errors:?}"
    );
}

#[test]
fn pvh_kernel_is_entered_at_its_note_in_32_bit_mode() {
    let (ram, entry) = load_image(pvh(LOAD as u32 + 8), Some(initramfs(5000)), "quiet").unwrap();
    assert_eq!(
        (entry.mode, entry.rip, entry.rbx),
        (Mode::Protected, LOAD + 8, BOOT_STRUCTURES)
    );
    let info: hvm_start_info = ram.read_obj(GuestAddress(BOOT_STRUCTURES)).unwrap();
    assert_eq!(
        (info.nr_modules, info.cmdline_paddr, info.rsdp_paddr),
        (1, COMMAND_LINE, RSDP)
    );
    let module: hvm_modlist_entry = ram.read_obj(GuestAddress(info.modlist_paddr)).unwrap();
    assert_eq!((module.paddr, module.size), (RAM_BYTES - 0x2000, 5000));
}

#[test]
fn pvh_entry_outside_ram_is_refused() {
    let error = refusal(pvh(RAM_BYTES as u32));
    assert!(matches!(error, LoadError::KernelHeader { .. }), "{error}");
}

#[test]
fn file_whose_headers_name_the_same_bytes_again_and_again_is_refused() {
    let mut image = pvh(LOAD as u32);
    // 65,535 segments, or three of all of the file.
    image[56..58].copy_from_slice(&[0xff, 0xff]);
    image.resize(64 + 0xffff * 56, 0);
    let error = refusal(image);
    assert!(matches!(error, LoadError::KernelTruncated { .. }), "{error}");
    let mut image = pvh(LOAD as u32);
    let bytes = 3 * image.len() as u64;
    image[64 + 32..64 + 40].copy_from_slice(&bytes.to_le_bytes());
    let error = refusal(image);
    assert!(matches!(error, LoadError::KernelTruncated { .. }), "{error}");
}

#[test]
fn inputs_and_initramfs_go_to_those_who_use_them() {
    let (ram, kernel) = (ram(), Kernel::from_bytes("k", bzimage(&[])));
    let boot = Boot {
        kernel: &kernel,
        initramfs: None,
        inputs: vec![Input::from_bytes("x", Vec::new())],
        command_line: "",
        rsdp: RSDP,
    };
    let error = load(&ram, boot).unwrap_err();
    assert!(
        matches!(error, LoadError::InputsUnused { count: 1, .. }),
        "{error}"
    );
    let boot = Boot {
        kernel: &Kernel::bare(),
        initramfs: Some(initramfs(10)),
        inputs: Vec::new(),
        command_line: "",
        rsdp: 0,
    };
    let error = load(&ram, boot).unwrap_err();
    assert!(matches!(error, LoadError::InitramfsUnused { .. }), "{error}");
}

#[test]
fn opened_file_that_is_no_kernel_is_refused_by_name() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"#!/bin/sh\n").unwrap();
    let error = Kernel::open(file.path()).unwrap_err();
    let text = format!("kernel {} (10 bytes) is neither", file.path().display());
    assert!(error.to_string().starts_with(&text), "{error}");
    assert!(matches!(
        Kernel::open(Path::new("/dev/zero")),
        Err(LoadError::NotAFile { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A hostile header is refused, or all that it made the loader write is within RAM and the entry, too.
    #[test]
    fn hostile_bzimage_is_refused_or_fits(noise in prop::collection::vec((0usize..123, any::<u8>()), 1..12)) {
        let mut image = bzimage(&[7; 100]);
        for (offset, byte) in noise {
            image[HEADER_OFFSET + offset] = byte;
        }
        if let Ok((_, entry)) = load_image(image, Some(initramfs(3000)), "quiet") {
            prop_assert!(entry.rip >= PROGRAM_START && entry.rip < RAM_BYTES + ENTRY_64_OFFSET);
        }
    }

    #[test]
    fn hostile_elf_is_refused_or_fits(
        noise in prop::collection::vec((0usize..260, any::<u8>()), 1..12),
        bytes in 0usize..260,
    ) {
        let mut image = pvh(LOAD as u32);
        for (offset, byte) in noise {
            image[offset] = byte;
        }
        image.truncate(image.len().max(200) - bytes / 4);
        if let Ok((_, entry)) = load_image(image, None, "quiet") {
            prop_assert!(entry.mode != Mode::Protected || entry.rip < RAM_BYTES);
        }
    }

    #[test]
    fn noise_is_no_kernel(image in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(load_image(image, None, "").is_err());
    }
}
