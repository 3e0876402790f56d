//! Bytes that need not be moved (section 4.4), and what it takes to know that.

use gdm::{Setup, WorkingSet};

use super::Scale;
use super::pairs::System;
use crate::calls::{Call, Part, Program, Reach};
use crate::report::{Report, Table};
use crate::staged::{Costs, Figures, Run, replay};

/// Rounds of the loop that overwrites its buffer.
const ROUNDS: u64 = 5;
/// Parts that other launches read between two rounds.
const PARTS: u64 = 9;

fn launch(buffer: usize, bytes: std::ops::Range<u64>, stores: bool, scale: Scale) -> Call {
    let blocks = (bytes.start / scale.block()) as u32..bytes.end.div_ceil(scale.block()) as u32;
    Call::Launch {
        ns: 100_000,
        reaches: vec![Reach {
            buffer,
            stores,
            changed: if stores { blocks.collect() } else { Vec::new() },
            bytes: Some(bytes),
        }],
    }
}

fn figures(setup: Setup, costs: Costs, program: &Program) -> Figures {
    let run = Run {
        program,
        times: 1,
        protected: 0,
        weight: 0,
    };
    replay(setup, costs, &[run]).figures
}

/// A buffer of two fifths of the card is filled and used, and nine tenths are read part by part meanwhile.
fn overwriting(scale: Scale, rounds: u64) -> Program {
    let tenth = u64::from(scale.capacity() / 10) * scale.block();
    let whole = |buffer, bytes| {
        Call::CopyIn(Part {
            buffer,
            bytes: 0..bytes,
        })
    };
    let mut calls = vec![whole(1, PARTS * tenth)];
    for _ in 0..rounds {
        calls.push(whole(0, 4 * tenth));
        calls.push(launch(0, 0..4 * tenth, true, scale));
        calls.extend((0..PARTS).map(|part| launch(1, part * tenth..(part + 1) * tenth, false, scale)));
    }
    Program {
        name: "overwriting",
        buffers: vec![4 * tenth, PARTS * tenth],
        calls,
    }
}

/// A buffer as large as the card is computed and, if so, copied out; then another one is used.
fn copying_out(scale: Scale, copies: bool) -> Program {
    let all = u64::from(scale.capacity()) * scale.block();
    let out = Call::CopyOut(Part {
        buffer: 0,
        bytes: 0..all,
    });
    let mut calls = vec![launch(0, 0..all, true, scale)];
    calls.extend(copies.then_some(out));
    calls.push(launch(1, 0..all, true, scale));
    Program {
        name: "copying out",
        buffers: vec![all; 2],
        calls,
    }
}

pub(super) fn add(
    report: &mut Report,
    scale: Scale,
    costs: Costs,
    names: &[&'static str],
    signed: &[super::Signed],
) {
    claim_copies(report, scale, costs);
    claim_signatures(report, scale, names, signed);
}

fn claim_copies(report: &mut Report, scale: Scale, costs: Costs) {
    let setup = |system: System| Setup {
        working_set: WorkingSet::Blocks,
        ..system.setup(scale)
    };
    let written = |system: System| {
        let rounds = (1..=ROUNDS)
            .map(|rounds| figures(setup(system), costs, &overwriting(scale, rounds)).written_back);
        rounds.collect::<Vec<u64>>()
    };
    for system in [System::Sets, System::Loads] {
        let written = written(system);
        report.claim(
            written[0] > 0 && written.iter().all(|bytes| *bytes == written[0]),
            format!(
                "{}: a buffer that is overwritten in a loop is not written back from round 2 on ({} KiB in round 1)",
                system.name(),
                written[0] / crate::KIB
            ),
        );
    }
    let of_paper: Vec<String> = written(System::Gdm)
        .iter()
        .map(|bytes| format!("{}", bytes / crate::KIB))
        .collect();
    report.notes.push(format!(
        "GDM as in the paper writes back {} KiB in so many rounds of that loop: each block that is only read once, until it has a signature",
        of_paper.join(", ")
    ));
    let staged = figures(setup(System::Loads), costs, &overwriting(scale, ROUNDS)).staged;
    report.notes.push(format!(
        "in {ROUNDS} rounds of it {} KiB were staged because their source changed while the host had no other copy",
        staged / crate::KIB
    ));
    let setup = setup(System::Gdm);
    let [without, with] = [false, true].map(|copies| figures(setup, costs, &copying_out(scale, copies)));
    report.claim(
        with.written_back == 0 && without.written_back > 0 && with.bytes_out == without.bytes_out,
        format!(
            "what was copied out is evicted without another byte ({} MiB out, {} without the copy)",
            with.bytes_out / crate::MIB,
            without.bytes_out / crate::MIB
        ),
    );
}

fn claim_signatures(report: &mut Report, scale: Scale, names: &[&'static str], signed: &[super::Signed]) {
    let copy_ns = scale.block() as f64 / 6.0;
    let rows = names.iter().zip(signed).map(|(name, signed)| {
        vec![
            (*name).into(),
            (signed.costs.sign_ns / 1e3).into(),
            (copy_ns / 1e3).into(),
            (copy_ns / signed.costs.sign_ns).into(),
            (signed.words as u64 * 4 * 256).into(),
        ]
    });
    report.tables.push(Table {
        title: "signing a block, µs of the card's time".to_owned(),
        columns: [
            "hash",
            "signed",
            "copied",
            "times as fast",
            "bytes of the signature",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: rows.collect(),
    });
    for (name, signed) in names.iter().zip(signed) {
        let [own, others] = signed.parts;
        report.claim(
            (own, others) == (1, 0),
            format!("{name}: one flipped bit changes {own} of a block's 256 parts, and {others} of its neighbours'"),
        );
    }
}
