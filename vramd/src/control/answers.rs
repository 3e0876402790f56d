//! From what a broker knows to what the API says.

use std::sync::Arc;

use broker::{Happening, HappeningKind, Picture, VmPicture, VmStats};
use control::{
    Account, Event, EventKind, Gpu, Hold, HoldChanged, Pauses, PlaceSource, QuotaChanged, QuotaSource,
    SpilledFor, Usage, Vm, Waits,
};
use vgpu::VmStanding;

use super::Place;
use crate::keeper::state::quota_words;

/// A card, from what its broker told.
pub(super) fn gpu(name: &str, file_host_ram: Option<u64>, picture: &Picture) -> Gpu {
    let standing = picture.standing.clone().unwrap_or_default();
    let sum = |of: fn(&VmStanding) -> u64| standing.vms.iter().map(of).sum();
    Gpu {
        name: name.to_owned(),
        vram_bytes: picture.card.vram_bytes,
        usable_bytes: standing.usable,
        free_bytes: standing.free,
        promised_bytes: sum(|vm| vm.promised),
        host_ram_bytes: standing.host_ram,
        file_host_ram_bytes: file_host_ram.unwrap_or(standing.host_ram),
        spilled_bytes: sum(|vm| vm.spilled),
        host_errors: picture.card.host_errors,
        vms: picture.vms.iter().map(|vm| vm.config.name.clone()).collect(),
    }
}

/// A VM of the card `gpu`, likewise.
pub(super) fn vm(gpu: &str, place: &Place, vm: &VmPicture, picture: &Picture) -> Vm {
    let quota_source = match vm.config.quota != place.first_quota {
        true => QuotaSource::Control,
        false => QuotaSource::File,
    };
    let source = match place.file_quota {
        Some(_) => PlaceSource::File,
        None => PlaceSource::Control,
    };
    let attached = vm.attached.as_ref();
    Vm {
        name: vm.config.name.clone(),
        gpu: gpu.to_owned(),
        socket: place.socket.display().to_string(),
        guest_vram_bytes: vm.config.guest_vram,
        chunk_bytes: vm.config.chunk_bytes,
        quota: quota_words(vm.config.quota),
        quota_source,
        file_quota: place.file_quota.map(quota_words),
        source,
        hold: hold(vm.hold),
        usage: attached.map(|(standing, stats)| usage(standing, stats)),
        account: attached.map(|(standing, stats)| account(standing, stats, picture)),
    }
}

/// What is held back.
pub(crate) fn hold(hold: vgpu::Hold) -> Hold {
    Hold {
        vram_bytes: hold.vram,
        is_suspended: hold.is_suspended,
    }
}

/// What a hold became.
pub(crate) fn hold_changed(changed: broker::HoldChanged) -> HoldChanged {
    HoldChanged {
        before: hold(changed.before),
        after: hold(changed.after),
        is_attached: changed.is_attached,
    }
}

/// What happened on the card `gpu`.
pub(super) fn event(gpu: &str, happening: &Happening) -> Event {
    let kind = match happening.kind {
        HappeningKind::Attached => EventKind::Attached,
        HappeningKind::Detached => EventKind::Detached,
        HappeningKind::Listed => EventKind::Listed,
        HappeningKind::Unlisted => EventKind::Unlisted,
        HappeningKind::QuotaChanged => EventKind::QuotaChanged,
        HappeningKind::FileConflict => EventKind::FileConflict,
        HappeningKind::HoldChanged => EventKind::HoldChanged,
        HappeningKind::Spilled => EventKind::Spilled,
        HappeningKind::Refilled => EventKind::Refilled,
        HappeningKind::RolledBack => EventKind::RolledBack,
        HappeningKind::Waited => EventKind::Waited,
        HappeningKind::GuestError => EventKind::GuestError,
        HappeningKind::ChannelKilled => EventKind::ChannelKilled,
        HappeningKind::HostError => EventKind::HostError,
    };
    let name = |vm: &Option<Arc<str>>| vm.as_deref().map(str::to_owned);
    Event {
        at_unix_ns: happening.at_unix_ns,
        gpu: gpu.to_owned(),
        vm: name(&happening.vm),
        kind,
        text: happening.text.clone(),
        bytes: happening.bytes,
        for_vm: name(&happening.for_vm),
        took_ns: happening.took_ns,
    }
}

/// What a change did.
pub(crate) fn changed(changed: broker::QuotaChanged) -> QuotaChanged {
    QuotaChanged {
        before: quota_words(changed.before),
        after: quota_words(changed.after),
        is_attached: changed.is_attached,
    }
}

fn usage(standing: &VmStanding, stats: &VmStats) -> Usage {
    Usage {
        resident_bytes: standing.resident,
        spilled_bytes: standing.spilled,
        active_bytes: standing.active,
        idle_bytes: standing.idle,
        wanted_bytes: standing.wanted,
        lends: standing.lends,
        resident_peak_bytes: stats.resident_peak_bytes,
    }
}

fn account(standing: &VmStanding, stats: &VmStats, picture: &Picture) -> Account {
    let (account, now) = (&standing.account, picture.now);
    let others = account.spilled_for.iter().map(|(vm, bytes)| SpilledFor {
        vm: picture.names.get(vm).cloned(),
        bytes: *bytes,
    });
    let gone = SpilledFor {
        vm: None,
        bytes: account.spilled_for_gone,
    };
    Account {
        attached_ns: now.since(account.attached_at),
        spilled_out_bytes: account.spilled_bytes,
        refilled_bytes: account.refilled_bytes,
        link_bytes: account.link_bytes,
        rolled_back: account.rolled_back,
        pauses: Pauses {
            count: account.suspensions,
            total_ns: account.suspended_ns(now),
            share_ppm: account.suspended_ppm(now),
            p50_ns: stats.pauses.p50_ns,
            p99_ns: stats.pauses.p99_ns,
            max_ns: stats.pauses.max_ns,
        },
        drained_ns: account.drained_ns,
        graph_ns: account.graph_ns,
        copy_ns: account.copy_ns,
        demand_waits: Waits {
            count: account.demands,
            total_ns: account.demand_wait_ns,
        },
        demanded_in_host_ram: account.demanded_in_host_ram,
        sync_waits: Waits {
            count: account.sync_waits,
            total_ns: account.sync_wait_ns,
        },
        work_waits: Waits {
            count: account.work_waits,
            total_ns: account.work_wait_ns,
        },
        spilled_for: others.chain((gone.bytes > 0).then_some(gone)).collect(),
        guest_errors: stats.guest_errors,
        channels_killed: stats.channels_killed,
    }
}
