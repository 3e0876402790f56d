//! Class 5: memory and surfaces.

use super::{
    DST, DST2, Extent, Opcode, RESERVED, Row, Space,
    Token::{self, Fixed, Memory, Pick, Predicate, Register, Surface, Vector, Word},
    Width, f,
};

pub(super) const TYPE: Token = Pick(
    f::TYPE,
    &["u8", "s8", "u16", "s16", "b32", "b64", "b128", RESERVED],
);
pub(super) const DATA: Token = Register(f::DST, Width::Type);
const LOAD_CACHE: Token = Pick(f::CACHE, &["ca", "cg", "cs", "cv"]);
const STORE_CACHE: Token = Pick(f::CACHE, &["wb", "cg", "cs", "wt"]);
const GLOBAL: Token = Memory(Space::Global, f::OFFSET32, 1);
const SHARED: Token = Memory(Space::Shared, f::OFFSET24, 1);
const LOCAL: Token = Memory(Space::Local, f::OFFSET24, 1);
/// Address of an atomic with a result.
const ATOMIC: Token = Memory(Space::Global, f::OFFSET20, 1);
const RESULT: Token = Register(f::ATOMIC_DST, Width::One);
const RESULT2: Token = Register(f::ATOMIC_DST, Width::Pair);
const NEW: Token = Register(f::SRC_C, Width::One);
const NEW2: Token = Register(f::SRC_C, Width::Pair);
const NO_NEW: Token = Fixed(f::SRC_C, 63);
const UNSIGNED_OPS: Token = Pick(
    f::ATOMIC_OP,
    &[
        "add", "min", "max", "inc", "dec", "and", "or", "xor", RESERVED, RESERVED, RESERVED, RESERVED,
        RESERVED, RESERVED, RESERVED, RESERVED,
    ],
);
const SIGNED_OPS: Token = Pick(
    f::ATOMIC_OP,
    &[
        "add", "min", "max", RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED,
        RESERVED, RESERVED, RESERVED, RESERVED, RESERVED,
    ],
);
const CCTL_OPS: Token = Pick(
    f::CCTL,
    &[
        "qry1", "pf1", "pf1.5", "pf2", "wb", "iv", "ivall", "rs", RESERVED, RESERVED, RESERVED, RESERVED,
        RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED,
        RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED, RESERVED,
    ],
);
const CCTL_CACHES: Token = Pick(f::CCTL_CACHE, &["", "u", "c", "i"]);

const SURFACE_CLAMP: Token = Pick(f::SURFACE_CLAMP, &["zero", "clamp", "trap", RESERVED]);
const SURFACE_SHAPE: Token = Pick(f::SURFACE_SHAPE, &["1d", "2d", "3d", "e2d"]);
const SURFACE_AT: Token = Vector(f::SRC_A, Extent::Counted(f::SURFACE_SHAPE, &[1, 2, 3, 3]));
/// Zero in the untyped surface instructions, the components in SUSTP.
const SURFACE_MASK: super::Field = f::SURFACE_MASK;

/// Five bits that tell atomics apart: signed or wide, and the operation.
const OPERATION: super::Field = super::Field::new(&[(9, 5)]);
const SIGNED: super::Field = super::Field::new(&[(9, 9)]);
/// Tells shared from local.
const IS_SHARED: super::Field = super::Field::new(&[(56, 56)]);

pub(super) const MEMORY: &[Row] = &[
    Row::five(Opcode::RedU64, 5, 2, &[Word("add"), Word("u64"), GLOBAL, DST2]).with(OPERATION, 16),
    Row::five(
        Opcode::RedU32,
        5,
        2,
        &[Word("red"), UNSIGNED_OPS, Word("u32"), GLOBAL, DST],
    )
    .with(SIGNED, 0),
    Row::five(
        Opcode::RedS32,
        5,
        3,
        &[Word("red"), SIGNED_OPS, Word("s32"), GLOBAL, DST],
    )
    .with(SIGNED, 1),
    Row::five(
        Opcode::RedF32,
        5,
        5,
        &[Word("red"), Word("add"), Word("f32"), GLOBAL, DST],
    )
    .with(OPERATION, 16),
    Row::five(
        Opcode::Exch32,
        5,
        10,
        &[Word("exch"), Word("b32"), RESULT, ATOMIC, DST, NO_NEW],
    )
    .with(OPERATION, 8),
    Row::five(
        Opcode::Exch64,
        5,
        10,
        &[Word("exch"), Word("b64"), RESULT2, ATOMIC, DST2, NO_NEW],
    )
    .with(OPERATION, 24),
    Row::five(
        Opcode::Cas32,
        5,
        10,
        &[Word("cas"), Word("b32"), RESULT, ATOMIC, DST, NEW],
    )
    .with(OPERATION, 9),
    Row::five(
        Opcode::Cas64,
        5,
        10,
        &[Word("cas"), Word("b64"), RESULT2, ATOMIC, DST2, NEW2],
    )
    .with(OPERATION, 25),
    Row::five(
        Opcode::AtomU64,
        5,
        10,
        &[
            Word("ld"),
            Word("add"),
            Word("u64"),
            RESULT2,
            ATOMIC,
            DST2,
            NO_NEW,
        ],
    )
    .with(OPERATION, 16),
    Row::five(
        Opcode::AtomU32,
        5,
        10,
        &[Word("ld"), UNSIGNED_OPS, Word("u32"), RESULT, ATOMIC, DST, NO_NEW],
    )
    .with(SIGNED, 0),
    Row::five(
        Opcode::AtomS32,
        5,
        11,
        &[Word("ld"), SIGNED_OPS, Word("s32"), RESULT, ATOMIC, DST, NO_NEW],
    )
    .with(SIGNED, 1),
    Row::five(
        Opcode::AtomF32,
        5,
        13,
        &[Word("ld"), Word("add"), Word("f32"), RESULT, ATOMIC, DST, NO_NEW],
    )
    .with(OPERATION, 16),
    Row::five(Opcode::Ld, 5, 16, &[Word("ld"), TYPE, DATA, LOAD_CACHE, GLOBAL]),
    Row::five(Opcode::Ldu, 5, 17, &[Word("ldu"), TYPE, DATA, GLOBAL]),
    Row::five(Opcode::St, 5, 18, &[Word("st"), TYPE, STORE_CACHE, GLOBAL, DATA]),
    Row::five(
        Opcode::Cctl,
        5,
        19,
        &[
            Word("cctl"),
            CCTL_OPS,
            CCTL_CACHES,
            DST,
            Memory(Space::Global, f::OFFSET_CCTL, 4),
        ],
    ),
    Row::six(Opcode::Ldl, 5, 48, &[Word("ld"), TYPE, DATA, LOAD_CACHE, LOCAL]).with(IS_SHARED, 0),
    Row::six(Opcode::Lds, 5, 48, &[Word("ld"), TYPE, DATA, SHARED]).with(IS_SHARED, 1),
    Row::six(
        Opcode::Ldslk,
        5,
        49,
        &[
            Word("ld"),
            Word("lock"),
            TYPE,
            Predicate(f::PRED_LOCK),
            DATA,
            SHARED,
        ],
    ),
    Row::six(Opcode::Stl, 5, 50, &[Word("st"), TYPE, STORE_CACHE, LOCAL, DATA]).with(IS_SHARED, 0),
    Row::six(Opcode::Sts, 5, 50, &[Word("st"), TYPE, SHARED, DATA]).with(IS_SHARED, 1),
    Row::six(
        Opcode::Stsul,
        5,
        51,
        &[Word("st"), Word("unlock"), TYPE, SHARED, DATA],
    ),
    Row::six(
        Opcode::Cctll,
        5,
        52,
        &[
            Word("cctl"),
            CCTL_OPS,
            DST,
            Memory(Space::Local, f::OFFSET_CCTLL, 4),
        ],
    ),
    Row::six(
        Opcode::Membar,
        5,
        56,
        &[Word("membar"), Pick(f::LEVEL, &["cta", "gl", "sys", RESERVED])],
    ),
    Row::six(
        Opcode::Suldb,
        5,
        53,
        &[
            Word("suldb"),
            TYPE,
            DATA,
            LOAD_CACHE,
            SURFACE_CLAMP,
            Surface,
            SURFACE_SHAPE,
            SURFACE_AT,
        ],
    )
    .with(SURFACE_MASK, 0),
    Row::six(
        Opcode::Sustb,
        5,
        55,
        &[
            Word("sustb"),
            STORE_CACHE,
            SURFACE_CLAMP,
            Surface,
            SURFACE_SHAPE,
            SURFACE_AT,
            TYPE,
            DATA,
        ],
    )
    .with(SURFACE_MASK, 0),
    Row::six(
        Opcode::Sustp,
        5,
        55,
        &[
            Word("sustp"),
            STORE_CACHE,
            SURFACE_CLAMP,
            Surface,
            SURFACE_SHAPE,
            SURFACE_AT,
            Vector(f::DST, Extent::Masked(SURFACE_MASK)),
        ],
    ),
    Row::six(
        Opcode::Sulea,
        5,
        60,
        &[
            Word("suleab"),
            Predicate(f::PRED_SURFACE),
            DST2,
            TYPE,
            SURFACE_CLAMP,
            Surface,
            SURFACE_SHAPE,
            SURFACE_AT,
        ],
    ),
];
