//! Hardware addresses of network devices.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// Bits of the first byte: the address is a group's; it was not assigned worldwide (IEEE 802-2014 §8.2).
const GROUP: u8 = 1;
const LOCAL: u8 = 2;

/// The address of one device: six bytes, not zero and not a group's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MacAddress([u8; 6]);

/// Why a text is not the address of a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseMacError {
    /// The text is not an address.
    #[error("{text:?} is not six bytes in hexadecimal such as 52:54:00:12:34:56")]
    Malformed {
        /// The text as given.
        text: String,
    },
    /// No device can have this address.
    #[error("{text} cannot be a device's address: the first byte must be even, and not all may be zero")]
    NotADevice {
        /// The text as given.
        text: String,
    },
}

impl MacAddress {
    /// An address for the device behind `tap` of the VM `vm`: always the same, and most likely unique.
    pub fn of(vm: &str, tap: &str) -> MacAddress {
        let digest = Sha256::new()
            .chain_update(vm)
            .chain_update([0])
            .chain_update(tap)
            .finalize();
        let mut bytes = [0; 6];
        bytes.copy_from_slice(&digest[..6]);
        bytes[0] = bytes[0] & !GROUP | LOCAL;
        MacAddress(bytes)
    }

    /// The six bytes as they are on the wire.
    pub(crate) fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<MacAddress, ParseMacError> {
        let shown = || text.chars().take(40).collect::<String>();
        let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = |part| u8::from_str_radix(part, 16).ok().filter(|_| is_byte(part));
        let bytes = text.split(':').map(byte).collect::<Option<Vec<_>>>();
        let bytes: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| ParseMacError::Malformed { text: shown() })?;
        if bytes[0] & GROUP != 0 || bytes == [0; 6] {
            return Err(ParseMacError::NotADevice { text: shown() });
        }
        Ok(MacAddress(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_are_no_address_are_refused() {
        for text in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "52-54-00-12-34-56",
            "5:54:00:12:34:56",
            "+2:54:00:12:34:56",
        ] {
            let error = text.parse::<MacAddress>().unwrap_err();
            assert!(error.to_string().contains("is not six bytes"), "{text}");
        }
    }

    #[test]
    fn groups_and_nobody_are_refused() {
        for text in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            let error = text.parse::<MacAddress>().unwrap_err();
            assert!(
                error.to_string().contains("cannot be a device's address"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn address_is_read_as_it_is_shown(vm: String, tap: String) {
            let address = MacAddress::of(&vm, &tap);
            prop_assert_eq!(address.to_string().parse(), Ok(address));
            prop_assert_eq!(address.to_string().to_uppercase().parse(), Ok(address));
        }
    }
}
