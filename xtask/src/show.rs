//! `cargo xtask show`: what a flight file tells, registers by name, filtered; or the state in it as a tree.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use broker::FlightFile;
use vgpu::flight_recorder::Line;
use vgpu::{Tick, VmId};

/// Which file, and which of its lines.
#[derive(clap::Args)]
pub(crate) struct ShowArguments {
    /// File `vramd-flight-….jsonl` that a broker wrote.
    file: PathBuf,
    /// Only what is about this VM, by its number.
    #[arg(long, value_name = "N")]
    vm: Option<u16>,
    /// Only what happened from this time on, in milliseconds of the broker's clock.
    #[arg(long, value_name = "MS")]
    from: Option<f64>,
    /// Only what happened before this time.
    #[arg(long, value_name = "MS")]
    to: Option<f64>,
    /// Only the last so many of the lines that are left.
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Print the state of the core when the file was written, or the part of it at PATH, instead of what happened.
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "")]
    state: Option<String>,
}

impl ShowArguments {
    fn wants(&self, line: &Line) -> bool {
        let milliseconds = line.now.0 as f64 / 1e6;
        self.vm.is_none_or(|vm| line.is_about(VmId(vm)))
            && self.from.is_none_or(|from| milliseconds >= from)
            && self.to.is_none_or(|to| milliseconds < to)
    }

    fn chosen<'a>(&self, lines: &'a [Line]) -> Vec<&'a Line> {
        let mut chosen: Vec<&Line> = lines.iter().filter(|line| self.wants(line)).collect();
        let surplus = self.last.map_or(0, |last| chosen.len().saturating_sub(last));
        chosen.drain(..surplus);
        chosen
    }
}

pub(crate) fn run(arguments: &ShowArguments) -> anyhow::Result<()> {
    let name = arguments.file.display();
    let FlightFile {
        header,
        state,
        flight,
    } = FlightFile::read(&arguments.file).with_context(|| format!("cannot show {name}"))?;
    let mut out = std::io::stdout().lock();
    let Tick(now) = header.now;
    writeln!(
        out,
        "gpu {} at {}.{:06} ms (vramd {}): {}",
        header.gpu,
        now / 1_000_000,
        now % 1_000_000,
        header.version,
        header.reason
    )?;
    if let Some(path) = &arguments.state {
        let state = state.context("the file has no state")?;
        let part = state
            .at(path)
            .with_context(|| format!("there is nothing at {path}"))?;
        return write!(out, "{part}").map_err(Into::into);
    }
    let chosen = arguments.chosen(&flight.lines);
    writeln!(out, "{} of {} lines", chosen.len(), flight.lines.len())?;
    chosen.into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use vgpu::Event;
    use vgpu::flight_recorder::FlightRecorder;

    use super::*;

    #[derive(Parser)]
    struct Show {
        #[command(flatten)]
        arguments: ShowArguments,
    }

    fn shown(options: &[&str]) -> Vec<String> {
        let mut recorder = FlightRecorder::default();
        recorder.event(Tick(1_000_000), &Event::Detach { vm: VmId(1) });
        recorder.event(Tick(2_000_000), &Event::Wake);
        recorder.event(Tick(3_000_000), &Event::Detach { vm: VmId(2) });
        let words = ["show", "file"].iter().chain(options);
        let arguments = Show::parse_from(words).arguments;
        let flight = recorder.flight();
        let chosen = arguments.chosen(&flight.lines);
        chosen
            .iter()
            .map(|line| line.to_string()[25..].to_owned())
            .collect()
    }

    #[test]
    fn lines_are_chosen_by_vm_time_and_number() {
        assert_eq!(shown(&[]).len(), 3);
        assert_eq!(shown(&["--vm", "2"]), ["vm2 is to leave"]);
        assert_eq!(
            shown(&["--from", "2", "--to", "3"]),
            ["the time asked for has come"]
        );
        assert_eq!(
            shown(&["--last", "2"]),
            ["the time asked for has come", "vm2 is to leave"]
        );
        assert_eq!(
            shown(&["--to", "3", "--last", "1"]),
            ["the time asked for has come"]
        );
    }
}
