//! Classes 4 and 7: moves, conversions, predicates; control.

use super::{
    A, B, C, DST, FLAGS, Kind, MASK_OR_FLOAT, Opcode, PC_RELATIVE, PRED_C, PRED_C_NOT, PRED_D, PRED_Q,
    RESERVED, ROUNDINGS, ROUNDINGS_INTEGRAL, Row,
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
/// Half of the register that an f16 source is.
const HALF: Token = Number(f::CVT_HALF);
/// Number of f16 among the sizes of floats.
const F16: u32 = 1;
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

const ROUND_INTEGRAL: Token = Pick(f::ROUND_CVT, ROUNDINGS_INTEGRAL);
/// Integers that floats become.
const FLOAT_TO_INT: Token = Pick(
    f::CVT_TO_INT,
    &[RESERVED, "u16", "u32", "u64", RESERVED, "s16", "s32", "s64"],
);

/// Rounded to a whole number.
const WHOLE_FLOAT: &[Token] = &[
    Word("cvt"),
    FTZ,
    SAT,
    ROUND_INTEGRAL,
    FLOAT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    FLOAT_FROM,
    FROM_FLOAT,
];
const WHOLE_HALF: &[Token] = &[
    Word("cvt"),
    FTZ,
    SAT,
    ROUND_INTEGRAL,
    FLOAT_TO,
    TO,
    FLAGS,
    NEG,
    ABS,
    FLOAT_FROM,
    FROM_FLOAT,
    HALF,
];
const WIDER_FLOAT: &[Token] = &[
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
];
const WIDER_HALF: &[Token] = &[
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
];
const INT_FROM_FLOAT: &[Token] = &[
    Word("cvt"),
    FTZ,
    ROUND_INTEGRAL,
    FLOAT_TO_INT,
    TO,
    FLAGS,
    NEG,
    ABS,
    FLOAT_FROM,
    FROM_FLOAT,
];
/// The half stands in front of the source here, as envytools' disassembler has it.
const INT_FROM_HALF: &[Token] = &[
    Word("cvt"),
    FTZ,
    ROUND_INTEGRAL,
    FLOAT_TO_INT,
    TO,
    FLAGS,
    NEG,
    ABS,
    FLOAT_FROM,
    HALF,
    FROM_FLOAT,
];
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
            FLAGS,
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
            FLAGS,
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
    Row::six(Opcode::F2f, 4, 4, WHOLE_HALF)
        .with(bit(7), 1)
        .with(f::CVT_FROM, F16),
    Row::six(Opcode::F2f, 4, 4, WHOLE_FLOAT).with(bit(7), 1),
    narrow(1, 2),
    narrow(1, 3),
    narrow(2, 3),
    Row::six(Opcode::F2f, 4, 4, WIDER_HALF).with(f::CVT_FROM, F16),
    Row::six(Opcode::F2f, 4, 4, WIDER_FLOAT),
    Row::six(Opcode::F2i, 4, 5, INT_FROM_HALF).with(f::CVT_FROM, F16),
    Row::six(Opcode::F2i, 4, 5, INT_FROM_FLOAT),
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

/// A target in a constant bank instead of in the word.
const FROM_BANK: f::Field = bit(14);

/// A push or a call whose distance is in a constant bank.
const fn from_bank(opcode: Opcode, number: u32, text: &'static [Token]) -> Row {
    unguarded(opcode, number, text).with(FROM_BANK, 1)
}

pub(super) const CONTROL: &[Row] = &[
    plain(
        Opcode::Jmp,
        0,
        &[CONDITION, Word("bra"), LIMITED, UNIFORM, ABS_WORD, Absolute],
    )
    .with(FROM_BANK, 0),
    plain(
        Opcode::Jmp,
        0,
        &[CONDITION, Word("bra"), LIMITED, UNIFORM, Token::Bank],
    )
    .with(FROM_BANK, 1),
    plain(
        Opcode::Jmx,
        1,
        &[CONDITION, Word("bra"), LIMITED, A, ABS_WORD, Absolute],
    )
    .with(FROM_BANK, 0),
    plain(Opcode::Jmxc, 1, &[CONDITION, Word("bra"), LIMITED, Token::Table]).with(FROM_BANK, 1),
    unguarded(Opcode::Jcal, 2, &[Word("call"), LIMITED, ABS_WORD, Absolute]).with(FROM_BANK, 0),
    from_bank(Opcode::Jcal, 2, &[Word("call"), LIMITED, Token::Bank]),
    plain(
        Opcode::Bra,
        8,
        &[CONDITION, Word("bra"), LIMITED, UNIFORM, Relative],
    )
    .with(FROM_BANK, 0),
    plain(
        Opcode::Bra,
        8,
        &[CONDITION, Word("bra"), LIMITED, UNIFORM, PC_RELATIVE, Token::Bank],
    )
    .with(FROM_BANK, 1),
    plain(Opcode::Brx, 9, &[CONDITION, Word("bra"), LIMITED, A, Relative]).with(FROM_BANK, 0),
    plain(
        Opcode::Brxc,
        9,
        &[CONDITION, Word("bra"), LIMITED, PC_RELATIVE, Token::Table],
    )
    .with(FROM_BANK, 1),
    unguarded(Opcode::Cal, 10, &[Word("call"), LIMITED, Relative]).with(FROM_BANK, 0),
    from_bank(
        Opcode::Cal,
        10,
        &[Word("call"), LIMITED, PC_RELATIVE, Token::Bank],
    ),
    unguarded(Opcode::Plongjmp, 11, &[Word("prelongjmp"), Relative]).with(FROM_BANK, 0),
    from_bank(
        Opcode::Plongjmp,
        11,
        &[Word("prelongjmp"), PC_RELATIVE, Token::Bank],
    ),
    unguarded(Opcode::Ssy, 12, &[Word("joinat"), Relative]).with(FROM_BANK, 0),
    from_bank(Opcode::Ssy, 12, &[Word("joinat"), PC_RELATIVE, Token::Bank]),
    unguarded(Opcode::Pbk, 13, &[Word("prebrk"), Relative]).with(FROM_BANK, 0),
    from_bank(Opcode::Pbk, 13, &[Word("prebrk"), PC_RELATIVE, Token::Bank]),
    unguarded(Opcode::Pcnt, 14, &[Word("precont"), Relative]).with(FROM_BANK, 0),
    from_bank(Opcode::Pcnt, 14, &[Word("precont"), PC_RELATIVE, Token::Bank]),
    unguarded(Opcode::Pret, 15, &[Word("preret"), LIMITED, Relative]).with(FROM_BANK, 0),
    from_bank(
        Opcode::Pret,
        15,
        &[Word("preret"), LIMITED, PC_RELATIVE, Token::Bank],
    ),
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
