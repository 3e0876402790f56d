//! The guests' driver and workloads on a bare virtual machine: README.md has the contract with the VMM.
//!
//! `boot.s` leaves ring 0 within some dozen instructions; all that follows runs in ring 3.
#![no_std]
#![no_main]

mod bus;
mod machine;
mod selftest;

use core::ops::Range;
use core::panic::PanicInfo;

use bus::{Machine, print};
use guests::{Input, Options};
use machine::{Boot, exit};

/// Statuses that this program ends with (README.md).
const STATUS_FAILED: u32 = 1;
const STATUS_BAD_COMMAND_LINE: u32 = 2;
const STATUS_NO_BOOT_INFO: u32 = 0xf0;
const STATUS_NO_CLOCK: u32 = 0xf1;
const STATUS_NO_GPU: u32 = 0xf2;
const STATUS_PANIC: u32 = 0xfc;
const STATUS_EXCEPTION: u32 = 0xfe;

/// Entries of the VMM's module list (one page).
const INPUTS_MAX: usize = 128;
/// Free RAM begins at a multiple of this.
const FREE_ALIGN: u64 = 1 << 20;

fn main(start_info: u64) -> ! {
    let Some(boot) = Boot::at(start_info) else {
        exit(STATUS_NO_BOOT_INFO)
    };
    let word = |prefix| {
        boot.command_line()
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(prefix))
    };
    let tsc_khz = word("tsc_khz=")
        .and_then(|khz: &str| khz.parse().ok())
        .filter(|khz| *khz != 0);
    let Some(tsc_khz) = tsc_khz else {
        exit(STATUS_NO_CLOCK)
    };
    let Some(mut bus) = Machine::find(tsc_khz) else {
        exit(STATUS_NO_GPU)
    };
    let inputs_end = boot
        .inputs()
        .map(|(_, start, bytes)| start + bytes)
        .max()
        .unwrap_or(0);
    let ram_free = inputs_end
        .max(machine::program_end())
        .next_multiple_of(FREE_ALIGN)..boot.ram_end();
    exit(match word("bare.test=") {
        Some(test) => selftest::run(test, &mut bus, boot, ram_free),
        None => run_workload(&mut bus, boot, ram_free),
    })
}

/// Hands the machine to the workload. Returns the VM's status.
fn run_workload(bus: &mut Machine, boot: Boot, free: Range<u64>) -> u32 {
    let options = match Options::parse(boot.command_line()) {
        Ok(options) => options,
        Err(error) => {
            print(format_args!("{error}\n"));
            return STATUS_BAD_COMMAND_LINE;
        }
    };
    let mut inputs = [Input {
        name: "",
        gpa: 0,
        bytes: 0,
    }; INPUTS_MAX];
    // An empty file has no byte that could go wrong, and the workload takes none.
    let files = boot.inputs().filter(|(_, _, bytes)| *bytes != 0);
    let mut count = 0;
    for (input, (name, gpa, bytes)) in inputs.iter_mut().zip(files) {
        *input = Input { name, gpa, bytes };
        count += 1;
    }
    let (dma, scratch) = guests::split_ram(free, &options);
    let machine = guests::Machine {
        dma,
        scratch: machine::take_words(scratch),
        inputs: inputs.get(..count).unwrap_or_default(),
        options,
    };
    match guests::run(bus, machine) {
        Ok(summary) if summary.is_ok() => 0,
        Ok(_) | Err(_) => STATUS_FAILED,
    }
}

fn exception(vector: u64, error: u64, address: u64, target: u64) -> ! {
    print(format_args!(
        "exception {vector} error {error:#x} at {address:#x} target {target:#x}\n"
    ));
    exit(STATUS_EXCEPTION)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    print(format_args!("{info}\n"));
    exit(STATUS_PANIC)
}
