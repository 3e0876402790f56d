//! A kernel whose buffers have a copy in RAM and one in VRAM, kept by [`coherence`](crate::coherence).
//!
//! The plan is the one that runs without: it says what the processor does with a buffer before it does it, and each launch
//! names its buffers by the pointers among its parameters. A buffer gets its VRAM, from a large page on, when a launch has
//! it in its sets for the first time. Inputs are made in RAM by the processor, results are compared there.

use super::gpu::{GuestGpu, Outcome, Session};
use super::transfer::{self, Reference};
use super::{BUFFERS_MAX, KernelSummary, Piece, Places, VRAM_VA, choose, progress, reference_memory, report};
use crate::coherence::{Classes, Coherence, Direction, Scheme, Sets, Transfers};
use crate::driver::{Copier, Copy, DmaBlock, Driver, DriverConfig, DriverError, PageSize};
use crate::report::Report;
use crate::workload::Machine;
use crate::{GuestBus, Workload};
use fermi_spec::addr::LARGE_PAGE;
use kernels::{Buffer, Buffers, CpuAccess, Gpu, Kernel, Launch, Noise, Role, Stopped};

/// How a kernel is run on managed buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Managing {
    /// Who decides when a buffer is copied.
    pub scheme: Scheme,
    /// The processor reads the results and compares them. Without it they stay where they are.
    pub reads_results: bool,
}

/// A managed buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagedArray {
    /// What the kernel calls it.
    pub name: &'static str,
    /// Length of the data.
    pub bytes: u64,
    /// Its copy in guest RAM (GPA).
    pub ram: u64,
    /// The same copy as the GPU addresses it.
    pub ram_va: u64,
    /// Where its copy in VRAM is, or would be: physical address.
    pub vram: u64,
    /// The same copy as the GPU addresses it.
    pub vram_va: u64,
    /// Copies that were made of it.
    pub classes: Classes,
}

/// Results of a kernel on managed buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagedSummary {
    /// As of any kernel. Its copies include those of the code.
    pub kernel: KernelSummary,
    /// The scheme that decided what was copied.
    pub scheme: Scheme,
    /// Copies of all buffers.
    pub classes: Classes,
    /// The buffers by their numbers.
    pub arrays: [Option<ManagedArray>; BUFFERS_MAX],
    /// Checks that the plan and the comparison made.
    pub checks: u64,
    /// Touches of an old copy, and copies over a new one: 0 unless the scheme or the plan is wrong.
    pub breaches: u64,
}

/// The kernel with number `index` in the size that was asked for.
pub(in super::super) fn run(
    bus: &mut dyn GuestBus,
    machine: Machine<'_>,
    index: usize,
    scheme: Scheme,
) -> Result<KernelSummary, DriverError> {
    let options = machine.options;
    let driver = Driver::start(bus, &DriverConfig::new(machine.dma.clone(), &options))?;
    // Channels take some pages, too.
    let most = driver.dma_left().saturating_sub(DMA_RESERVE);
    let instance = choose(driver.vram_bytes(), most, &options, index, LARGE_PAGE)?;
    let managing = Managing {
        scheme,
        reads_results: true,
    };
    let name = Workload::Kernel(index).name();
    let summary = with_driver(bus, driver, machine, (name, instance.kernel()), managing)?;
    Ok(summary.kernel)
}

/// DMA memory that is left for rings and stamps where the size of the buffers is ours to choose.
const DMA_RESERVE: u64 = 2 << 20;

/// Brings the GPU up and runs a kernel on managed buffers, whatever workload the options name; of them seed, rounds
/// and repeats count. Progress is reported as of any kernel.
///
/// `Ok` says that it ran to the end; [`KernelSummary::mismatches`] whether what was compared was right.
pub fn run_managed(
    bus: &mut dyn GuestBus,
    machine: Machine<'_>,
    name: &str,
    kernel: &dyn Kernel,
    managing: Managing,
) -> Result<ManagedSummary, DriverError> {
    let config = DriverConfig::new(machine.dma.clone(), &machine.options);
    let summary = Driver::start(bus, &config)
        .and_then(|driver| with_driver(bus, driver, machine, (name, kernel), managing));
    if let Err(error) = &summary {
        report(bus, &Report::Error(error));
    }
    summary
}

fn with_driver(
    bus: &mut dyn GuestBus,
    mut driver: Driver,
    machine: Machine<'_>,
    (name, kernel): (&str, &dyn Kernel),
    managing: Managing,
) -> Result<ManagedSummary, DriverError> {
    let options = machine.options;
    if managing.scheme == Scheme::Manual && !kernel.is_copied_by_hand() {
        return Err(DriverError::NotByHand);
    }
    let memory = reference_memory(kernel, machine.scratch)?;
    let mut copier = Copier::new(&mut driver, bus)?;
    let (mut gpu, homes) = Homes::prepare(bus, &mut driver, kernel)?;
    let noise = Noise::new(options.seed);
    let mut coherence = with_inputs(bus, &homes, managing.scheme, (kernel, noise));
    let mut summary = KernelSummary {
        vram_bytes: driver.vram_bytes(),
        footprint_bytes: homes.places.buffers.bytes(),
        rounds: options.rounds.max(1),
        ..KernelSummary::default()
    };
    progress(bus, "reference", 0, 1);
    kernel.reference(noise, memory);
    progress(bus, "reference", 1, 1);
    let rounds = summary.rounds as usize;
    for round in 0..rounds {
        progress(bus, "run", round, rounds);
        let mut managed = Managed {
            session: gpu.session(bus, &mut driver, &mut copier, &homes.places),
            coherence: &mut coherence,
            homes: &homes,
        };
        let repeats = options.repeats.max(1);
        let planned = (0..repeats).try_for_each(|_| kernel.run(&mut managed));
        let planned = planned.and_then(|()| match managing.reads_results {
            true => managed.check_results(),
            false => Ok(()),
        });
        let Outcome { grids, gpu_ns } = managed.session.end(planned)?;
        summary.grids += grids;
        summary.gpu_ns += gpu_ns;
        progress(bus, "run", round + 1, rounds);
        if managing.reads_results {
            let reference = Reference {
                kernel,
                noise,
                memory,
            };
            for (number, buffer) in results(&homes.places.buffers) {
                reference.compare(bus, &mut summary, homes.ram(number).gpa, whole(number, buffer));
            }
        }
    }
    driver.check_device(bus)?;
    summary.copies = copier.copies();
    summary.bytes_copied = copier.bytes();
    gpu.destroy(&mut driver, bus)?;
    copier.destroy(&mut driver, bus)?;
    let summary = homes.summary(summary, &coherence);
    report(bus, &Report::Coherence(&summary));
    report(
        bus,
        &Report::Kernel {
            name,
            summary: &summary.kernel,
        },
    );
    Ok(summary)
}

/// All buffers as arrays, their inputs made in RAM.
fn with_inputs(
    bus: &mut dyn GuestBus,
    homes: &Homes,
    scheme: Scheme,
    (kernel, noise): (&dyn Kernel, Noise),
) -> Coherence {
    let mut coherence = Coherence::new(scheme);
    for (number, buffer) in homes.places.buffers.iter() {
        // There are as many arrays as a kernel can have buffers.
        coherence.add(buffer.words as u64 * 4);
        if buffer.role == Role::Input {
            coherence.check_overwrite(number);
            transfer::fill(bus, kernel, noise, homes.ram(number).gpa, whole(number, buffer));
        }
    }
    coherence
}

/// Buffers that have expected words.
fn results(buffers: &Buffers) -> impl Iterator<Item = (usize, Buffer)> {
    buffers.iter().filter(|(_, buffer)| buffer.role == Role::Output)
}

fn whole(number: usize, buffer: Buffer) -> Piece {
    Piece {
        number,
        buffer,
        first: 0,
        words: buffer.words,
    }
}

/// Where both copies of each buffer are.
struct Homes {
    places: Places,
    ram: [Option<DmaBlock>; BUFFERS_MAX],
}

impl Homes {
    /// Takes RAM for all buffers, and maps the VRAM of the driver's own.
    fn prepare(
        bus: &mut dyn GuestBus,
        driver: &mut Driver,
        kernel: &dyn Kernel,
    ) -> Result<(GuestGpu, Self), DriverError> {
        let places = Places::new(kernel, LARGE_PAGE);
        let (wanted, room) = (places.end - Places::start(), driver.vram_bytes());
        if places.end > room {
            let room = room.saturating_sub(Places::start());
            return Err(DriverError::FootprintTooLarge { wanted, room });
        }
        let start = Driver::data_start();
        driver.map_vram(
            bus,
            VRAM_VA + start,
            start,
            Places::start() - start,
            PageSize::Large,
        )?;
        let mut ram = [None; BUFFERS_MAX];
        for (number, buffer) in places.buffers.iter() {
            ram[number] = Some(driver.take_dma(bus, buffer.words as u64 * 4)?);
        }
        driver.flush_tlb(bus)?;
        let gpu = GuestGpu::new(driver, bus, VRAM_VA + start)?;
        Ok((gpu, Self { places, ram }))
    }

    /// The copy in RAM of a buffer that there is.
    fn ram(&self, number: usize) -> DmaBlock {
        const NONE: DmaBlock = DmaBlock {
            gpa: 0,
            va: 0,
            bytes: 0,
        };
        self.ram.get(number).copied().flatten().unwrap_or(NONE)
    }

    fn bytes(&self, number: usize) -> u64 {
        let buffer = self.places.buffers.get(number);
        buffer.map_or(0, |buffer| buffer.words as u64 * 4)
    }

    fn va(&self, number: usize) -> u64 {
        self.places.va.get(number).map_or(VRAM_VA, |va| *va)
    }

    /// The buffers that a launch may touch: those that the pointers lie in that its program uses.
    fn sets(&self, launch: &Launch<'_>) -> Result<Sets, DriverError> {
        let mut sets = Sets::default();
        let used = launch.program.pointers.iter();
        for pointer in used.filter(|pointer| pointer.is_loaded || pointer.is_stored) {
            let address = launch.parameters.long_at(pointer.offset);
            let holds = |number: &usize| {
                let va = self.va(*number);
                address.is_some_and(|address| (va..va + self.bytes(*number)).contains(&address))
            };
            let number = (0..BUFFERS_MAX).find(holds).ok_or(DriverError::BadGrid {
                what: "a pointer that the program uses lies in none of its buffers",
            })?;
            sets.loads |= u16::from(pointer.is_loaded) << number;
            sets.stores |= u16::from(pointer.is_stored) << number;
        }
        Ok(sets)
    }

    fn summary(&self, kernel: KernelSummary, coherence: &Coherence) -> ManagedSummary {
        let history = coherence.history();
        let mut arrays = [None; BUFFERS_MAX];
        for (number, buffer) in self.places.buffers.iter() {
            let (ram, vram_va) = (self.ram(number), self.va(number));
            arrays[number] = Some(ManagedArray {
                name: buffer.name,
                bytes: self.bytes(number),
                ram: ram.gpa,
                ram_va: ram.va,
                vram: vram_va - VRAM_VA,
                vram_va,
                classes: history.classes(number),
            });
        }
        ManagedSummary {
            kernel,
            scheme: coherence.scheme(),
            classes: history.all(),
            arrays,
            checks: coherence.checks(),
            breaches: history.breaches(),
        }
    }
}

/// Moves buffers by way of a session.
struct Mover<'s, 'a> {
    session: &'s mut Session<'a>,
    homes: &'s Homes,
}

impl Transfers for Mover<'_, '_> {
    fn allocate(&mut self, array: usize) -> Result<(), DriverError> {
        let va = self.homes.va(array);
        let bytes = self.homes.bytes(array).next_multiple_of(LARGE_PAGE);
        let Session { driver, bus, .. } = &mut *self.session;
        driver.map_vram(*bus, va, va - VRAM_VA, bytes, PageSize::Large)?;
        driver.flush_tlb(*bus)
    }

    fn copy(&mut self, array: usize, direction: Direction) -> Result<(), DriverError> {
        self.session.finish()?;
        let (ram, vram) = (self.homes.ram(array).va, self.homes.va(array));
        let (source, target) = match direction {
            Direction::ToGpu => (ram, vram),
            Direction::ToCpu => (vram, ram),
        };
        let bytes = self.homes.bytes(array);
        self.session.copy(Copy {
            source,
            target,
            bytes,
        })
    }
}

/// A session whose buffers are managed.
struct Managed<'a> {
    session: Session<'a>,
    coherence: &'a mut Coherence,
    homes: &'a Homes,
}

impl Managed<'_> {
    /// Does something with the arrays, and keeps why it failed.
    fn with<T>(
        &mut self,
        does: impl FnOnce(&mut Coherence, &mut Mover<'_, '_>) -> Result<T, DriverError>,
    ) -> Result<T, Stopped> {
        let mut mover = Mover {
            session: &mut self.session,
            homes: self.homes,
        };
        let done = does(self.coherence, &mut mover);
        self.session.keep(done)
    }

    /// The processor is about to read all results.
    fn check_results(&mut self) -> Result<(), Stopped> {
        let homes = self.homes;
        results(&homes.places.buffers).try_for_each(|(number, _)| self.check(number, CpuAccess::Read))
    }

    /// Where words of the copy in RAM are that was checked.
    fn words_at(&self, buffer: usize, first: usize, count: usize) -> Result<u64, DriverError> {
        if self.coherence.is_stale_on_cpu(buffer) {
            return Err(DriverError::NotChecked {
                buffer: buffer as u64,
            });
        }
        let words = self.homes.bytes(buffer) as usize / 4;
        let ram = self.homes.ram(buffer).gpa;
        match first.checked_add(count).is_some_and(|end| end <= words) {
            true => Ok(ram + first as u64 * 4),
            false => Err(DriverError::BadCopy {
                source: ram,
                target: first as u64 * 4,
                bytes: count as u64 * 4,
            }),
        }
    }
}

impl Gpu for Managed<'_> {
    fn address(&self, buffer: usize) -> u64 {
        self.homes.va(buffer)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped> {
        let sets = self.homes.sets(launch);
        let sets = self.session.keep(sets)?;
        self.with(|coherence, mover| {
            coherence.before_launch(mover, sets)?;
            mover.session.start(launch)?;
            coherence.after_launch(mover, sets)
        })
    }

    fn load(&mut self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), Stopped> {
        let at = self.words_at(buffer, first, words.len());
        let gpa = self.session.keep(at)?;
        for (word, at) in words.iter_mut().zip((gpa..).step_by(4)) {
            let mut bytes = [0; 4];
            self.session.bus.ram_read(at, &mut bytes);
            *word = u32::from_le_bytes(bytes);
        }
        Ok(())
    }

    fn store(&mut self, buffer: usize, first: usize, words: &[u32]) -> Result<(), Stopped> {
        let at = self.words_at(buffer, first, words.len());
        let gpa = self.session.keep(at)?;
        for (word, at) in words.iter().zip((gpa..).step_by(4)) {
            self.session.bus.ram_write(at, &word.to_le_bytes());
        }
        Ok(())
    }

    fn check(&mut self, buffer: usize, access: CpuAccess) -> Result<(), Stopped> {
        self.with(|coherence, mover| match access {
            CpuAccess::Read => coherence.check_read(mover, buffer),
            CpuAccess::Write => coherence.check_write(mover, buffer),
            CpuAccess::Overwrite => {
                coherence.check_overwrite(buffer);
                Ok(())
            }
        })
    }

    fn copy_in(&mut self, buffer: usize) -> Result<(), Stopped> {
        self.with(|coherence, mover| coherence.copy_in(mover, buffer))
    }

    fn copy_out(&mut self, buffer: usize) -> Result<(), Stopped> {
        self.with(|coherence, mover| coherence.copy_out(mover, buffer))
    }
}
