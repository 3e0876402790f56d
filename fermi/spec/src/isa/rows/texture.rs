//! Class 6: indexed constants and textures.

use super::{
    Extent, NO_VECTOR, Opcode, RESERVED, Row,
    Token::{self, Flag, Pick, Register, Slot, Vector, Word},
    Width, f,
    memory::{DATA, TYPE},
};

/// Whether other texture instructions may follow before the result is there: nothing, "t", "p".
const MODE: Token = Pick(super::Field::new(&[(8, 7)]), &["", "t", "p", RESERVED]);
/// Lanes that take part in finding derivatives.
const LIVE: Token = Pick(super::Field::new(&[(9, 9)]), &["all", "live"]);
const DERIVATIVES: Token = Pick(super::Field::new(&[(45, 45)]), &["dfp", "dall"]);
const LOD: Token = Pick(
    f::LOD_MODE,
    &[
        "lauto", "lzero", "lbias", "llod", RESERVED, RESERVED, "lbiasa", "lloda",
    ],
);
const LOD_GIVEN: Token = Pick(f::LOD_GIVEN, &["lzero", "llod"]);
const SHADOW: Token = Flag(f::SHADOW, "shadow");
const OFFSET: Token = Flag(f::TEXEL_OFFSET, "off");
const RESULT: Token = Vector(f::DST, Extent::Masked(f::TEXEL_MASK));
const SHAPE: Token = Pick(
    f::TEXTURE_SHAPE,
    &["t1d", "a1d", "t2d", "a2d", "t3d", RESERVED, "tcube", "acube"],
);
const INDIRECT: Token = Flag(f::TEXTURE_INDIRECT, "ind");
const TEXTURE_SLOT: Token = Slot("t", f::TEXTURE);
const SAMPLER_SLOT: Token = Slot("s", f::SAMPLER);
const RESERVED_SHAPE: u8 = NO_VECTOR;
/// Coordinates, behind one register for the place in an array or for offsets of the slots or for both.
const PLACE: Token = Vector(
    f::SRC_A,
    Extent::Counted(
        super::Field::new(&[(53, 50)]),
        &[
            1,
            2,
            2,
            2,
            2,
            3,
            3,
            3,
            3,
            4,
            RESERVED_SHAPE,
            RESERVED_SHAPE,
            3,
            4,
            4,
            4,
        ],
    ),
);
/// The same with an offset behind: derivatives take all of the second group. Of one and two dimensions.
const PLACE_AND_OFFSET: Token = Vector(
    f::SRC_A,
    Extent::Counted(
        super::Field::new(&[(54, 50)]),
        &[
            1, 2, 2, 2, 2, 3, 3, 3, NO_VECTOR, NO_VECTOR, NO_VECTOR, NO_VECTOR, NO_VECTOR, NO_VECTOR,
            NO_VECTOR, NO_VECTOR, 2, 3, 3, 3, 3, 4, 4, 4, NO_VECTOR, NO_VECTOR, NO_VECTOR, NO_VECTOR,
            NO_VECTOR, NO_VECTOR, NO_VECTOR, NO_VECTOR,
        ],
    ),
);
/// Level or bias, offset, depth: those that there are, in this order.
const EXTRAS: Token = Vector(
    f::SRC_B,
    Extent::Counted(
        super::Field::new(&[(58, 58), (56, 56), (54, 54)]),
        &[0, 1, 1, 2, 1, 2, 2, 3],
    ),
);
/// Level, offset, sample.
const FETCH_EXTRAS: Token = Vector(
    f::SRC_B,
    Extent::Counted(
        super::Field::new(&[(57, 57), (55, 54)]),
        &[0, 1, 1, 2, 1, 2, 2, 3],
    ),
);
/// One or two registers of offsets, depth.
const GATHER_EXTRAS: Token = Vector(
    f::SRC_B,
    Extent::Counted(
        super::Field::new(&[(56, 54)]),
        &[0, 1, 2, NO_VECTOR, 1, 2, 3, NO_VECTOR],
    ),
);
/// Change of each coordinate per pixel, to the right and downwards.
const GRADIENTS: Token = Vector(
    f::SRC_B,
    Extent::Counted(super::Field::new(&[(53, 52)]), &[2, 4, NO_VECTOR, NO_VECTOR]),
);
const QUERIES: Token = {
    const NAMES: [&str; 64] = {
        let mut names = [RESERVED; 64];
        names[0] = "tdims";
        names[1] = "ttype";
        names[2] = "tsamplepos";
        names[8] = "sfilter";
        names[9] = "slod";
        names[10] = "swrap";
        names[11] = "sbcolor";
        names
    };
    Pick(f::TEXTURE_QUERY, &NAMES)
};

pub(super) const TEXTURE: &[Row] = &[
    Row::six(
        Opcode::Ldc,
        6,
        5,
        &[
            Word("ld"),
            Pick(f::INDEX_MODE, &["", RESERVED, "is", RESERVED]),
            TYPE,
            DATA,
            Token::Table,
        ],
    ),
    Row::four(
        Opcode::Tex,
        6,
        8,
        &[
            Word("tex"),
            MODE,
            LOD,
            SHADOW,
            OFFSET,
            LIVE,
            DERIVATIVES,
            RESULT,
            SHAPE,
            INDIRECT,
            TEXTURE_SLOT,
            SAMPLER_SLOT,
            PLACE,
            EXTRAS,
        ],
    ),
    Row::four(
        Opcode::Tld,
        6,
        9,
        &[
            Word("texfetch"),
            MODE,
            LOD_GIVEN,
            Flag(super::Field::new(&[(56, 56)]), "cl"),
            Flag(f::MULTISAMPLE, "ms"),
            OFFSET,
            LIVE,
            RESULT,
            SHAPE,
            INDIRECT,
            TEXTURE_SLOT,
            SAMPLER_SLOT,
            PLACE,
            FETCH_EXTRAS,
        ],
    ),
    // envytools shows an offset behind the coordinates too; Mesa has it in the second group alone.
    Row::four(
        Opcode::Tld4,
        6,
        10,
        &[
            Word("texgather"),
            MODE,
            SHADOW,
            Pick(f::GATHER_OFFSET, &["", "off", "off8", RESERVED]),
            LIVE,
            DERIVATIVES,
            Pick(f::GATHER_COMPONENT, &["r", "g", "b", "a"]),
            RESULT,
            SHAPE,
            INDIRECT,
            TEXTURE_SLOT,
            SAMPLER_SLOT,
            PLACE,
            GATHER_EXTRAS,
        ],
    ),
    Row::four(
        Opcode::Tmml,
        6,
        11,
        &[
            Word("texquerylod"),
            MODE,
            LIVE,
            DERIVATIVES,
            RESULT,
            SHAPE,
            INDIRECT,
            TEXTURE_SLOT,
            SAMPLER_SLOT,
            PLACE,
        ],
    ),
    Row::four(
        Opcode::Txq,
        6,
        12,
        &[
            Word("texquery"),
            MODE,
            LIVE,
            RESULT,
            QUERIES,
            INDIRECT,
            TEXTURE_SLOT,
            SAMPLER_SLOT,
            Register(f::SRC_A, Width::One),
            Register(f::SRC_B, Width::One),
        ],
    ),
    Row::four(
        Opcode::Txd,
        6,
        14,
        &[
            Word("texgrad"),
            MODE,
            OFFSET,
            LIVE,
            RESULT,
            SHAPE,
            INDIRECT,
            TEXTURE_SLOT,
            SAMPLER_SLOT,
            PLACE_AND_OFFSET,
            GRADIENTS,
        ],
    ),
];
