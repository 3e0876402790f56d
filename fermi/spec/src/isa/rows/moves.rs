//! Classes 4 and 7: moves, conversions, predicates; control.

use super::{
    A, B, C, DST, FLAGS, Kind, MASK_OR_FLOAT, Opcode, PRED_C, PRED_C_NOT, PRED_D, PRED_Q, RESERVED,
    ROUNDINGS, ROUNDINGS_INTEGRAL, Row,
    Token::{
        self, Absolute, Combine, Condition, ConditionShown, Number, Pick, Predicate, Register, Relative,
        SecondPredicate, Word,
    },
    Width, bit, f, flag,
};

const B32: Token = Word("b32");
const FTZ: Token = flag(55, "ftz");
const SAT: Token = flag(5, "sat");
const NEG: Token = flag(8, "neg");
const ABS: Token = flag(6, "abs");
/// Upper half of an f16 source.
const HALF: Token = flag(56, "0x1");
const FLOAT_TO: Token = Pick(f::CVT_TO, FLOATS);
const FLOAT_FROM: Token = Pick(f::CVT_FROM, FLOATS);
const INT_TO: Token = Pick(f::CVT_TO_INT, INTEGERS);
const INT_FROM: Token = Pick(f::CVT_FROM_INT, INTEGERS);
const TO: Token = Register(f::DST, Width::Size(f::CVT_TO));
const FROM_FLOAT: Token = Token::B(Kind::Float, Width::Size(f::CVT_FROM));
const FROM_INT: Token = Token::B(Kind::Integer, Width::Size(f::CVT_FROM));
const FLOATS: &[&str] = &[RESERVED, "f16", "f32", "f64"];
const INTEGERS: &[&str] = &["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"];
const ROUND: Token = Pick(f::ROUND_CVT, ROUNDINGS);

const NARROW: &[Token] = &[
    Word("cvt"),
    FTZ,
    SAT,
    ROUND,
    FLOAT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    FLOAT_FROM,
    FROM_FLOAT,
];
const WHOLE_INT: &[Token] = &[Word("cvt"), SAT, INT_TO, TO, FLAGS, NEG, ABS, INT_FROM, FROM_INT];
const PART_INT: &[Token] = &[
    Word("cvt"),
    SAT,
    INT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    INT_FROM,
    Number(f::CVT_BYTE),
    FROM_INT,
];
const FROM_WHOLE: &[Token] = &[
    Word("cvt"),
    ROUND,
    FLOAT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    INT_FROM,
    FROM_INT,
];
const FROM_PART: &[Token] = &[
    Word("cvt"),
    ROUND,
    FLOAT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    INT_FROM,
    Number(f::CVT_BYTE),
    FROM_INT,
];

const HALF_INT: &[Token] = &[
    Word("cvt"),
    SAT,
    INT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    INT_FROM,
    Number(f::CVT_HALF),
    FROM_INT,
];
const FROM_HALF: &[Token] = &[
    Word("cvt"),
    ROUND,
    FLOAT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    INT_FROM,
    Number(f::CVT_HALF),
    FROM_INT,
];

const fn narrow(to: u32, from: u32) -> Row {
    Row::six(Opcode::F2f, 4, 4, NARROW)
        .with(f::CVT_TO, to)
        .with(f::CVT_FROM, from)
}

pub(super) const MOVES: &[Row] = &[
    Row::six(
        Opcode::Cset,
        4,
        0,
        &[
            Word("set"),
            Pick(bit(5), MASK_OR_FLOAT),
            DST,
            ConditionShown(f::CONDITION_SET),
            Word("$c"),
            Combine,
        ],
    ),
    Row::six(
        Opcode::Csetp,
        4,
        1,
        &[
            Word("set"),
            PRED_D,
            PRED_Q,
            ConditionShown(f::CONDITION_SET),
            Word("$c"),
            Combine,
        ],
    ),
    Row::six(
        Opcode::Pset,
        4,
        2,
        &[
            Word("set"),
            Pick(bit(5), MASK_OR_FLOAT),
            DST,
            Token::Flag(f::PRED_A_NOT, "not"),
            Predicate(f::PRED_A),
            SecondPredicate,
            Combine,
        ],
    ),
    Row::six(
        Opcode::Psetp,
        4,
        3,
        &[
            Word("set"),
            PRED_D,
            PRED_Q,
            Token::Flag(f::PRED_A_NOT, "not"),
            Predicate(f::PRED_A),
            SecondPredicate,
            Combine,
        ],
    ),
    Row::six(
        Opcode::F2f,
        4,
        4,
        &[
            Word("cvt"),
            FTZ,
            SAT,
            Pick(f::ROUND_CVT, ROUNDINGS_INTEGRAL),
            FLOAT_TO,
            TO,
            FLAGS,
            NEG,
            ABS,
            FLOAT_FROM,
            FROM_FLOAT,
            HALF,
        ],
    )
    .with(bit(7), 1),
    narrow(1, 2),
    narrow(1, 3),
    narrow(2, 3),
    Row::six(
        Opcode::F2f,
        4,
        4,
        &[
            Word("cvt"),
            FTZ,
            SAT,
            FLOAT_TO,
            TO,
            FLAGS,
            NEG,
            ABS,
            FLOAT_FROM,
            FROM_FLOAT,
            HALF,
        ],
    ),
    Row::six(
        Opcode::F2i,
        4,
        5,
        &[
            Word("cvt"),
            FTZ,
            Pick(f::ROUND_CVT, ROUNDINGS_INTEGRAL),
            Pick(
                f::CVT_TO_INT,
                &[RESERVED, "u16", "u32", "u64", RESERVED, "s16", "s32", "s64"],
            ),
            TO,
            FLAGS,
            NEG,
            ABS,
            FLOAT_FROM,
            FROM_FLOAT,
            HALF,
        ],
    ),
    Row::six(Opcode::I2f, 4, 6, FROM_PART).with(f::CVT_FROM, 0),
    Row::six(Opcode::I2f, 4, 6, FROM_HALF).with(f::CVT_FROM, 1),
    Row::six(Opcode::I2f, 4, 6, FROM_WHOLE),
    Row::six(Opcode::I2i, 4, 7, PART_INT).with(f::CVT_FROM, 0),
    Row::six(Opcode::I2i, 4, 7, HALF_INT).with(f::CVT_FROM, 1),
    Row::six(Opcode::I2i, 4, 7, WHOLE_INT),
    Row::six(
        Opcode::Sel,
        4,
        8,
        &[Word("selp"), B32, DST, A, B, PRED_C_NOT, PRED_C],
    ),
    Row::six(
        Opcode::Prmt,
        4,
        9,
        &[
            Word("prmt"),
            Pick(
                f::PERMUTE,
                &["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16", RESERVED],
            ),
            B32,
            DST,
            A,
            B,
            C,
        ],
    ),
    Row::six(
        Opcode::Mov,
        4,
        10,
        &[Token::Lanes, Word("mov"), B32, DST, FLAGS, B],
    ),
    Row::six(Opcode::S2r, 4, 11, &[Word("mov"), B32, DST, Token::Special]),
    Row::six(
        Opcode::P2r,
        4,
        12,
        &[Word("mov"), flag(5, "high"), DST, Word("$flags"), Word("mask"), B],
    )
    .with(f::SRC_A, 63),
    Row::six(
        Opcode::P2r,
        4,
        12,
        &[
            Word("mov"),
            flag(5, "high"),
            DST,
            A,
            Word("or"),
            Word("$flags"),
            Word("mask"),
            B,
        ],
    ),
    Row::six(
        Opcode::R2p,
        4,
        13,
        &[Word("mov"), flag(5, "high"), Word("$flags"), A, Word("mask"), B],
    ),
    Row::six(
        Opcode::B2r,
        4,
        14,
        &[Word("bar"), Word("read"), DST, Number(f::BAR_NUMBER)],
    ),
    Row::six(
        Opcode::Nop,
        4,
        16,
        &[Condition(f::CONDITION), Word("nop"), flag(50, "pmevent")],
    ),
    Row::six(Opcode::Lepc, 4, 17, &[Word("lepc"), DST]),
    Row::six(
        Opcode::Vote,
        4,
        18,
        &[
            Word("vote"),
            Pick(f::VOTE, &["all", "any", "uni", RESERVED]),
            DST,
            Predicate(f::PRED_VOTE),
            Token::Flag(f::PRED_A_NOT, "not"),
            Predicate(f::PRED_A),
        ],
    ),
    Row::six(
        Opcode::Bar,
        4,
        20,
        &[
            Word("bar"),
            Pick(
                f::BAR_MODE,
                &[
                    "popc", "and", "or", RESERVED, "arrive", RESERVED, RESERVED, RESERVED,
                ],
            ),
            Predicate(f::PRED_BAR),
            DST,
            Token::BarNumber,
            Token::BarCount,
            PRED_C_NOT,
            PRED_C,
        ],
    ),
    Row::six(
        Opcode::Popc,
        4,
        21,
        &[Word("popc"), DST, flag(9, "not"), A, flag(8, "not"), B],
    ),
];

const CONDITION: Token = Condition(f::CONDITION);
const UNIFORM: Token = flag(15, "allwarp");
const LIMITED: Token = flag(16, "lim");
const ABS_WORD: Token = Word("abs");

const fn plain(opcode: Opcode, number: u32, text: &'static [Token]) -> Row {
    Row::five(opcode, 7, number, text)
}

/// Ignores guard and condition; encoders write zero there.
const fn unguarded(opcode: Opcode, number: u32, text: &'static [Token]) -> Row {
    Row::five(opcode, 7, number, text).bare()
}

pub(super) const CONTROL: &[Row] = &[
    plain(
        Opcode::Jmp,
        0,
        &[CONDITION, Word("bra"), UNIFORM, LIMITED, ABS_WORD, Absolute],
    )
    .with(bit(14), 0),
    plain(
        Opcode::Jmx,
        1,
        &[CONDITION, Word("bra"), UNIFORM, LIMITED, A, ABS_WORD, Absolute],
    )
    .with(bit(14), 0),
    plain(
        Opcode::Jmxc,
        1,
        &[CONDITION, Word("bra"), UNIFORM, LIMITED, Token::Table],
    )
    .with(bit(14), 1),
    unguarded(Opcode::Jcal, 2, &[Word("call"), LIMITED, ABS_WORD, Absolute]).with(bit(14), 0),
    plain(
        Opcode::Bra,
        8,
        &[CONDITION, Word("bra"), UNIFORM, LIMITED, Relative],
    )
    .with(bit(14), 0),
    plain(
        Opcode::Brx,
        9,
        &[CONDITION, Word("bra"), UNIFORM, LIMITED, A, Relative],
    )
    .with(bit(14), 0),
    unguarded(Opcode::Cal, 10, &[Word("call"), LIMITED, Relative]).with(bit(14), 0),
    unguarded(Opcode::Plongjmp, 11, &[Word("prelongjmp"), Relative]).with(bit(14), 0),
    unguarded(Opcode::Ssy, 12, &[Word("joinat"), Relative]).with(bit(14), 0),
    unguarded(Opcode::Pbk, 13, &[Word("prebrk"), Relative]).with(bit(14), 0),
    unguarded(Opcode::Pcnt, 14, &[Word("precont"), Relative]).with(bit(14), 0),
    unguarded(Opcode::Pret, 15, &[Word("preret"), Relative]).with(bit(14), 0),
    plain(Opcode::Exit, 16, &[CONDITION, Word("exit")]),
    plain(Opcode::Longjmp, 17, &[CONDITION, Word("longjmp")]),
    plain(Opcode::Ret, 18, &[CONDITION, Word("ret")]),
    plain(Opcode::Kil, 19, &[CONDITION, Word("discard")]),
    plain(Opcode::Rtt, 20, &[CONDITION, Word("rtt")]),
    plain(Opcode::Brk, 21, &[CONDITION, Word("brk")]),
    plain(Opcode::Cont, 22, &[CONDITION, Word("cont")]),
    unguarded(Opcode::Sam, 24, &[Word("quadon")]),
    unguarded(Opcode::Ram, 25, &[Word("quadpop")]),
    unguarded(
        Opcode::Bpt,
        26,
        &[
            Word("bpt"),
            Pick(f::BPT, &["drain", "cal", "pause", "trap"]),
            Number(f::BPT_NUMBER),
        ],
    ),
];
