//! What `top` shows, and what keys do to it. Nothing here draws, asks or waits.

use std::cmp::Reverse;
use std::time::Duration;

use control::{Bound, GoneGpu, Gpu, QuotaChange, Vm};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Signs of the longest change that can be typed.
const EDIT_MAX: usize = 80;

/// What is heard of the broker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Hearing {
    /// It was asked, and may still answer.
    Nothing,
    /// It answered the last time that it was asked.
    Answers,
    /// It did not answer the last time, for this reason. It is asked again.
    Silent(String),
}

/// A VM and what changed since it was heard of before.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) vm: Vm,
    /// Chunks that moved, out or back, a second.
    pub(super) moves: f64,
    /// Milliseconds of a second for which its channels stood still.
    pub(super) paused_ms: f64,
    /// Percent of the time for which its work was on the engine that computes.
    pub(super) gpu_percent: f64,
}

/// By what rows are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    Resident,
    Spilled,
    Gpu,
    Pauses,
    Name,
}

/// What is to be done after a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Stay,
    Quit,
    Ask(Order),
}

/// What a VM is to become.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Order {
    pub(super) vm: String,
    pub(super) wish: Wish,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Quota(QuotaChange),
    Freeze,
    Thaw,
}

/// What the keys are for, beside looking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// A change of the selected VM's quota, as far as it is typed.
    Quota(String),
    /// Whether this VM is to be frozen. It stays this one, whatever is selected meanwhile.
    Freeze(String),
}

/// All that is shown.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) hearing: Hearing,
    pub(super) gpus: Vec<Gpu>,
    pub(super) gone: Vec<GoneGpu>,
    pub(super) rows: Vec<Row>,
    pub(super) sort: Sort,
    /// Name of the VM that keys concern.
    pub(super) selected: Option<String>,
    /// What is asked of the operator.
    pub(super) entry: Option<Entry>,
    /// What came of the last change, and whether it failed.
    pub(super) status: Option<(String, bool)>,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            hearing: Hearing::Nothing,
            gpus: Vec::new(),
            gone: Vec::new(),
            rows: Vec::new(),
            sort: Sort::Name,
            selected: None,
            entry: None,
            status: None,
        }
    }

    /// Takes what the broker told, so long after it told it before.
    pub(super) fn heard(&mut self, gpus: Vec<Gpu>, vms: Vec<Vm>, since: Option<Duration>) {
        let old = std::mem::take(&mut self.rows);
        let row = |vm: Vm| {
            let before = old.iter().find(|row| row.vm.name == vm.name);
            let [moves, paused_ms, gpu_percent] = match (before, since) {
                (Some(before), Some(since)) => rates(&before.vm, &vm, since),
                _ => [0.0; 3],
            };
            Row {
                vm,
                moves,
                paused_ms,
                gpu_percent,
            }
        };
        self.rows = vms.into_iter().map(row).collect();
        self.gpus = gpus;
        self.hearing = Hearing::Answers;
        self.put_in_order();
        let is_there = |name: &String| self.rows.iter().any(|row| row.vm.name == *name);
        if !self.selected.as_ref().is_some_and(is_there) {
            self.selected = self.rows.first().map(|row| row.vm.name.clone());
        }
    }

    /// Place of the selected row.
    pub(super) fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.vm.name == *selected)
    }

    /// Does what a key means.
    pub(super) fn key(&mut self, key: KeyEvent) -> Step {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Step::Quit;
        }
        match self.entry.take() {
            Some(Entry::Quota(text)) => self.edit_key(text, key.code),
            Some(Entry::Freeze(vm)) => self.answer_key(vm, key.code),
            None => self.plain_key(key.code),
        }
    }

    fn plain_key(&mut self, key: KeyCode) -> Step {
        match key {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('r') => self.sort_by(Sort::Resident),
            KeyCode::Char('s') => self.sort_by(Sort::Spilled),
            KeyCode::Char('g') => self.sort_by(Sort::Gpu),
            KeyCode::Char('p') => self.sort_by(Sort::Pauses),
            KeyCode::Char('n') => self.sort_by(Sort::Name),
            KeyCode::Up => self.select(|place| place.saturating_sub(1)),
            KeyCode::Down => self.select(|place| place + 1),
            KeyCode::Char('e') if self.selected.is_some() => self.enter(Entry::Quota(String::new())),
            KeyCode::Char('f') => {
                if let Some(vm) = self.selected.clone() {
                    self.enter(Entry::Freeze(vm));
                }
            }
            KeyCode::Char('t') => return self.ask(self.selected.clone(), "to be thawed", Wish::Thaw),
            _ => {}
        }
        Step::Stay
    }

    fn enter(&mut self, entry: Entry) {
        self.entry = Some(entry);
        self.status = None;
    }

    /// Says what is asked of the broker until it has answered.
    fn ask(&mut self, vm: Option<String>, what: &str, wish: Wish) -> Step {
        let Some(vm) = vm else { return Step::Stay };
        self.status = Some((format!("{vm}: asking for {what}"), false));
        Step::Ask(Order { vm, wish })
    }

    /// All but `y` is a no.
    fn answer_key(&mut self, vm: String, key: KeyCode) -> Step {
        match key {
            KeyCode::Char('y' | 'Y') => self.ask(Some(vm), "to be frozen", Wish::Freeze),
            _ => Step::Stay,
        }
    }

    fn edit_key(&mut self, mut text: String, key: KeyCode) -> Step {
        match key {
            KeyCode::Esc => return Step::Stay,
            KeyCode::Enter => return self.edited(&text),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(sign) if !sign.is_control() && text.len() < EDIT_MAX => text.push(sign),
            _ => {}
        }
        self.entry = Some(Entry::Quota(text));
        Step::Stay
    }

    fn edited(&mut self, text: &str) -> Step {
        match change(text) {
            Ok(change) => self.ask(self.selected.clone(), text, Wish::Quota(change)),
            Err(why) => {
                self.status = Some((why, true));
                Step::Stay
            }
        }
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.put_in_order();
    }

    fn select(&mut self, to: impl FnOnce(usize) -> usize) {
        let last = self.rows.len().saturating_sub(1);
        let place = self.place().map_or(0, |place| to(place).min(last));
        self.selected = self.rows.get(place).map(|row| row.vm.name.clone());
    }

    /// VMs that have the same figure are by name, so that they do not change places.
    fn put_in_order(&mut self) {
        self.rows.sort_by(|a, b| a.vm.name.cmp(&b.vm.name));
        let bytes = |row: &Row| {
            let usage = row.vm.usage.as_ref()?;
            Some((usage.resident_bytes, usage.spilled_bytes))
        };
        match self.sort {
            Sort::Name => {}
            Sort::Resident => self
                .rows
                .sort_by_key(|row| Reverse(bytes(row).map(|both| both.0))),
            Sort::Spilled => self
                .rows
                .sort_by_key(|row| Reverse(bytes(row).map(|both| both.1))),
            Sort::Gpu => self.rows.sort_by(|a, b| b.gpu_percent.total_cmp(&a.gpu_percent)),
            Sort::Pauses => self.rows.sort_by(|a, b| b.paused_ms.total_cmp(&a.paused_ms)),
        }
    }
}

/// Chunks moved a second, milliseconds paused a second, and percent of the time on the engine that computes.
fn rates(before: &Vm, after: &Vm, since: Duration) -> [f64; 3] {
    let (Some(old), Some(new)) = (&before.account, &after.account) else {
        return [0.0; 3];
    };
    // Its VMM came anew: what is counted began anew.
    if new.attached_ns < old.attached_ns || since.is_zero() {
        return [0.0; 3];
    }
    let moved = |of: &control::Account| of.spilled_out_bytes + of.refilled_bytes;
    let chunks = moved(new).saturating_sub(moved(old)) / after.chunk_bytes.max(1);
    let paused_ns = new.pauses.total_ns.saturating_sub(old.pauses.total_ns);
    let worked_ns = new.graph_ns.saturating_sub(old.graph_ns);
    let seconds = since.as_secs_f64();
    // A sample stands for time that began before the last answer, so the sum of a second may be above it.
    let gpu_percent = (worked_ns as f64 / 1e7 / seconds).min(100.0);
    [
        chunks as f64 / seconds,
        paused_ns as f64 / 1e6 / seconds,
        gpu_percent,
    ]
}

/// Reads `max=64M`, or several of these with blanks between them.
fn change(text: &str) -> Result<QuotaChange, String> {
    let help = "type min=, low=, high= or max= with a size such as 64M or max, or weight= with 1 to 10000";
    let mut change = QuotaChange::default();
    for word in text.split_whitespace() {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} has no '=': {help}"))?;
        let bound = || {
            value
                .parse::<Bound>()
                .map(Some)
                .map_err(|error| format!("{name}: {error}"))
        };
        match name {
            "min" => change.min = bound()?,
            "low" => change.low = bound()?,
            "high" => change.high = bound()?,
            "max" => change.max = bound()?,
            "weight" => {
                let weight = value
                    .parse()
                    .map_err(|_| format!("weight: {value:?} is no number from 1 to 10000"))?;
                change.weight = Some(weight);
            }
            _ => return Err(format!("there is no {name:?}: {help}")),
        }
    }
    match change == QuotaChange::default() {
        true => Err(format!("nothing is changed: {help}")),
        false => Ok(change),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use control::{Account, Pauses, PlaceSource, Quota, QuotaSource, Unbounded, Usage, Waits};

    use super::*;

    const MIB: u64 = 1 << 20;

    pub(in super::super) fn gpu() -> Gpu {
        Gpu {
            name: "g0".into(),
            vram_bytes: 64 * MIB,
            usable_bytes: 56 * MIB,
            free_bytes: 8 * MIB,
            promised_bytes: 4 * MIB,
            host_ram_bytes: 4096 * MIB,
            file_host_ram_bytes: 4096 * MIB,
            spilled_bytes: 32 * MIB,
            host_errors: 0,
            vms: vec!["a".into(), "b".into()],
        }
    }

    /// A connected VM with so many MiB.
    pub(in super::super) fn vm(name: &str, resident: u64, spilled: u64) -> Vm {
        let (none, max) = (
            Waits {
                count: 0,
                total_ns: 0,
            },
            Bound::None(Unbounded::Max),
        );
        Vm {
            name: name.into(),
            gpu: "g0".into(),
            socket: "/run/a.sock".into(),
            guest_vram_bytes: 48 * MIB,
            chunk_bytes: 2 * MIB,
            quota: Quota {
                min: Bound::Bytes(0),
                low: Bound::Bytes(0),
                high: max,
                max,
                weight: 100,
            },
            quota_source: QuotaSource::File,
            file_quota: None,
            source: PlaceSource::Control,
            hold: control::Hold::default(),
            usage: Some(Usage {
                resident_bytes: resident * MIB,
                spilled_bytes: spilled * MIB,
                active_bytes: resident * MIB,
                idle_bytes: 0,
                wanted_bytes: 0,
                lends: false,
                resident_peak_bytes: resident * MIB,
            }),
            account: Some(Account {
                attached_ns: 1,
                spilled_out_bytes: 0,
                refilled_bytes: 0,
                link_bytes: 0,
                rolled_back: 0,
                pauses: Pauses {
                    count: 0,
                    total_ns: 0,
                    share_ppm: 0,
                    p50_ns: 0,
                    p99_ns: 0,
                    max_ns: 0,
                },
                drained_ns: 0,
                graph_ns: 0,
                copy_ns: 0,
                demand_waits: none.clone(),
                demanded_in_host_ram: 0,
                sync_waits: none.clone(),
                work_waits: none,
                spilled_for: Vec::new(),
                guest_errors: 0,
                channels_killed: 0,
            }),
        }
    }

    pub(in super::super) fn model() -> Model {
        let mut model = Model::new();
        model.heard(vec![gpu()], vec![vm("b", 32, 4), vm("a", 16, 28)], None);
        model
    }

    pub(in super::super) fn press(model: &mut Model, code: KeyCode) -> Step {
        model.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    pub(in super::super) fn type_in(model: &mut Model, text: &str) -> Step {
        let mut step = Step::Stay;
        for sign in text.chars() {
            let code = if sign == '\n' {
                KeyCode::Enter
            } else {
                KeyCode::Char(sign)
            };
            step = press(model, code);
        }
        step
    }

    fn names(model: &Model) -> Vec<&str> {
        model.rows.iter().map(|row| row.vm.name.as_str()).collect()
    }

    #[test]
    fn keys_sort_and_the_selected_vm_stays_selected() {
        let mut model = model();
        assert_eq!((names(&model), model.place()), (vec!["a", "b"], Some(0)));
        type_in(&mut model, "r");
        assert_eq!((names(&model), model.place()), (vec!["b", "a"], Some(1)));
        type_in(&mut model, "s");
        assert_eq!(names(&model), ["a", "b"]);
        press(&mut model, KeyCode::Down);
        press(&mut model, KeyCode::Down);
        assert_eq!(model.place(), Some(1));
        press(&mut model, KeyCode::Up);
        press(&mut model, KeyCode::Up);
        assert_eq!(model.place(), Some(0));
        // The one that was selected is gone.
        model.heard(Vec::new(), vec![vm("z", 1, 1)], None);
        assert_eq!(model.selected.as_deref(), Some("z"));
        model.heard(Vec::new(), Vec::new(), None);
        press(&mut model, KeyCode::Down);
        assert_eq!(model.selected, None);
        assert_eq!((type_in(&mut model, "eft"), model.entry), (Step::Stay, None));
    }

    #[test]
    fn rates_are_of_the_time_between_two_answers() {
        let mut model = model();
        let mut later = vm("a", 16, 28);
        let account = later.account.as_mut().unwrap();
        (
            account.attached_ns,
            account.spilled_out_bytes,
            account.refilled_bytes,
        ) = (9, 8 * MIB, 4 * MIB);
        (account.pauses.total_ns, account.graph_ns) = (30_000_000, 500_000_000);
        model.heard(
            vec![gpu()],
            vec![later.clone(), vm("b", 0, 0)],
            Some(Duration::from_secs(2)),
        );
        let Row {
            moves,
            paused_ms,
            gpu_percent,
            ..
        } = model.rows[0];
        assert_eq!((moves, paused_ms, gpu_percent), (3.0, 15.0, 25.0));
        for key in ["p", "g"] {
            type_in(&mut model, key);
            assert_eq!(names(&model), ["a", "b"], "{key}");
        }
        // Its VMM came anew.
        later.account.as_mut().unwrap().attached_ns = 2;
        model.heard(vec![gpu()], vec![later], Some(Duration::from_secs(2)));
        assert_eq!(model.rows[0].moves, 0.0);
    }

    #[test]
    fn freeze_is_asked_for_after_a_yes_and_of_the_vm_that_was_selected() {
        let mut model = model();
        let order = |vm: &str, wish| Step::Ask(Order { vm: vm.into(), wish });
        assert_eq!(type_in(&mut model, "f"), Step::Stay);
        // The VM goes, and another is selected, while the question stands.
        model.heard(vec![gpu()], vec![vm("b", 32, 4)], None);
        assert_eq!(type_in(&mut model, "y"), order("a", Wish::Freeze));
        for no in ["fn", "fq", "f\n"] {
            assert_eq!(
                (type_in(&mut model, no), model.entry.clone()),
                (Step::Stay, None),
                "{no}"
            );
        }
        assert_eq!(type_in(&mut model, "t"), order("b", Wish::Thaw));
    }

    #[test]
    fn change_that_is_typed_is_asked_for_and_what_is_none_is_explained() {
        let mut model = model();
        let asked = type_in(&mut model, "emax=64M weight=7\n");
        let change = QuotaChange {
            max: Some(Bound::Bytes(64 * MIB)),
            weight: Some(7),
            ..QuotaChange::default()
        };
        assert_eq!(
            asked,
            Step::Ask(Order {
                vm: "a".into(),
                wish: Wish::Quota(change)
            })
        );
        for (typed, words) in [
            ("emax=5X\n", "max: "),
            ("emaxi=5M\n", "there is no \"maxi\""),
            ("emax\n", "has no '='"),
            ("e\n", "nothing is changed"),
            ("eweight=x\n", "weight: \"x\""),
        ] {
            assert_eq!(type_in(&mut model, typed), Step::Stay, "{typed}");
            let (told, is_error) = model.status.clone().unwrap();
            assert!(told.contains(words) && is_error, "{typed}: {told}");
        }
        // While something is typed a q is a letter, and Escape forgets it.
        assert_eq!(type_in(&mut model, "eq"), Step::Stay);
        press(&mut model, KeyCode::Esc);
        assert_eq!(
            (model.entry.clone(), type_in(&mut model, "q")),
            (None, Step::Quit)
        );
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.key(interrupt), Step::Quit);
    }
}
