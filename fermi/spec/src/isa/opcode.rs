//! Names of the instructions.

macro_rules! opcodes {
    ($( $(#[$doc:meta])* $name:ident; )*) => {
        /// What an instruction does, by NVIDIA's name; a `32i` form has a 32-bit immediate.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Opcode { $( $(#[$doc])* $name, )* }

        impl Opcode {
            /// All opcodes, in the order of this list.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )* ];
        }
    };
}

impl Opcode {
    /// Whether it replaces words of memory by what it makes of them, with a result or without.
    pub fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::RedU32
                | Self::RedS32
                | Self::RedF32
                | Self::RedU64
                | Self::AtomU32
                | Self::AtomS32
                | Self::AtomF32
                | Self::AtomU64
                | Self::Exch32
                | Self::Exch64
                | Self::Cas32
                | Self::Cas64
        )
    }
}

opcodes! {
    /// f32 minimum or maximum.
    Fmnmx;
    /// f32 comparison to a register.
    Fset;
    /// f32 comparison to predicates.
    Fsetp;
    /// f32 fused multiply-add.
    Ffma;
    /// Select by comparing an f32 with zero.
    Fcmp;
    /// f32 addition, a + b.
    Fadd;
    /// f32 multiplication, a × b.
    Fmul;
    /// Range reduction for MUFU.
    Rro;
    /// f32 special function: sine, cosine, exponent, logarithm, reciprocal (square root).
    Mufu;
    /// f64 minimum or maximum.
    Dmnmx;
    /// f64 comparison to a register.
    Dset;
    /// f64 comparison to predicates.
    Dsetp;
    /// f64 fused multiply-add.
    Dfma;
    /// f64 addition, a + b.
    Dadd;
    /// f64 multiplication, a × b.
    Dmul;
    /// Integer multiply-add; the addend is the destination.
    Imad32i;
    /// Integer addition of a 32-bit immediate.
    Iadd32i;
    /// Integer multiplication by a 32-bit immediate.
    Imul32i;
    /// Move of a 32-bit immediate to a register.
    Mov32i;
    /// f32 fused multiply-add; the addend is the destination.
    Ffma32i;
    /// f32 addition of an immediate.
    Fadd32i;
    /// f32 multiplication by an immediate.
    Fmul32i;
    /// Bitwise logic with a 32-bit immediate.
    Lop32i;
    /// Shift and add.
    Iscadd32i;
    /// Integer minimum or maximum.
    Imnmx;
    /// Integer comparison to a register.
    Iset;
    /// Integer comparison to predicates.
    Isetp;
    /// Integer multiply-add, a × b + c.
    Imad;
    /// Insert of a bit field into a word.
    Bfi;
    /// Select by comparing an integer with zero.
    Icmp;
    /// Sum of absolute difference.
    Isad;
    /// Shift and add.
    Iscadd;
    /// Integer addition, a + b.
    Iadd;
    /// Integer multiplication, a × b.
    Imul;
    /// Shift to the right, signed or unsigned.
    Shr;
    /// Shift to the left.
    Shl;
    /// Bitwise logic of two operands.
    Lop;
    /// Extraction of a bit field, signed or unsigned.
    Bfe;
    /// Find the leading one.
    Flo;
    /// Condition code to a register.
    Cset;
    /// Condition code to predicates.
    Csetp;
    /// Predicates to a register.
    Pset;
    /// Predicates to predicates.
    Psetp;
    /// Float to float.
    F2f;
    /// Float to integer.
    F2i;
    /// Integer to float.
    I2f;
    /// Integer to integer.
    I2i;
    /// Select by a predicate.
    Sel;
    /// Permutation of the bytes of two registers.
    Prmt;
    /// Move of a register, constant or immediate.
    Mov;
    /// Special register to a register.
    S2r;
    /// Predicates and flags to a register.
    P2r;
    /// Register to predicates and flags.
    R2p;
    /// Barrier state to a register.
    B2r;
    /// Nothing, or a join.
    Nop;
    /// Own address to a register.
    Lepc;
    /// Vote of the warp.
    Vote;
    /// Barrier of the block.
    Bar;
    /// Count of ones.
    Popc;
    /// Load from global memory.
    Ld;
    /// Load of a value that is the same in all lanes.
    Ldu;
    /// Store to global memory.
    St;
    /// Cache control, global.
    Cctl;
    /// Load from local memory.
    Ldl;
    /// Load from shared memory.
    Lds;
    /// Load and lock, shared.
    Ldslk;
    /// Store to local memory.
    Stl;
    /// Store to shared memory.
    Sts;
    /// Store and unlock, shared.
    Stsul;
    /// Cache control, local.
    Cctll;
    /// Order of memory accesses.
    Membar;
    /// Atomic without a result, u32.
    RedU32;
    /// Atomic without a result, s32.
    RedS32;
    /// Atomic without a result, f32.
    RedF32;
    /// Atomic without a result, u64.
    RedU64;
    /// Atomic with a result, u32.
    AtomU32;
    /// Atomic with a result, s32.
    AtomS32;
    /// Atomic with a result, f32.
    AtomF32;
    /// Atomic with a result, u64.
    AtomU64;
    /// Exchange of 32 bits.
    Exch32;
    /// Exchange of 64 bits.
    Exch64;
    /// Compare and exchange of 32 bits.
    Cas32;
    /// Compare and exchange of 64 bits.
    Cas64;
    /// Load of bytes of a surface.
    Suldb;
    /// Store of bytes of a surface.
    Sustb;
    /// Store of a texel of a surface, converted to its format.
    Sustp;
    /// Address of a place of a surface.
    Sulea;
    /// Load from a constant bank.
    Ldc;
    /// Sample of a texture.
    Tex;
    /// Texel of a texture.
    Tld;
    /// One component of four texels of a texture.
    Tld4;
    /// Level that a sample would be of.
    Tmml;
    /// Property of a texture or a sampler.
    Txq;
    /// Sample of a texture with given derivatives.
    Txd;
    /// Branch to an absolute address.
    Jmp;
    /// Indirect absolute branch.
    Jmx;
    /// Indirect absolute branch through a constant table.
    Jmxc;
    /// Call of an absolute address.
    Jcal;
    /// Branch to a relative address.
    Bra;
    /// Branch to the address in a register, relative.
    Brx;
    /// Indirect relative branch through a constant table.
    Brxc;
    /// Call of a relative address.
    Cal;
    /// Pushes a long-jump entry.
    Plongjmp;
    /// Pushes a reconvergence point.
    Ssy;
    /// Pushes a loop exit.
    Pbk;
    /// Pushes a loop continuation.
    Pcnt;
    /// Pushes a return address.
    Pret;
    /// Ends the lanes.
    Exit;
    /// Jump to the entry that PLONGJMP pushed.
    Longjmp;
    /// Return to the address that PRET or a call pushed.
    Ret;
    /// Discards a fragment.
    Kil;
    /// Return from trap.
    Rtt;
    /// Leaves a loop.
    Brk;
    /// Next iteration of a loop.
    Cont;
    /// All lanes of quads on.
    Sam;
    /// Lanes of quads restored.
    Ram;
    /// Breakpoint, or a trap with a number.
    Bpt;
}
