//! Figures as people read them: in a unit that fits the largest, few digits, and axes that end at a round one.

use crate::pictures::dashboard::Unit;

/// By what figures are divided, and what stands behind them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scale {
    pub(super) factor: f64,
    suffix: &'static str,
}

const BYTES: &[(f64, &str)] = &[
    (1.0, " B"),
    (1024.0, " KiB"),
    (1024.0 * 1024.0, " MiB"),
    (1024.0 * 1024.0 * 1024.0, " GiB"),
];
const BYTES_PER_SECOND: &[(f64, &str)] = &[(1.0, " B/s"), (1e3, " kB/s"), (1e6, " MB/s"), (1e9, " GB/s")];
const SECONDS: &[(f64, &str)] = &[(1e-6, " µs"), (1e-3, " ms"), (1.0, " s")];

impl Scale {
    /// The largest unit of which `most` is at least one; the smallest for nothing at all.
    pub(super) fn of(unit: Unit, most: f64) -> Self {
        let units: &[(f64, &str)] = match unit {
            Unit::None => &[(1.0, "")],
            Unit::Part => &[(0.01, " %")],
            Unit::PerSecond => &[(1.0, " /s")],
            Unit::Bytes => BYTES,
            Unit::BytesPerSecond => BYTES_PER_SECOND,
            Unit::Seconds => SECONDS,
        };
        let fitting = units.iter().rev().find(|(factor, _)| most >= *factor);
        let (factor, suffix) = *fitting.unwrap_or(&units[0]);
        Self { factor, suffix }
    }

    /// A figure that is in the question's unit.
    pub(super) fn text(self, figure: f64) -> String {
        let figure = figure / self.factor;
        match figure.abs() {
            size if size >= 100.0 => self.label(figure.round()),
            size if size >= 10.0 => self.label((figure * 10.0).round() / 10.0),
            _ => self.label(figure),
        }
    }

    /// A figure that is in this scale, with two digits behind the point where it needs them.
    pub(super) fn label(self, figure: f64) -> String {
        let text = format!("{figure:.2}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        format!("{text}{}", self.suffix)
    }

    /// Where an axis ends that has `most` on it, in this scale: at a round figure above it, and never at its begin.
    pub(super) fn top(self, most: f64) -> f64 {
        let most = most / self.factor;
        if !most.is_finite() || most <= 0.0 {
            return 1.0;
        }
        let step = 10_f64.powf(most.log10().floor());
        let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0];
        // Some room above the highest line.
        let fits = steps.into_iter().find(|count| count * step >= most * 1.04);
        fits.unwrap_or(12.0) * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_unit_that_fits() {
        let text = |unit, figure| Scale::of(unit, figure).text(figure);
        assert_eq!(text(Unit::Bytes, 768.0 * 1024.0), "768 KiB");
        assert_eq!(text(Unit::Bytes, 44.0 * 1024.0 * 1024.0), "44 MiB");
        assert_eq!(text(Unit::Bytes, 0.0), "0 B");
        assert_eq!(text(Unit::BytesPerSecond, 1.5e7), "15 MB/s");
        assert_eq!(text(Unit::Part, 0.3125), "31.3 %");
        assert_eq!(text(Unit::Seconds, 0.0441), "44.1 ms");
        assert_eq!(text(Unit::Seconds, 2e-5), "20 µs");
        assert_eq!(text(Unit::PerSecond, 0.25), "0.25 /s");
        assert_eq!(text(Unit::None, 3.0), "3");
    }

    #[test]
    fn axis_ends_above_what_is_on_it() {
        let mib = f64::from(1 << 20);
        let scale = Scale::of(Unit::Bytes, 118.75 * mib);
        assert_eq!(scale.top(118.75 * mib), 150.0);
        assert_eq!(scale.top(40.0 * mib), 50.0);
        assert_eq!(scale.top(0.0), 1.0);
        let plain = Scale::of(Unit::None, 1.0);
        let figures = [0.003, 0.99, 1.0, 7.7, 9.9, 10.0, 11.9, 99.0, 12345.0];
        assert!(figures.iter().all(|most| plain.top(*most) > *most));
        assert!(figures.iter().all(|most| plain.top(*most) < *most * 1.7));
    }

    #[test]
    fn label_has_no_digits_that_say_nothing() {
        let plain = Scale::of(Unit::None, 1.0);
        assert_eq!(plain.label(0.1 + 0.2), "0.3");
        assert_eq!(plain.label(20.0), "20");
        assert_eq!(plain.label(0.0), "0");
    }
}
