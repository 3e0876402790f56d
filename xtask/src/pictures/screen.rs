//! What a terminal shows, as SVG: the same picture for the same screen, on a ground of its own, so that any page may have it.
//!
//! Text is text. Each piece says how wide it is, so that columns stand below each other in any font; blocks are drawn as areas, since
//! fonts leave gaps between them.

use std::fmt::Write as _;

use vt100::{Cell, Color, Screen};

/// Pixels of a cell.
const CELL_WIDTH: f64 = 8.4;
const CELL_HEIGHT: f64 = 18.0;
/// From the top of a cell to where its text stands.
const BASELINE: f64 = 13.5;
const FONT_SIZE: f64 = 14.0;
const FONTS: &str = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
/// Around the cells.
const MARGIN: f64 = 14.0;

const GROUND: Rgb = Rgb(0x1d, 0x20, 0x27);
const TEXT: Rgb = Rgb(0xd9, 0xdc, 0xe3);
const FRAME: Rgb = Rgb(0x6b, 0x72, 0x80);
/// The colours with names, bright ones last.
const NAMED: [Rgb; 16] = [
    Rgb(0x3a, 0x3f, 0x4b),
    Rgb(0xe8, 0x6a, 0x6a),
    Rgb(0x6c, 0xc0, 0x72),
    Rgb(0xe0, 0xb0, 0x4c),
    Rgb(0x6a, 0xa2, 0xf0),
    Rgb(0xc8, 0x87, 0xe0),
    Rgb(0x54, 0xc3, 0xcf),
    Rgb(0xc8, 0xcc, 0xd4),
    Rgb(0x8a, 0x91, 0x9e),
    Rgb(0xff, 0x8e, 0x8e),
    Rgb(0x92, 0xdd, 0x97),
    Rgb(0xf5, 0xcf, 0x7a),
    Rgb(0x97, 0xc0, 0xff),
    Rgb(0xe0, 0xae, 0xf5),
    Rgb(0x86, 0xe1, 0xea),
    Rgb(0xff, 0xff, 0xff),
];
/// Part of its colour that dim text keeps.
const DIM: f64 = 0.62;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rgb(u8, u8, u8);

impl std::fmt::Display for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

impl Rgb {
    /// This colour, as far as `part` says, on that ground.
    fn on(self, ground: Self, part: f64) -> Self {
        let mix =
            |own: u8, under: u8| (f64::from(own) * part + f64::from(under) * (1.0 - part)).round() as u8;
        Self(
            mix(self.0, ground.0),
            mix(self.1, ground.1),
            mix(self.2, ground.2),
        )
    }
}

/// Rows and columns from the upper left corner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) rows: u16,
    pub(super) columns: u16,
}

impl Area {
    /// The whole screen.
    pub(super) fn whole(screen: &Screen) -> Self {
        let (rows, columns) = screen.size();
        Self {
            rows: rows.get(),
            columns: columns.get(),
        }
    }

    /// The part of the screen that has something on it.
    pub(super) fn used(screen: &Screen) -> Self {
        let whole = Self::whole(screen);
        let is_used = |row, column| screen.cell(row, column).is_some_and(|cell| !is_blank(cell));
        let rows = (0..whole.rows)
            .rev()
            .find(|row| (0..whole.columns).any(|column| is_used(*row, column)));
        let columns = (0..whole.columns)
            .rev()
            .find(|column| (0..whole.rows).any(|row| is_used(row, *column)));
        Self {
            rows: rows.map_or(1, |row| row + 1),
            columns: columns.map_or(1, |column| column + 1),
        }
    }
}

fn is_blank(cell: &Cell) -> bool {
    cell.contents().trim().is_empty() && !cell.inverse() && cell.bgcolor() == Color::Default
}

/// How a cell looks.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Look {
    ink: Rgb,
    ground: Rgb,
    is_bold: bool,
    is_italic: bool,
    is_underlined: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        let (mut ink, mut ground) = (
            colour(cell.fgcolor()).unwrap_or(TEXT),
            colour(cell.bgcolor()).unwrap_or(GROUND),
        );
        if cell.inverse() {
            (ink, ground) = (ground, ink);
        }
        if cell.dim() {
            ink = ink.on(ground, DIM);
        }
        Self {
            ink,
            ground,
            is_bold: cell.bold(),
            is_italic: cell.italic(),
            is_underlined: cell.underline(),
        }
    }
}

/// `None` is the terminal's own.
fn colour(of: Color) -> Option<Rgb> {
    match of {
        Color::Default => None,
        Color::Rgb(red, green, blue) => Some(Rgb(red, green, blue)),
        Color::Idx(index) => Some(indexed(index)),
    }
}

/// The 256 colours of xterm: those with names, a cube of six steps each way, and greys.
fn indexed(index: u8) -> Rgb {
    let step = |value: u8| if value == 0 { 0 } else { 55 + 40 * value };
    match index {
        0..16 => NAMED[usize::from(index)],
        16..232 => {
            let place = index - 16;
            Rgb(step(place / 36), step(place / 6 % 6), step(place % 6))
        }
        232.. => {
            let grey = 8 + 10 * (index - 232);
            Rgb(grey, grey, grey)
        }
    }
}

/// Part of a cell that a block covers, evenly.
fn block(sign: &str) -> Option<f64> {
    match sign {
        "█" => Some(1.0),
        "▓" => Some(0.75),
        "▒" => Some(0.5),
        "░" => Some(0.25),
        _ => None,
    }
}

/// Cells side by side that look alike.
struct Run {
    column: u16,
    columns: u16,
    look: Look,
    /// Empty where there is nothing but the ground.
    text: String,
    block: Option<f64>,
}

/// Draws a part of a screen; `title` is for those who do not see it.
pub(super) fn draw(screen: &Screen, area: Area, title: &str) -> String {
    let (width, height) = (
        f64::from(area.columns) * CELL_WIDTH + 2.0 * MARGIN,
        f64::from(area.rows) * CELL_HEIGHT + 2.0 * MARGIN,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.1} {height:.1}\" role=\"img\">\n<title>{}</title>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{:.1}\" height=\"{:.1}\" rx=\"7\" fill=\"{GROUND}\" stroke=\"{FRAME}\"/>\n\
         <g font-family=\"{FONTS}\" font-size=\"{FONT_SIZE}\">\n",
        escaped(title),
        width - 1.0,
        height - 1.0,
    );
    for row in 0..area.rows {
        for run in runs(screen, row, area.columns) {
            // Writing to a String does not fail.
            let _ = draw_run(&mut svg, row, &run);
        }
    }
    svg + "</g>\n</svg>\n"
}

fn runs(screen: &Screen, row: u16, columns: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for column in 0..columns {
        let Some(cell) = screen.cell(row, column) else {
            break;
        };
        if cell.is_wide_continuation() {
            if let Some(run) = runs.last_mut() {
                run.columns += 1;
            }
            continue;
        }
        let sign = if cell.has_contents() { cell.contents() } else { " " };
        let (look, block) = (Look::of(cell), block(sign));
        match runs.last_mut() {
            Some(run) if run.look == look && run.block == block => {
                run.columns += 1;
                run.text.push_str(sign);
            }
            _ => runs.push(Run {
                column,
                columns: 1,
                look,
                text: sign.to_owned(),
                block,
            }),
        }
    }
    runs
}

fn left(column: u16) -> f64 {
    MARGIN + f64::from(column) * CELL_WIDTH
}

fn draw_run(svg: &mut String, row: u16, run: &Run) -> std::fmt::Result {
    let top = MARGIN + f64::from(row) * CELL_HEIGHT;
    let (x, width) = (left(run.column), f64::from(run.columns) * CELL_WIDTH);
    let mut fill = |top: f64, height: f64, colour: Rgb| {
        writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
             shape-rendering=\"crispEdges\"/>"
        )
    };
    if run.look.ground != GROUND {
        fill(top, CELL_HEIGHT, run.look.ground)?;
    }
    if let Some(part) = run.block {
        return fill(top, CELL_HEIGHT, run.look.ink.on(run.look.ground, part));
    }
    if run.look.is_underlined {
        fill(top + BASELINE + 2.0, 1.0, run.look.ink)?;
    }
    let mut style = String::new();
    if run.look.is_bold {
        style += " font-weight=\"bold\"";
    }
    if run.look.is_italic {
        style += " font-style=\"italic\"";
    }
    for (column, columns, words) in pieces(run) {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" textLength=\"{:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{}\"{style}>{}</text>",
            left(column),
            top + BASELINE,
            f64::from(columns) * CELL_WIDTH,
            run.look.ink,
            escaped(&words)
        )?;
    }
    Ok(())
}

/// Column, columns and text of what stands in a run with no more than a blank between its words. A sign of two columns is one for itself.
fn pieces(run: &Run) -> Vec<(u16, u16, String)> {
    let signs = run.text.chars().count();
    if signs != usize::from(run.columns) {
        // Wide signs, or signs of several characters: the run as a whole has its width.
        let words = run.text.trim_end();
        let blanks = (run.text.len() - words.len()) as u16;
        let is_empty = words.is_empty();
        let whole = (run.column, run.columns.saturating_sub(blanks), words.to_owned());
        return if is_empty { Vec::new() } else { vec![whole] };
    }
    let mut pieces: Vec<(u16, u16, String)> = Vec::new();
    let mut blanks = 2;
    for (column, sign) in (run.column..).zip(run.text.chars()) {
        if sign == ' ' {
            blanks += 1;
            continue;
        }
        match pieces.last_mut() {
            Some((_, columns, words)) if blanks < 2 => {
                *columns += blanks + 1;
                words.extend(std::iter::repeat_n(' ', usize::from(blanks)));
                words.push(sign);
            }
            _ => pieces.push((column, 1, sign.to_string())),
        }
        blanks = 0;
    }
    pieces
}

/// Text as XML has it; what XML cannot have is a blank.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for sign in text.chars() {
        match sign {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            sign if sign.is_control() => escaped.push(' '),
            sign => escaped.push(sign),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
