//! Means, deviations, straight lines.

use crate::report::Spread;

/// Mean and deviation of a sample.
pub(crate) fn spread(values: &[f64]) -> Spread {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = match values.len() {
        0 | 1 => 0.0,
        _ => (squares / (count - 1.0)).sqrt(),
    };
    Spread { mean, deviation }
}

/// Geometric mean of positive values; 1 of none.
pub(crate) fn geometric_mean(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (logs / values.len().max(1) as f64).exp()
}

/// The line through points with the least squares of distances.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Fit {
    /// What it says of zero bytes.
    pub(crate) offset: f64,
    pub(crate) slope: f64,
    /// Part of the variance that the line explains.
    pub(crate) r2: f64,
}

/// Fits a line; `None` if the points have fewer than two places.
pub(crate) fn fit(points: &[(f64, f64)]) -> Option<Fit> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let xx = sum(&|point| (point.0 - x).powi(2));
    let yy = sum(&|point| (point.1 - y).powi(2));
    let xy = sum(&|point| (point.0 - x) * (point.1 - y));
    if xx.is_nan() || xx <= 0.0 {
        return None;
    }
    let slope = xy / xx;
    let r2 = if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 };
    let offset = y - slope * x;
    Some(Fit { offset, slope, r2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_that_of_a_sample() {
        let Spread { mean, deviation } = spread(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12 && (deviation - 2.138).abs() < 1e-3);
        assert_eq!(spread(&[3.0]).deviation, 0.0);
    }

    #[test]
    fn geometric_mean_of_a_half_and_two_is_one() {
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn line_through_points_on_a_line_is_that_line() {
        let fit = fit(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).unwrap();
        assert!((fit.slope - 2.0).abs() < 1e-9 && (fit.offset - 3.0).abs() < 1e-9 && fit.r2 > 0.999_999);
    }

    #[test]
    fn points_above_each_other_have_no_line() {
        assert_eq!(fit(&[(1.0, 5.0), (1.0, 7.0)]), None);
    }
}
