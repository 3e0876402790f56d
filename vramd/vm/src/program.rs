//! What our programs tell by exit status and stderr.

use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;

/// Exit status of a program that could not do what was asked.
pub const FAILED: u8 = 1;
/// Exit status for arguments that cannot be used.
pub const WRONG_USAGE: u8 = 2;
/// Exit status of a VM whose guest asked for a reset that was not to follow.
pub(crate) const RESET: u8 = 3;

/// Prints one line on stderr.
pub fn complain(text: &str) {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // If stderr is closed there is nowhere to report to.
    let _ = writeln!(std::io::stderr(), "vramd: {line}");
}

/// Prints what clap says of the arguments: the whole of a help text, one line of an error. Returns the exit status.
pub fn wrong_usage(error: &clap::Error) -> ExitCode {
    let is_wanted = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if is_wanted {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(FAILED),
        };
    }
    let text = error.to_string();
    // clap's message has several paragraphs: the first says what is wrong.
    let first = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "a verb is missing; `--help` lists them"
        }
        _ => text.split("\n\n").next().unwrap_or_default(),
    };
    complain(first.strip_prefix("error: ").unwrap_or(first));
    ExitCode::from(WRONG_USAGE)
}

/// Returns the exit status for an outcome, and prints the error if it is one.
pub fn end(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(FAILED)
        }
    }
}
