//! A program that leaks memory (section 6.2), and one that takes all of it (6.5).

use super::pairs::{self, System};
use super::{PROGRAMS, Scale};
use crate::calls::{Call, Part, Program, Reach};
use crate::host::LabError;
use crate::report::{Report, Table};
use crate::staged::{Costs, Replayed, Run, replay};

/// Iterations of the leak, and what each of them loses, in hundredths of a MiB.
const LEAKS: usize = 100;
const LEAK: u64 = 266;
/// Launches of a run of the attacker.
const LAUNCHES: usize = 2000;
/// A program that is attacked runs so often that this would take it so long alone: an attacker's launch takes some 15 ms, and none is cut.
const ALONE_NS: f64 = 0.5e9;
const TIMES: f64 = 3.0;

/// One array after the other without gaps, each updated once. `iterations` of them.
fn leak(scale: Scale, iterations: usize, launch_ns: u64) -> Program {
    let bytes = LEAK * crate::MIB / 100 / scale.divisor / 4 * 4;
    let calls = (0..iterations as u64).map(|at| {
        let bytes = at * bytes..(at + 1) * bytes;
        let blocks = (bytes.start / scale.block()) as u32..bytes.end.div_ceil(scale.block()) as u32;
        Call::Launch {
            ns: launch_ns,
            reaches: vec![Reach {
                bytes: Some(bytes),
                buffer: 0,
                stores: true,
                changed: blocks.collect(),
            }],
        }
    });
    let mut calls: Vec<Call> = calls.collect();
    let all = bytes * iterations as u64;
    if iterations == LEAKS {
        calls.push(Call::CopyOut(Part {
            buffer: 0,
            bytes: 0..all,
        }));
    }
    Program {
        name: "leak",
        buffers: vec![all],
        calls,
    }
}

fn one(program: &Program) -> Run<'_> {
    Run {
        program,
        times: 1,
        protected: 0,
        weight: 0,
    }
}

fn leaks(report: &mut Report, scale: Scale, costs: Costs, updater: &Program) {
    let launch_ns = updater.calls.iter().find_map(|call| match call {
        Call::Launch { ns, .. } => Some(*ns),
        _ => None,
    });
    let launch_ns =
        launch_ns.unwrap_or(0) * LEAK * crate::MIB / 100 / scale.divisor / updater.buffers[0].max(1);
    let setup = System::Sets.setup(scale);
    let setup = gdm::Setup {
        working_set: gdm::WorkingSet::Blocks,
        ..setup
    };
    let evictions = |iterations: usize| {
        let program = leak(scale, iterations, launch_ns);
        let replayed = replay(setup, costs, &[one(&program)]);
        (replayed.figures.evictions, replayed.ends[0].1, replayed.lost)
    };
    let first = (1..=LEAKS)
        .find(|iterations| evictions(*iterations).0 > 0)
        .unwrap_or(0);
    let (_, ran, lost) = evictions(LEAKS);
    report.claim(
        first == 33,
        format!(
            "a leak of 2.66 MiB an iteration, packed, evicts for the first time in iteration {first} (33)"
        ),
    );
    report.claim(
        ran == 1 && lost == 0,
        format!("all {LEAKS} iterations finish, with all bytes ({lost} blocks lost)"),
    );
}

/// How a victim and an attacker share the card.
#[derive(Clone, Copy)]
struct Shares {
    name: &'static str,
    /// Weights of memory that is protected from the other; 0: none is.
    memory: [u32; 2],
    /// Weights of the GPU's time; 0: it is not shared.
    time: [u32; 2],
}

const SHARES: [Shares; 4] = [
    Shares {
        name: "no quotas",
        memory: [0, 0],
        time: [0, 0],
    },
    Shares {
        name: "half the memory each",
        memory: [1, 1],
        time: [0, 0],
    },
    Shares {
        name: "half of both",
        memory: [1, 1],
        time: [1, 1],
    },
    Shares {
        name: "both by 10 to 1",
        memory: [10, 1],
        time: [10, 1],
    },
];

impl Shares {
    fn run<'a>(self, scale: Scale, at: usize, program: &'a Program, times: u32) -> Run<'a> {
        let all: u32 = self.memory.iter().sum();
        Run {
            program,
            times,
            protected: (scale.capacity() * self.memory[at]).checked_div(all).unwrap_or(0),
            weight: self.time[at],
        }
    }
}

/// A victim's times beside an attacker, in parts of its time alone.
struct Attack {
    name: &'static str,
    slowdowns: [f64; SHARES.len()],
    ran: bool,
    lost: u64,
}

fn attack(scale: Scale, costs: Costs, victim: &Program, attacker: &Program) -> Attack {
    let alone = pairs::alone(scale, costs, victim).ends[0].0;
    let times = (ALONE_NS / scale.divisor as f64 / alone).ceil().max(TIMES) as u32;
    let replayed = SHARES.map(|shares| {
        let runs = [
            shares.run(scale, 0, victim, times),
            shares.run(scale, 1, attacker, 0),
        ];
        replay(System::Loads.setup(scale), costs, &runs)
    });
    let slowdown = |of: &Replayed| of.ends[0].0 / f64::from(times) / alone;
    Attack {
        name: victim.name,
        ran: replayed.iter().all(|of| of.ends[0].1 == times),
        lost: replayed.iter().map(|of| of.lost).sum(),
        slowdowns: replayed.map(|of| slowdown(&of)),
    }
}

fn attacks(report: &mut Report, scale: Scale, costs: Costs, programs: &[Program], attacker: &Program) {
    let attacks = programs
        .iter()
        .map(|victim| attack(scale, costs, victim, attacker));
    let attacks: Vec<Attack> = attacks.collect();
    let percent = |slowdown: f64| slowdown * 100.0 - 100.0;
    let rows = attacks.iter().map(|attack| {
        let cells = attack.slowdowns.map(|slowdown| percent(slowdown).into());
        [attack.name.into()].into_iter().chain(cells).collect()
    });
    let names = SHARES.map(|shares| shares.name.to_owned());
    report.tables.push(Table {
        title: "longer than alone, %, beside a program that updates all of the card's memory again and again"
            .to_owned(),
        columns: ["victim".to_owned()].into_iter().chain(names).collect(),
        rows: rows.collect(),
    });
    let mean = |at: usize| {
        let slowdowns = attacks.iter().map(|attack| percent(attack.slowdowns[at]));
        slowdowns.sum::<f64>() / attacks.len().max(1) as f64
    };
    let lost: u64 = attacks.iter().map(|attack| attack.lost).sum();
    report.claim(
        attacks.len() == PROGRAMS.len() && attacks.iter().all(|attack| attack.ran) && lost == 0,
        format!("every victim finishes, with all bytes ({lost} blocks lost)"),
    );
    report.claim(
        mean(3) <= 20.0,
        format!(
            "with quotas of memory and time an attack costs {:.0} % on the average (at most 20); with halves of both {:.0} %, of memory {:.0} %, without {:.0} % (the paper 69)",
            mean(3), mean(2), mean(1), mean(0)
        ),
    );
}

pub(super) fn add(
    report: &mut Report,
    scale: Scale,
    costs: Costs,
    programs: &[Program],
) -> Result<(), LabError> {
    let all = u64::from(scale.capacity()) * scale.block();
    let mut attacker = Program::updater(all, scale.block())?;
    leaks(report, scale, costs, &attacker);
    let launch = attacker.calls.last().cloned();
    attacker.calls.extend(launch.into_iter().cycle().take(LAUNCHES));
    attacks(report, scale, costs, programs, &attacker);
    Ok(())
}
