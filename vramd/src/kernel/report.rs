//! The results of a launch, for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::run::{Fault, Outcome};

/// Words in a line.
const LINE_WORDS: usize = 8;

/// The traced warp, the outputs as hexadecimal words, and the figures. [`complaint`] describes a fault.
pub(crate) fn to_text(outcome: &Outcome) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = write_text(&mut text, outcome);
    text
}

fn write_text(text: &mut String, outcome: &Outcome) -> std::fmt::Result {
    if let Some(trace) = &outcome.trace {
        trace.lines.iter().try_for_each(|line| writeln!(text, "{line}"))?;
        if trace.left_out != 0 {
            let count = trace.lines.len();
            writeln!(
                text,
                "trace ends at its limit of {count} lines; {} instructions of the warp follow (--trace-limit)",
                trace.left_out
            )?;
        }
    }
    for shown in &outcome.shown {
        let bytes = 4 * shown.words.len();
        writeln!(text, "{}: {bytes} bytes at {:#x}", shown.buffer, shown.va)?;
        for (index, words) in shown.words.chunks(LINE_WORDS).enumerate() {
            write!(text, "{:08x}:", shown.offset + (4 * LINE_WORDS * index) as u64)?;
            words.iter().try_for_each(|word| write!(text, " {word:08x}"))?;
            writeln!(text)?;
        }
    }
    let sizes = |sizes: [u32; 3]| sizes.map(|size| size.to_string()).join("x");
    writeln!(
        text,
        "grid {} of blocks {}: {} registers, {} bytes of shared memory",
        sizes(outcome.grid),
        sizes(outcome.block),
        outcome.registers,
        outcome.shared_bytes
    )?;
    writeln!(text, "GPU time {:.3} us", outcome.gpu_ns as f64 / 1000.0)?;
    writeln!(
        text,
        "instructions {} of warps, {} of lanes",
        outcome.warp_instructions, outcome.lane_instructions
    )?;
    writeln!(
        text,
        "bytes moved {} of VRAM, {} from host RAM, {} to host RAM",
        outcome.vram_bytes, outcome.ram_read_bytes, outcome.ram_written_bytes
    )
}

/// The same results as one JSON document, the fault included.
pub(crate) fn to_json(outcome: &Outcome) -> Value {
    let outputs: Vec<_> = outcome
        .shown
        .iter()
        .map(|shown| {
            let words: Vec<_> = shown.words.iter().map(|word| format!("{word:08x}")).collect();
            json!({
                "buffer": shown.buffer,
                "address": format!("{:#x}", shown.va),
                "offset": shown.offset,
                "words": words,
            })
        })
        .collect();
    let mut document = json!({
        "ok": outcome.fault.is_none(),
        "grid": outcome.grid,
        "block": outcome.block,
        "registers": outcome.registers,
        "shared_bytes": outcome.shared_bytes,
        "gpu_ns": outcome.gpu_ns,
        "warp_instructions": outcome.warp_instructions,
        "lane_instructions": outcome.lane_instructions,
        "bytes": {
            "vram": outcome.vram_bytes,
            "ram_read": outcome.ram_read_bytes,
            "ram_written": outcome.ram_written_bytes,
        },
        "outputs": outputs,
        "fault": outcome.fault.as_ref().map(fault),
    });
    if let Some(trace) = &outcome.trace {
        document["trace"] = json!(trace.lines);
        document["trace_left_out"] = json!(trace.left_out);
    }
    document
}

fn fault(fault: &Fault) -> Value {
    json!({
        "name": fault.name,
        "address": fault.access.map(|(va, _)| format!("{va:#x}")),
        "write": fault.access.map(|(_, is_write)| is_write),
        "block": fault.place.map(|place| place.block),
        "warp": fault.place.map(|place| place.warp),
        "pc": fault.place.map(|place| place.pc),
        "active": fault.place.map(|place| format!("{:08x}", place.active)),
        "instruction": fault.instruction.as_ref().map(|(text, _)| text),
        "line": fault.instruction.as_ref().map(|(_, line)| line),
    })
}

/// The fault in one line, if there was one.
pub(crate) fn complaint(outcome: &Outcome) -> Option<String> {
    let fault = outcome.fault.as_ref()?;
    let mut text = format!("the grid ended by {}", fault.name);
    // A String takes everything.
    let _ = write_complaint(&mut text, outcome, fault);
    Some(text)
}

fn write_complaint(text: &mut String, outcome: &Outcome, fault: &Fault) -> std::fmt::Result {
    if let Some((va, is_write)) = fault.access {
        let direction = if is_write { "store to" } else { "load from" };
        write!(text, " of a {direction} {va:#x}")?;
    }
    let Some(place) = fault.place else {
        return Ok(());
    };
    let [x, y, z] = place.block;
    write!(
        text,
        " in block {x},{y},{z} warp {} at pc {:#06x}",
        place.warp, place.pc
    )?;
    match &fault.instruction {
        Some((instruction, line)) => {
            write!(text, ": {instruction} ({}:{line})", outcome.code.display())
        }
        None => write!(text, ", where no code is"),
    }
}
