//! Method state of an engine for one channel, and where it is kept while other channels use the engine.

use crate::memory::Place;
use fermi_spec::engine::Engine;
use std::collections::BTreeMap;

/// Number of contexts kept. It is larger than channels times engines, so that a driver loses a context, the least
/// recently used one, only if it leaves instance blocks behind by the hundred.
const CONTEXTS_MAX: usize = 1024;

/// Bytes of a copy engine's context in memory: what nouveau allocates for its microcode.
pub(crate) const IMAGE_BYTES: usize = 256;

const LOW_METHODS: u16 = 0x200;
const LOW_WORDS: u16 = 16;
const HIGH_METHODS: u16 = 0x300;
const HIGH_WORDS: u16 = 32;
/// Methods of NVIDIA's microcode that share the words of those above, which it does not have.
const NVIDIA_SURFACE_METHODS: u16 = 0x700;
const NVIDIA_LINE_METHODS: u16 = 0x400;
const NVIDIA_LINE_WORDS: u16 = 8;
const NVIDIA_SEMAPHORE_METHODS: u16 = 0x240;
const NVIDIA_SEMAPHORE_WORDS: u16 = 8;
/// First word of 400–41c, that of method 340.
const NVIDIA_LINE_FIRST: u16 = 32;
/// First word of 240–25c.
const NVIDIA_SEMAPHORE_FIRST: u16 = 54;
const CLASSES: usize = 48;
const INLINE_LINE: usize = 52;
const INLINE_BYTE: usize = 53;
/// Words that no method of any engine has.
const REST_LAST: usize = 62;
/// Words that say where a copy that gave way is.
pub(crate) const REST_WORDS: usize = 4;

/// The method registers of a copy engine or of M2MF: methods 200–23c and 300–37c, with the inline position
/// and the classes bound.
///
/// With NVIDIA's microcode a copy engine has 240–25c, 300, 400–41c and 700–73c instead. They fit in the same image,
/// as a context belongs to one microcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registers([u32; 64]);

impl Default for Registers {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Registers {
    /// Words of an engine that none of its methods has: see [`crate::paused`].
    pub(crate) fn rest(&self, engine: Engine) -> [u32; REST_WORDS] {
        rest_words(engine).map(|index| self.0[index])
    }

    pub(crate) fn set_rest(&mut self, engine: Engine, words: [u32; REST_WORDS]) {
        for (index, word) in rest_words(engine).into_iter().zip(words) {
            self.0[index] = word;
        }
    }

    /// Value of a method register; zero for one outside the two ranges.
    pub(crate) fn get(&self, method: u16) -> u32 {
        index_of(method).map_or(0, |index| self.0[index])
    }

    /// Sets a method register; one outside the two ranges is not kept.
    pub(crate) fn set(&mut self, method: u16, value: u32) {
        if let Some(index) = index_of(method) {
            self.0[index] = value;
        }
    }

    /// The registers as a context image in memory.
    pub(crate) fn to_image(self) -> [u8; IMAGE_BYTES] {
        let mut image = [0; IMAGE_BYTES];
        for (bytes, word) in image.as_chunks_mut().0.iter_mut().zip(self.0) {
            *bytes = word.to_le_bytes();
        }
        image
    }

    /// The registers that an image holds; any bytes are valid registers.
    pub(crate) fn from_image(image: &[u8; IMAGE_BYTES]) -> Self {
        let mut registers = Self::default();
        for (word, bytes) in registers.0.iter_mut().zip(image.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        registers
    }

    /// The 40-bit address in `high` and the word after it.
    pub(crate) fn address(&self, high: u16) -> u64 {
        u64::from(self.get(high) & 0xff) << 32 | u64::from(self.get(high + 4))
    }

    /// Class bound to a subchannel.
    pub(crate) fn class(&self, subchannel: u8) -> u16 {
        let subchannel = usize::from(subchannel & 7);
        (self.0[CLASSES + subchannel / 2] >> (16 * (subchannel % 2))) as u16
    }

    /// Binds a class to a subchannel.
    pub(crate) fn bind(&mut self, subchannel: u8, class: u16) {
        let subchannel = usize::from(subchannel & 7);
        let shift = 16 * (subchannel % 2);
        let word = &mut self.0[CLASSES + subchannel / 2];
        *word = *word & !(0xffff << shift) | u32::from(class) << shift;
    }

    /// Line and byte that the next inline word goes to.
    pub(crate) fn inline_position(&self) -> (u32, u32) {
        (self.0[INLINE_LINE], self.0[INLINE_BYTE])
    }

    /// Moves the inline position.
    pub(crate) fn set_inline_position(&mut self, line: u32, byte: u32) {
        self.0[INLINE_LINE] = line;
        self.0[INLINE_BYTE] = byte;
    }
}

/// The position of inline data is M2MF's, and semaphores with methods at 240 are those of copy engines.
fn rest_words(engine: Engine) -> [usize; REST_WORDS] {
    let [first, second] = match engine {
        Engine::Graph => [
            NVIDIA_SEMAPHORE_FIRST.into(),
            usize::from(NVIDIA_SEMAPHORE_FIRST) + 1,
        ],
        _ => [INLINE_LINE, INLINE_BYTE],
    };
    [first, second, REST_LAST, REST_LAST + 1]
}

fn index_of(method: u16) -> Option<usize> {
    let ranges = [
        (LOW_METHODS, LOW_WORDS, 0),
        (HIGH_METHODS, HIGH_WORDS, LOW_WORDS),
        (NVIDIA_SURFACE_METHODS, LOW_WORDS, 0),
        (NVIDIA_LINE_METHODS, NVIDIA_LINE_WORDS, NVIDIA_LINE_FIRST),
        (
            NVIDIA_SEMAPHORE_METHODS,
            NVIDIA_SEMAPHORE_WORDS,
            NVIDIA_SEMAPHORE_FIRST,
        ),
    ];
    ranges.into_iter().find_map(|(first, words, index)| {
        let word = method.wrapping_sub(first) / 4;
        (word < words).then(|| usize::from(index + word))
    })
}

/// Contexts that are on no engine and in no memory, by engine and instance block.
///
/// Hardware keeps every context behind a pointer in the instance block. The model does so for copy engines; PGRAPH's
/// image, which only its microcode knows, and the contexts of channels without a pointer stay with the card. These end with
/// the entry in the channel table: the next channel of an instance block begins with nothing (assumption: hardware, which
/// keeps nothing itself, would go to address 0 for such a context).
#[derive(Default)]
pub(crate) struct Contexts {
    saved: BTreeMap<(Engine, Place), (u64, Registers)>,
    uses: u64,
}

impl Contexts {
    pub(crate) fn save(&mut self, engine: Engine, instance: Place, registers: Registers) {
        self.uses += 1;
        self.saved.insert((engine, instance), (self.uses, registers));
        if self.saved.len() > CONTEXTS_MAX
            && let Some(oldest) = self.saved.iter().min_by_key(|(_, (use_no, _))| *use_no)
        {
            let key = *oldest.0;
            self.saved.remove(&key);
        }
    }

    /// Drops what is kept for an instance block.
    pub(crate) fn forget(&mut self, instance: Place) {
        self.saved.retain(|(_, at), _| *at != instance);
    }

    /// The context, or a fresh one.
    pub(crate) fn load(&mut self, engine: Engine, instance: Place) -> Registers {
        self.saved
            .remove(&(engine, instance))
            .map_or_else(Registers::default, |(_, registers)| registers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_holds_all_registers() {
        let mut registers = Registers::default();
        registers.set(0x300, 0x1234_5678);
        registers.bind(3, 0x90b5);
        assert_eq!(Registers::from_image(&registers.to_image()), registers);
    }

    #[test]
    fn both_ranges_keep_their_words_apart() {
        let mut registers = Registers::default();
        registers.set(0x23c, 1);
        registers.set(0x300, 2);
        registers.set(0x37c, 3);
        registers.bind(7, 0x9039);
        assert_eq!(
            [0x23c, 0x300, 0x37c, 0x280].map(|m| registers.get(m)),
            [1, 2, 3, 0]
        );
        assert_eq!((registers.class(7), registers.class(6)), (0x9039, 0));
    }

    #[test]
    fn registers_of_nvidias_microcode_keep_their_words_apart() {
        let methods: Vec<u16> = (0x240..0x260)
            .chain(0x300..0x304)
            .chain(0x400..0x420)
            .chain(0x700..0x740)
            .step_by(4)
            .collect();
        let mut registers = Registers::default();
        for method in &methods {
            registers.set(*method, u32::from(*method));
        }
        registers.bind(7, 0x90b5);
        let kept: Vec<u32> = methods.iter().map(|m| registers.get(*m)).collect();
        assert_eq!(kept, methods.iter().map(|m| u32::from(*m)).collect::<Vec<_>>());
        assert_eq!(registers.class(7), 0x90b5);
    }

    #[test]
    fn the_rest_of_a_copy_is_beside_the_words_of_methods() {
        let copies = (0x240..0x260)
            .chain(0x300..0x320)
            .chain(0x400..0x420)
            .chain(0x700..0x740);
        let m2mf = (0x200..0x240).chain(0x300..0x380);
        for (engine, methods) in [
            (Engine::Copy0, copies.step_by(4).collect::<Vec<u16>>()),
            (Engine::Graph, m2mf.step_by(4).collect()),
        ] {
            let mut registers = Registers::default();
            for method in &methods {
                registers.set(*method, u32::from(*method));
            }
            registers.bind(7, 0x9039);
            if engine == Engine::Graph {
                registers.set_inline_position(5, 6);
            }
            registers.set_rest(engine, [1, 2, 3, 4]);
            let kept: Vec<u32> = methods.iter().map(|method| registers.get(*method)).collect();
            assert_eq!(kept, methods.iter().map(|m| u32::from(*m)).collect::<Vec<_>>());
            assert_eq!(registers.class(7), 0x9039);
            if engine == Engine::Graph {
                assert_eq!(registers.inline_position(), (5, 6));
            }
            assert_eq!(registers.rest(engine), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn contexts_beyond_the_limit_push_out_the_oldest() {
        let mut contexts = Contexts::default();
        let place = |index: u64| Place::default().offset(index * 0x1000);
        for index in 0..=CONTEXTS_MAX as u64 {
            let mut registers = Registers::default();
            registers.set(0x300, 7);
            contexts.save(Engine::Copy0, place(index), registers);
        }
        assert_eq!(contexts.load(Engine::Copy0, place(0)).get(0x300), 0);
        assert_eq!(contexts.load(Engine::Copy0, place(1)).get(0x300), 7);
    }
}
