//! How `top` looks: a pure function of what it shows.
//!
//! A line for each card, a table of VMs, one line of what came of the last change or is typed, one of keys. It fits a terminal of 80
//! columns.

use std::iter::once;

use control::{Bound, GoneGpu, Gpu, Unbounded, Vm};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::model::{Entry, Hearing, Model, Row, Sort};
use crate::cli::control::size;
use crate::cli::holds::hold_words;

/// Signs of a bar.
const BAR: u64 = 11;
/// The same with its ends.
const WHOLE_BAR: usize = BAR as usize + 2;
/// Signs of a VM's name, longer ones are cut.
const NAME: usize = 10;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    // Cards never take all of the screen.
    let cards = ((model.gpus.len() + model.gone.len()) as u16).min(frame.area().height / 3);
    let rows = [
        Constraint::Length(cards),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ];
    let [at_cards, at_hearing, at_head, at_rows, at_status, at_keys] =
        Layout::vertical(rows).areas(frame.area());
    let lines: Vec<_> = model
        .gpus
        .iter()
        .map(card)
        .chain(model.gone.iter().map(gone_card))
        .collect();
    frame.render_widget(Paragraph::new(lines), at_cards);
    frame.render_widget(hearing(model), at_hearing);
    frame.render_widget(head(model.sort), at_head);
    frame.render_widget(Paragraph::new(table(model, at_rows)), at_rows);
    frame.render_widget(status(model), at_status);
    frame.render_widget(keys(), at_keys);
}

fn card(gpu: &Gpu) -> Line<'static> {
    let errors = match gpu.host_errors {
        0 => Span::raw("no errors"),
        errors => format!("{errors} errors").red().bold(),
    };
    Line::from(vec![
        format!("{:<NAME$}", cut(&gpu.name)).bold(),
        format!(
            " free {} of {}, promised {}; host RAM {} of {}; ",
            size(gpu.free_bytes),
            size(gpu.usable_bytes),
            size(gpu.promised_bytes),
            size(gpu.spilled_bytes),
            size(gpu.host_ram_bytes)
        )
        .into(),
        errors,
    ])
}

/// A card that answers no more: its VMs are not in the table.
fn gone_card(gpu: &GoneGpu) -> Line<'static> {
    Line::from(vec![
        format!("{:<NAME$}", cut(&gpu.name)).bold(),
        format!(" {}", gpu.reason).red(),
    ])
}

/// Nothing while the broker answers.
fn hearing(model: &Model) -> Line<'static> {
    match &model.hearing {
        Hearing::Nothing => Line::raw("asking the broker"),
        Hearing::Answers => Line::default(),
        Hearing::Silent(why) => Line::from(format!("asking again: {why}")).red(),
    }
}

fn head(sort: Sort) -> Line<'static> {
    let column = |text: String, by: Option<Sort>| match by == Some(sort) {
        true => text.bold().underlined(),
        false => text.bold(),
    };
    Line::from(vec![
        column(format!("{:<NAME$}", "VM"), Some(Sort::Name)),
        column(format!(" {:<WHOLE_BAR$}", "GUEST'S VRAM"), None),
        column(format!("{:>9}", "RESIDENT"), Some(Sort::Resident)),
        column(format!("{:>8}", "SPILLED"), Some(Sort::Spilled)),
        column(format!("{:>8}", "MAX"), None),
        column(format!("{:>5}", "GPU"), Some(Sort::Gpu)),
        column(format!("{:>8}", "MOVES/s"), None),
        column(format!("{:>9} ", "PAUSED/s"), Some(Sort::Pauses)),
        column("STATE".into(), None),
    ])
}

/// As many rows as there is room for, the selected one among them.
fn table(model: &Model, area: Rect) -> Vec<Line<'static>> {
    let room = usize::from(area.height);
    let place = model.place();
    let first = place.map_or(0, |place| (place + 1).saturating_sub(room));
    let rows = model.rows.iter().enumerate().skip(first).take(room);
    let is_old = matches!(model.hearing, Hearing::Silent(_));
    let line = |(index, one): (usize, &Row)| {
        let mut line = row(one);
        if is_old {
            line = line.style(Style::new().add_modifier(Modifier::DIM));
        }
        match place == Some(index) {
            true => line.reversed(),
            false => line,
        }
    };
    rows.map(line).collect()
}

fn row(row: &Row) -> Line<'static> {
    let vm = &row.vm;
    let max = vm.quota.max.to_string();
    let name = Span::raw(format!("{:<NAME$} ", cut(&vm.name)));
    let Some(usage) = &vm.usage else {
        let rest = format!(
            "{:<WHOLE_BAR$}{:>9}{:>8}{max:>8}{:>5}{:>8}{:>9} ",
            "", "", "", "", "", ""
        );
        return Line::from(vec![name, rest.into(), state(row)]);
    };
    let figures = format!(
        "{:>9}{:>8}{max:>8}{:>4.0}%{:>8.1}{:>7.1}ms ",
        size(usage.resident_bytes),
        size(usage.spilled_bytes),
        row.gpu_percent,
        row.moves,
        row.paused_ms
    );
    once(name)
        .chain(bar(vm, usage.resident_bytes, usage.spilled_bytes))
        .chain([Span::raw(figures), state(row)])
        .collect()
}

/// What a VM has in VRAM and in host RAM of all that its guest sees; `|` where its quota ends.
fn bar(vm: &Vm, resident: u64, spilled: u64) -> Vec<Span<'static>> {
    let whole = vm.guest_vram_bytes.max(1);
    // To the nearest sign, and one at least of what there is.
    let signs = |bytes: u64| (u128::from(bytes.min(whole)) * u128::from(BAR)).div_ceil(whole.into()) as u64;
    let resident_end = signs(resident);
    let spilled_end = signs(resident + spilled)
        .max(resident_end + u64::from(spilled > 0))
        .min(BAR);
    let most = match vm.quota.max {
        Bound::Bytes(bytes) if bytes < whole => Some(signs(bytes)),
        Bound::Bytes(_) | Bound::None(Unbounded::Max) => None,
    };
    let sign = |index: u64| match index {
        index if most == Some(index) => "|".red(),
        index if index < resident_end => "█".green(),
        index if index < spilled_end => "▒".yellow(),
        _ => Span::raw("·"),
    };
    // On the selected line, too, what is in VRAM has its colour: exchanged with the ground's, a full bar would look empty.
    let inside = (0..BAR).map(|index| sign(index).not_reversed());
    once(Span::raw("["))
        .chain(inside)
        .chain([Span::raw("]")])
        .collect()
}

fn state(row: &Row) -> Span<'static> {
    if let Some(words) = hold_words(&row.vm.hold) {
        return words.cyan();
    }
    match &row.vm.usage {
        None => "absent".dark_gray(),
        Some(_) if row.moves > 0.0 => "moves".yellow(),
        Some(usage) if usage.wanted_bytes > 0 && usage.lends => "lends".cyan(),
        Some(usage) if usage.wanted_bytes > 0 => "wants".yellow(),
        Some(usage) if usage.active_bytes > 0 => "works".green(),
        Some(_) => Span::raw("idle"),
    }
}

fn status(model: &Model) -> Line<'static> {
    let vm = model.selected.as_deref().unwrap_or_default();
    match (&model.entry, &model.status) {
        (Some(Entry::Freeze(vm)), _) => {
            format!("send all memory of {vm} to host RAM and keep it there? y, or any other key")
                .bold()
                .into()
        }
        (Some(Entry::Quota(text)), _) => {
            Line::from(vec![format!("quota of {vm}: ").bold(), format!("{text}▏").into()])
        }
        (None, Some((text, true))) => Line::from(text.clone()).fg(Color::Red),
        (None, Some((text, false))) => Line::from(text.clone()),
        (None, None) => Line::default(),
    }
}

fn keys() -> Line<'static> {
    Line::from("by r resident s spilled g GPU p paused n name │ e quota f freeze t thaw │ q quit").dim()
}

fn cut(name: &str) -> String {
    match name.chars().count() > NAME {
        true => name.chars().take(NAME - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use control::Usage;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::model::tests::{model, press, type_in, vm};
    use super::*;

    /// What is drawn, line by line, without blanks at the end.
    fn drawn(model: &Model, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let signs: Vec<_> = terminal
            .backend()
            .buffer()
            .content()
            .iter()
            .map(|cell| cell.symbol())
            .collect();
        signs
            .chunks(80)
            .map(|line| line.concat().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn cards_and_vms_have_a_line_each_of_eighty_columns() {
        let mut model = model();
        model.rows[1].vm.quota.max = Bound::Bytes(36 << 20);
        (model.rows[1].moves, model.rows[1].paused_ms) = (12.5, 80.0);
        model.rows[1].gpu_percent = 49.6;
        assert_eq!(
            drawn(&model, 9),
            [
                "g0         free 8M of 56M, promised 4M; host RAM 32M of 4G; no errors",
                "",
                "VM         GUEST'S VRAM  RESIDENT SPILLED     MAX  GPU MOVES/s PAUSED/s STATE",
                "a          [████▒▒▒▒▒▒▒]      16M     28M     max   0%     0.0    0.0ms works",
                "b          [████████▒|·]      32M      4M     36M  50%    12.5   80.0ms moves",
                "",
                "",
                "",
                "by r resident s spilled g GPU p paused n name │ e quota f freeze t thaw │ q quit",
            ]
        );
    }

    #[test]
    fn selected_line_is_reversed_but_for_its_bar() {
        let mut terminal = Terminal::new(TestBackend::new(80, 9)).unwrap();
        terminal.draw(|frame| draw(frame, &model())).unwrap();
        let buffer = terminal.backend().buffer();
        let is_reversed = |column| buffer[(column, 3)].modifier.contains(Modifier::REVERSED);
        let reversed: String = (0..80)
            .map(|column| if is_reversed(column) { '#' } else { '.' })
            .collect();
        // Behind the state there is nothing.
        let expected = ["#".repeat(12), ".".repeat(11), "#".repeat(54)].concat();
        assert_eq!(reversed.trim_end_matches('.'), expected);
        assert_eq!(
            (buffer[(12, 3)].symbol(), buffer[(12, 3)].fg),
            ("█", Color::Green)
        );
    }

    #[test]
    fn vm_that_is_not_there_and_one_that_wants_memory_say_so() {
        let mut model = model();
        (model.rows[0].vm.usage, model.rows[0].vm.account) = (None, None);
        let usage = |usage: Usage| Usage {
            wanted_bytes: 1,
            ..usage
        };
        model.rows[1].vm.usage = model.rows[1].vm.usage.take().map(usage);
        let lines = drawn(&model, 9);
        assert!(
            lines[3].starts_with("a  ") && lines[3].ends_with("max                       absent"),
            "{}",
            lines[3]
        );
        assert!(lines[4].ends_with("wants"), "{}", lines[4]);
        let rests = |usage: Usage| Usage { lends: true, ..usage };
        model.rows[1].vm.usage = model.rows[1].vm.usage.take().map(rests);
        let lines = drawn(&model, 9);
        assert!(lines[4].ends_with("lends"), "{}", lines[4]);
    }

    #[test]
    fn silent_broker_leaves_what_was_known_and_says_why() {
        let mut model = model();
        model.hearing = Hearing::Silent("cannot reach a broker".into());
        let lines = drawn(&model, 9);
        assert_eq!(lines[1], "asking again: cannot reach a broker");
        assert!(lines[3].starts_with("a  "), "{}", lines[3]);
    }

    #[test]
    fn what_is_typed_and_what_came_of_it_have_the_same_line() {
        let mut model = model();
        type_in(&mut model, "emax=6");
        assert_eq!(drawn(&model, 9)[7], "quota of a: max=6▏");
        press(&mut model, KeyCode::Esc);
        model.status = Some(("min 8000M is above the guest's VRAM".into(), true));
        assert_eq!(drawn(&model, 9)[7], "min 8000M is above the guest's VRAM");
    }

    #[test]
    fn selected_vm_of_many_is_in_sight_on_any_screen() {
        let mut model = model();
        let many = (0..60)
            .map(|number| vm(&format!("vm{number:02}-with-a-name"), 1, 1))
            .collect();
        model.heard(model.gpus.clone(), many, None);
        for _ in 0..40 {
            press(&mut model, KeyCode::Down);
        }
        let lines = drawn(&model, 12);
        assert!(
            lines.iter().any(|line| line.starts_with("vm40-with… ")),
            "{lines:?}"
        );
        // Nothing to see, and no panic.
        for height in 1..9 {
            drawn(&model, height);
        }
        drawn(&Model::new(), 4);
    }
}
