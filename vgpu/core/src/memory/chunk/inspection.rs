//! What the tree of the core's state shows of chunks.

use super::{Chunk, ChunkPlace, Chunks, Reach};
use crate::inspect::{Inspect, Space, Tree};

impl ChunkPlace {
    fn name(&self) -> &'static str {
        match self {
            ChunkPlace::Unbacked => "unbacked",
            ChunkPlace::Resident(_) => "resident",
            ChunkPlace::Spilled => "spilled",
            ChunkPlace::Both(_) => "both",
        }
    }
}

impl Chunk {
    /// All that a list of chunks shows of one, so that equal neighbours share a line.
    fn summary(&self) -> String {
        let mut text = self.place.name().to_owned();
        for (claim, holds) in [
            ("writable", self.reach() == Reach::Writable),
            ("read-only", self.reach() == Reach::ReadOnly),
            ("moving", self.moving),
            ("image mapped", self.mapped),
        ] {
            if holds {
                text.push_str(", ");
                text.push_str(claim);
            }
        }
        text
    }
}

impl Inspect for Chunks {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bytes("guest_vram", self.guest_vram);
        tree.bytes("chunk", self.chunk_bytes);
        tree.address("image", self.image.0, Space::BusAddress);
        tree.bytes("resident", self.resident);
        tree.bytes("spilled", self.spilled);
        tree.bytes("old_copies", self.stale_bytes);
        tree.count("instance_pages", self.instance_pages as usize);
        tree.group("count", |tree| {
            let count = |is: &dyn Fn(&Chunk) -> bool| self.chunks.iter().filter(|chunk| is(chunk)).count();
            for place in ["unbacked", "resident", "spilled", "both"] {
                tree.count(place, count(&|chunk| chunk.place.name() == place));
            }
            let idle = self.all().filter(|&chunk| self.is_idle(chunk));
            tree.count("idle", idle.count());
            tree.count("moving", count(&|chunk| chunk.moving));
            tree.count("images_mapped", count(&|chunk| chunk.mapped));
        });
        tree.on_request("list", self.chunks.len(), |tree| {
            let mut first = 0;
            for run in self.chunks.chunk_by(|a, b| a.summary() == b.summary()) {
                let last = first + run.len() - 1;
                tree.name(format_args!("{first}-{last}"), run[0].summary());
                first += run.len();
            }
        });
    }
}
