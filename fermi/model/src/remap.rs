//! The copy engines' conversion of the components of each element.

use fermi_spec::methods::{CopyFormat, copy_component};

/// Largest element: four components of four bytes.
pub(crate) const ELEMENT_BYTES_MAX: usize = 16;

/// Source of a component of the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Component {
    /// A component of the source; zero where the source has no such component (assumption).
    Source(u8),
    /// The first bytes of a constant.
    Constant(u32),
    /// Bytes of zero.
    Zero,
    /// The target's component stays.
    Keep,
}

/// The way from a source element to a target element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remap {
    /// Bytes of a component, 1 to 4.
    pub(crate) component_bytes: u8,
    /// Components of a source element, 1 to 4.
    pub(crate) source_components: u8,
    /// Components of a target element, 1 to 4.
    pub(crate) target_components: u8,
    /// Sources of the target's components; those beyond the target's number have no meaning.
    pub(crate) components: [Component; 4],
}

impl Remap {
    /// The way that a format names, with the two constants. `other` is meant by a selector that is none of these.
    pub(crate) fn new(format: CopyFormat, constants: [u32; 2], other: Component) -> Self {
        Self {
            component_bytes: format.component_bytes_less_one() + 1,
            source_components: format.source_components_less_one() + 1,
            target_components: format.target_components_less_one() + 1,
            components: format.selectors().map(|selector| match selector {
                0..copy_component::CONSTANT_A => Component::Source(selector),
                copy_component::CONSTANT_A => Component::Constant(constants[0]),
                copy_component::CONSTANT_B => Component::Constant(constants[1]),
                _ => other,
            }),
        }
    }

    /// Bytes of a source element.
    pub(crate) fn source_bytes(&self) -> usize {
        usize::from(self.component_bytes) * usize::from(self.source_components)
    }

    /// Bytes of a target element.
    pub(crate) fn target_bytes(&self) -> usize {
        usize::from(self.component_bytes) * usize::from(self.target_components)
    }

    fn used(&self) -> &[Component] {
        &self.components[..usize::from(self.target_components).min(4)]
    }

    /// Whether anything is read: without, the source need not even be mapped.
    pub(crate) fn reads_source(&self) -> bool {
        self.used()
            .iter()
            .any(|component| matches!(component, Component::Source(_)))
    }

    /// Whether every byte of a target element is written.
    pub(crate) fn writes_all(&self) -> bool {
        !self.used().contains(&Component::Keep)
    }

    /// Bytes of a target element that are written and follow each other: where they start, and how many.
    pub(crate) fn written(&self) -> impl Iterator<Item = (usize, usize)> {
        let bytes = usize::from(self.component_bytes);
        self.used()
            .iter()
            .enumerate()
            .filter(|(_, component)| **component != Component::Keep)
            .map(move |(index, _)| (index * bytes, bytes))
    }

    /// Makes a target element of each source element; what is kept is left as it is.
    pub(crate) fn apply(&self, source: &[u8], target: &mut [u8]) {
        match self.component_bytes {
            1 => self.apply_bytes::<1>(source, target),
            2 => self.apply_bytes::<2>(source, target),
            3 => self.apply_bytes::<3>(source, target),
            _ => self.apply_bytes::<4>(source, target),
        }
    }

    /// The same for components of `N` bytes, component by component.
    fn apply_bytes<const N: usize>(&self, source: &[u8], target: &mut [u8]) {
        let from = |element: &[u8], index: u8| -> Option<[u8; N]> {
            let at = usize::from(index) * N;
            element.get(at..at + N)?.try_into().ok()
        };
        let sources = || source.chunks_exact(self.source_bytes());
        for (number, &component) in self.used().iter().enumerate() {
            let parts = target
                .chunks_exact_mut(self.target_bytes())
                .filter_map(|element| element.get_mut(number * N..(number + 1) * N));
            match component {
                Component::Source(index) => {
                    for (part, element) in parts.zip(sources()) {
                        part.copy_from_slice(&from(element, index).unwrap_or([0; N]));
                    }
                }
                Component::Constant(value) => {
                    let bytes = value.to_le_bytes();
                    parts.for_each(|part| part.copy_from_slice(&bytes[..N]));
                }
                Component::Zero => parts.for_each(|part| part.fill(0)),
                Component::Keep => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remap(components: [Component; 4]) -> Remap {
        Remap {
            component_bytes: 2,
            source_components: 2,
            target_components: 4,
            components,
        }
    }

    #[test]
    fn components_are_moved_made_and_kept() {
        let remap = remap([
            Component::Source(1),
            Component::Keep,
            Component::Constant(0x1234_5678),
            Component::Zero,
        ]);
        let mut target = [0xff; 8];
        remap.apply(&[1, 2, 3, 4], &mut target);
        assert_eq!(target, [3, 4, 0xff, 0xff, 0x78, 0x56, 0, 0]);
        assert_eq!(remap.written().collect::<Vec<_>>(), [(0, 2), (4, 2), (6, 2)]);
    }

    #[test]
    fn component_that_the_source_does_not_have_is_zero() {
        let mut target = [0xff; 8];
        remap([Component::Source(3); 4]).apply(&[1, 2, 3, 4], &mut target);
        assert_eq!(target, [0; 8]);
    }

    #[test]
    fn fill_does_not_read_its_source() {
        assert!(!remap([Component::Constant(1); 4]).reads_source());
    }
}
