//! Words of pushbuffers: headers, and the methods that their data goes to.

use fermi_spec::instance::Subdevice;
use fermi_spec::pushbuffer::{Header, SubdeviceOp, Target};

/// What a word is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Data of a method, if it is known.
    Method(Target, Option<u32>),
    /// A header, padding, or data of a method that is for another board.
    Nothing,
    /// The rest of the segment is not executed.
    End,
    /// Not a header.
    Malformed,
    /// A header that is not known.
    Unknown,
}

/// How the method goes on from one word of data to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Each,
    Never,
    Once,
}

/// The state between two words. It lives longer than a segment: data may follow its header in the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decoder {
    run: Option<(Target, Step, u16)>,
    subdevice: Subdevice,
}

impl Decoder {
    /// Between two headers, on a board as drivers set up a channel: of any mask, methods are for it.
    pub(crate) fn new() -> Self {
        const ANY_BOARD: u16 = 0xfff;
        Self {
            run: None,
            subdevice: Subdevice::new().with_id(ANY_BOARD).with_active(true),
        }
    }

    /// Whether methods are for this board.
    pub(crate) fn is_selected(&self) -> bool {
        self.subdevice.active()
    }

    /// Whether the next word is data.
    pub(crate) fn is_in_data(&self) -> bool {
        self.run.is_some()
    }

    /// The method of the next word, if it is data for this board, and how many follow it of methods one behind the other.
    pub(crate) fn row(&self) -> Option<(Target, u16)> {
        let (target, step, left) = self.run?;
        (self.is_selected() && step == Step::Each).then_some((target, left))
    }

    /// Takes some of the data that [`Self::row`] tells of.
    pub(crate) fn take_row(&mut self, count: u16) {
        if let Some((target, step, left)) = self.run {
            let method = target.method.wrapping_add(4 * count) & 0x3ffc;
            self.run = (left > count).then(|| (Target { method, ..target }, step, left - count));
        }
    }

    /// Takes a word, `None` if nobody knows it.
    pub(crate) fn take(&mut self, word: Option<u32>) -> Word {
        if let Some((target, step, left)) = self.run {
            let method = match step {
                Step::Never => target.method,
                Step::Each | Step::Once => target.method.wrapping_add(4) & 0x3ffc,
            };
            let step = if step == Step::Once { Step::Never } else { step };
            self.run = (left > 1).then_some((Target { method, ..target }, step, left - 1));
            return self.of_board(Word::Method(target, word));
        }
        let Some(word) = word else {
            return Word::Unknown;
        };
        let run = match Header::from_bits(word) {
            Header::Nop => return Word::Nothing,
            Header::Incrementing(target, count) => (target, Step::Each, count),
            Header::NonIncrementing(target, count) => (target, Step::Never, count),
            Header::IncrementOnce(target, count) => (target, Step::Once, count),
            Header::Immediate(target, operand) => {
                return self.of_board(Word::Method(target, Some(operand.into())));
            }
            Header::Subdevice(operation) => {
                self.select(operation);
                return Word::Nothing;
            }
            Header::EndSegment => return Word::End,
            Header::Invalid(_) => return Word::Malformed,
        };
        self.run = Some(run);
        Word::Nothing
    }

    fn of_board(&self, word: Word) -> Word {
        if self.is_selected() { word } else { Word::Nothing }
    }

    fn select(&mut self, operation: SubdeviceOp) {
        let old = self.subdevice;
        self.subdevice = match operation {
            SubdeviceOp::Set(mask) => old.selected_by(mask),
            SubdeviceOp::Store(mask) => old.with_stored(mask),
            SubdeviceOp::Use => old.selected_by(old.stored()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::pushbuffer::{immediate, incrementing, non_incrementing};

    fn methods(words: &[u32]) -> Vec<(u16, u32)> {
        let mut decoder = Decoder::new();
        let taken = words.iter().map(|word| decoder.take(Some(*word)));
        let methods = taken.filter_map(|word| match word {
            Word::Method(target, data) => Some((target.method, data?)),
            _ => None,
        });
        methods.collect()
    }

    #[test]
    fn data_goes_to_the_methods_of_its_header() {
        let once = incrementing(1, 0x300, 3) & 0x1fff_ffff | 5 << 29;
        let words = [
            incrementing(1, 0x100, 2),
            7,
            8,
            non_incrementing(1, 0x200, 2),
            9,
            10,
            once,
            1,
            2,
            3,
            immediate(1, 0x400, 5),
        ];
        let expected = [
            (0x100, 7),
            (0x104, 8),
            (0x200, 9),
            (0x200, 10),
            (0x300, 1),
            (0x304, 2),
            (0x304, 3),
            (0x400, 5),
        ];
        assert_eq!(methods(&words), expected);
    }

    #[test]
    fn methods_for_another_board_are_left_out() {
        let set = |mask: u32| 1 << 16 | mask << 4;
        let words = [set(0), immediate(0, 0x100, 1), set(0xfff), immediate(0, 0x104, 2)];
        assert_eq!(methods(&words), [(0x104, 2)]);
    }
}
