//! Classes 2 and 3: 32-bit immediates and integer arithmetic.

use super::{
    A, ADDITIONS, B, C, COMPARE, DST, FLAGS, FLAGS32, LOGIC, MASK_OR_FLOAT, Opcode, PRED_C, PRED_C_NOT,
    PRED_D, PRED_Q, Row, SIGNS,
    Token::{self, Close, Combine, Imm32, Number, Open, Pick, SameDst, Word},
    bit, f, flag,
};

const B32: Token = Word("b32");
const F32: Token = Word("f32");
const HIGH: Token = flag(6, "high");
const SIGN_A: Token = Pick(bit(7), SIGNS);
const SIGN_B: Token = Pick(bit(5), SIGNS);
/// Sign of both operands.
const SIGN: Token = SIGN_B;
const ADD: Token = Pick(f::ADD_OP, ADDITIONS);
const LOP: Token = Pick(f::LOGIC_OP, LOGIC);
const NOT_A: Token = flag(9, "not");
const NOT_B: Token = flag(8, "not");
const PART: Token = Pick(f::MINMAX_PART, &["", "low", "med", "high"]);

pub(super) const IMMEDIATE: &[Row] = &[
    Row::five(
        Opcode::Imad32i,
        2,
        0,
        &[
            ADD,
            DST,
            FLAGS32,
            Open,
            Word("mul"),
            HIGH,
            SIGN_A,
            A,
            SIGN_B,
            Imm32,
            Close,
            SameDst,
        ],
    ),
    Row::five(
        Opcode::Iadd32i,
        2,
        1,
        &[ADD, flag(5, "sat"), B32, DST, FLAGS32, A, Imm32, flag(6, "$c")],
    ),
    Row::five(
        Opcode::Imul32i,
        2,
        2,
        &[Word("mul"), HIGH, DST, FLAGS32, SIGN_A, A, SIGN_B, Imm32],
    ),
    Row::five(
        Opcode::Mov32i,
        2,
        3,
        &[Token::Lanes, Word("mov"), B32, DST, FLAGS32, Imm32],
    ),
    Row::five(
        Opcode::Ffma32i,
        2,
        4,
        &[
            Word("fma"),
            flag(6, "ftz"),
            flag(7, "fmz"),
            flag(5, "sat"),
            F32,
            DST,
            FLAGS32,
            flag(9, "neg"),
            A,
            Imm32,
            flag(8, "neg"),
            SameDst,
        ],
    ),
    Row::five(
        Opcode::Fadd32i,
        2,
        5,
        &[
            Word("add"),
            flag(5, "ftz"),
            F32,
            DST,
            FLAGS32,
            flag(9, "neg"),
            flag(7, "abs"),
            A,
            Imm32,
        ],
    ),
    Row::five(
        Opcode::Fmul32i,
        2,
        6,
        &[
            Word("mul"),
            flag(6, "ftz"),
            flag(7, "fmz"),
            flag(5, "sat"),
            F32,
            DST,
            FLAGS32,
            A,
            Imm32,
        ],
    ),
    Row::five(
        Opcode::Lop32i,
        2,
        7,
        &[LOP, B32, DST, FLAGS32, NOT_A, A, NOT_B, Imm32, flag(5, "$c")],
    ),
    Row::five(
        Opcode::Iscadd32i,
        2,
        8,
        &[
            Word("add"),
            B32,
            DST,
            FLAGS32,
            Open,
            Word("shl"),
            A,
            Number(f::SHIFT),
            Close,
            Imm32,
        ],
    ),
];

pub(super) const INTEGER: &[Row] = &[
    Row::five(Opcode::Imnmx, 3, 1, &[Word("min"), PART, SIGN, DST, FLAGS, A, B])
        .with(f::PRED_C, 7)
        .with(f::PRED_C_NOT, 0),
    Row::five(Opcode::Imnmx, 3, 1, &[Word("max"), PART, SIGN, DST, FLAGS, A, B])
        .with(f::PRED_C, 7)
        .with(f::PRED_C_NOT, 1),
    Row::five(
        Opcode::Imnmx,
        3,
        1,
        &[Word("minmax"), PRED_C_NOT, PRED_C, PART, SIGN, DST, FLAGS, A, B],
    ),
    Row::five(
        Opcode::Iset,
        3,
        2,
        &[
            Word("set"),
            Pick(bit(7), MASK_OR_FLOAT),
            DST,
            FLAGS,
            COMPARE,
            SIGN,
            A,
            B,
            flag(6, "$c"),
            Combine,
        ],
    ),
    Row::five(
        Opcode::Isetp,
        3,
        3,
        &[
            Word("set"),
            PRED_D,
            PRED_Q,
            COMPARE,
            SIGN,
            A,
            B,
            flag(6, "$c"),
            Combine,
        ],
    ),
    Row::five(
        Opcode::Imad,
        3,
        4,
        &[
            ADD,
            flag(56, "sat"),
            DST,
            FLAGS,
            Open,
            Word("mul"),
            HIGH,
            SIGN_A,
            A,
            SIGN_B,
            B,
            Close,
            C,
            flag(55, "$c"),
        ],
    ),
    Row::five(Opcode::Bfi, 3, 5, &[Word("ins"), B32, DST, FLAGS, A, B, C]),
    Row::five(
        Opcode::Icmp,
        3,
        6,
        &[Word("slct"), B32, DST, A, B, COMPARE, SIGN, C],
    ),
    Row::five(Opcode::Isad, 3, 7, &[Word("sad"), SIGN, DST, FLAGS, A, B, C]),
    Row::five(
        Opcode::Iscadd,
        3,
        8,
        &[
            Pick(f::ADD_OP_SCALED, ADDITIONS),
            B32,
            DST,
            FLAGS,
            Open,
            Word("shl"),
            A,
            Number(f::SHIFT),
            Close,
            B,
        ],
    ),
    Row::five(
        Opcode::Iadd,
        3,
        9,
        &[ADD, flag(5, "sat"), B32, DST, FLAGS, A, B, flag(6, "$c")],
    ),
    Row::five(
        Opcode::Imul,
        3,
        10,
        &[Word("mul"), HIGH, DST, FLAGS, SIGN_A, A, SIGN_B, B],
    ),
    Row::five(
        Opcode::Shr,
        3,
        11,
        &[
            Word("shr"),
            flag(8, "rev"),
            SIGN,
            DST,
            FLAGS,
            A,
            Pick(f::SHIFT_WRAP, &["clamp", "wrap"]),
            B,
            flag(7, "$c"),
        ],
    ),
    Row::five(
        Opcode::Shl,
        3,
        12,
        &[
            Word("shl"),
            B32,
            DST,
            FLAGS,
            A,
            Pick(f::SHIFT_WRAP, &["clamp", "wrap"]),
            B,
            flag(6, "$c"),
        ],
    ),
    Row::five(
        Opcode::Lop,
        3,
        13,
        &[LOP, B32, DST, FLAGS, NOT_A, A, NOT_B, B, flag(5, "$c")],
    ),
    Row::five(
        Opcode::Bfe,
        3,
        14,
        &[Word("ext"), flag(8, "rev"), SIGN, DST, FLAGS, A, B],
    ),
    Row::five(
        Opcode::Flo,
        3,
        15,
        &[Word("bfind"), flag(6, "shiftamt"), SIGN, DST, FLAGS, NOT_B, B],
    ),
];
