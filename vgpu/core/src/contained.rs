//! The boundary between one VM's accounts and everybody's.
//!
//! What the VMs share (frames, the arena, bus addresses, channels of the card) is kept by allocators that know the owner
//! of each part. None of them believes what a VM's own accounts say: what is given back has to be the giver's. So a wrong
//! account costs the VM whose it is, and what it held is known without it.
//!
//! Work on one VM's own state runs in [`contained`]: a panic in it is that VM's [`Inconsistency`]. Such work may change that
//! VM's state, take parts of the arena through its budget, and append to a list of its own; an allocator's change is
//! complete before it returns. Nothing else that is shared may be changed in there. Decision 0013 says why.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::event::VmId;
use crate::reason::Inconsistency;

/// Whose a part of what is shared is: a VM's, or the broker's own.
pub(crate) type Owner = Option<VmId>;

/// Longest text of a panic that is kept.
const MESSAGE_BYTES_MAX: usize = 500;

/// Does work on one VM's own state. `doing` completes the sentence "it panicked while …".
pub(crate) fn contained<T>(doing: &str, work: impl FnOnce() -> T) -> Result<T, Inconsistency> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no text");
        Inconsistency::Panicked {
            doing: doing.to_owned(),
            message: text.chars().take(MESSAGE_BYTES_MAX).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_is_an_inconsistency_with_its_text() {
        let panicked = contained("counting", || -> u32 { panic!("{} chunks", 3) });
        let expected = Inconsistency::Panicked {
            doing: "counting".to_owned(),
            message: "3 chunks".to_owned(),
        };
        assert_eq!(panicked, Err(expected));
        assert_eq!(contained("counting", || 3), Ok(3));
    }
}
