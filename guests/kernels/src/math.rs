//! The GPU's arithmetic on the host, bit for bit.
//!
//! Without `ftz` the GPU adds, multiplies and compares as IEEE 754 says, denormals included, so Rust's `+` and `*` of
//! `f32` do the same. A NaN would differ (the GPU's is 0x7fffffff): inputs must not lead to one.

/// `fma rn f32`: one rounding.
///
/// The product is exact in `f64`; the sum is rounded to odd there (Boldo, Melquiond 2008), after which the rounding to
/// `f32` is that of the exact sum, denormals included.
#[inline]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (product, addend) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + addend;
    let part = sum - product;
    // The exact rounding error of the addition (Knuth's two-sum).
    let lost = (product - (sum - part)) + (addend - part);
    let bits = sum.to_bits();
    if lost == 0.0 || bits & 1 == 1 || !sum.is_finite() {
        return sum as f32;
    }
    let is_away = (lost > 0.0) == (sum > 0.0);
    f64::from_bits(if is_away { bits + 1 } else { bits - 1 }) as f32
}

/// The same where the exact sum fits an `f64`, as with factors from [`crate::Noise::short`]: several times faster.
#[inline]
pub(crate) fn fma_short(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

/// Result of the macro `square_root`: the root, correctly rounded. The macro `divide` is Rust's `/`.
pub(crate) fn square_root(x: f32) -> f32 {
    libm::sqrtf(x)
}

/// `ex2` of `preex2` on the software card: the exact value, rounded once. A card may differ by a relative 2^-22.
pub(crate) fn exp2(x: f32) -> f32 {
    libm::exp2(f64::from(x)) as f32
}

/// The largest integer whose square is at most `value`.
pub(crate) fn root(value: u64) -> u64 {
    value.isqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Noise;

    proptest::proptest! {
        /// Against the standard library's, which is the C library's or the processor's.
        #[test]
        fn fma_is_the_standard_librarys(a: u32, b: u32, c: u32, near in -30i32..30) {
            let [a, b, other] = [a, b, c].map(f32::from_bits);
            // A sum that cancels, or is far apart, is where roundings differ.
            let close = -(a * b) * 2f32.powi(near) * (1.0 + c as f32 / 1e9);
            for c in [other, close] {
                let (want, got) = (a.mul_add(b, c), fma(a, b, c));
                proptest::prop_assert!(want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan());
            }
        }
    }

    /// The next representable number, or the one before, or the number.
    fn neighbour(x: f32, distance: i32) -> f32 {
        f32::from_bits(x.to_bits().wrapping_add_signed(distance))
    }

    /// `fma rp` of `a`, `b` and `b`.
    fn fma_up(a: f32, b: f32) -> f32 {
        let near = fma(a, b, b);
        let is_below = f64::from(near) - f64::from(b) < f64::from(a) * f64::from(b);
        if is_below { near.next_up() } else { near }
    }

    /// The macro `divide` with any `rcp` that keeps to its documented error of one unit in the last place.
    fn divide(a: f32, b: f32, distance: i32) -> f32 {
        let near = neighbour((1.0 / f64::from(b)) as f32, distance);
        let near = fma(fma(-b, near, 1.0), near, near);
        let error = fma(-b, near, 1.0);
        let reciprocal = fma(error, fma_up(error, near), near);
        let mut quotient = a * reciprocal;
        for _ in 0..2 {
            quotient = fma(fma(-b, quotient, a), reciprocal, quotient);
        }
        quotient
    }

    /// The macro `square_root` with any `rsqrt` that keeps to its documented relative error of 2^-22.9.
    fn refined_root(x: f32, distance: i32) -> f32 {
        let near = neighbour((1.0 / f64::from(x).sqrt()) as f32, distance);
        let (root, half) = (x * near, near * 0.5);
        let error = fma(-root, half, 0.5);
        let (root, half) = (fma(root, error, root), fma(half, error, half));
        fma(fma(-root, root, x), half, root).max(0.0)
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(20_000))]

        #[test]
        fn quotients_and_roots_are_right_whatever_the_last_bit_of_the_unit(
            a in 0u32..1 << 24, b in 0u32..1 << 24, exponents in proptest::array::uniform2(67u32..187),
            near_a in 0i32..64, near_b in 0i32..64,
        ) {
            // Any mantissas, and those near the ends, where there are exceptions.
            let float = |mantissa: u32, exponent: u32| f32::from_bits(exponent << 23 | mantissa & 0x7f_ffff);
            let [high_a, high_b] = [near_a, near_b].map(|near| (-near) as u32);
            let (low_a, low_b) = (near_a as u32, near_b as u32);
            for (a, b) in [(a, b), (a, high_b), (high_a, low_b), (low_a, high_b)] {
                let (a, b) = (float(a, exponents[0]), float(b, exponents[1]));
                for distance in -1..=1 {
                    proptest::prop_assert_eq!(divide(a, b, distance), a / b);
                    proptest::prop_assert_eq!(divide(-a, b, distance), -a / b);
                    proptest::prop_assert_eq!(refined_root(a, 2 * distance), a.sqrt());
                    proptest::prop_assert_eq!(square_root(a), a.sqrt());
                }
            }
        }
    }

    #[test]
    fn short_products_are_exact() {
        let (a, b) = (Noise::new(1).of(0), Noise::new(1).of(1));
        let (mut slow, mut fast) = (0.0, 0.0);
        for index in 0..10_000 {
            slow = fma(a.short(index), b.short(index), slow);
            fast = fma_short(a.short(index), b.short(index), fast);
            assert_eq!(slow.to_bits(), fast.to_bits());
        }
    }

    /// From the execution vectors of the instruction set: a product that cancels to its rounding.
    #[test]
    fn fma_rounds_once() {
        let [a, c] = [0x3f80_0001, 0xbf80_0002].map(f32::from_bits);
        assert_eq!(fma(a, a, c).to_bits(), 0x2880_0000);
    }
}
