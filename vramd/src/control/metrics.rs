//! Metrics: the figures of cards and VMs as monitoring reads them, in the text of OpenMetrics 1.0.
//!
//! They are made anew for each request, from what the API tells of cards and VMs and from the durations that a broker counts. Nothing is
//! kept between two requests, so a VM that is gone is gone here, too. A VM's counters begin with its VMM's connection.

use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, header};
use axum::response::IntoResponse;
use broker::{Accesses, Picture, SPREAD_BOUNDS_NS, SPREAD_BOUNDS_RATE, Spread, VmPicture, VmSpreads};
use control::{Account, Bound, Gpu, QuotaSource, Refusal, Unbounded, Usage, Vm};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::routes::pictures;
use super::{Host, Place, answers, classic_text};

/// What the text is, as scrapers name it.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// First word of all names.
const PREFIX: &str = "vramd";
/// The bound that holds all.
const ALL: f64 = f64::INFINITY;

/// All figures of a moment. Cards answer one after the other, so theirs are not of the same moment.
#[derive(Debug)]
struct Scrape {
    /// Names of cards, and whether each works.
    up: Vec<(String, bool)>,
    gpus: Vec<GpuFigures>,
    vms: Vec<VmFigures>,
}

/// What is told of one card.
#[derive(Debug)]
struct GpuFigures {
    gpu: Gpu,
    taken_bytes: u64,
    events: u64,
}

/// One VM that may attach.
#[derive(Debug)]
struct VmFigures {
    vm: Vm,
    spilled_chunks: u64,
    refilled_chunks: u64,
    channel_errors: u64,
    tables_fetched: u64,
    window_pages: (u64, u64),
    accesses: Accesses,
    spreads: VmSpreads,
}

/// A family of metrics: one figure of each card, or of each VM.
struct Family<T> {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    /// `None` where there is no such figure.
    of: fn(&T) -> Option<Figure>,
}

/// A value, and how it behaves as time goes on.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Figure {
    /// It rises and falls.
    Gauge(u64),
    /// The same in nanoseconds, told in seconds.
    GaugeNs(u64),
    /// It rises until what it counts is new.
    Counter(u64),
    /// The same in nanoseconds, told in seconds.
    CounterNs(u64),
}

use Figure::{Counter, CounterNs, Gauge, GaugeNs};

const fn family<T>(
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    of: fn(&T) -> Option<Figure>,
) -> Family<T> {
    Family { name, help, unit, of }
}

const BYTES: Option<Unit> = Some(Unit::Bytes);
const SECONDS: Option<Unit> = Some(Unit::Seconds);

/// Figures of cards.
#[rustfmt::skip]
const OF_GPU: &[Family<GpuFigures>] = &[
    family("gpu_vram", "VRAM of the card", BYTES, |of| Some(Gauge(of.gpu.vram_bytes))),
    family("gpu_usable", "VRAM that guests may hold", BYTES, |of| Some(Gauge(of.gpu.usable_bytes))),
    family("gpu_free", "VRAM that guests may hold and none does", BYTES, |of| Some(Gauge(of.gpu.free_bytes))),
    family("gpu_taken", "VRAM taken by VMs, shadow tables and the broker", BYTES, |of| Some(Gauge(of.taken_bytes))),
    family("gpu_promised", "VRAM that connected VMs are promised by min", BYTES, |of| Some(Gauge(of.gpu.promised_bytes))),
    family("gpu_host_ram", "Host RAM for spilled chunks of all VMs", BYTES, |of| Some(Gauge(of.gpu.host_ram_bytes))),
    family("gpu_spilled", "Host RAM that spilled chunks of all VMs take", BYTES, |of| Some(Gauge(of.gpu.spilled_bytes))),
    family("gpu_vms", "VMs that may attach", None, |of| Some(Gauge(of.gpu.vms.len() as u64))),
    family("gpu_host_errors", "Failures of the card, or of the way to it", None,
        |of| Some(Counter(of.gpu.host_errors))),
    family("gpu_events", "Events that the memory manager applied", None, |of| Some(Counter(of.events))),
];

/// Figures of VMs.
#[rustfmt::skip]
const OF_VM: &[Family<VmFigures>] = &[
    family("vm_connected", "1 while the VM's VMM is connected", None, |of| Some(Gauge(of.vm.usage.is_some().into()))),
    family("vm_connected", "Time since the VM's VMM connected; counters of the VM began then", SECONDS,
        |of| account(of, |account| GaugeNs(account.attached_ns))),
    family("vm_guest_vram", "VRAM that the guest sees", BYTES, |of| Some(Gauge(of.vm.guest_vram_bytes))),
    family("vm_chunk", "Unit in which memory moves", BYTES, |of| Some(Gauge(of.vm.chunk_bytes))),
    family("vm_quota_min", "VRAM that is never taken from the VM", BYTES, |of| bound(of.vm.quota.min)),
    family("vm_quota_low", "VRAM that is taken only when nothing unprotected is left", BYTES, |of| bound(of.vm.quota.low)),
    family("vm_quota_high", "VRAM above which the VM is spilled in the background; absent without a bound", BYTES,
        |of| bound(of.vm.quota.high)),
    family("vm_quota_max", "Most VRAM that the VM ever holds; absent without a bound", BYTES, |of| bound(of.vm.quota.max)),
    family("vm_quota_weight", "Share of contended VRAM, relative to other VMs'", None,
        |of| Some(Gauge(of.vm.quota.weight.into()))),
    family("vm_quota_changed", "1 if an operator changed the quota since serve was started", None,
        |of| Some(Gauge((of.vm.quota_source == QuotaSource::Control).into()))),
    family("vm_held", "Most VRAM that an operator leaves the VM for now, 0 if it is frozen; absent if he holds nothing back", BYTES,
        |of| of.vm.hold.vram_bytes.map(Gauge)),
    family("vm_suspended", "1 while an operator keeps the VM's channels from the engines", None,
        |of| Some(Gauge(of.vm.hold.is_suspended.into()))),
    family("vm_resident", "In VRAM", BYTES, |of| usage(of, |usage| usage.resident_bytes)),
    family("vm_resident_peak", "The most that was in VRAM", BYTES, |of| usage(of, |usage| usage.resident_peak_bytes)),
    family("vm_active", "In VRAM and reached by channels", BYTES, |of| usage(of, |usage| usage.active_bytes)),
    family("vm_idle", "In VRAM and reached by nothing", BYTES, |of| usage(of, |usage| usage.idle_bytes)),
    family("vm_spilled", "In host RAM", BYTES, |of| usage(of, |usage| usage.spilled_bytes)),
    family("vm_wanted", "In host RAM and reached by channels: what the VM would have back", BYTES,
        |of| usage(of, |usage| usage.wanted_bytes)),
    family("vm_lends", "1 while the VM's guest rests and lends what nothing protects", None, |of| usage(of, |usage| usage.lends.into())),
    family("vm_spilled_out", "Moved to host RAM", BYTES, |of| account(of, |account| Counter(account.spilled_out_bytes))),
    family("vm_spilled_chunks", "Chunks moved to host RAM", None, |of| account(of, |_| Counter(of.spilled_chunks))),
    family("vm_spilled_for_others", "Part of what was moved to host RAM for other VMs' sake; `vramd why` names them", BYTES,
        |of| account(of, |account| Counter(for_others(&of.vm.name, account)))),
    family("vm_refilled", "Moved back to VRAM", BYTES, |of| account(of, |account| Counter(account.refilled_bytes))),
    family("vm_refilled_chunks", "Chunks moved back to VRAM", None, |of| account(of, |_| Counter(of.refilled_chunks))),
    family("vm_link", "Crossed the link to the card for moves", BYTES, |of| account(of, |account| Counter(account.link_bytes))),
    family("vm_rolled_back", "Moves that were given up", None, |of| account(of, |account| Counter(account.rolled_back))),
    family("vm_pauses", "Times that channels stood still for a move", None,
        |of| account(of, |account| Counter(account.pauses.count))),
    family("vm_paused", "Time that channels stood still for moves, one under way included", SECONDS,
        |of| account(of, |account| CounterNs(account.pauses.total_ns))),
    family("vm_longest_pause", "The longest time that channels stood still", SECONDS,
        |of| account(of, |account| GaugeNs(account.pauses.max_ns))),
    family("vm_drained", "Part of the pauses in which channels ended what they had under way", SECONDS,
        |of| account(of, |account| CounterNs(account.drained_ns))),
    family("vm_graph_busy", "Time that the VM's work was on the engine that computes and draws, by 20 samples a second", SECONDS,
        |of| account(of, |account| CounterNs(account.graph_ns))),
    family("vm_copy_busy", "Time that the VM's work was on the copy engines, both together, by 20 samples a second", SECONDS,
        |of| account(of, |account| CounterNs(account.copy_ns))),
    family("vm_bar0_accesses", "Loads from BAR0 and stores to it that reached the broker: registers, PROM, PRAMIN", None,
        |of| account(of, |_| Counter(of.accesses.bar0_reads + of.accesses.bar0_writes))),
    family("vm_bar1_accesses", "Loads from BAR1 and stores to it that reached the broker: VRAM, doorbells", None,
        |of| account(of, |_| Counter(of.accesses.bar1_reads + of.accesses.bar1_writes))),
    family("vm_doorbells_found", "Doorbells that the broker found in BAR1 as the VM's client maps it", None,
        |of| account(of, |_| Counter(of.accesses.doorbells_found))),
    family("vm_bar3_accesses", "Loads from BAR3 and stores to it that reached the broker: instance memory, page tables", None,
        |of| account(of, |_| Counter(of.accesses.bar3_reads + of.accesses.bar3_writes))),
    family("vm_dma_changes", "Maps and unmaps of guest RAM that its VMM asked for", None,
        |of| account(of, |_| Counter(of.accesses.dma_changes))),
    family("vm_intx_changes", "Times that its VMM masked INTx or let it through again, mostly once for each interrupt", None,
        |of| account(of, |_| Counter(of.accesses.intx_changes))),
    family("vm_demand_waits", "Accesses that waited for memory", None,
        |of| account(of, |account| Counter(account.demand_waits.count))),
    family("vm_demand_waited", "Time that accesses waited for memory", SECONDS,
        |of| account(of, |account| CounterNs(account.demand_waits.total_ns))),
    family("vm_demanded_in_host_ram", "Chunks put in host RAM because VRAM was not to be had in time", None,
        |of| account(of, |account| Counter(account.demanded_in_host_ram))),
    family("vm_sync_waits", "Updates of page tables that waited for memory or a move", None,
        |of| account(of, |account| Counter(account.sync_waits.count))),
    family("vm_sync_waited", "Time that updates of page tables waited", SECONDS,
        |of| account(of, |account| CounterNs(account.sync_waits.total_ns))),
    family("vm_work_waits", "Times that work waited for memory that its launches use", None,
        |of| account(of, |account| Counter(account.work_waits.count))),
    family("vm_work_waited", "Time that work waited for memory that its launches use", SECONDS,
        |of| account(of, |account| CounterNs(account.work_waits.total_ns))),
    family("vm_guest_errors", "Errors of the guest that drivers do not make", None,
        |of| account(of, |account| Counter(account.guest_errors))),
    family("vm_channel_errors", "Errors of channels that the guest was told of, as a card tells them", None,
        |of| account(of, |_| Counter(of.channel_errors))),
    family("vm_table_pages_fetched", "Pages of page tables and instance memory loaded from VRAM, across the link to the card", None,
        |of| account(of, |_| Counter(of.tables_fetched))),
    family("vm_window_pages_lent", "Pages that went to the file that the VM's client maps as BAR1, BAR3 and PRAMIN", None,
        |of| account(of, |_| Counter(of.window_pages.0))),
    family("vm_window_pages_taken_back", "Pages that came back from that file", None,
        |of| account(of, |_| Counter(of.window_pages.1))),
    family("vm_channels_killed", "Channels stopped after a fault", None,
        |of| account(of, |account| Counter(account.channels_killed))),
];

/// Durations or rates of VMs: name, what they are, and which.
type Spreads = (&'static str, &'static str, fn(&VmSpreads) -> &Spread);

/// Durations, counted in nanoseconds and told in seconds.
#[rustfmt::skip]
const DURATIONS: &[Spreads] = &[
    ("vm_pause", "How long channels stood still for a move, given up or not", |of| &of.pauses),
    ("vm_predicted_pause", "How long each pause would be, as it was said when it began", |of| &of.predictions),
    ("vm_drain", "How long channels took to end what they had under way", |of| &of.drains),
    ("vm_rollback", "How long channels stood still for a move that was given up", |of| &of.rollbacks),
    ("vm_demand_wait", "How long an access waited for memory", |of| &of.demand_waits),
    ("vm_sync_wait", "How long an update of page tables waited for memory or a move", |of| &of.sync_waits),
    ("vm_work_wait", "How long work waited for memory that its launches use", |of| &of.work_waits),
];

/// Bytes a second.
#[rustfmt::skip]
const RATES: &[Spreads] = &[
    ("vm_copy_rate", "How fast the memory of a move was copied", |of| &of.copy_rates),
];

fn usage(of: &VmFigures, figure: fn(&Usage) -> u64) -> Option<Figure> {
    of.vm.usage.as_ref().map(|usage| Gauge(figure(usage)))
}

fn account(of: &VmFigures, figure: impl FnOnce(&Account) -> Figure) -> Option<Figure> {
    of.vm.account.as_ref().map(figure)
}

/// What a VM gave up for others, those that are gone included.
fn for_others(vm: &str, account: &Account) -> u64 {
    let others = account
        .spilled_for
        .iter()
        .filter(|part| part.vm.as_deref() != Some(vm));
    others.map(|part| part.bytes).sum()
}

/// No bound is no figure: any number in its place would be drawn as one.
fn bound(bound: Bound) -> Option<Figure> {
    match bound {
        Bound::Bytes(bytes) => Some(Gauge(bytes)),
        Bound::None(Unbounded::Max) => None,
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Figure {
    fn kind(self) -> MetricType {
        match self {
            Gauge(_) | GaugeNs(_) => MetricType::Gauge,
            Counter(_) | CounterNs(_) => MetricType::Counter,
        }
    }

    fn write(self, mut to: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Gauge(value) => to.encode_gauge(&value),
            GaugeNs(ns) => to.encode_gauge(&seconds(ns)),
            Counter(value) => to.encode_counter::<NoLabelSet, _, f64>(&value, None),
            CounterNs(ns) => to.encode_counter::<NoLabelSet, _, f64>(&seconds(ns), None),
        }
    }
}

impl<T> Family<T> {
    /// A family that nothing has a figure of is left out: there is no sample that it could explain.
    fn write<'a, L: EncodeLabelSet>(
        &self,
        to: &mut DescriptorEncoder<'_>,
        all: &'a [T],
        labels: impl Fn(&'a T) -> L,
    ) -> fmt::Result {
        let figures = all.iter().filter_map(|of| Some((labels(of), (self.of)(of)?)));
        let figures: Vec<_> = figures.collect();
        let Some((_, first)) = figures.first() else {
            return Ok(());
        };
        let mut family = to.encode_descriptor(self.name, self.help, self.unit.as_ref(), first.kind())?;
        for (labels, figure) in &figures {
            figure.write(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        self.up(&mut to)?;
        for family in OF_GPU {
            family.write(&mut to, &self.gpus, |of| [("gpu", of.gpu.name.as_str())])?;
        }
        for family in OF_VM {
            family.write(&mut to, &self.vms, |of| of_vm(&of.vm))?;
        }
        let connected = || self.vms.iter().filter(|of| of.vm.usage.is_some());
        if connected().next().is_none() {
            return Ok(());
        }
        let rate = Unit::Other("bytes_per_second".to_owned());
        let durations = DURATIONS
            .iter()
            .map(|of| (of, &Unit::Seconds, &SPREAD_BOUNDS_NS, 1e9));
        let rates = RATES.iter().map(|of| (of, &rate, &SPREAD_BOUNDS_RATE, 1.0));
        for ((name, help, which), unit, bounds, counted_in) in durations.chain(rates) {
            let mut family = to.encode_descriptor(name, help, Some(unit), MetricType::Histogram)?;
            for of in connected() {
                let (spread, labels) = (which(&of.spreads), of_vm(&of.vm));
                let bounds = bounds.iter().map(|bound| *bound as f64 / counted_in).chain([ALL]);
                let parts: Vec<_> = bounds.zip(spread.counts).collect();
                let mut one = family.encode_family(&labels)?;
                one.encode_histogram::<NoLabelSet>(
                    spread.sum as f64 / counted_in,
                    spread.count(),
                    &parts,
                    None,
                )?;
            }
        }
        Ok(())
    }
}

impl Scrape {
    /// Whether each card works. One whose broker has ended has no other figure, and neither have its VMs.
    fn up(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.up.is_empty() {
            return Ok(());
        }
        let help = "1 while the card works; 0 before it does, and after it failed";
        let mut family = to.encode_descriptor("gpu_up", help, None, MetricType::Gauge)?;
        for (gpu, is_up) in &self.up {
            Gauge((*is_up).into()).write(family.encode_family(&[("gpu", gpu.as_str())])?)?;
        }
        Ok(())
    }

    /// The text of it.
    fn text(self) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes all that is written to it");
        text
    }
}

fn of_vm(vm: &Vm) -> [(&'static str, &str); 2] {
    [("gpu", &vm.gpu), ("vm", &vm.name)]
}

impl GpuFigures {
    fn of(name: &str, picture: &Picture) -> Self {
        Self {
            gpu: answers::gpu(name, None, picture),
            taken_bytes: picture.card.resident_bytes,
            events: picture.card.events,
        }
    }
}

impl VmFigures {
    fn of(gpu: &str, place: &Place, vm: &VmPicture, picture: &Picture) -> Self {
        let stats = vm.attached.as_ref().map(|(_, stats)| stats);
        Self {
            vm: answers::vm(gpu, place, vm, picture),
            spilled_chunks: stats.map_or(0, |stats| stats.spills),
            refilled_chunks: stats.map_or(0, |stats| stats.refills),
            channel_errors: stats.map_or(0, |stats| stats.channel_errors),
            tables_fetched: stats.map_or(0, |stats| stats.tables_fetched),
            window_pages: stats.map_or((0, 0), |stats| stats.window_pages),
            accesses: stats.map_or_else(Accesses::default, |stats| stats.accesses),
            spreads: vm.spreads.unwrap_or_default(),
        }
    }
}

/// Figures of all cards and VMs, for monitoring
#[utoipa::path(get, path = "/v1/metrics", responses(
    (status = 200, description = "Metrics in the text of OpenMetrics 1.0, or in that of Prometheus 0.0.4 for who accepts no other",
        content((String = "application/openmetrics-text"), (String = "text/plain"))),
    (status = 503, description = "There are too many clients", body = Refusal),
))]
pub(super) async fn metrics(State(host): State<Arc<Host>>, headers: HeaderMap) -> Response<Body> {
    let (pictures, gone) = pictures(&host).await;
    let mut up: Vec<_> = gone.into_iter().map(|gpu| (gpu.name, false)).collect();
    let (mut gpus, mut vms) = (Vec::new(), Vec::new());
    for (gpu, picture) in &pictures {
        up.push(((*gpu).to_owned(), picture.standing.is_some()));
        gpus.push(GpuFigures::of(gpu, picture));
        let of_card = picture.vms.iter();
        vms.extend(of_card.filter_map(|vm| {
            let place = host.place(&vm.config.name)?;
            Some(VmFigures::of(gpu, &place, vm, picture))
        }));
    }
    let text = Scrape { up, gpus, vms }.text();
    let (kind, text) = match classic_text::is_wanted(&headers) {
        true => (classic_text::KIND, classic_text::of(&text)),
        false => (KIND, text),
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use control::{Pauses, PlaceSource, Quota, SpilledFor, Waits};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// What a VM went through that was moved out for another, and for two that are gone.
    fn account() -> Account {
        let none = Waits {
            count: 0,
            total_ns: 0,
        };
        let of = |vm: Option<&str>, bytes| SpilledFor {
            vm: vm.map(str::to_owned),
            bytes,
        };
        let pauses = Pauses {
            count: 3,
            total_ns: 6_000_000,
            share_ppm: 6_000,
            p50_ns: 1_000_000,
            p99_ns: 4_000_000,
            max_ns: 4_000_000,
        };
        Account {
            attached_ns: 1_000_000_000,
            spilled_out_bytes: 8 * MIB,
            refilled_bytes: 2 * MIB,
            link_bytes: 10 * MIB,
            rolled_back: 1,
            pauses,
            drained_ns: 500_000,
            graph_ns: 400_000_000,
            copy_ns: 0,
            demand_waits: none.clone(),
            demanded_in_host_ram: 0,
            sync_waits: none.clone(),
            work_waits: none,
            spilled_for: vec![of(Some("b"), 4 * MIB), of(None, MIB), of(None, 3 * MIB)],
            guest_errors: 0,
            channels_killed: 0,
        }
    }

    fn scrape() -> Scrape {
        let [min, low] = [4 * MIB, 0].map(Bound::Bytes);
        let unbounded = Bound::None(Unbounded::Max);
        let quota = Quota {
            min,
            low,
            high: unbounded,
            max: unbounded,
            weight: 100,
        };
        let usage = Usage {
            resident_bytes: 16 * MIB,
            spilled_bytes: 6 * MIB,
            active_bytes: 12 * MIB,
            idle_bytes: 4 * MIB,
            wanted_bytes: 2 * MIB,
            lends: true,
            resident_peak_bytes: 20 * MIB,
        };
        let mut spreads = VmSpreads::default();
        (spreads.pauses.counts[5], spreads.pauses.counts[7]) = (2, 1);
        spreads.pauses.sum = 6_000_000;
        let vm = Vm {
            name: "a".into(),
            gpu: "g0".into(),
            socket: "/run/a.sock".into(),
            guest_vram_bytes: 48 * MIB,
            chunk_bytes: 2 * MIB,
            quota,
            quota_source: QuotaSource::File,
            file_quota: None,
            source: PlaceSource::Control,
            hold: control::Hold::default(),
            usage: Some(usage),
            account: Some(account()),
        };
        let figures = VmFigures {
            vm,
            spilled_chunks: 4,
            refilled_chunks: 1,
            channel_errors: 0,
            tables_fetched: 0,
            window_pages: (7, 3),
            accesses: Accesses {
                bar1_reads: 5,
                bar1_writes: 6,
                doorbells_found: 12,
                ..Accesses::default()
            },
            spreads,
        };
        Scrape {
            up: Vec::new(),
            gpus: Vec::new(),
            vms: vec![figures],
        }
    }

    #[test]
    fn figures_have_base_units_and_their_kind() {
        let text = scrape().text();
        for lines in [
            "# HELP vramd_vm_resident_bytes In VRAM\n# TYPE vramd_vm_resident_bytes gauge\n# UNIT vramd_vm_resident_bytes bytes\n\
             vramd_vm_resident_bytes{gpu=\"g0\",vm=\"a\"} 16777216\n",
            "# TYPE vramd_vm_paused_seconds counter\n# UNIT vramd_vm_paused_seconds seconds\n\
             vramd_vm_paused_seconds_total{gpu=\"g0\",vm=\"a\"} 0.006\n",
            "vramd_vm_pauses_total{gpu=\"g0\",vm=\"a\"} 3\n",
            "vramd_vm_bar1_accesses_total{gpu=\"g0\",vm=\"a\"} 11\n",
            "vramd_vm_doorbells_found_total{gpu=\"g0\",vm=\"a\"} 12\n",
            "vramd_vm_spilled_chunks_total{gpu=\"g0\",vm=\"a\"} 4\n",
        ] {
            assert!(text.contains(lines), "{lines}\n{text}");
        }
        assert!(!text.contains("quota_max"), "no bound is no figure");
        assert!(!text.contains("gpu_up"), "there is no card");
    }

    #[test]
    fn buckets_are_cumulative_up_to_the_one_that_holds_all() {
        let text = scrape().text();
        let buckets = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("vramd_vm_pause_seconds_bucket{le=\"")?;
            let (le, rest) = rest.split_once('"')?;
            Some((le, rest.rsplit(' ').next()?))
        });
        let buckets: Vec<_> = buckets.collect();
        assert_eq!(buckets.len(), SPREAD_BOUNDS_NS.len() + 1);
        for bucket in [
            ("0.0005", "0"),
            ("0.001", "2"),
            ("0.002", "2"),
            ("0.005", "3"),
            ("+Inf", "3"),
        ] {
            assert!(buckets.contains(&bucket), "{bucket:?} of {buckets:?}");
        }
    }

    #[test]
    fn memory_moved_for_others_is_one_sum_and_what_was_for_its_own_sake_is_not_in_it() {
        let mut scrape = scrape();
        let own = SpilledFor {
            vm: Some("a".into()),
            bytes: 2 * MIB,
        };
        scrape.vms[0].vm.account.as_mut().unwrap().spilled_for.push(own);
        let text = scrape.text();
        let line = "vramd_vm_spilled_for_others_bytes_total{gpu=\"g0\",vm=\"a\"} 8388608\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn card_that_is_gone_is_down_and_has_no_other_figure() {
        let scrape = Scrape {
            up: vec![("g0".into(), true), ("g1".into(), false)],
            gpus: Vec::new(),
            vms: Vec::new(),
        };
        let text = scrape.text();
        assert!(
            text.contains("vramd_gpu_up{gpu=\"g0\"} 1\nvramd_gpu_up{gpu=\"g1\"} 0\n"),
            "{text}"
        );
        assert_eq!(text.matches("g1").count(), 1, "{text}");
    }
}
