//! Bytes that identify their place.

use anyhow::{Result, bail, ensure};

/// `count` bytes that depend on `seed`.
pub(crate) fn bytes(seed: u32, count: usize) -> Vec<u8> {
    let mut state = u64::from(seed) << 32 | 0x9e37_79b9;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut data = Vec::with_capacity(count + 8);
    while data.len() < count {
        data.extend(next());
    }
    data.truncate(count);
    data
}

/// Fails with the first difference.
pub(crate) fn same(found: &[u8], wanted: &[u8]) -> Result<()> {
    ensure!(
        found.len() == wanted.len(),
        "{} bytes instead of {}",
        found.len(),
        wanted.len()
    );
    if let Some(at) = found.iter().zip(wanted).position(|(a, b)| a != b) {
        let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
        bail!(
            "byte {at} is {:#04x} instead of {:#04x}; {wrong} of {} are wrong",
            found[at],
            wanted[at],
            wanted.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_the_seed() {
        assert_eq!(bytes(1, 13).len(), 13);
        assert_ne!(bytes(1, 64), bytes(2, 64));
        assert!(same(&bytes(1, 64), &bytes(1, 64)).is_ok());
        assert!(same(&bytes(1, 64), &bytes(2, 64)).is_err());
    }
}
