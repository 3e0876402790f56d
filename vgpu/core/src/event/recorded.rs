//! The form that a request has in recordings: one object with the VM, the id and what is asked for side by side.
//!
//! Recordings had this form before requests had a type of their own, and stay readable by it.

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Request, RequestId, VmId};

#[derive(Serialize, Deserialize)]
enum Recorded {
    Reset {
        vm: VmId,
        request: RequestId,
    },
    MaskIntx {
        vm: VmId,
        request: RequestId,
        masked: bool,
    },
    Read {
        vm: VmId,
        request: RequestId,
        bar: Bar,
        offset: u64,
        bytes: u32,
    },
    Write {
        vm: VmId,
        request: RequestId,
        bar: Bar,
        offset: u64,
        #[serde(with = "crate::hex")]
        data: Vec<u8>,
    },
    ReadConfig {
        vm: VmId,
        request: RequestId,
        offset: u64,
        bytes: u32,
    },
    WriteConfig {
        vm: VmId,
        request: RequestId,
        offset: u64,
        #[serde(with = "crate::hex")]
        data: Vec<u8>,
    },
    MapRam {
        vm: VmId,
        request: RequestId,
        gpa: Gpa,
        bytes: u64,
        writable: bool,
    },
    UnmapRam {
        vm: VmId,
        request: RequestId,
        gpa: Gpa,
        bytes: u64,
    },
}

pub(super) fn serialize<S: Serializer>(
    &vm: &VmId,
    &request: &RequestId,
    what: &Request,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let recorded = match *what {
        Request::Reset => Recorded::Reset { vm, request },
        Request::MaskIntx { masked } => Recorded::MaskIntx { vm, request, masked },
        Request::Read { bar, offset, bytes } => Recorded::Read {
            vm,
            request,
            bar,
            offset,
            bytes,
        },
        Request::Write {
            bar,
            offset,
            ref data,
        } => Recorded::Write {
            vm,
            request,
            bar,
            offset,
            data: data.clone(),
        },
        Request::ReadConfig { offset, bytes } => Recorded::ReadConfig {
            vm,
            request,
            offset,
            bytes,
        },
        Request::WriteConfig { offset, ref data } => Recorded::WriteConfig {
            vm,
            request,
            offset,
            data: data.clone(),
        },
        Request::MapRam { gpa, bytes, writable } => Recorded::MapRam {
            vm,
            request,
            gpa,
            bytes,
            writable,
        },
        Request::UnmapRam { gpa, bytes } => Recorded::UnmapRam {
            vm,
            request,
            gpa,
            bytes,
        },
    };
    recorded.serialize(serializer)
}

pub(super) fn deserialize<'a, D: Deserializer<'a>>(
    deserializer: D,
) -> Result<(VmId, RequestId, Request), D::Error> {
    Ok(match Recorded::deserialize(deserializer)? {
        Recorded::Reset { vm, request } => (vm, request, Request::Reset),
        Recorded::MaskIntx { vm, request, masked } => (vm, request, Request::MaskIntx { masked }),
        Recorded::Read {
            vm,
            request,
            bar,
            offset,
            bytes,
        } => (vm, request, Request::Read { bar, offset, bytes }),
        Recorded::Write {
            vm,
            request,
            bar,
            offset,
            data,
        } => (vm, request, Request::Write { bar, offset, data }),
        Recorded::ReadConfig {
            vm,
            request,
            offset,
            bytes,
        } => (vm, request, Request::ReadConfig { offset, bytes }),
        Recorded::WriteConfig {
            vm,
            request,
            offset,
            data,
        } => (vm, request, Request::WriteConfig { offset, data }),
        Recorded::MapRam {
            vm,
            request,
            gpa,
            bytes,
            writable,
        } => (vm, request, Request::MapRam { gpa, bytes, writable }),
        Recorded::UnmapRam {
            vm,
            request,
            gpa,
            bytes,
        } => (vm, request, Request::UnmapRam { gpa, bytes }),
    })
}

#[cfg(test)]
mod tests {
    use crate::event::{Action, Event};

    /// A line of a recording and the event that it stands for are the same in both directions.
    fn assert_same(text: &str) {
        let event: Event = serde_json::from_str(text).expect("an event");
        assert!(matches!(event, Event::Request { .. }), "{event:?}");
        assert_eq!(serde_json::to_string(&event).expect("text"), text);
    }

    #[test]
    fn requests_have_the_form_of_the_first_recordings() {
        assert_same(r#"{"Reset":{"vm":1,"request":9}}"#);
        assert_same(r#"{"Read":{"vm":1,"request":2,"bar":"Bar0","offset":1052856,"bytes":4}}"#);
        assert_same(r#"{"Write":{"vm":0,"request":3,"bar":"Bar3","offset":8,"data":"0011ff"}}"#);
        assert_same(r#"{"MapRam":{"vm":2,"request":4,"gpa":4096,"bytes":8192,"writable":true}}"#);
        assert_same(r#"{"UnmapRam":{"vm":2,"request":5,"gpa":4096,"bytes":8192}}"#);
    }

    #[test]
    fn mask_of_intx_has_the_same_form_and_messages_have_no_kind() {
        assert_same(r#"{"MaskIntx":{"vm":1,"request":2,"masked":false}}"#);
        for text in [
            r#"{"Interrupt":{"vm":1}}"#,
            r#"{"Interrupt":{"vm":1,"kind":"Intx"}}"#,
        ] {
            let action: Action = serde_json::from_str(text).expect("an action");
            assert_eq!(serde_json::to_string(&action).expect("text"), text);
        }
    }

    #[test]
    fn requests_of_the_configuration_space_have_the_same_form() {
        assert_same(r#"{"ReadConfig":{"vm":1,"request":2,"offset":52,"bytes":1}}"#);
        assert_same(r#"{"WriteConfig":{"vm":1,"request":3,"offset":4,"data":"0600"}}"#);
    }

    #[test]
    fn request_that_nobody_can_make_is_no_event() {
        for text in [
            r#"{"Erase":{"vm":1,"request":9}}"#,
            r#"{"Read":{"vm":1,"request":9}}"#,
        ] {
            assert!(serde_json::from_str::<Event>(text).is_err(), "{text}");
        }
    }
}
