//! The panels of a dashboard, drawn in the places of its grid from what Prometheus answered.

mod figures;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::dashboard::{Dashboard, GRID_COLUMNS, Kind, Panel, Style};
use super::prometheus::{Series, Span};
use super::scene::Mark;
use figures::Scale;

/// Pixels of a cell of the grid.
const CELL: (u32, u32) = (50, 34);
/// Above the grid: what this is, and what the marks mean.
const HEAD: u32 = 58;
/// Pixels that are left free between two panels.
const GAP: u32 = 4;
/// Parts of a panel: its title with the marks' numbers, a line of its legend, and the figures at its axes.
const TITLE: u32 = 44;
const LEGEND_LINE: u32 = 18;
const X_FIGURES: u32 = 24;
const Y_FIGURES: u32 = 70;
const PADDING: u32 = 10;
/// Pixels that a letter of a legend takes on the average, in any font without serifs.
const LETTER: u32 = 7;
/// A legend's line of colour, and all gaps around it and its name.
const SAMPLE: u32 = 38;

/// In a panel none of whose questions has figures for an answer.
const NOTHING: &str = "nothing happened that this shows";

const FONT: &str = "sans-serif";
const GROUND: RGBColor = RGBColor(0xf1, 0xf3, 0xf6);
const PANEL: RGBColor = RGBColor(0xff, 0xff, 0xff);
const FRAME: RGBColor = RGBColor(0xd5, 0xd9, 0xe0);
const TEXT: RGBColor = RGBColor(0x24, 0x29, 0x32);
const QUIET: RGBColor = RGBColor(0x62, 0x6a, 0x78);
const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xee);
const MARK: RGBColor = RGBColor(0x9a, 0xa5, 0xb8);
/// Of series, in their order.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0x2f, 0x74, 0xc0),
    RGBColor(0xe8, 0x8a, 0x1a),
    RGBColor(0x3a, 0x9a, 0x4b),
    RGBColor(0xd0, 0x3f, 0x4a),
    RGBColor(0x8a, 0x5c, 0xc7),
    RGBColor(0x1b, 0xa3, 0xa8),
    RGBColor(0xa8, 0x6a, 0x2b),
    RGBColor(0xd8, 0x5f, 0xa8),
    RGBColor(0x7c, 0x8a, 0x1d),
    RGBColor(0x5f, 0x6b, 0x7a),
];

/// The series of each target of a panel.
pub(super) type Answered = Vec<Vec<Series>>;

type Field<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What has the axes of a panel.
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A series as it is drawn.
struct Line {
    name: String,
    colour: RGBColor,
    style: Style,
    /// Seconds since the picture's begin, and figures in the unit of the question.
    points: Vec<(f64, f64)>,
    /// What is below each point, if it stands on others.
    floor: Vec<f64>,
}

/// Draws all panels; `answers` are theirs, in their order.
pub(super) fn draw(
    dashboard: &Dashboard,
    answers: &[Answered],
    marks: &[Mark],
    span: Span,
) -> Result<String> {
    let bottom = dashboard
        .panels
        .iter()
        .map(|panel| panel.place.y + panel.place.height);
    let rows = bottom.max().unwrap_or(1);
    let size = (GRID_COLUMNS * CELL.0 + 2 * GAP, HEAD + rows * CELL.1 + 2 * GAP);
    let marks: Vec<_> = marks
        .iter()
        .map(|mark| (mark.at - span.start, mark.what.as_str()))
        .collect();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&GROUND).map_err(failed)?;
        draw_head(&root, &marks)?;
        for (panel, answered) in dashboard.panels.iter().zip(answers) {
            let place = panel.place;
            let field = root.clone().shrink(
                (place.x * CELL.0 + 2 * GAP, HEAD + place.y * CELL.1 + GAP),
                (place.width * CELL.0 - 2 * GAP, place.height * CELL.1 - 2 * GAP),
            );
            draw_panel(&field, panel, answered, &marks, span)
                .with_context(|| format!("panel {}", panel.title))?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Writes a text whose upper left corner is at `at`, or what `anchor` says otherwise.
fn write(
    field: &Field<'_>,
    text: &str,
    at: (i32, i32),
    size: u32,
    colour: RGBColor,
    anchor: Pos,
) -> Result<()> {
    let style = (FONT, size).into_font().color(&colour).pos(anchor);
    let text = Text::new(text.to_owned(), at, style);
    field.draw(&text).map_err(failed)
}

const LEFT: Pos = Pos {
    h_pos: HPos::Left,
    v_pos: VPos::Top,
};
const MIDDLE: Pos = Pos {
    h_pos: HPos::Center,
    v_pos: VPos::Top,
};

fn draw_head(root: &Field<'_>, marks: &[(f64, &str)]) -> Result<()> {
    let at = (2 * GAP + PADDING) as i32;
    let title = format!(
        "{}: its own queries, answered by Prometheus, drawn by cargo xtask pictures",
        super::dashboard::PATH
    );
    write(root, &title, (at, 10), 18, TEXT, LEFT)?;
    let legend: Vec<_> = (1..)
        .zip(marks)
        .map(|(number, (_, what))| format!("{number} {what}"))
        .collect();
    write(root, &legend.join("  ·  "), (at, 36), 15, QUIET, LEFT)
}

fn draw_panel(
    field: &Field<'_>,
    panel: &Panel,
    answered: &Answered,
    marks: &[(f64, &str)],
    span: Span,
) -> Result<()> {
    let (width, height) = field.dim_in_pixel();
    let frame = Rectangle::new([(0, 0), (width as i32 - 1, height as i32 - 1)], PANEL.filled());
    field.draw(&frame).map_err(failed)?;
    let frame = Rectangle::new(
        [(0, 0), (width as i32 - 1, height as i32 - 1)],
        FRAME.stroke_width(1),
    );
    field.draw(&frame).map_err(failed)?;
    write(field, &panel.title, (PADDING as i32, 9), 17, TEXT, LEFT)?;
    let lines = lines(panel, answered, span);
    match panel.kind {
        Kind::Stat => draw_figures(field, panel, &lines),
        Kind::Timeseries => draw_lines(field, panel, &lines, marks, span),
    }
}

/// The series of a panel with their names and colours. Those that are stacked stand on those before them.
fn lines(panel: &Panel, answered: &Answered, span: Span) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    // By milliseconds: the times of all series of an answer are the same.
    let mut heights: BTreeMap<i64, f64> = BTreeMap::new();
    for (target, series) in panel.targets.iter().zip(answered) {
        let style = panel.style(target);
        for one in series {
            let mut line = Line {
                name: target.legend(&one.labels),
                colour: COLOURS[lines.len() % COLOURS.len()],
                style,
                points: Vec::new(),
                floor: Vec::new(),
            };
            for (at, figure) in one.points.iter().filter(|(_, figure)| figure.is_finite()) {
                let floor = if style.is_stacked {
                    let height = heights.entry((at * 1e3).round() as i64).or_default();
                    let floor = *height;
                    *height += figure;
                    floor
                } else {
                    0.0
                };
                line.points.push((at - span.start, floor + figure));
                line.floor.push(floor);
            }
            lines.push(line);
        }
    }
    lines
}

/// The last figure of each series, and its name where there are several.
fn draw_figures(field: &Field<'_>, panel: &Panel, lines: &[Line]) -> Result<()> {
    let (width, height) = field.dim_in_pixel();
    let count = lines.len().max(1) as u32;
    for (index, line) in (0..).zip(lines) {
        let Some((_, figure)) = line.points.last() else {
            continue;
        };
        let middle = ((2 * index + 1) * width / (2 * count)) as i32;
        let text = Scale::of(panel.unit(), *figure).text(*figure);
        let top = height as i32 / 2 - 18;
        write(field, &text, (middle, top), 40, COLOURS[0], MIDDLE)?;
        write(field, &line.name, (middle, height as i32 - 26), 15, QUIET, MIDDLE)?;
    }
    Ok(())
}

fn draw_lines(
    field: &Field<'_>,
    panel: &Panel,
    lines: &[Line],
    marks: &[(f64, &str)],
    span: Span,
) -> Result<()> {
    let (width, height) = field.dim_in_pixel();
    let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
    let rows = legend_rows(&names, width - 2 * PADDING);
    let legend_height = rows.len() as u32 * LEGEND_LINE + PADDING / 2;
    let most = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|(_, figure)| *figure)
        .fold(0.0, f64::max);
    let scale = Scale::of(panel.unit(), most);
    let top = scale.top(most);
    let plot = field
        .clone()
        .shrink((0, TITLE), (width - 2 * PADDING, height - TITLE - legend_height));
    let mut chart = ChartBuilder::on(&plot)
        .x_label_area_size(X_FIGURES)
        .y_label_area_size(Y_FIGURES)
        .build_cartesian_2d(0.0..span.end - span.start, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FRAME)
        .x_labels(9)
        .y_labels(6)
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .y_label_formatter(&|figure| scale.label(*figure))
        .label_style((FONT, 14).into_font().color(&QUIET))
        .draw()
        .map_err(failed)?;
    draw_marks(field, &mut chart, marks, top)?;
    for line in lines {
        draw_line(&mut chart, line, &scale)?;
    }
    if lines.iter().all(|line| line.points.is_empty()) {
        let middle = (
            (width / 2) as i32,
            (TITLE + (height - TITLE - legend_height) / 2) as i32 - 20,
        );
        write(field, NOTHING, middle, 17, QUIET, MIDDLE)?;
    }
    draw_legend(field, lines, rows, height - legend_height)
}

/// A line at each mark, with its number above it.
fn draw_marks(field: &Field<'_>, chart: &mut Chart<'_, '_>, marks: &[(f64, &str)], top: f64) -> Result<()> {
    for (number, (at, _)) in (1..).zip(marks) {
        let element = PathElement::new([(*at, 0.0), (*at, top)], MARK.stroke_width(1));
        chart.draw_series([element]).map_err(failed)?;
        let (x, y) = chart.backend_coord(&(*at, top));
        let (left, above) = field.get_base_pixel();
        write(
            field,
            &format!("{number}"),
            (x - left, y - above - 15),
            13,
            QUIET,
            MIDDLE,
        )?;
    }
    Ok(())
}

/// One series: its line in pieces, and what is below it if its panel fills that.
fn draw_line(chart: &mut Chart<'_, '_>, line: &Line, scale: &Scale) -> Result<()> {
    let scaled = |figure: f64| figure / scale.factor;
    for piece in pieces(&line.points) {
        let points: Vec<_> = line.points[piece.clone()]
            .iter()
            .map(|(at, figure)| (*at, scaled(*figure)))
            .collect();
        if line.style.fill_percent > 0 {
            let floor = line.points[piece.clone()].iter().zip(&line.floor[piece]).rev();
            let floor = floor.map(|((at, _), floor)| (*at, scaled(*floor)));
            let area: Vec<_> = points.iter().copied().chain(floor).collect();
            let fill = line.colour.mix(f64::from(line.style.fill_percent) / 100.0);
            chart
                .draw_series([Polygon::new(area, fill.filled())])
                .map_err(failed)?;
        }
        if let [only] = points[..] {
            // No line goes through it.
            chart
                .draw_series([Circle::new(only, 2, line.colour.filled())])
                .map_err(failed)?;
        } else {
            chart
                .draw_series(LineSeries::new(points, line.colour.stroke_width(2)))
                .map_err(failed)?;
        }
    }

    Ok(())
}

/// Names and colours of the lines, in rows.
fn draw_legend(field: &Field<'_>, lines: &[Line], rows: Vec<Vec<(usize, u32)>>, first: u32) -> Result<()> {
    for (row, names) in (0..).zip(rows) {
        let y = (first + row * LEGEND_LINE) as i32;
        for (index, x) in names {
            let (x, line) = ((x + PADDING) as i32, &lines[index]);
            let sample = Rectangle::new([(x, y + 5), (x + 14, y + 8)], line.colour.filled());
            field.draw(&sample).map_err(failed)?;
            write(field, &line.name, (x + 19, y), 15, TEXT, LEFT)?;
        }
    }
    Ok(())
}

/// Which names are in each row of a legend, and where they begin, so that none lies on another or beyond the width.
fn legend_rows(names: &[&str], width: u32) -> Vec<Vec<(usize, u32)>> {
    let mut rows: Vec<Vec<(usize, u32)>> = Vec::new();
    let mut next = 0;
    for (index, name) in names.iter().enumerate() {
        let needs = SAMPLE + name.chars().count() as u32 * LETTER;
        match rows.last_mut() {
            Some(row) if next + needs <= width => row.push((index, next)),
            _ => {
                rows.push(vec![(index, 0)]);
                next = 0;
            }
        }
        next += needs;
    }
    rows
}

/// Ranges of points without a gap: where there is none a second later, nothing was there to draw.
fn pieces(points: &[(f64, f64)]) -> Vec<std::ops::Range<usize>> {
    let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, (at, _)) in points.iter().enumerate() {
        match pieces.last_mut() {
            Some(piece) if at - points[index - 1].0 < 1.5 => piece.end = index + 1,
            _ => pieces.push(index..index + 1),
        }
    }
    pieces
}

#[cfg(test)]
mod tests;
