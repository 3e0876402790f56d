//! Classes 0 and 1: f32 and f64 arithmetic.

use super::{
    A, A2, COMPARE, DST, DST2, FLAGS, Kind, MASK_OR_FLOAT, Opcode, PRED_C, PRED_C_NOT, PRED_D, PRED_Q,
    RESERVED, ROUNDINGS, Row,
    Token::{self, C, Combine, Pick, Word},
    Width, bit, f, flag,
};

const NEG_A: Token = flag(9, "neg");
const NEG_B: Token = flag(8, "neg");
const ABS_A: Token = flag(7, "abs");
const ABS_B: Token = flag(6, "abs");
const FB: Token = Token::B(Kind::Float, Width::One);
const DB: Token = Token::B(Kind::Double, Width::Pair);
const C1: Token = C(Width::One);
const C2: Token = C(Width::Pair);
const ROUND: Token = Pick(f::ROUND, ROUNDINGS);
const F32: Token = Word("f32");
const F64: Token = Word("f64");

const SCALES: &[&str] = &["", "div2", "div4", "div8", "mul8", "mul4", "mul2", RESERVED];

pub(super) const SINGLE: &[Row] = &[
    Row::five(
        Opcode::Fmnmx,
        0,
        1,
        &[
            Word("min"),
            flag(5, "ftz"),
            F32,
            DST,
            FLAGS,
            NEG_A,
            ABS_A,
            A,
            NEG_B,
            ABS_B,
            FB,
        ],
    )
    .with(f::PRED_C, 7)
    .with(f::PRED_C_NOT, 0),
    Row::five(
        Opcode::Fmnmx,
        0,
        1,
        &[
            Word("max"),
            flag(5, "ftz"),
            F32,
            DST,
            FLAGS,
            NEG_A,
            ABS_A,
            A,
            NEG_B,
            ABS_B,
            FB,
        ],
    )
    .with(f::PRED_C, 7)
    .with(f::PRED_C_NOT, 1),
    Row::five(
        Opcode::Fmnmx,
        0,
        1,
        &[
            Word("minmax"),
            PRED_C_NOT,
            PRED_C,
            flag(5, "ftz"),
            F32,
            DST,
            FLAGS,
            NEG_A,
            ABS_A,
            A,
            NEG_B,
            ABS_B,
            FB,
        ],
    ),
    Row::five(Opcode::Fset, 0, 2, FSET),
    Row::five(Opcode::Fset, 0, 3, FSET),
    Row::five(Opcode::Fsetp, 0, 4, FSETP),
    Row::five(Opcode::Fsetp, 0, 5, FSETP),
    Row::five(
        Opcode::Ffma,
        0,
        6,
        &[
            Word("fma"),
            flag(6, "ftz"),
            flag(7, "fmz"),
            flag(5, "sat"),
            ROUND,
            F32,
            DST,
            FLAGS,
            NEG_A,
            A,
            FB,
            NEG_B,
            C1,
        ],
    ),
    Row::five(
        Opcode::Fcmp,
        0,
        7,
        &[
            Word("slct"),
            flag(5, "ftz"),
            Word("b32"),
            DST,
            A,
            FB,
            COMPARE,
            F32,
            C1,
        ],
    ),
    Row::five(
        Opcode::Fadd,
        0,
        10,
        &[
            Word("add"),
            flag(5, "ftz"),
            flag(49, "sat"),
            ROUND,
            F32,
            DST,
            FLAGS,
            NEG_A,
            ABS_A,
            A,
            NEG_B,
            ABS_B,
            FB,
        ],
    ),
    Row::five(
        Opcode::Fmul,
        0,
        11,
        &[
            Word("mul"),
            Pick(f::SCALE, SCALES),
            flag(7, "fmz"),
            flag(6, "ftz"),
            flag(5, "sat"),
            ROUND,
            flag(57, "neg"),
            F32,
            DST,
            FLAGS,
            A,
            FB,
        ],
    ),
    Row::five(
        Opcode::Rro,
        0,
        12,
        &[Pick(bit(5), &["presin", "preex2"]), F32, DST, NEG_B, ABS_B, FB],
    ),
    Row::five(
        Opcode::Mufu,
        0,
        25,
        &[Word("rcp64h"), flag(5, "sat"), DST, NEG_A, ABS_A, A],
    )
    .with(f::FUNCTION, 6),
    Row::five(
        Opcode::Mufu,
        0,
        25,
        &[Word("rsqrt64h"), flag(5, "sat"), DST, NEG_A, ABS_A, A],
    )
    .with(f::FUNCTION, 7),
    Row::five(
        Opcode::Mufu,
        0,
        25,
        &[
            Pick(
                f::FUNCTION,
                &["cos", "sin", "ex2", "lg2", "rcp", "rsqrt", RESERVED, RESERVED],
            ),
            flag(5, "sat"),
            F32,
            DST,
            NEG_A,
            ABS_A,
            A,
        ],
    ),
];

const FSET: &[Token] = &[
    Word("set"),
    flag(59, "ftz"),
    Pick(bit(5), MASK_OR_FLOAT),
    DST,
    FLAGS,
    COMPARE,
    F32,
    NEG_A,
    ABS_A,
    A,
    NEG_B,
    ABS_B,
    FB,
    Combine,
];
const FSETP: &[Token] = &[
    Word("set"),
    flag(59, "ftz"),
    PRED_D,
    PRED_Q,
    COMPARE,
    F32,
    NEG_A,
    ABS_A,
    A,
    NEG_B,
    ABS_B,
    FB,
    Combine,
];

pub(super) const DOUBLE: &[Row] = &[
    Row::five(
        Opcode::Dmnmx,
        1,
        1,
        &[Word("min"), F64, DST2, FLAGS, NEG_A, ABS_A, A2, NEG_B, ABS_B, DB],
    )
    .with(f::PRED_C, 7)
    .with(f::PRED_C_NOT, 0),
    Row::five(
        Opcode::Dmnmx,
        1,
        1,
        &[Word("max"), F64, DST2, FLAGS, NEG_A, ABS_A, A2, NEG_B, ABS_B, DB],
    )
    .with(f::PRED_C, 7)
    .with(f::PRED_C_NOT, 1),
    Row::five(
        Opcode::Dmnmx,
        1,
        1,
        &[
            Word("minmax"),
            PRED_C_NOT,
            PRED_C,
            F64,
            DST2,
            FLAGS,
            NEG_A,
            ABS_A,
            A2,
            NEG_B,
            ABS_B,
            DB,
        ],
    ),
    Row::five(
        Opcode::Dset,
        1,
        2,
        &[
            Word("set"),
            Pick(bit(5), MASK_OR_FLOAT),
            DST,
            FLAGS,
            COMPARE,
            F64,
            NEG_A,
            ABS_A,
            A2,
            NEG_B,
            ABS_B,
            DB,
            Combine,
        ],
    ),
    Row::five(
        Opcode::Dsetp,
        1,
        3,
        &[
            Word("set"),
            PRED_D,
            PRED_Q,
            COMPARE,
            F64,
            NEG_A,
            ABS_A,
            A2,
            NEG_B,
            ABS_B,
            DB,
            Combine,
        ],
    ),
    Row::five(
        Opcode::Dfma,
        1,
        4,
        &[Word("fma"), ROUND, F64, DST2, FLAGS, NEG_A, A2, DB, NEG_B, C2],
    ),
    Row::five(
        Opcode::Dadd,
        1,
        9,
        &[
            Word("add"),
            ROUND,
            F64,
            DST2,
            FLAGS,
            NEG_A,
            ABS_A,
            A2,
            NEG_B,
            ABS_B,
            DB,
        ],
    ),
    Row::five(
        Opcode::Dmul,
        1,
        10,
        &[Word("mul"), ROUND, NEG_A, F64, DST2, FLAGS, A2, DB],
    ),
];
