use alloc::{format, string::ToString, vec::Vec};

use proptest::prelude::*;

use super::{
    assembler::assemble,
    field as f,
    instruction::{Instruction, Reason},
    opcode::Opcode,
    operand::{ConstAddress, Guard, Register, Source},
    rows, widen,
};

const VECTORS: &str = include_str!("tests/vectors.txt");
/// Textures and surfaces: words with fields at random, and the text that envytools' disassembler has for them.
const TEXTURE_VECTORS: &str = include_str!("tests/texture_vectors.txt");
/// Targets in constant banks, guards that never hold, halves, flags, offsets of short forms: words and what envytools'
/// disassembler has for them.
const CONTROL_VECTORS: &str = include_str!("tests/control_vectors.txt");

/// Texts that do not determine their word: see the module docs of the assembler.
const AMBIGUOUS: [u64; 2] = [
    // `mov b32 $r9 0x0` by register 63.
    0x2800_0000_fc02_5de4,
    // A PSETP whose second operand is P0, which the text hides.
    0x0c0e_0000_0011_dc04,
];

fn vectors() -> impl Iterator<Item = (&'static str, &'static str)> {
    VECTORS
        .lines()
        .chain(TEXTURE_VECTORS.lines())
        .chain(CONTROL_VECTORS.lines())
        .map(|line| line.split_once('\t').expect("word, tab, text"))
}

fn text_of(hex: &str) -> alloc::string::String {
    match hex.len() {
        16 => {
            let word = u64::from_str_radix(hex, 16).expect("hexadecimal");
            Instruction::decode(word).map_or_else(|illegal| illegal.to_string(), |found| found.to_string())
        }
        _ => {
            let word = u32::from_str_radix(hex, 16).expect("hexadecimal");
            widen(word).map_or_else(|illegal| illegal.to_string(), |found| found.to_string())
        }
    }
}

#[test]
fn every_vector_has_its_text() {
    assert_eq!(vectors().count(), 266 + 85 + 75);
    let wrong: Vec<_> = vectors()
        .filter(|(hex, text)| text_of(hex) != *text)
        .map(|(hex, text)| format!("{hex}: {} for {text}", text_of(hex)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_text_has_its_word() {
    let long = vectors().filter(|(hex, _)| hex.len() == 16);
    let wrong: Vec<_> = long
        .filter_map(|(hex, text)| {
            let word = u64::from_str_radix(hex, 16).expect("hexadecimal");
            let got = assemble(text).map(|program| program.words);
            let is_right = got == Ok([word].to_vec()) || AMBIGUOUS.contains(&word);
            (!is_right).then(|| format!("{text}: {got:x?} for {hex}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn kernels_assemble_to_their_words() {
    macro_rules! kernels {
        ($($name:literal),*) => {
            [$(($name, include_str!(concat!("../../../../docs/examples/kernels/", $name, ".asm")), include_str!(concat!("tests/kernels/", $name, ".hex")))),*]
        };
    }
    let kernels = kernels![
        "bithash",
        "diverge",
        "histogram",
        "matmul",
        "reduce",
        "saxpy",
        "stencil",
        "vecadd"
    ];
    for (name, source, hex) in kernels {
        let program = assemble(source).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected: Vec<_> = hex
            .lines()
            .map(|line| u64::from_str_radix(line, 16).expect("hexadecimal"))
            .collect();
        assert_eq!(program.words, expected, "{name}");
    }
}

#[test]
fn needs_of_a_kernel_are_counted() {
    let program = assemble(include_str!("../../../../docs/examples/kernels/matmul.asm")).unwrap();
    assert_eq!((program.registers, program.barriers), (32, 1));
    let program = assemble(".registers 40\n.shared 0x800\nexit").unwrap();
    assert_eq!((program.registers, program.shared_bytes), (40, 0x800));
}

#[test]
fn error_names_line_column_and_what_could_stand_there() {
    let message = |source: &str| assemble(source).unwrap_err().to_string();
    assert_eq!(
        message("exit\n  mov b32 $r1"),
        "line 2, column 14: the line ends where a register or a predicate or a constant could stand".replace(
            "a register or a predicate or a constant",
            "a number or a register or a special register"
        )
    );
    assert!(message("bra #nowhere").contains("no label nowhere"));
    assert!(
        message("frobnicate $r1").contains("is not an instruction"),
        "{}",
        message("frobnicate $r1")
    );
    assert!(message("add rn f64 $r3d $r4d $r6d").contains("multiple of 2"));
    assert!(message("ld b32 $r1 ca g[$r3d]").contains("pair"));
    assert!(message("a: exit\na: exit").contains("defined before"));
    assert!(message(".frames 3").contains(".registers"));
    assert!(message("add rn f32 $r1 $r2 0x3f800001").contains("zero bits"));
    assert!(message("exit exit").contains("end of the line"));
}

#[test]
fn short_and_reserved_words_are_illegal_with_their_reason() {
    let reason = |word| Instruction::decode(word).unwrap_err().reason;
    assert_eq!(reason(0x8), Reason::Short);
    assert_eq!(reason(0x0000_0000_0000_0003), Reason::Opcode);
    // LD of type 7.
    assert_eq!(reason(0x8400_0000_0020_5ce5), Reason::Field);
    // FADD with operand C's constant.
    assert_eq!(reason(0x5000_8000_0020_5c00), Reason::Field);
}

#[test]
fn operands_are_what_the_text_says() {
    let decode = |hex| Instruction::decode(hex).unwrap();
    let fma = decode(0x3006_8800_4020_5c00);
    assert_eq!(
        (fma.opcode(), fma.dst(), fma.a()),
        (Opcode::Ffma, Register(1), Register(2))
    );
    assert_eq!(fma.b(), Source::Register(Register(3)));
    assert_eq!(
        fma.c(),
        Source::Constant(ConstAddress {
            bank: 2,
            offset: 0x10
        })
    );
    assert_eq!(decode(0x4800_cffc_0040_9c01).b(), Source::Immediate(0x3ff0_0000));
    assert_eq!(decode(0x3008_cfa0_0020_5c00).b(), Source::Immediate(0x3e80_0000));
    let load = decode(0x87ff_ffff_f820_5d65);
    assert_eq!(
        (load.offset(), load.has_wide_address(), load.data_type().bytes()),
        (-2, true, 2)
    );
    let branch = decode(0x4003_fffe_4000_01e7);
    assert_eq!(
        (branch.target(0x158), branch.guard().predicate.0),
        (Some(0xf0), 0)
    );
    assert_eq!(decode(0x6000_0001_e000_0007).guard(), Guard::ALWAYS);
}

#[test]
fn instruction_says_what_it_writes() {
    let of = |text: &str| {
        let instruction = Instruction::decode(assemble(text).unwrap().words[0]).unwrap();
        let predicates: Vec<_> = instruction.result_predicates().map(|p| p.0).collect();
        (
            instruction.result().map(|(first, count)| (first.0, count)),
            predicates,
        )
    };
    assert_eq!(of("add b32 $r1 $r2 $r3"), (Some((1, 1)), [].to_vec()));
    assert_eq!(of("add b32 0x0 $c $r2 $r3"), (None, [].to_vec()));
    assert_eq!(of("add rn f64 $r2d $r4d $r6d"), (Some((2, 2)), [].to_vec()));
    assert_eq!(of("ld b128 $r4q ca g[$r2d]"), (Some((4, 4)), [].to_vec()));
    assert_eq!(of("st b64 wb g[$r2d] $r4d"), (None, [].to_vec()));
    assert_eq!(of("ld add u32 $r5 g[$r2d+0x10] $r1"), (Some((5, 1)), [].to_vec()));
    assert_eq!(of("red add u32 g[$r2d] $r1"), (None, [].to_vec()));
    assert_eq!(of("set $p1 $p2 lt u32 $r5 $r6"), (None, [1, 2].to_vec()));
    assert_eq!(of("set $p1 0x1 lt u32 $r5 $r6"), (None, [1].to_vec()));
    assert_eq!(of("vote any $r1 $p0 $p1"), (Some((1, 1)), [0].to_vec()));
    assert_eq!(of("$p3 bra 0x8"), (None, [].to_vec()));
}

/// A word of a row whose unused bits are as the assembler writes them.
fn canonical_word() -> impl Strategy<Value = u64> {
    any::<(u64, u32)>()
        .prop_filter_map("an instruction", |(bits, pick)| {
            let rows: Vec<_> = (0..8).flat_map(rows::of_class).collect();
            let row = rows[pick as usize % rows.len()];
            let word = bits & !row.mask & !f::JOIN.set(0, 1) | row.value;
            Instruction::decode(word).ok()
        })
        .prop_map(Instruction::word)
}

proptest! {
    #[test]
    fn any_word_decodes_or_says_why(word in any::<u64>()) {
        match Instruction::decode(word) {
            Ok(instruction) => {
                prop_assert_eq!(instruction.word(), word);
                prop_assert!(!instruction.to_string().is_empty());
                prop_assert!(instruction.registers_used() <= 66);
            }
            Err(illegal) => prop_assert_eq!(illegal.word, word),
        }
    }

    #[test]
    fn any_short_word_decodes_or_says_why(word in any::<u32>()) {
        if let Ok(short) = widen(word | 8) {
            prop_assert!(!short.to_string().is_empty());
        }
    }

    #[test]
    fn text_of_a_text_is_the_same_text(word in canonical_word()) {
        let text = Instruction::decode(word).unwrap().to_string();
        // The text that hides an operand: see AMBIGUOUS.
        let hides = text.contains("set") && !text.contains(" and ") && word >> 26 & 63 == 0;
        prop_assume!(!(hides && matches!(Instruction::decode(word).unwrap().opcode(), Opcode::Pset | Opcode::Psetp)));
        // Misaligned registers and offsets are errors of the running program, which the assembler refuses.
        if let Ok(program) = assemble(&text) {
            let again = Instruction::decode(program.words[0]).unwrap();
            prop_assert_eq!(again.to_string(), text);
        }
    }

    #[test]
    fn assembled_word_assembles_to_itself(word in canonical_word()) {
        let text = Instruction::decode(word).unwrap().to_string();
        if let Ok(program) = assemble(&text) {
            let once = program.words[0];
            let again = assemble(&Instruction::decode(once).unwrap().to_string()).unwrap();
            prop_assert_eq!(again.words[0], once);
        }
    }

    #[test]
    fn any_text_assembles_or_says_where_not(text in "\\PC{0,60}") {
        let _ = assemble(&text);
    }

    #[test]
    fn words_in_any_order_assemble_or_say_where_not(
        words in proptest::collection::vec(
            proptest::sample::select(&[
                "add", "mov", "b32", "$r1", "$r2d", "(", ")", "not", "$p0", "0x1", "-5", "c0[0x10]", "g[$r2d-0x4]", "ld",
                "$c", "set", "lt", "u32", "bra", "#x", "x:", "join",
            ][..]),
            0..8,
        )
    ) {
        let _ = assemble(&words.join(" "));
    }
}
