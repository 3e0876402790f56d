//! How a unit's registers are written down: the macros that make an enum of its rows, and one of all units.

/// How a register answers to the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads a value; writes are ignored.
    ReadOnly,
    /// Keeps what is written, or the bits of it that the unit has.
    ReadWrite,
    /// Acts on a write, and reads zero.
    WriteOnly,
    /// Writing a one clears the bit.
    WriteOneClears,
}

impl Access {
    /// Whether a word that means nothing besides its access reads what was written. The others read zero: nobody can
    /// write them, or nothing is ever pending.
    pub const fn keeps_writes(self) -> bool {
        match self {
            Self::ReadWrite => true,
            Self::ReadOnly | Self::WriteOnly | Self::WriteOneClears => false,
        }
    }
}

/// Makes the enum of a unit's registers. A row is `Name[count, stride] = offset, access;`, the brackets only where the
/// register comes several times; the variant then carries the index.
///
/// `pub enum PfifoReg: PfifoWord` adds the variant `Word`, which holds a register of another such enum: one that
/// nothing else depends on. A word has no meaning besides its access: it reads what was written, or zero where nobody
/// can write. Whoever gives a word a meaning matches it; nobody else has to know of it.
macro_rules! registers {
    (
        $(#[$unit_doc:meta])*
        pub enum $reg:ident $( : $word:ident )? {
            $( $(#[$doc:meta])* $name:ident $( [ $count:expr, $stride:expr ] )? = $offset:expr, $access:ident; )*
        }
    ) => {
        $(#[$unit_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $reg {
            $( $(#[$doc])* $name $( ( registers!(@index $count) ) )?, )*
            $( /// A register that nothing else depends on.
            Word($word), )?
        }

        impl $reg {
            /// How many registers there are, indexed ones counted one by one.
            pub const COUNT: usize = 0 $( + registers!(@count $($count)?) )* $( + $word::COUNT )?;

            /// The n-th of them in the order of the rows.
            pub(crate) const fn nth(n: usize) -> Self {
                let mut n = n;
                $(
                    if n < registers!(@count $($count)?) {
                        return registers!(@make $name n $($count)?);
                    }
                    n -= registers!(@count $($count)?);
                )*
                $( if n < $word::COUNT { return Self::Word($word::nth(n)); } )?
                let _ = n;
                panic!("there are not so many registers");
            }

            /// Where it is, in bytes from the beginning of what the rows' offsets are counted in.
            pub const fn offset(self) -> u32 {
                match self {
                    $( registers!(@pattern $name index $($count)?) =>
                        $offset $( + registers!(@index_of $count, index) as u32 * $stride )?, )*
                    $( Self::Word(word) => registers!(@word $word word).offset(), )?
                }
            }

            /// Name for traces and messages, without the index.
            pub const fn name(self) -> &'static str {
                match self {
                    $( registers!(@any $name $($count)?) => stringify!($name), )*
                    $( Self::Word(word) => registers!(@word $word word).name(), )?
                }
            }

            /// How it answers.
            pub const fn access(self) -> $crate::regs::Access {
                match self {
                    $( registers!(@any $name $($count)?) => $crate::regs::Access::$access, )*
                    $( Self::Word(word) => registers!(@word $word word).access(), )?
                }
            }

            /// Its index, where the register comes several times.
            pub const fn index(self) -> Option<u16> {
                match self {
                    $( registers!(@pattern $name index $($count)?) => registers!(@some index $($count)?), )*
                    $( Self::Word(word) => registers!(@word $word word).index(), )?
                }
            }
        }

        /// The name, with the index in parentheses.
        impl core::fmt::Debug for $reg {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.index() {
                    Some(index) => write!(f, "{}({index})", self.name()),
                    None => f.write_str(self.name()),
                }
            }
        }

        $(
            impl From<$word> for $reg {
                fn from(word: $word) -> Self {
                    Self::Word(word)
                }
            }

            impl From<$word> for $crate::regs::Bar0Reg {
                fn from(word: $word) -> Self {
                    $reg::Word(word).into()
                }
            }
        )?
    };
    (@index $count:expr) => { u16 };
    (@count) => { 1 };
    (@count $count:expr) => { $count as usize };
    (@make $name:ident $n:ident) => { Self::$name };
    (@make $name:ident $n:ident $count:expr) => { Self::$name($n as u16) };
    (@pattern $name:ident $index:ident) => { Self::$name };
    (@pattern $name:ident $index:ident $count:expr) => { Self::$name($index) };
    (@any $name:ident) => { Self::$name };
    (@any $name:ident $count:expr) => { Self::$name(_) };
    (@index_of $count:expr, $index:ident) => { $index };
    (@some $index:ident) => { None };
    (@some $index:ident $count:expr) => { Some($index) };
    (@word $word:ident $value:ident) => { $value };
}

/// Makes the decoder of registers whose offsets are counted in a page of their own, which comes several times in BAR0.
macro_rules! decoded_in_a_page {
    ($reg:ident) => {
        static DECODER: $crate::regs::decoder::Decoder<$reg, 1, 2, { $reg::COUNT }> = {
            let (mut registers, mut offsets, mut n) = ([$reg::nth(0); $reg::COUNT], [0; $reg::COUNT], 0);
            while n < $reg::COUNT {
                registers[n] = $reg::nth(n);
                offsets[n] = registers[n].offset();
                n += 1;
            }
            $crate::regs::decoder::Decoder::new(registers, offsets)
        };

        impl $reg {
            /// The register at `offset` bytes of its page; `None` where nothing is known.
            pub fn decode(offset: u32) -> Option<Self> {
                DECODER.decode(offset)
            }
        }
    };
}

/// Makes the enum of all units of BAR0.
macro_rules! units {
    (
        $(#[$all_doc:meta])*
        pub enum $all:ident {
            $( $(#[$doc:meta])* $unit:ident($reg:ident), )*
        }
    ) => {
        $(#[$all_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $all {
            $( $(#[$doc])* $unit($reg), )*
        }

        impl $all {
            const COUNT: usize = 0 $( + $reg::COUNT )*;

            const fn nth(n: usize) -> Self {
                let mut n = n;
                $(
                    if n < $reg::COUNT {
                        return Self::$unit($reg::nth(n));
                    }
                    n -= $reg::COUNT;
                )*
                let _ = n;
                panic!("there are not so many registers");
            }

            /// Byte offset in BAR0.
            pub const fn offset(self) -> u32 {
                match self { $( Self::$unit(reg) => reg.offset(), )* }
            }

            /// Name for traces and messages, without the index.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$unit(reg) => reg.name(), )* }
            }

            /// How it answers.
            pub const fn access(self) -> Access {
                match self { $( Self::$unit(reg) => reg.access(), )* }
            }
        }

        impl core::fmt::Debug for $all {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self { $( Self::$unit(reg) => core::fmt::Debug::fmt(reg, f), )* }
            }
        }

        $(
            impl From<$reg> for $all {
                fn from(reg: $reg) -> Self {
                    Self::$unit(reg)
                }
            }
        )*
    };
}
