//! One line of a trace for each access.

use crate::access::{Access, Kind, Width};
use serde::{Deserialize, Serialize};

/// An access with the value that was read or written, as a line of a trace. The name is for
/// readers; replaying ignores it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Byte offset in BAR0.
    pub offset: u32,
    /// 1, 2 or 4.
    pub bytes: u32,
    /// Whether it wrote.
    pub write: bool,
    /// Value that was written, or that answered the read.
    pub value: u32,
    /// Name of the register or window.
    pub name: String,
}

impl Record {
    /// The line for an access; `answer` is what a read returned and is ignored for a write.
    pub fn new(access: Access, answer: u32) -> Self {
        let (write, value) = match access.kind {
            Kind::Read => (false, answer),
            Kind::Write(value) => (true, value),
        };
        Self {
            offset: access.offset,
            bytes: access.width.bytes(),
            write,
            value,
            name: access.name().to_owned(),
        }
    }

    /// The access again; `None` if the line describes no possible access.
    pub fn access(&self) -> Option<Access> {
        let width = Width::from_bytes(self.bytes)?;
        if self.write {
            Access::write(self.offset.into(), width, self.value)
        } else {
            Access::read(self.offset.into(), width)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn line_has_the_register_name() {
        let access = Access::write(0x2274, Width::Dword, 3).expect("aligned");
        let line = serde_json::to_string(&Record::new(access, 0)).expect("plain data");
        assert_eq!(
            line,
            r#"{"offset":8820,"bytes":4,"write":true,"value":3,"name":"RunlistCommit"}"#
        );
    }

    proptest! {
        #[test]
        fn access_survives_its_line(offset in 0u64..0x210_0000, bytes in 1u32..5, write: bool, value: u32) {
            let access = Width::from_bytes(bytes).and_then(|width| if write {
                Access::write(offset, width, value)
            } else {
                Access::read(offset, width)
            });
            if let Some(access) = access {
                let line = serde_json::to_string(&Record::new(access, value)).expect("plain data");
                let record: Record = serde_json::from_str(&line).expect("its own line");
                prop_assert_eq!(record.access(), Some(access));
            }
        }
    }
}
