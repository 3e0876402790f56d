//! Driver and file workload on the software GF100 alone, all of its VRAM placed: a bare card.

use fermi_model::{Backing, CopyMicrocode, FermiModel, ModelConfig, Stepped, SystemBus, Timing};
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use fermi_spec::board::Board;
use fermi_spec::engine::Engine;
use fermi_spec::methods::{class, host, m2mf};
use fermi_spec::pushbuffer::incrementing;
use guests::driver::{Copier, Copy, CopyPath, Driver, DriverConfig, DriverError, Object, PageSize};
use guests::{Bar, GuestBus, Input, Machine, Options, Summary, run};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

const MIB: u64 = 1 << 20;
const VRAM_BYTES: u64 = 64 * MIB;
const RAM_BYTES: usize = 16 << 20;
const INPUT_GPA: u64 = 8 * MIB + 0x321;
/// Work units of the card for each turn of a polling loop.
const WORK_PER_TURN: u32 = 256;
const TURN_NS: u64 = 5_000;

struct Ram(Arc<MmapRegion>);

impl SystemBus for Ram {
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing> {
        let room = (RAM_BYTES as u64).checked_sub(at.0)?;
        Backing::new(Arc::clone(&self.0), at.0 as usize, bytes.min(room) as usize)
    }
}

struct ModelBus {
    model: FermiModel,
    vram: Arc<MmapRegion>,
    ram: Arc<MmapRegion>,
    now_ns: u64,
    interrupts: u32,
    /// What to do to the card at each reported line.
    on_line: fn(&mut ModelBus, &str),
    lines: Vec<String>,
}

impl ModelBus {
    fn new() -> Self {
        let vram = Arc::new(MmapRegion::new(VRAM_BYTES as usize).expect("VRAM"));
        let ram = Arc::new(MmapRegion::new(RAM_BYTES).expect("RAM"));
        let config = ModelConfig {
            board: Board::Quadro6000,
            vram_bytes: VRAM_BYTES,
            timing: Timing::of(Board::Quadro6000),
            copy_microcode: CopyMicrocode::default(),
        };
        let mut model = FermiModel::new(config, Arc::new(Ram(Arc::clone(&ram)))).expect("a card");
        for frame in 0..model.frames() {
            let at = u64::from(frame) * FRAME;
            let backing = Backing::new(Arc::clone(&vram), at as usize, FRAME as usize);
            model.place_frame(FrameNo(frame), backing).expect("a frame");
        }
        Self {
            model,
            vram,
            ram,
            now_ns: 0,
            interrupts: 0,
            on_line: |_, _| (),
            lines: Vec::new(),
        }
    }

    fn flip_vram_byte(&mut self, at: usize) {
        let vram = self.vram.get_slice(at, 1).expect("inside VRAM");
        let byte: u8 = vram.read_obj(0).expect("a byte");
        vram.write_obj(byte ^ 1, 0).expect("a byte");
    }
}

fn model_bar(bar: Bar) -> fermi_model::Bar {
    match bar {
        Bar::Bar0 => fermi_model::Bar::Bar0,
        Bar::Bar1 => fermi_model::Bar::Bar1,
        Bar::Bar3 => fermi_model::Bar::Bar3,
    }
}

impl GuestBus for ModelBus {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.model.bar_read(model_bar(bar), offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.model.bar_write(model_bar(bar), offset, &value.to_le_bytes());
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.model.bar_write(model_bar(bar), offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        let ram = self.ram.get_slice(gpa as usize, data.len()).expect("inside RAM");
        ram.copy_to(data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        let ram = self.ram.get_slice(gpa as usize, data.len()).expect("inside RAM");
        ram.copy_from(data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let ram = self.ram.get_slice(gpa as usize, 4).expect("inside RAM");
        ram.read_obj(0).expect("a word")
    }

    fn relax(&mut self) {
        self.now_ns += TURN_NS;
        let _: Stepped = self.model.step(self.now_ns, WORK_PER_TURN);
        self.interrupts += u32::from(self.model.take_interrupt());
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        (self.on_line)(self, line);
    }
}

fn bytes_of(seed: u32, count: usize) -> Vec<u8> {
    let words = (0..count as u32).map(|index| (index ^ seed).wrapping_mul(0x9e37_79b1));
    words.map(|word| (word >> 24) as u8).collect()
}

fn run_files(
    command_line: &str,
    on_line: fn(&mut ModelBus, &str),
) -> (ModelBus, Result<Summary, DriverError>) {
    let mut bus = ModelBus::new();
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
        inputs: &inputs,
        options,
    };
    let outcome = run(&mut bus, &machine);
    (bus, outcome)
}

fn is_end_of_phase(line: &str, phase: &str) -> bool {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let progress = &value["progress"];
    progress["phase"] == phase && progress["done"] == progress["total"]
}

fn started() -> (ModelBus, Driver) {
    let mut bus = ModelBus::new();
    let config = DriverConfig::new(MIB..4 * MIB, &Options::default());
    let driver = Driver::start(&mut bus, &config).expect("bring-up");
    (bus, driver)
}

#[test]
fn files_come_back_whole() {
    let (bus, outcome) = run_files("vramd.rounds=4", |_, _| ());
    let summary = outcome.unwrap();
    assert!(summary.is_ok(), "{summary:?} {:#?}", bus.lines);
    assert!(summary.bytes_copied > 3 * VRAM_BYTES, "{summary:?}");
    let digest: [u8; 32] = Sha256::digest(bytes_of(2_000_003, 2_000_003)).into();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!(r#"{{"digest":{{"input":"a","sha256":"{hex}","bytes":2000003}}}}"#);
    assert!(bus.lines.contains(&line), "{:#?}", bus.lines);
}

#[test]
fn one_byte_flipped_between_moving_and_reading_is_one_mismatch() {
    let (bus, outcome) = run_files("vramd.rounds=2", |bus, line| {
        if is_end_of_phase(line, "move") {
            bus.flip_vram_byte(40 << 20);
        }
    });
    let summary = outcome.unwrap();
    assert_eq!(
        (summary.mismatches, summary.is_ok()),
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
    let mut bus = ModelBus::new();
    for at in (0..VRAM_BYTES as usize).step_by(8) {
        bus.flip_vram_byte(at);
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
