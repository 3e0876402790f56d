//! The methods of a copy engine depend on the microcode that the driver uploads.

use crate::falcon::Falcon;
use fermi_spec::methods::copy;

/// Microcode whose methods the copy engines have. The model runs no microcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopyMicrocode {
    /// Methods of the microcode that was started last: nouveau's if its table of methods is there, NVIDIA's for any
    /// other. Nouveau's before the first start.
    #[default]
    Uploaded,
    /// Nouveau's, whatever is uploaded.
    Nouveau,
    /// NVIDIA's (`cl90b5.h`), whatever is uploaded.
    Nvidia,
    /// As [`CopyMicrocode::Uploaded`], but an engine takes no method before its falcon was started with code,
    /// as on a card.
    Required,
}

impl CopyMicrocode {
    /// Whether methods are NVIDIA's when `started` says so of the microcode that runs.
    pub(crate) fn is_nvidia(self, started: bool) -> bool {
        match self {
            Self::Uploaded | Self::Required => started,
            Self::Nouveau => false,
            Self::Nvidia => true,
        }
    }
}

/// Whether the microcode uploaded to `falcon` is not nouveau's.
pub(crate) fn is_foreign(falcon: &Falcon) -> bool {
    falcon.has_code() && !has_table(falcon.data())
}

/// Whether data memory has the table of methods of nouveau's microcode. All its versions for GF100 have it at the same
/// place, as code and context are generated from one source.
fn has_table(data: &[u32]) -> bool {
    let mut missing = copy::TABLE_ENTRIES.len();
    let mut at = copy::TABLE_WORD;
    while let Some(&entry) = data.get(at)
        && entry != copy::TABLE_END
    {
        missing -= usize::from(missing != 0 && copy::TABLE_ENTRIES.contains(&entry));
        // At least the header's own word, so this ends.
        at += 1 + 2 * (entry >> 16) as usize;
    }
    missing == 0 && data.get(at) == Some(&copy::TABLE_END)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Data memory with a table of these entries.
    fn data(entries: &[u32]) -> Vec<u32> {
        let mut data = vec![0; copy::TABLE_WORD];
        for entry in entries {
            data.push(*entry);
            data.resize(data.len() + 2 * (entry >> 16) as usize, 0x55);
        }
        data
    }

    #[test]
    fn nouveaus_table_is_recognised() {
        let entries = [
            0x1_0000, 0x1_0040, 0x1_0050, 0x7_0080, 0x7_0088, 0x2_00c0, 0xe_00c3, 0x800,
        ];
        assert!(has_table(&data(&entries)));
        assert!(!has_table(&data(&entries[..7])));
        assert!(!has_table(&data(&[0x1_0000, 0x800])));
    }

    proptest! {
        #[test]
        fn any_data_is_looked_through(data in proptest::collection::vec(any::<u32>(), 0..200)) {
            prop_assert!(!has_table(&data) || data.contains(&copy::TABLE_END));
        }
    }
}
