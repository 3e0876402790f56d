//! The core's notices as log lines. Lines that a guest can cause are limited for each guest.

use std::collections::BTreeMap;
use std::time::Instant;

use vgpu::{Notice, RollBack, VmId};

use crate::ratelimit::RateLimit;

/// Names that limits are kept for. The operator gives the names, so there are few.
const NAMES_MAX: usize = 1024;

/// Limits by source. Those of a VM go by its name, so that leaving and coming back does not renew them.
#[derive(Debug)]
pub(crate) struct NoticeLog {
    vms: BTreeMap<String, RateLimit>,
    host: RateLimit,
}

impl NoticeLog {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            vms: BTreeMap::new(),
            host: RateLimit::new(now),
        }
    }

    /// An operation that the card, or the connection to it, did not perform.
    pub(crate) fn host_error(&mut self, what: &str) {
        if let Some(suppressed) = self.host.pass(Instant::now()) {
            log::error!(suppressed; "host error: {what}");
        }
    }

    /// Writes the line, if it is due. `name` is asked for VMs that the notice is about.
    pub(crate) fn log<'a>(&mut self, notice: &Notice, name: impl Fn(VmId) -> Option<&'a str>) {
        match notice {
            Notice::Started {
                vram_bytes,
                usable_bytes,
            } => log::info!(vram_bytes, usable_bytes; "card is up"),
            Notice::CopiesByWindow => log::warn!(
                "the card's copy engines have no microcode: memory moves through a BAR window, slowly; guests' copies do not run"
            ),
            Notice::StartFailed { reason } => log::error!("the card cannot be used: {reason}"),
            Notice::HostError { fault } => self.host_error(&fault.to_string()),
            Notice::GuestError { vm, what } => self.warn(*vm, &name, format_args!("guest error: {what}")),
            // The guest is told of it, and it is harmless to others.
            Notice::ChannelError { vm, channel, cause } => {
                let name = name(*vm).unwrap_or("gone");
                self.vm(
                    log::Level::Info,
                    name,
                    format_args!("channel {channel} made an error: {cause}"),
                );
            }
            Notice::ChannelKilled { vm, channel, cause } => {
                self.warn(*vm, &name, format_args!("channel {channel} killed: {cause}"));
            }
            // What a VM that goes has under way ends, or what its new quota does not allow, and nobody stood still for it.
            Notice::RolledBack {
                reason: RollBack::Leaving | RollBack::QuotaChanged,
                ..
            } => log::debug!("{notice:?}"),
            Notice::RolledBack {
                vm, cause, reason, ..
            } => {
                self.warn(*vm, &name, format_args!("move ({cause}) rolled back: {reason}"));
            }
            Notice::MoveStarted { .. } | Notice::Moved { .. } => log::debug!("{notice:?}"),
            Notice::DemandWaits { .. } | Notice::DemandEnded { .. } | Notice::SyncWaited { .. } => {
                log::debug!("{notice:?}");
            }
            Notice::MoveStage { .. }
            | Notice::TablesFetched { .. }
            | Notice::WorkWaited { .. }
            | Notice::Suspended { .. }
            | Notice::Resumed { .. }
            | Notice::Backed { .. }
            | Notice::EngineTime { .. }
            | Notice::Usage { .. } => log::trace!("{notice:?}"),
        }
    }

    fn warn<'a>(&mut self, vm: VmId, name: &impl Fn(VmId) -> Option<&'a str>, text: std::fmt::Arguments<'_>) {
        self.vm(log::Level::Warn, name(vm).unwrap_or("gone"), text);
    }

    /// Writes a line about a VM, if it is due.
    pub(crate) fn vm(&mut self, level: log::Level, name: &str, text: std::fmt::Arguments<'_>) {
        let now = Instant::now();
        if self.vms.len() > NAMES_MAX {
            self.vms.clear();
        }
        let limit = self
            .vms
            .entry(name.to_owned())
            .or_insert_with(|| RateLimit::new(now));
        if let Some(suppressed) = limit.pass(now) {
            log::log!(level, vm = name, suppressed; "{text}");
        }
    }
}
