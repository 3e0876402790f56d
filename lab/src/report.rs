//! The results of an experiment: figures, charts, and what is claimed of them.

use std::fmt;

use serde::Serialize;

use crate::host::LabError;
use crate::plot;

/// Mean and deviation over runs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// Arithmetic mean over the runs.
    pub mean: f64,
    /// Standard deviation of the sample.
    pub deviation: f64,
}

/// One figure of a table.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// The name of what the row is about.
    Text(String),
    /// Something that was counted: whole in every run.
    Count(u64),
    /// A measured value.
    Number(f64),
    /// One of several runs.
    Spread(Spread),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Spread> for Cell {
    fn from(spread: Spread) -> Self {
        Self::Spread(spread)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Count(count) => write!(f, "{count}"),
            Self::Number(number) => write!(f, "{}", decimals(*number)),
            Self::Spread(Spread { mean, deviation }) => {
                write!(f, "{} ± {}", decimals(*mean), decimals(*deviation))
            }
        }
    }
}

/// Three digits that say something, or two behind the point.
fn decimals(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// Figures in rows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Table {
    /// What its rows are, with the unit.
    pub title: String,
    /// Heads of its columns.
    pub columns: Vec<String>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::to_string).collect())
            .collect();
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |f: &mut fmt::Formatter<'_>, cells: &[String]| {
            for (at, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                match at {
                    0 => write!(f, "  {cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)
        };
        writeln!(f, "{}", self.title)?;
        line(f, &self.columns)?;
        rows.iter().try_for_each(|row| line(f, row))
    }
}

/// Points of one kind in a chart.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Places on both axes, and the deviation of the second.
    pub points: Vec<(f64, Spread)>,
    /// Whether neighbours are joined.
    pub is_line: bool,
}

/// One chart of a figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x: String,
    /// The vertical axis, with its unit.
    pub y: String,
    /// Each step of the horizontal axis is twice the one before.
    pub is_doubling: bool,
    /// What is in it.
    pub series: Vec<Series>,
}

/// Something that has to hold, and whether it does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Claim {
    /// What is claimed, with the figures that it is about.
    pub what: String,
    /// Whether it holds in this run.
    pub holds: bool,
}

/// All results of one experiment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Name on the command line.
    pub experiment: &'static str,
    /// Figures, and whose paper has them.
    pub figure: &'static str,
    /// Whose values were used.
    pub profile: &'static str,
    /// Runs of each point.
    pub seeds: u32,
    /// Fewer points and less work.
    pub quick: bool,
    /// What the paper says.
    pub paper: &'static str,
    /// In the order in which they are to be read.
    pub tables: Vec<Table>,
    /// What is charted.
    pub charts: Vec<Chart>,
    /// What has to hold.
    pub claims: Vec<Claim>,
    /// What else is to be known.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether everything holds that is claimed.
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    /// The charts as one SVG image.
    ///
    /// # Errors
    /// Says why they cannot be drawn.
    pub fn to_svg(&self) -> Result<String, LabError> {
        plot::draw(self)
    }

    pub(crate) fn claim(&mut self, holds: bool, what: String) {
        self.claims.push(Claim { what, holds });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            experiment,
            figure,
            profile,
            seeds,
            ..
        } = self;
        let quick = if self.quick { ", quick" } else { "" };
        writeln!(
            f,
            "{experiment}: {figure} (profile {profile}, {seeds} runs of each point{quick})"
        )?;
        writeln!(f, "the paper: {}", self.paper)?;
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        if !self.claims.is_empty() {
            writeln!(f)?;
        }
        for Claim { what, holds } in &self.claims {
            writeln!(f, "{}  {what}", if *holds { "holds " } else { "BROKEN" })?;
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "note    {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let table = Table {
            title: "time, ms".to_owned(),
            columns: ["program", "20 MB"].map(str::to_owned).to_vec(),
            rows: vec![
                vec![
                    "bfs".into(),
                    Spread {
                        mean: 12.345,
                        deviation: 0.5,
                    }
                    .into(),
                ],
                vec!["hotspot".into(), 7u64.into()],
            ],
        };
        let wanted = "time, ms\n  program        20 MB\n  bfs      12.3 ± 0.50\n  hotspot            7\n";
        assert_eq!(table.to_string(), wanted);
    }
}
