//! A broker with a software card, in this process.

use std::path::{Path, PathBuf};

use broker::{Broker, RecordError, Recorder, Setup, StartError, VmSocket};
use vgpu::{GpuConfig, HostGpu, Manager};

use crate::card::{CardConfig, CardError, ModelGpu};

/// What to start.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// The card.
    pub card: CardConfig,
    /// Host RAM for spilled chunks, bytes.
    pub host_ram: u64,
    /// Seed of the memory manager's random choices.
    pub seed: u64,
    /// File to record every event to.
    pub record: Option<PathBuf>,
    /// Sockets to listen on.
    pub vms: Vec<VmSocket>,
}

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// No recording.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The broker itself.
    #[error("cannot start the broker")]
    Start(#[from] StartError),
}

/// Makes the card, brings it up and listens.
pub fn start_broker(setup: HostSetup) -> Result<Broker, HostError> {
    let card = ModelGpu::new(setup.card)?;
    let capabilities = card.capabilities();
    let config = GpuConfig {
        bar1_bytes: capabilities.bar1_bytes,
        bar3_bytes: capabilities.bar3_bytes,
        frames_arrive_zeroed: capabilities.frames_arrive_zeroed,
        host_ram: setup.host_ram,
        seed: setup.seed,
        ..GpuConfig::default()
    };
    let record = |path: &Path| Recorder::create(path, &config);
    let recorder = setup.record.as_deref().map(record).transpose()?;
    let interrupt = card.interrupt()?;
    Ok(Broker::start(Setup {
        core: Box::new(Manager::new(config)),
        gpu: Box::new(card),
        interrupt: Some(interrupt),
        recorder,
        board: setup.card.board,
        vms: setup.vms,
    })?)
}
