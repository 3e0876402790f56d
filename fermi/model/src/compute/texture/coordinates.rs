//! From coordinates to texels: edges, neighbours with their weights, faces of a cube.

use fermi_spec::texture::{Address, Filter};

/// Steps of a weight.
const WEIGHTS: f64 = 256.0;
/// Beyond this no texture has texels, and sums of places do not overflow.
const FAR: i64 = 1 << 40;

/// Texels along an axis that a sample is made of, and the weight of the second, 0 to 1. `None` is the border.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Along {
    pub(super) texels: [Option<u32>; 2],
    pub(super) weight: f64,
}

impl Along {
    /// The one texel of an axis that does not count.
    pub(super) const FIRST: Self = Self {
        texels: [Some(0), Some(0)],
        weight: 0.0,
    };
}

/// Where `coordinate`, in texels of an axis of `size`, is. `offset` texels are added.
pub(super) fn along(coordinate: f64, offset: i32, size: u32, address: Address, filter: Filter) -> Along {
    let clamps = matches!(address, Address::EdgeAndBorder | Address::MirrorOnceEdgeAndBorder);
    let mut coordinate = coordinate + f64::from(offset);
    if clamps {
        let low = match address {
            Address::EdgeAndBorder => 0.0,
            _ => -f64::from(size),
        };
        coordinate = coordinate.clamp(low, size.into());
    }
    match filter {
        Filter::Point => {
            let place = floor(coordinate);
            // Half of the border is for those that mix.
            let place = if clamps {
                place.min(i64::from(size) - 1)
            } else {
                place
            };
            let texel = inside(place, size, address);
            Along {
                texels: [texel; 2],
                weight: 0.0,
            }
        }
        Filter::Linear => {
            let steps = ((coordinate - 0.5) * WEIGHTS).round_ties_even();
            let place = floor(steps / WEIGHTS);
            let weight = (steps / WEIGHTS).rem_euclid(1.0);
            Along {
                texels: [place, place + 1].map(|place| inside(place, size, address)),
                weight: if weight.is_finite() { weight } else { 0.0 },
            }
        }
    }
}

/// A NaN is at the beginning.
fn floor(value: f64) -> i64 {
    (value.floor() as i64).clamp(-FAR, FAR)
}

/// The texel for a place along an axis of `size`, `None` for the border.
fn inside(place: i64, size: u32, address: Address) -> Option<u32> {
    let size = i64::from(size.max(1));
    let edge = |place: i64| place.clamp(0, size - 1);
    let border = |place: i64| (0..size).contains(&place).then_some(place);
    // -1 is the first texel again.
    let mirrored = if place < 0 { -1 - place } else { place };
    let texel = match address {
        Address::Wrap => place.rem_euclid(size),
        Address::Mirror => {
            let twice = place.rem_euclid(2 * size);
            if twice < size { twice } else { 2 * size - 1 - twice }
        }
        Address::Edge => edge(place),
        Address::Border | Address::EdgeAndBorder => border(place)?,
        Address::MirrorOnceEdge => edge(mirrored),
        Address::MirrorOnceBorder | Address::MirrorOnceEdgeAndBorder => border(mirrored)?,
    };
    u32::try_from(texel).ok()
}

/// The face of a cube that a direction hits, and where, from 0 to 1 (OpenGL 4.6, table 8.19).
pub(super) fn face([x, y, z]: [f64; 3]) -> (u32, [f64; 2]) {
    let [ax, ay, az] = [x.abs(), y.abs(), z.abs()];
    let (face, s, t, major) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, -z, -y, ax) } else { (1, z, -y, ax) }
    } else if ay >= az {
        if y >= 0.0 { (2, x, z, ay) } else { (3, x, -z, ay) }
    } else if z >= 0.0 {
        (4, x, -y, az)
    } else {
        (5, -x, -y, az)
    };
    let part = |value: f64| (value / major + 1.0) / 2.0;
    (face, [part(s), part(t)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(coordinate: f64, address: Address) -> Option<u32> {
        along(coordinate, 0, 4, address, Filter::Point).texels[0]
    }

    #[test]
    fn edges_do_as_their_mode_says() {
        let at = |address| [-5.5, -0.5, 4.5, 9.5].map(|coordinate| point(coordinate, address));
        assert_eq!(at(Address::Wrap), [Some(2), Some(3), Some(0), Some(1)]);
        assert_eq!(at(Address::Mirror), [Some(2), Some(0), Some(3), Some(1)]);
        assert_eq!(at(Address::Edge), [Some(0), Some(0), Some(3), Some(3)]);
        assert_eq!(at(Address::Border), [None; 4]);
        assert_eq!(at(Address::EdgeAndBorder), [Some(0), Some(0), Some(3), Some(3)]);
        assert_eq!(at(Address::MirrorOnceEdge), [Some(3), Some(0), Some(3), Some(3)]);
        assert_eq!(at(Address::MirrorOnceBorder), [None, Some(0), None, None]);
    }

    #[test]
    fn neighbours_are_weighed_by_their_distance() {
        let found = along(2.0, 0, 8, Address::Edge, Filter::Linear);
        assert_eq!((found.texels, found.weight), ([Some(1), Some(2)], 0.5));
        let found = along(2.5, 1, 8, Address::Edge, Filter::Linear);
        assert_eq!((found.texels[0], found.weight), (Some(3), 0.0));
        let found = along(9.0, 0, 8, Address::EdgeAndBorder, Filter::Linear);
        assert_eq!((found.texels, found.weight), ([Some(7), None], 0.5));
    }

    #[test]
    fn face_is_that_of_the_largest_coordinate() {
        assert_eq!(face([1.0, 0.0, 0.5]), (0, [0.25, 0.5]));
        assert_eq!(face([-1.0, 0.5, 0.0]), (1, [0.5, 0.25]));
        assert_eq!(face([0.5, 1.0, 0.0]), (2, [0.75, 0.5]));
        assert_eq!(face([0.5, -1.0, 0.5]), (3, [0.75, 0.25]));
        assert_eq!(face([0.5, 0.0, 1.0]), (4, [0.75, 0.5]));
        assert_eq!(face([0.5, 0.0, -1.0]), (5, [0.25, 0.5]));
    }

    fn address() -> impl Strategy<Value = Address> {
        prop_oneof![
            Just(Address::Wrap),
            Just(Address::Mirror),
            Just(Address::Edge),
            Just(Address::Border),
            Just(Address::EdgeAndBorder),
            Just(Address::MirrorOnceEdge),
            Just(Address::MirrorOnceBorder),
            Just(Address::MirrorOnceEdgeAndBorder),
        ]
    }

    proptest! {
        #[test]
        fn any_coordinate_is_inside_or_the_border(
            coordinate in any::<f64>(), offset in any::<i32>(), size in 1u32..1 << 30, address in address(), linear: bool,
        ) {
            let filter = if linear { Filter::Linear } else { Filter::Point };
            let found = along(coordinate, offset, size, address, filter);
            prop_assert!(found.texels.into_iter().flatten().all(|texel| texel < size));
            prop_assert!((0.0..1.0).contains(&found.weight));
        }

        #[test]
        fn any_direction_hits_a_face(direction in any::<[f64; 3]>()) {
            prop_assert!(face(direction).0 < 6);
        }
    }
}
