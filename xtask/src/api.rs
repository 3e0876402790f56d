//! `cargo xtask api`: a running `serve` as programs of others see it.
//!
//! schemathesis reads the committed document of the API and asks for all that it allows, and for much that it does not, while a VM
//! works; each answer has to be one that the document names. promtool reads the metrics and the example alerts, and tries each alert.
//! Both are fetched into the cache where the machine lacks them. What a broker costs at rest is measured, too.

mod promtool;
mod relay;
mod rest;
mod served;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::host_env;
use crate::workspace::Workspace;
use relay::Relay;
use served::Served;

/// What schemathesis is, by version and hash, from the root of the workspace.
const REQUIREMENTS: &str = "integration/api/requirements.txt";
/// The document of the API, from there.
const DOCUMENT: &str = "vgpu/control/openapi.json";

/// Options of `cargo xtask api`.
#[derive(Args)]
pub(crate) struct ApiArguments {
    /// Seed of the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most requests of a kind to one operation.
    #[arg(long, default_value_t = 40)]
    examples: u32,
    /// Measure only what a broker costs at rest.
    #[arg(long)]
    rest: bool,
    /// With --rest: this program instead of the one that is built.
    #[arg(long, value_name = "FILE", requires = "rest")]
    vramd: Option<PathBuf>,
}

impl Default for ApiArguments {
    /// A minute at most.
    fn default() -> Self {
        Self {
            seed: 1,
            examples: 40,
            rest: false,
            vramd: None,
        }
    }
}

/// Runs all of it, or says what the machine lacks.
pub(crate) fn run(workspace: &Workspace, arguments: &ApiArguments) -> Result<()> {
    let start = Instant::now();
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let vramd = match &arguments.vramd {
        Some(path) => path.clone(),
        None => workspace.build_program("vramd", "vramd")?,
    };
    rest::measure(&vramd, folder.path())?;
    if arguments.rest {
        return Ok(());
    }
    let tools = host_env::provide_promtool(workspace)
        .and_then(|promtool| Ok((promtool, host_env::provide_python(workspace, REQUIREMENTS)?)));
    let (promtool, python) = match tools {
        Ok(tools) => tools,
        Err(error) => {
            return Workspace::lacks(&format!("the control API was NOT driven by others: {error:#}"));
        }
    };
    promtool::check_alerts(&promtool, workspace.root())?;
    let mut served = Served::start(&vramd, folder.path())?;
    promtool::check_metrics(&promtool, &served)?;
    let relay = Relay::start(&served.socket())?;
    let ask_for_all = |which: &[&str]| -> Result<()> {
        let mut schemathesis = Command::new(&python);
        schemathesis
            .args(["-m", "schemathesis.cli", "run"])
            .arg(workspace.root().join(DOCUMENT))
            .args(["--url", &format!("http://{}", relay.address())])
            .args(["--checks", "all", "--continue-on-failure", "--warnings", "off"])
            .args(["--seed", &arguments.seed.to_string()])
            .args(["--max-examples", &arguments.examples.to_string()])
            .args(which)
            // It writes files of its own.
            .current_dir(folder.path())
            .stdin(Stdio::null());
        let status = schemathesis.status().context("cannot start schemathesis")?;
        ensure!(
            status.success(),
            "schemathesis ended with {status}: an answer above is none that {DOCUMENT} names"
        );
        Ok(())
    };
    // It learns the VMs' names by asking for them, and whoever may control the broker may take a VM its place: that comes last.
    ask_for_all(&["--exclude-method", "DELETE"])?;
    // Whatever else was asked, the VMs' work is theirs.
    served.check_work()?;
    ask_for_all(&["--include-method", "DELETE"])?;
    promtool::check_metrics(&promtool, &served)?;
    served.stop()?;
    println!("api passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
