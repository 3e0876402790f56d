//! The classes of instructions: each opcode that computes, in each mode that changes its work.

use super::special;
use fermi_spec::isa::assembler::assemble;
use fermi_spec::isa::{Instruction, Opcode};
use std::collections::HashSet;

/// What registers R0 to R7 hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Data {
    Integers,
    Halves,
    Singles,
    /// Four of them, in pairs of registers.
    Doubles,
}

/// One row of the table.
pub(crate) struct Class {
    pub(crate) name: String,
    /// `%d` is its destination, the first of four registers that may follow.
    pub(crate) instruction: String,
    /// Instructions before the loop; R8 is the lane's number.
    pub(crate) setup: &'static str,
    pub(crate) data: Data,
}

const ROUNDINGS: [&str; 4] = ["rn", "rm", "rp", "rz"];

/// Opcodes that other benches measure, or that move no data of lanes.
const ELSEWHERE: &[Opcode] = &[
    // Memory of the launch: the tables of bytes.
    Opcode::Ld,
    Opcode::Ldu,
    Opcode::St,
    Opcode::Ldl,
    Opcode::Stl,
    Opcode::Ldslk,
    Opcode::Stsul,
    Opcode::Cctl,
    Opcode::Cctll,
    Opcode::Membar,
    Opcode::RedU32,
    Opcode::RedS32,
    Opcode::RedF32,
    Opcode::RedU64,
    Opcode::AtomU32,
    Opcode::AtomS32,
    Opcode::AtomF32,
    Opcode::AtomU64,
    Opcode::Exch32,
    Opcode::Exch64,
    Opcode::Cas32,
    Opcode::Cas64,
    Opcode::Suldb,
    Opcode::Sustb,
    Opcode::Sustp,
    Opcode::Sulea,
    Opcode::Tex,
    Opcode::Tld,
    Opcode::Tld4,
    Opcode::Tmml,
    Opcode::Txq,
    Opcode::Txd,
    // Control.
    Opcode::Jmp,
    Opcode::Jmx,
    Opcode::Jmxc,
    Opcode::Jcal,
    Opcode::Bra,
    Opcode::Brx,
    Opcode::Brxc,
    Opcode::Cal,
    Opcode::Plongjmp,
    Opcode::Ssy,
    Opcode::Pbk,
    Opcode::Pcnt,
    Opcode::Pret,
    Opcode::Exit,
    Opcode::Longjmp,
    Opcode::Ret,
    Opcode::Kil,
    Opcode::Rtt,
    Opcode::Brk,
    Opcode::Cont,
    Opcode::Sam,
    Opcode::Ram,
    Opcode::Bpt,
    // A barrier ends the turn of its warp.
    Opcode::Bar,
];

/// Every opcode is in a row or in [`ELSEWHERE`], and in one of them only.
pub(crate) fn check_that_none_is_missing(classes: &[Class]) {
    let mut measured = HashSet::new();
    for class in classes {
        let text = class.instruction.replace("%d", "$r12") + "\nexit";
        let text = format!(".shared 0x1000\n{text}");
        let program = assemble(&text).unwrap_or_else(|error| panic!("{}: {error:?}", class.name));
        let instruction = Instruction::decode(program.words[0]).expect("what was assembled");
        measured.insert(instruction.opcode());
    }
    for opcode in Opcode::ALL {
        let is_elsewhere = ELSEWHERE.contains(opcode);
        assert!(
            measured.contains(opcode) != is_elsewhere,
            "{opcode:?} wants a row, or a place among those that have none"
        );
    }
}

/// The rows of the table, in its order.
pub(crate) fn all() -> Vec<Class> {
    let mut classes = Vec::new();
    singles(&mut classes);
    doubles(&mut classes);
    integers(&mut classes);
    conversions(&mut classes);
    moves(&mut classes);
    shared(&mut classes);
    mixed(&mut classes);
    classes
}

/// A kernel's mix of integer arithmetic and conversions: an address, a byte out of a word, a scaled float and back.
fn mixed(classes: &mut Vec<Class>) {
    const LINES: [&str; 8] = [
        "add %d (mul u32 $r0 u32 $r1) $r2",
        "ext u32 %d $r0 0x808",
        "cvt rn f32 %d u8 2 $r1",
        "mul f32 %d $r3 0x3f9df3b6",
        "add b32 %d (shl $r0 0x2) $r1",
        "cvt rzi s32 %d f32 $r3",
        "xor b32 %d $r0 $r2",
        "min s32 %d $r1 $r2",
    ];
    classes.push(Class {
        name: "mixed: 6 of integers, 2 conversions in 8".to_owned(),
        instruction: LINES.join("\n"),
        setup: "mov b32 $r3 0x42f6e979",
        data: Data::Integers,
    });
}

fn add(classes: &mut Vec<Class>, data: Data, instruction: &str) {
    add_with(classes, data, "", instruction);
}

fn add_with(classes: &mut Vec<Class>, data: Data, setup: &'static str, instruction: &str) {
    let first = instruction.split("%d").next().unwrap_or_default();
    let rest = instruction.split_once("%d").map_or("", |(_, rest)| rest);
    classes.push(Class {
        name: format!("{}{}", first.trim(), rest),
        instruction: instruction.to_owned(),
        setup,
        data,
    });
}

fn singles(classes: &mut Vec<Class>) {
    let mut add = |text: &str| add(classes, Data::Singles, text);
    for flags in ["", "ftz ", "sat ", "ftz sat "] {
        for round in ROUNDINGS {
            add(&format!("add {flags}{round} f32 %d $r0 $r1"));
        }
    }
    for flags in ["", "ftz ", "fmz ", "sat ", "ftz sat ", "fmz sat "] {
        for round in ROUNDINGS {
            add(&format!("fma {flags}{round} f32 %d $r0 $r1 $r2"));
            let flags = if flags.starts_with("ftz")
                || flags.starts_with("fmz")
                || flags == "sat "
                || flags.is_empty()
            {
                flags
            } else {
                continue;
            };
            add(&format!("mul {flags}{round} f32 %d $r0 $r1"));
        }
    }
    for text in [
        "mul mul2 rn f32 %d $r0 $r1",
        "mul div8 rz f32 %d $r0 $r1",
        "add rn f32 %d $c neg abs $r0 $r1",
        "fma rm f32 %d $c $r0 $r1 $r2",
        "add ftz f32 %d $r0 0x3f9df3b6",
        "mul f32 %d $r0 0x3f9df3b6",
        "mul ftz sat f32 %d $r0 0x3f9df3b6",
        "min f32 %d $r0 $r1",
        "max ftz f32 %d $r0 $r1",
        "minmax $p0 f32 %d $r0 $r1",
        "set b32 %d lt f32 $r0 $r1",
        "set ftz f32 %d leu f32 $r0 $r1",
        "set $p0 $p1 gtu f32 $r0 $r1",
        "set ftz $p0 $p1 ne f32 $r0 $r1",
        "slct b32 %d $r0 $r1 gt f32 $r2",
        "slct ftz b32 %d $r0 $r1 ge f32 $r2",
        "presin f32 %d $r0",
        "preex2 f32 %d $r0",
        "cos f32 %d $r0",
        "sin f32 %d $r0",
        "ex2 f32 %d $r0",
        "lg2 f32 %d $r0",
        "rcp f32 %d $r0",
        "rsqrt f32 %d $r0",
        "rcp sat f32 %d $r0",
        "rcp64h %d $r0",
        "rsqrt64h %d $r0",
    ] {
        add(text);
    }
    // The addend is the destination.
    add("fma f32 %d $r0 0x3f9df3b6 %d");
    add("fma ftz sat f32 %d $r0 0x3f9df3b6 %d");
}

fn doubles(classes: &mut Vec<Class>) {
    let mut add = |text: &str| add(classes, Data::Doubles, text);
    for round in ROUNDINGS {
        add(&format!("add {round} f64 %dd $r0d $r2d"));
        add(&format!("mul {round} f64 %dd $r0d $r2d"));
        add(&format!("fma {round} f64 %dd $r0d $r2d $r4d"));
    }
    for text in [
        "add rn f64 %dd $c neg abs $r0d abs $r2d",
        "fma rn f64 %dd $r0d c0[0x20] neg $r4d",
        "min f64 %dd $r0d $r2d",
        "max f64 %dd $r0d $r2d",
        "set b32 %d lt f64 $r0d $r2d",
        "set $p0 $p1 geu f64 $r0d $r2d",
    ] {
        add(text);
    }
}

fn integers(classes: &mut Vec<Class>) {
    let mut add = |text: &str| add(classes, Data::Integers, text);
    for text in [
        "add b32 %d $r0 $r1",
        "sub sat b32 %d $r0 $r1",
        "add b32 %d $c $r0 $r1",
        "add b32 %d $r0 $r1 $c",
        "add b32 %d $r0 0x12345678",
        "add %d (mul u32 $r0 u32 $r1) $r2",
        "add %d (mul high s32 $r0 s32 $r1) $r2",
        "add sat %d (mul high u32 $r0 u32 $r1) $r2",
        "add %d (mul high u32 $r0 u32 0x12345678) %d",
        "mul %d u32 $r0 u32 $r1",
        "mul high %d u32 $r0 u32 $r1",
        "mul high %d s32 $r0 s32 $r1",
        "mul high %d s32 $r0 u32 0x12345678",
        "add b32 %d (shl $r0 0x3) $r1",
        "add b32 %d (shl $r0 0x3) 0x12345678",
        "sad s32 %d $r0 $r1 $r2",
        "sad u32 %d $r0 $r1 $r2",
        "min s32 %d $r0 $r1",
        "max u32 %d $c $r0 $r1",
        "min low u32 %d $r0 $r1",
        "max high s32 %d $c $r0 $r1",
        "ins b32 %d $r0 0x808 $r1",
        "ins b32 %d $r0 $r1 $r2",
        "ext u32 %d $r0 0x808",
        "ext s32 %d $r0 $r1",
        "ext rev u32 %d $r0 $r1",
        "bfind u32 %d $r0",
        "bfind shiftamt s32 %d $r0",
        "popc %d $r0 $r1",
        "shl b32 %d $r0 clamp $r1",
        "shr s32 %d $c $r0 wrap $r1",
        "shr rev u32 %d $r0 clamp $r1",
        "and b32 %d $r0 not $r1",
        "xor b32 %d $c $r0 $r1",
        "or b32 %d $r0 0x12345678",
        "set b32 %d lt s32 $r0 $r1",
        "set f32 %d ge u32 $r0 $r1",
        "set $p0 $p1 ne s32 $r0 $r1",
        "set $p0 $p1 lt s32 $r0 $r1 $c",
        "slct b32 %d $r0 $r1 lt s32 $r2",
        "slct b32 %d $r0 $r1 ne u32 $r2",
    ] {
        add(text);
    }
}

fn conversions(classes: &mut Vec<Class>) {
    float_conversions(classes);
    other_float_conversions(classes);
    integer_conversions(classes);
}

/// To whole numbers of every type, and narrower floats, in every direction.
fn float_conversions(classes: &mut Vec<Class>) {
    for (data, from) in [
        (Data::Halves, "f16"),
        (Data::Singles, "f32"),
        (Data::Doubles, "f64"),
    ] {
        let (source, half) = match from {
            "f64" => ("$r0d", ""),
            "f16" => ("$r0", " 0"),
            _ => ("$r0", ""),
        };
        for round in ROUNDINGS {
            add(
                classes,
                data,
                &format!("cvt {round}i {from} {} {from} {source}{half}", result(from)),
            );
            for to in ["u16", "u32", "u64", "s16", "s32", "s64"] {
                let to_register = result(to);
                let operand = if from == "f16" {
                    "0 $r0".to_owned()
                } else {
                    source.to_owned()
                };
                add(
                    classes,
                    data,
                    &format!("cvt {round}i {to} {to_register} {from} {operand}"),
                );
            }
        }
    }
    for round in ROUNDINGS {
        add(classes, Data::Singles, &format!("cvt {round} f16 %d f32 $r0"));
        add(classes, Data::Doubles, &format!("cvt {round} f16 %d f64 $r0d"));
        add(classes, Data::Doubles, &format!("cvt {round} f32 %d f64 $r0d"));
    }
}

fn other_float_conversions(classes: &mut Vec<Class>) {
    for text in [
        "cvt f32 %d f16 $r0 0",
        "cvt f64 %dd f16 $r0 1",
        "cvt sat f16 %d f16 $r0 1",
    ] {
        add(classes, Data::Halves, text);
    }
    for text in [
        "cvt f64 %dd f32 $r0",
        "cvt ftz f64 %dd f32 $r0",
        "cvt f32 %d f32 $r0",
        "cvt sat f32 %d neg abs f32 $r0",
        "cvt ftz sat f32 %d $c f32 $r0",
        "cvt ftz rzi s32 %d $c f32 $r0",
    ] {
        add(classes, Data::Singles, text);
    }
    add(classes, Data::Doubles, "cvt f64 %dd neg f64 $r0d");
    add(classes, Data::Doubles, "cvt sat f64 %dd f64 $r0d");
}

fn integer_conversions(classes: &mut Vec<Class>) {
    for from in ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"] {
        let source = match from {
            "u8" | "s8" => "2 $r0",
            "u16" | "s16" => "1 $r0",
            "u64" | "s64" => "$r0d",
            _ => "$r0",
        };
        for to in ["f16", "f32", "f64"] {
            for round in ROUNDINGS {
                add(
                    classes,
                    Data::Integers,
                    &format!("cvt {round} {to} {} {from} {source}", result(to)),
                );
            }
        }
        for to in ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"] {
            add(
                classes,
                Data::Integers,
                &format!("cvt {to} {} {from} {source}", result(to)),
            );
        }
        add(
            classes,
            Data::Integers,
            &format!("cvt sat s16 %d neg abs {from} {source}"),
        );
        add(
            classes,
            Data::Integers,
            &format!("cvt sat u64 %dd neg {from} {source}"),
        );
    }
    add(classes, Data::Integers, "cvt rz f32 %d $c neg abs s32 $r0");
}

/// The destination of a conversion to a type.
fn result(to: &str) -> &'static str {
    if to.ends_with("64") { "%dd" } else { "%d" }
}

/// P0 differs from lane to lane; R8 is a multiple of 4.
const MOVES_SETUP: &str = "set $p0 0x1 lt u32 $r0 $r1\nshl b32 $r8 $r8 clamp 0x2";

fn moves(classes: &mut Vec<Class>) {
    let mut add = |text: &str| add_with(classes, Data::Integers, MOVES_SETUP, text);
    for text in [
        "mov b32 %d $r0",
        "mov b32 %d $c $r0",
        "mov b32 %d 0x12345678",
        "selp b32 %d $r0 $r1 $p0",
        "prmt b32 %d $r0 $r1 $r2",
        "prmt f4e b32 %d $r0 $r1 $r2",
        "prmt b4e b32 %d $r0 $r1 $r2",
        "prmt rc8 b32 %d $r0 $r1 $r2",
        "prmt ecl b32 %d $r0 $r1 $r2",
        "prmt ecr b32 %d $r0 $r1 $r2",
        "prmt rc16 b32 %d $r0 $r1 $r2",
        "mov b32 %d $tidx",
        "mov b32 %d $laneid",
        "mov %d $flags mask 0xffff",
        "mov $flags $r0 mask 0x3f",
        "vote all %d $p1 $p0",
        "vote any %d $p1 $p0",
        "set b32 %d $p0 and $p1",
        "set $p1 $p2 $p0 xor $p1",
        "set b32 %d lg $c",
        "set $p1 $p2 lg $c",
        "lepc %d",
        "bar read %d 0x0",
        "nop",
        "$p0 add b32 %d $r0 $r1",
        "ld b32 %d c0[0x20]",
        "ld b32 %d c0[$r8+0x20]",
    ] {
        add(text);
    }
}

/// Shared memory: side by side, one place for all, and places that share banks.
fn shared(classes: &mut Vec<Class>) {
    const SETUPS: [(&str, &str); 3] = [
        (
            "row",
            "shl b32 $r10 $r8 clamp 0x2
            shl b32 $r11 $r8 clamp 0x3
            shl b32 $r8 $r8 clamp 0x4",
        ),
        (
            "one place",
            "mov b32 $r8 0x40
            mov b32 $r10 0x40
            mov b32 $r11 0x40",
        ),
        (
            "one bank",
            "shl b32 $r8 $r8 clamp 0x7
            mov b32 $r10 $r8
            mov b32 $r11 $r8",
        ),
    ];
    for (place, setup) in SETUPS {
        for (text, name) in [
            ("ld b32 %d s[$r10]", "lds b32"),
            ("ld u8 %d s[$r10]", "lds u8"),
            ("ld b64 %dd s[$r11]", "lds b64"),
            ("ld b128 %dq s[$r8]", "lds b128"),
            ("st b32 s[$r10] $r0", "sts b32"),
            ("st b64 s[$r11] $r0d", "sts b64"),
            ("st b128 s[$r8] $r0q", "sts b128"),
        ] {
            classes.push(Class {
                name: format!("{name}, {place}"),
                instruction: text.to_owned(),
                setup,
                data: Data::Integers,
            });
        }
    }
}

impl Data {
    /// R0 to R7 of 32 lanes, lane by lane.
    pub(crate) fn input(self, is_special: bool) -> Vec<u32> {
        let mut state = 0x1234_5678_9abc_def0u64;
        let mut noise = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut words = Vec::new();
        while words.len() < 32 * 8 {
            let bits = noise();
            let number = noise() as usize >> 3;
            match (self, is_special) {
                (Self::Integers, false) => words.push((bits >> 20) as u32 >> (bits & 15)),
                (Self::Integers, true) => words.push(special::INTEGERS[number % special::INTEGERS.len()]),
                (Self::Halves, false) => {
                    let half = |bits: u32| bits & 0x83ff | (0x3000 + ((bits >> 16 & 7) << 10));
                    words.push(half(bits as u32) | half((bits >> 32) as u32) << 16);
                }
                (Self::Halves, true) => {
                    let at = number % (special::HALVES.len() - 1);
                    words.push(special::HALVES[at] | special::HALVES[at + 1] << 16);
                }
                // From 2^-8 to 2^8.
                (Self::Singles, false) => {
                    words.push(bits as u32 & 0x807f_ffff | (119 + (bits >> 40 & 15) as u32) << 23);
                }
                (Self::Singles, true) => words.push(special::SINGLES[number % special::SINGLES.len()]),
                (Self::Doubles, false) => {
                    let value = bits & 0x800f_ffff_ffff_ffff | (1015 + (noise() & 15)) << 52;
                    words.extend([value as u32, (value >> 32) as u32]);
                }
                (Self::Doubles, true) => {
                    let value = special::DOUBLES[number % special::DOUBLES.len()];
                    words.extend([value as u32, (value >> 32) as u32]);
                }
            }
        }
        words
    }
}
