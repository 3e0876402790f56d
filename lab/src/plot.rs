//! Charts as SVG: for each a field with axes, points with their deviations, and a legend.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::host::LabError;
use crate::report::{Chart, Report};

/// Size of one chart in pixels.
const CHART: (u32, u32) = (720, 420);
/// Charts beside each other.
const COLUMNS: usize = 2;
const FONT: &str = "sans-serif";

type Field<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws all charts of a report.
pub(crate) fn draw(report: &Report) -> Result<String, LabError> {
    let columns = COLUMNS.min(report.charts.len()).max(1);
    let rows = report.charts.len().div_ceil(columns).max(1);
    let size = (CHART.0 * columns as u32, CHART.1 * rows as u32);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let fields = root.split_evenly((rows, columns));
        for (chart, field) in report.charts.iter().zip(&fields) {
            draw_chart(chart, field)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> LabError {
    let what = error.to_string();
    LabError::Chart { what }
}

/// The ends of an axis that has all of these on it, never the same twice.
fn ends(values: impl Iterator<Item = f64>, from_zero: bool) -> (f64, f64) {
    let start = if from_zero {
        (0.0, 0.0)
    } else {
        (f64::INFINITY, f64::NEG_INFINITY)
    };
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold(start, |(low, high), value| (low.min(value), high.max(value)));
    match low < high {
        true => (low, high + (high - low) * 0.05),
        false if low.is_finite() => (low, low + 1.0),
        false => (0.0, 1.0),
    }
}

fn draw_chart(chart: &Chart, field: &Field<'_>) -> Result<(), LabError> {
    // A doubling axis shows the power of two.
    let place = |x: f64| {
        if chart.is_doubling {
            x.max(f64::MIN_POSITIVE).log2()
        } else {
            x
        }
    };
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let (left, right) = ends(points().map(|point| place(point.0)), !chart.is_doubling);
    let (low, high) = ends(points().map(|point| point.1.mean + point.1.deviation), true);
    let mut drawn = ChartBuilder::on(field)
        .caption(&chart.title, (FONT, 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(left..right, low..high)
        .map_err(failed)?;
    let label = |x: &f64| match chart.is_doubling {
        true => format!("{:.0}", x.exp2()),
        false => format!("{x:.0}"),
    };
    drawn
        .configure_mesh()
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .x_label_formatter(&label)
        .label_style((FONT, 13))
        .draw()
        .map_err(failed)?;
    for (at, series) in chart.series.iter().enumerate() {
        let colour = Palette99::pick(at).to_rgba();
        let places = series.points.iter().map(|(x, y)| (place(*x), y.mean));
        if series.is_line {
            let line = LineSeries::new(places.clone(), colour.stroke_width(2));
            drawn.draw_series(line).map_err(failed)?;
        }
        let bars = series.points.iter().filter(|(_, y)| y.deviation > 0.0);
        let bars = bars.map(|(x, y)| {
            let (low, high) = (y.mean - y.deviation, y.mean + y.deviation);
            ErrorBar::new_vertical(place(*x), low, y.mean, high, colour.filled(), 6)
        });
        drawn.draw_series(bars).map_err(failed)?;
        let dots = places.map(|at| Circle::new(at, 3, colour.filled()));
        drawn
            .draw_series(dots)
            .map_err(failed)?
            .label(&series.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    drawn
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 13))
        .draw()
        .map_err(failed)
}
