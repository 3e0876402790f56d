//! Signatures of memory: whether a block has changed, without moving it (Wang et al., GDM, SIGMETRICS'14, section 5.2).
//!
//! A block is cut into [`PARTS`] parts, part p of every 256th word from word p on, and each part is hashed by itself, so that a warp
//! loads neighbours. The block's signature is that of all parts, in their order.

use crate::programs::{self, Program};
use crate::{Launch, Parameters};

/// Parts of a block, and threads that sign one.
pub const PARTS: u32 = 256;
/// Instructions around a thread's loop.
const AROUND: u32 = 160;

/// How a part is hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// HalfSipHash-1-3 with 64 bits, by a key that whoever stores to the block does not know.
    Sip {
        /// The key's words, as HalfSipHash counts them.
        key: [u32; 2],
    },
    /// MD5 (RFC 1321). Parts have a multiple of 16 words.
    Md5,
}

impl Hash {
    /// Words of a part's signature.
    pub const fn words(self) -> usize {
        match self {
            Self::Sip { .. } => 2,
            Self::Md5 => 4,
        }
    }
}

/// Blocks that a launch signs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signing {
    /// Which hash, under which key.
    pub hash: Hash,
    /// Where frame 0 is.
    pub memory: u64,
    /// Bytes of a block and of a frame: a multiple of 1 KiB, of 16 KiB for [`Hash::Md5`].
    pub block_bytes: u32,
    /// Where the numbers of the blocks' frames are, a word each.
    pub frames: u64,
    /// How many there are; not 0.
    pub count: u32,
    /// Where the signatures go, one behind the other.
    pub signatures: u64,
}

/// A program and its parameters, for [`Signing`].
#[derive(Clone, Copy, Debug)]
pub struct SigningCall {
    program: &'static Program,
    parameters: Parameters,
    count: u32,
    instructions: u32,
}

impl Signing {
    /// The call that signs them.
    pub fn call(&self) -> SigningCall {
        let words = self.block_bytes / 4 / PARTS;
        let parameters = Parameters::new()
            .long(self.memory)
            .long(self.frames)
            .long(self.signatures)
            .word(self.block_bytes)
            .word(words);
        let (program, parameters, of_word) = match self.hash {
            Hash::Sip { key } => (&programs::SIGN, parameters.word(key[0]).word(key[1]), 30),
            Hash::Md5 => (&programs::SIGN_MD5, parameters, 42),
        };
        SigningCall {
            program,
            parameters,
            count: self.count,
            instructions: words.saturating_mul(of_word) + AROUND,
        }
    }
}

impl SigningCall {
    /// A block of threads for each block of memory.
    pub fn launch(&self) -> Launch<'_> {
        Launch {
            program: self.program,
            blocks: [self.count, 1],
            threads: [PARTS, 1],
            instructions: self.instructions,
            parameters: &self.parameters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_as_many_as_the_programs_have() {
        for hash in [Hash::Sip { key: [1, 2] }, Hash::Md5] {
            let signing = Signing {
                hash,
                memory: 0x10_0000,
                block_bytes: 256 << 10,
                frames: 0x1000,
                count: 3,
                signatures: 0x2000,
            };
            let call = signing.call();
            let launch = call.launch();
            assert_eq!(launch.parameters.bytes(), launch.program.parameter_bytes);
            assert_eq!(launch.blocks, [3, 1]);
        }
    }
}
