//! Special registers, which S2R reads (envytools).

macro_rules! specials {
    ($( $(#[$doc:meta])* $name:ident = $number:literal, $text:literal; )*) => {
        /// A special register.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Special { $( $(#[$doc])* $name, )* }

        impl Special {
            /// All special registers, by ascending number.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )* ];

            /// Its number in an instruction.
            pub fn number(self) -> u32 {
                match self { $( Self::$name => $number, )* }
            }

            /// The register with a number, `None` where there is none.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$name), )*
                    _ => None,
                }
            }

            /// Its name in the text of an instruction.
            pub fn name(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }
        }
    };
}

specials! {
    /// Lane in the warp.
    LaneId = 0x00, "$laneid";
    /// Warps of an SM \[14:8\], SMs \[28:20\].
    Sizes = 0x02, "$nphysid";
    /// Warp on the SM \[12:8\], SM \[28:20\].
    Place = 0x03, "$physid";
    /// Performance counter 0.
    Counter0 = 0x04, "$pm0";
    /// Performance counter 1.
    Counter1 = 0x05, "$pm1";
    /// Performance counter 2.
    Counter2 = 0x06, "$pm2";
    /// Performance counter 3.
    Counter3 = 0x07, "$pm3";
    /// Performance counter 4.
    Counter4 = 0x08, "$pm4";
    /// Performance counter 5.
    Counter5 = 0x09, "$pm5";
    /// Performance counter 6.
    Counter6 = 0x0a, "$pm6";
    /// Performance counter 7.
    Counter7 = 0x0b, "$pm7";
    /// Graphics: number of vertices.
    VertexCount = 0x10, "$vtxcnt";
    /// Graphics: invocation of the geometry shader.
    Invocation = 0x11, "$invoc";
    /// Graphics: direction of y.
    YDirection = 0x12, "$ydir";
    /// Graphics: whether the lane has no pixel (helper or killed).
    ThreadKill = 0x13, "$thread_kill";
    /// Thread in the block: x \[15:0\], y \[25:16\], z \[31:26\].
    Thread = 0x20, "$tid";
    /// Thread in x.
    ThreadX = 0x21, "$tidx";
    /// Thread in y.
    ThreadY = 0x22, "$tidy";
    /// Thread in z.
    ThreadZ = 0x23, "$tidz";
    /// Operand of the launch.
    LaunchArgument = 0x24, "$launcharg";
    /// Block in x.
    BlockX = 0x25, "$ctaidx";
    /// Block in y.
    BlockY = 0x26, "$ctaidy";
    /// Block in z.
    BlockZ = 0x27, "$ctaidz";
    /// Threads of a block, packed as [`Self::Thread`].
    Threads = 0x28, "$ntid";
    /// Threads of a block in x.
    ThreadsX = 0x29, "$ntidx";
    /// Threads of a block in y.
    ThreadsY = 0x2a, "$ntidy";
    /// Threads of a block in z.
    ThreadsZ = 0x2b, "$ntidz";
    /// Number of the grid.
    GridId = 0x2c, "$gridid";
    /// Blocks of the grid in x.
    BlocksX = 0x2d, "$nctaidx";
    /// Blocks of the grid in y.
    BlocksY = 0x2e, "$nctaidy";
    /// Blocks of the grid in z.
    BlocksZ = 0x2f, "$nctaidz";
    /// Base of the shared window.
    SharedWindow = 0x30, "$swinbase";
    /// Bytes of the shared window.
    SharedWindowBytes = 0x31, "$swinsz";
    /// Shared memory of the block.
    SharedBytes = 0x32, "$smemsz";
    /// Banks of shared memory.
    SharedBanks = 0x33, "$smembanks";
    /// Base of the local window.
    LocalWindow = 0x34, "$lwinbase";
    /// Bytes of the local window.
    LocalWindowBytes = 0x35, "$lwinsz";
    /// Bytes of positive local memory.
    LocalPositive = 0x36, "$lpossz";
    /// First address of negative local memory.
    LocalNegativeStart = 0x37, "$lnegstart";
    /// Mask of the own lane.
    MaskEqual = 0x38, "$lanemask_eq";
    /// Mask of the lanes below.
    MaskBelow = 0x39, "$lanemask_lt";
    /// Mask of the lanes up to the own.
    MaskUpTo = 0x3a, "$lanemask_le";
    /// Mask of the lanes above.
    MaskAbove = 0x3b, "$lanemask_gt";
    /// Mask of the lanes from the own.
    MaskFrom = 0x3c, "$lanemask_ge";
    /// State of the trap handler.
    TrapState = 0x40, "$trapstat";
    /// Error of the warp.
    WarpError = 0x42, "$warperr";
    /// Counter of scheduler clocks, low word.
    Clock = 0x50, "$clock";
    /// Counter of scheduler clocks, high word.
    ClockHigh = 0x51, "$clockhi";
}
