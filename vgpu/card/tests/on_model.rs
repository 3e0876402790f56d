//! Driver and file workload on the software GF100 alone: a bare card.

mod small_card;

use card::BareMachine;
use fermi_model::BareCard;
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::isa::assembler::assemble;
use fermi_spec::methods::{class, host, m2mf};
use fermi_spec::pushbuffer::incrementing;
use guests::driver::{
    COMPUTE_BYTES, Compute, ComputeMemory, Copier, Copy, CopyPath, Driver, DriverConfig, DriverError, Grid,
    Object, PageSize, STACK_BYTES, Stamp,
};
use guests::{GuestBus, Input, Machine, Options, Summary, run};
use sha2::{Digest, Sha256};
use small_card::{MIB, VRAM_BYTES, flip_vram_byte, small_card, started};

const INPUT_GPA: u64 = 8 * MIB + 0x321;

fn bytes_of(seed: u32, count: usize) -> Vec<u8> {
    let words = (0..count as u32).map(|index| (index ^ seed).wrapping_mul(0x9e37_79b1));
    words.map(|word| (word >> 24) as u8).collect()
}

fn run_files(
    command_line: &str,
    on_line: fn(&mut BareCard, &str),
) -> (BareMachine, Result<Summary, DriverError>) {
    let mut bus = small_card();
    bus.on_line = on_line;
    let mut inputs = Vec::new();
    let mut gpa = INPUT_GPA;
    for (name, bytes) in [("a", 2_000_003u64), ("b", 131_072), ("c", 3)] {
        bus.ram_write(gpa, &bytes_of(bytes as u32, bytes as usize));
        inputs.push(Input { name, gpa, bytes });
        gpa += bytes + 13;
    }
    let options = Options::parse(command_line).expect("a command line of ours");
    let machine = Machine {
        dma: MIB..4 * MIB,
        scratch: &mut [],
        inputs: &inputs,
        options,
    };
    let outcome = run(&mut bus, machine);
    (bus, outcome)
}

fn is_end_of_phase(line: &str, phase: &str) -> bool {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let progress = &value["progress"];
    progress["phase"] == phase && progress["done"] == progress["total"]
}

#[test]
fn files_come_back_whole() {
    let (bus, outcome) = run_files("vramd.rounds=4", |_, _| ());
    let summary = outcome.unwrap();
    assert!(summary.is_ok(), "{summary:?} {:#?}", bus.lines);
    assert!(summary.bytes_copied() > 3 * VRAM_BYTES, "{summary:?}");
    let digest: [u8; 32] = Sha256::digest(bytes_of(2_000_003, 2_000_003)).into();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!(r#"{{"digest":{{"input":"a","sha256":"{hex}","bytes":2000003}}}}"#);
    assert!(bus.lines.contains(&line), "{:#?}", bus.lines);
}

#[test]
fn one_byte_flipped_between_moving_and_reading_is_one_mismatch() {
    let (bus, outcome) = run_files("vramd.rounds=2", |card, line| {
        if is_end_of_phase(line, "move") {
            flip_vram_byte(card, 40 << 20);
        }
    });
    let summary = outcome.unwrap();
    assert_eq!(
        (summary.mismatches(), summary.is_ok()),
        (1, false),
        "{:#?}",
        bus.lines
    );
}

#[test]
fn interrupts_arrive_and_change_nothing_in_the_outcome() {
    let (bus, outcome) = run_files("vramd.rounds=1 vramd.interrupts=1", |_, _| ());
    assert!(outcome.unwrap().is_ok());
    assert!(bus.interrupts > 10, "{} interrupts", bus.interrupts);
}

#[test]
fn vram_of_a_card_need_not_be_zero() {
    let mut bus = small_card();
    for at in (0..VRAM_BYTES as usize).step_by(8) {
        flip_vram_byte(&mut bus.card, at);
    }
    let options = Options::parse("vramd.zeroed=0").unwrap();
    let config = DriverConfig::new(MIB..4 * MIB, &options);
    let mut driver = Driver::start(&mut bus, &config).unwrap();
    let copier = Copier::new(&mut driver, &mut bus).unwrap();
    copier.destroy(&mut driver, &mut bus).unwrap();
}

#[test]
fn every_path_copies_between_ram_and_vram() {
    let (mut bus, mut driver) = started();
    let mut copier = Copier::new(&mut driver, &mut bus).unwrap();
    let block = driver.take_dma(&mut bus, MIB).unwrap();
    let (va, vram) = (1 << 32, 32 * MIB);
    driver.map_vram(&mut bus, va, vram, MIB, PageSize::Small).unwrap();
    driver.flush_tlb(&mut bus).unwrap();
    for (index, path) in CopyPath::ALL.into_iter().enumerate() {
        let data = bytes_of(index as u32 + 50, 200_003);
        bus.ram_write(block.gpa, &data);
        let upload = Copy {
            source: block.va,
            target: va + 1,
            bytes: 200_003,
        };
        let download = Copy {
            source: va + 1,
            target: block.va + MIB / 2,
            bytes: 200_003,
        };
        copier.copy(&mut driver, &mut bus, path, upload).unwrap();
        copier.copy(&mut driver, &mut bus, path, download).unwrap();
        copier.finish(&mut driver, &mut bus).unwrap();
        let mut back = vec![0; data.len()];
        bus.ram_read(block.gpa + MIB / 2, &mut back);
        assert!(back == data, "{path:?}");
    }
}

#[test]
fn window_and_pramin_show_what_a_copy_wrote() {
    let (mut bus, mut driver) = started();
    let mut copier = Copier::new(&mut driver, &mut bus).unwrap();
    let block = driver.take_dma(&mut bus, 4096).unwrap();
    let (va, vram) = (1 << 32, 32 * MIB);
    driver
        .map_vram(&mut bus, va, vram, 0x2_0000, PageSize::Large)
        .unwrap();
    driver.flush_tlb(&mut bus).unwrap();
    bus.ram_write(block.gpa, &0x1234_5678u32.to_le_bytes());
    let copy = Copy {
        source: block.va,
        target: va + 0x1004,
        bytes: 4,
    };
    copier.copy(&mut driver, &mut bus, CopyPath::Copy0, copy).unwrap();
    copier.finish(&mut driver, &mut bus).unwrap();
    let window = driver.map_window(&mut bus, 3, vram + 0x1000).unwrap();
    driver.flush_windows(&mut bus).unwrap();
    assert_eq!(bus.read32(Bar::Bar1, window + 4), 0x1234_5678);
    assert_eq!(driver.read_pramin(&mut bus, vram + 0x1004), 0x1234_5678);
}

#[test]
fn copy_from_an_unmapped_page_is_a_fault_of_its_engine() {
    let (mut bus, mut driver) = started();
    let mut copier = Copier::new(&mut driver, &mut bus).unwrap();
    driver.flush_tlb(&mut bus).unwrap();
    let copy = Copy {
        source: 5 << 32,
        target: 6 << 30,
        bytes: 4096,
    };
    copier.copy(&mut driver, &mut bus, CopyPath::Copy1, copy).unwrap();
    let error = copier.finish(&mut driver, &mut bus).unwrap_err();
    assert!(
        matches!(error, DriverError::MmuFault { unit: 0x16, .. }),
        "{error:?}"
    );
}

#[test]
fn unmapped_page_faults_only_after_the_flush() {
    let (mut bus, mut driver) = started();
    let mut copier = Copier::new(&mut driver, &mut bus).unwrap();
    let va = 1 << 32;
    driver
        .map_vram(&mut bus, va, 32 * MIB, 0x4_0000, PageSize::Large)
        .unwrap();
    driver.flush_tlb(&mut bus).unwrap();
    let copy = Copy {
        source: va,
        target: va + 0x2_0000,
        bytes: 4096,
    };
    copier.copy(&mut driver, &mut bus, CopyPath::Copy0, copy).unwrap();
    copier.finish(&mut driver, &mut bus).unwrap();
    driver.unmap(&mut bus, va, 0x2_0000, PageSize::Large).unwrap();
    driver.flush_tlb(&mut bus).unwrap();
    copier.copy(&mut driver, &mut bus, CopyPath::Copy0, copy).unwrap();
    let error = copier.finish(&mut driver, &mut bus).unwrap_err();
    assert!(
        matches!(error, DriverError::MmuFault { unit: 0x15, .. }),
        "{error:?}"
    );
}

#[test]
fn method_that_m2mf_does_not_have_is_an_error_of_pgraph() {
    let (mut bus, mut driver) = started();
    let object = Object {
        subchannel: 2,
        class: class::M2MF,
        engine: Engine::Graph,
    };
    let channel = driver.create_channel(&mut bus, &[object]).unwrap();
    let words = [incrementing(2, m2mf::LAUNCH + 0x800, 1), 0];
    driver.queue(&mut bus, channel, &words).unwrap();
    let fence = driver.submit(&mut bus, channel).unwrap();
    // Whether the semaphore behind it still arrives is not the point.
    let waited = driver.wait(&mut bus, fence);
    let error = waited.and_then(|()| driver.check_device(&mut bus)).unwrap_err();
    let wanted = matches!(
        error,
        DriverError::EngineError {
            engine: Engine::Graph,
            ..
        }
    );
    assert!(wanted, "{error:?}");
}

#[test]
fn illegal_host_method_ends_the_wait_with_the_pbdmas_code() {
    let (mut bus, mut driver) = started();
    let channel = driver.create_channel(&mut bus, &[]).unwrap();
    driver
        .queue(&mut bus, channel, &[incrementing(0, host::ILLEGAL, 1), 0])
        .unwrap();
    let fence = driver.submit(&mut bus, channel).unwrap();
    let error = driver.wait(&mut bus, fence).unwrap_err();
    assert!(matches!(error, DriverError::FifoError { .. }), "{error:?}");
}

#[test]
fn second_driver_takes_the_card_over() {
    let (mut bus, mut driver) = started();
    let mut copier = Copier::new(&mut driver, &mut bus).unwrap();
    copier.finish(&mut driver, &mut bus).unwrap();
    // The first driver vanishes with its channels on the runlist. What it left in VRAM is not zero.
    let options = Options::parse("vramd.zeroed=0").unwrap();
    let config = DriverConfig::new(MIB..4 * MIB, &options);
    let mut driver = Driver::start(&mut bus, &config).unwrap();
    let mut copier = Copier::new(&mut driver, &mut bus).unwrap();
    copier.finish(&mut driver, &mut bus).unwrap();
    copier.destroy(&mut driver, &mut bus).unwrap();
}

/// A driver with compute, and a page of guest RAM for code and data.
fn with_compute() -> (BareMachine, Driver, Compute, guests::driver::DmaBlock) {
    let (mut bus, mut driver) = started();
    let memory = ComputeMemory {
        va: 1 << 32,
        bytes: COMPUTE_BYTES,
    };
    driver
        .map_vram(&mut bus, memory.va, 32 * MIB, COMPUTE_BYTES, PageSize::Large)
        .expect("room");
    let page = driver.take_dma(&mut bus, 4096).expect("room");
    driver.flush_tlb(&mut bus).expect("room");
    let compute = Compute::new(&mut driver, &mut bus, memory).expect("room");
    (bus, driver, compute, page)
}

/// A grid of one program, which is put at the start of `page`.
fn grid<'a>(bus: &mut BareMachine, page: u64, va: u64, source: &str, constants: &'a [u32]) -> Grid<'a> {
    let program = assemble(source).expect("assembles");
    let code: Vec<u8> = program.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bus.ram_write(page, &code);
    Grid {
        code: va,
        entry: 0,
        registers: program.registers,
        shared_bytes: program.shared_bytes,
        stack_bytes: STACK_BYTES,
        local_bytes: [0, 0],
        barriers: program.barriers,
        blocks: [2, 1, 1],
        threads: [32, 1, 1],
        constants,
        banks: &[],
    }
}

#[test]
fn launches_run_in_order_between_their_stamps() {
    let (mut bus, mut driver, compute, page) = with_compute();
    // word = 3 * word + the parameter, in 64 lanes.
    let source = "
        mov b32 $r0 $ctaidx
        mov b32 $r1 $tidx
        add b32 $r0 (shl $r0 0x5) $r1
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        add b32 $r2 (shl $r0 0x2) $r2
        ld b32 $r4 ca g[$r2d]
        add b32 $r5 (shl $r4 0x1) $r4
        add b32 $r5 $r5 c0[0x28]
        st b32 wb g[$r2d] $r5
        exit";
    let data = page.va + 2048;
    for parameter in [5, 7] {
        let constants = [
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            data as u32,
            (data >> 32) as u32,
            parameter,
        ];
        let grid = grid(&mut bus, page.gpa, page.va, source, &constants);
        compute.launch(&mut driver, &mut bus, &grid).unwrap();
        let stamp = page.va + 1024 + u64::from(parameter) * 16;
        compute.stamp(&mut driver, &mut bus, stamp, parameter).unwrap();
    }
    compute.finish(&mut driver, &mut bus).unwrap();
    for lane in 0..64 {
        assert_eq!(bus.ram_read32(page.gpa + 2048 + lane * 4), 3 * 5 + 7);
    }
    let stamps = [5, 7].map(|parameter| Stamp::read(&mut bus, page.gpa + 1024 + parameter * 16));
    assert_eq!(stamps.map(|stamp| stamp.payload), [5, 7]);
    assert!(stamps[0].time_ns < stamps[1].time_ns, "{stamps:?}");
    driver.check_device(&mut bus).unwrap();
    compute.destroy(&mut driver, &mut bus).unwrap();
}

#[test]
fn grid_that_traps_ends_the_wait_with_the_warps_error() {
    let (mut bus, mut driver, compute, page) = with_compute();
    let source = ".registers 2\nmov b32 $r9 0x1\nexit";
    let grid = grid(&mut bus, page.gpa, page.va, source, &[]);
    compute.launch(&mut driver, &mut bus, &grid).unwrap();
    let error = compute.finish(&mut driver, &mut bus).unwrap_err();
    // GPR_OUT_OF_BOUNDS.
    assert!(
        matches!(error, DriverError::ShaderTrap { warp: 13, .. }),
        "{error:?}"
    );
}
