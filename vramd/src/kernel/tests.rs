//! Launch files of any form, and where buffers come to lie.

use std::path::Path;

use fermi_spec::addr::SMALL_PAGE;
use proptest::prelude::*;

use super::launch_file::{BUFFER_VA, Buffer, BufferMemory, LaunchFile};
use super::plan::addresses;
use super::value::{Content, Ramp, RawValue, Type, Value, lay_out, parse_hex};
use vramd_vm::config::parse;

const SAXPY: &str = include_str!("../../../docs/examples/kernels/saxpy.toml");
const STENCIL: &str = include_str!("../../../docs/examples/kernels/stencil.toml");
const BITHASH: &str = include_str!("../../../docs/examples/kernels/bithash.toml");

fn launch(text: &str) -> Result<LaunchFile, vramd_vm::config::ConfigError> {
    parse(Path::new("l.toml"), text)
}

#[test]
fn documented_launch_is_what_it_says() {
    let file = launch(SAXPY).unwrap();
    assert_eq!((file.grid, file.block), ([3, 1, 1], [64, 1, 1]));
    assert_eq!(
        (file.registers, file.shared_bytes, file.stack_bytes),
        (None, None, 0x800)
    );
    assert_eq!(file.card.vram_bytes, 256 << 20);
    let places: Vec<_> = file.buffers.iter().map(|buffer| buffer.place).collect();
    assert_eq!(places, [BufferMemory::Vram, BufferMemory::Ram]);
    let words = lay_out(&file.parameters.unwrap(), |name, at| Some(name.len() as u64 + at)).unwrap();
    assert_eq!(words.len(), 24);
    assert_eq!(words[16..], [0, 0, 0x20, 0x40, 0xe8, 3, 0, 0]);
}

#[test]
fn values_lie_at_multiples_of_their_size() {
    let values = [
        Value::Number { bits: 1, bytes: 1 },
        Value::Number { bits: 2, bytes: 2 },
        Value::Bytes(vec![9; 3]),
        Value::Number { bits: 3, bytes: 8 },
    ];
    let data = lay_out(&values, |_, _| None).unwrap();
    assert_eq!(data, [1, 0, 2, 0, 9, 9, 9, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let unknown = Value::Address {
        buffer: "b".to_owned(),
        offset: 4,
    };
    assert!(lay_out(&[unknown], |_, _| None).is_err());
}

#[test]
fn types_take_what_they_hold() {
    let value = |text: &str| {
        let raw: std::collections::BTreeMap<String, RawValue> = toml::from_str(text).unwrap();
        raw["v"].check()
    };
    let bits = |bits, bytes| Ok(Value::Number { bits, bytes });
    assert_eq!(value("v = { u8 = 255 }"), bits(255, 1));
    assert!(value("v = { u8 = 256 }").is_err());
    assert_eq!(value("v = { i32 = -2147483648 }"), bits(0xffff_ffff_8000_0000, 4));
    assert!(value("v = { i32 = 2147483648 }").is_err());
    assert_eq!(value("v = { u64 = \"0xffffffffffffffff\" }"), bits(u64::MAX, 8));
    assert!(value("v = { i64 = \"0xffffffffffffffff\" }").is_err());
    assert_eq!(value("v = { f32 = 1 }"), bits(0x3f80_0000, 4));
    assert_eq!(value("v = { f64 = -inf }"), bits(0xfff0_0000_0000_0000, 8));
}

fn buffer(address: Option<u64>) -> Buffer {
    Buffer {
        name: "b".to_owned(),
        address,
        bytes: None,
        place: BufferMemory::Vram,
        content: Content::Zero,
    }
}

/// Buffers with and without an address, as the file's check lets them through, and their sizes.
fn some_buffers() -> impl Strategy<Value = Vec<(Option<u64>, u64)>> {
    let page = prop_oneof![
        0xa_0000u64..0xa_0040,
        0xf_dfc0u64..0xf_e000,
        0x10_0000u64..0x10_0100,
        0x3f_ffc0u64..0x40_0000
    ];
    let size = prop_oneof![1u64..0x2000, 0x8000u64..0x10000];
    let one =
        (proptest::option::of(page), size).prop_map(|(page, words)| (page.map(|page| page << 12), 4 * words));
    proptest::collection::vec(one, 0..12)
}

proptest! {
    #[test]
    fn buffers_share_no_page_and_lie_where_they_may(given in some_buffers()) {
        let buffers: Vec<_> = given.iter().map(|(address, _)| buffer(*address)).collect();
        let sizes: Vec<_> = given.iter().map(|(_, bytes)| *bytes).collect();
        if let Ok(ranges) = addresses(&buffers, &sizes) {
            for (index, range) in ranges.iter().enumerate() {
                prop_assert_eq!(range.end - range.start, sizes[index]);
                prop_assert!(given[index].0.is_none_or(|address| address == range.start));
                let end = range.end.next_multiple_of(SMALL_PAGE);
                prop_assert!(BUFFER_VA.iter().any(|free| free.start <= range.start && end <= free.end));
                for other in &ranges[..index] {
                    let other_end = other.end.next_multiple_of(SMALL_PAGE);
                    prop_assert!(end <= other.start || other_end <= range.start);
                }
            }
        }
    }

    #[test]
    fn buffers_without_addresses_always_fit(sizes in proptest::collection::vec(1u64..0x40_0000, 0..64)) {
        let buffers = vec![buffer(None); sizes.len()];
        prop_assert!(addresses(&buffers, &sizes).is_ok());
    }

    #[test]
    fn any_text_is_a_launch_or_an_error_of_one_line(text: String) {
        if let Err(error) = launch(&text) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn example_with_a_word_exchanged_is_a_launch_or_an_error_of_one_line(
        which in 0usize..3,
        at in any::<proptest::sample::Index>(),
        word in proptest::sample::select(&[
            "", "-1", "0", "1.5", "nan", "\"\"", "[]", "{}", "=", "]", "\"x\"", "0xffffffffffffffff", "99999999999999999999",
            "{ u32 = -1 }", "{ address = \"x+\" }", "{ hex = \"é\" }", "true", "\"4G\"", "[[[", "2026-01-01", "\u{0}",
        ][..]),
    ) {
        let text = [SAXPY, STENCIL, BITHASH][which];
        let words: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
        let at = at.index(words.len());
        let changed = format!("{}{word}\n{}", words[..at].concat(), words[at + 1..].concat());
        if let Err(error) = launch(&changed) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn bytes_as_hex_are_the_bytes(bytes: Vec<u8>) {
        let text: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
        prop_assert_eq!(parse_hex(&text), Ok(bytes));
    }

    #[test]
    fn any_text_is_hex_or_an_error(text: String) {
        let _ = parse_hex(&text);
    }

    #[test]
    fn ramp_has_as_many_bytes_as_it_is_asked_for(bytes in 0usize..100, modulo in proptest::option::of(1u64..9)) {
        for kind in [Type::U8, Type::U16, Type::U32, Type::I32, Type::U64, Type::I64, Type::F32, Type::F64] {
            let ramp = Ramp { kind, modulo, ..Ramp::WORDS };
            prop_assert_eq!(ramp.bytes(bytes).len(), bytes);
        }
    }
}
