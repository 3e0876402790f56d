//! Where a chunk's data is.

use fermi_spec::addr::FrameNo;
use serde::{Deserialize, Serialize};

/// Place of a chunk's data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ChunkPlace {
    /// Without memory: reads as zero.
    Unbacked,
    /// In VRAM, one frame for each 128 KiB in order.
    Resident(Box<[FrameNo]>),
    /// In the VM's image in host RAM.
    Spilled,
    /// In VRAM and in the image, known equal: nothing can write it.
    Both(Box<[FrameNo]>),
    /// On its way, part by part: some of it is in VRAM, the rest in the image.
    Split(Split),
}

/// Place of a chunk of which a move has brought a part to the other side. It holds all of its frames.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Split {
    /// One for each 128 KiB, in order.
    pub(crate) frames: Box<[FrameNo]>,
    /// So many of its first 128 KiB are in the image, and nothing of them in their frames. Neither none nor all.
    pub(crate) out: u32,
}

impl ChunkPlace {
    /// It is in VRAM as a whole, with an equal copy in host RAM or without.
    pub(crate) fn is_in_vram(&self) -> bool {
        matches!(self, ChunkPlace::Resident(_) | ChunkPlace::Both(_))
    }

    /// The frames that it holds, in order.
    pub(crate) fn frames(&self) -> Option<&[FrameNo]> {
        match self {
            ChunkPlace::Resident(frames)
            | ChunkPlace::Both(frames)
            | ChunkPlace::Split(Split { frames, .. }) => Some(frames),
            ChunkPlace::Unbacked | ChunkPlace::Spilled => None,
        }
    }

    /// The same, for who empties it.
    pub(crate) fn into_frames(self) -> Option<Box<[FrameNo]>> {
        match self {
            ChunkPlace::Resident(frames)
            | ChunkPlace::Both(frames)
            | ChunkPlace::Split(Split { frames, .. }) => Some(frames),
            ChunkPlace::Unbacked | ChunkPlace::Spilled => None,
        }
    }
}
