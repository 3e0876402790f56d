//! Names of the instructions.

macro_rules! opcodes {
    ($( $(#[$doc:meta])* $name:ident; )*) => {
        /// What an instruction does, by NVIDIA's name; a `32i` form has a 32-bit immediate.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Opcode { $( $(#[$doc])* $name, )* }

        impl Opcode {
            /// All of them.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )* ];
        }
    };
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
    /// f32 addition.
    Fadd;
    /// f32 multiplication.
    Fmul;
    /// Range reduction for MUFU.
    Rro;
    /// Special functions.
    Mufu;
    /// f64 minimum or maximum.
    Dmnmx;
    /// f64 comparison to a register.
    Dset;
    /// f64 comparison to predicates.
    Dsetp;
    /// f64 fused multiply-add.
    Dfma;
    /// f64 addition.
    Dadd;
    /// f64 multiplication.
    Dmul;
    /// Integer multiply-add; the addend is the destination.
    Imad32i;
    /// Integer addition.
    Iadd32i;
    /// Integer multiplication.
    Imul32i;
    /// Move.
    Mov32i;
    /// f32 fused multiply-add; the addend is the destination.
    Ffma32i;
    /// f32 addition.
    Fadd32i;
    /// f32 multiplication.
    Fmul32i;
    /// Logic.
    Lop32i;
    /// Shift and add.
    Iscadd32i;
    /// Integer minimum or maximum.
    Imnmx;
    /// Integer comparison to a register.
    Iset;
    /// Integer comparison to predicates.
    Isetp;
    /// Integer multiply-add.
    Imad;
    /// Bit-field insert.
    Bfi;
    /// Select by comparing an integer with zero.
    Icmp;
    /// Sum of absolute difference.
    Isad;
    /// Shift and add.
    Iscadd;
    /// Integer addition.
    Iadd;
    /// Integer multiplication.
    Imul;
    /// Shift right.
    Shr;
    /// Shift left.
    Shl;
    /// Logic.
    Lop;
    /// Bit-field extract.
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
    /// Byte permutation.
    Prmt;
    /// Move.
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
    /// Load, global.
    Ld;
    /// Load of a value that is the same in all lanes.
    Ldu;
    /// Store, global.
    St;
    /// Cache control, global.
    Cctl;
    /// Load, local.
    Ldl;
    /// Load, shared.
    Lds;
    /// Load and lock, shared.
    Ldslk;
    /// Store, local.
    Stl;
    /// Store, shared.
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
    /// Atomic, u32.
    AtomU32;
    /// Atomic, s32.
    AtomS32;
    /// Atomic, f32.
    AtomF32;
    /// Atomic, u64.
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
    /// Load, constant.
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
    /// Absolute branch.
    Jmp;
    /// Indirect absolute branch.
    Jmx;
    /// Indirect absolute branch through a constant table.
    Jmxc;
    /// Absolute call.
    Jcal;
    /// Branch.
    Bra;
    /// Indirect branch.
    Brx;
    /// Call.
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
    /// Long jump.
    Longjmp;
    /// Return.
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
    /// Breakpoint.
    Bpt;
}
