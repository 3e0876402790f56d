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
            ChunkPlace::Split(_) => "split",
        }
    }
}

impl Chunk {
    /// All that a list of chunks shows of one, so that equal neighbours share a line.
    fn shown(&self) -> (&'static str, Reach, bool) {
        (self.place.name(), self.reach(), self.is_on_its_way())
    }

    /// The same as text.
    fn summary(&self) -> String {
        let (place, reach, moving) = self.shown();
        let mut text = place.to_owned();
        for (claim, holds) in [
            ("writable", reach == Reach::Writable),
            ("read-only", reach == Reach::ReadOnly),
            ("moving", moving),
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
        tree.count("pieces_mapped", self.maps().len());
        tree.count("kept_out", self.kept_out.len());
        let sums = self.sums();
        tree.bytes("active", sums.active);
        tree.bytes("idle", sums.idle);
        tree.bytes("wanted", sums.wanted);
        tree.bytes("split", sums.split);
        tree.group("count", |tree| {
            for (name, chunks) in [
                ("unbacked", sums.unbacked_chunks),
                ("resident", sums.resident_chunks),
                ("spilled", sums.spilled_chunks),
                ("both", sums.both_chunks),
                ("idle", sums.idle_chunks),
                ("moving", sums.moving_chunks),
            ] {
                tree.count(name, chunks as usize);
            }
        });
        tree.on_request("list", self.chunks.len(), |tree| {
            let mut first = 0;
            for run in self.chunks.chunk_by(|a, b| a.shown() == b.shown()) {
                if tree.is_full() {
                    return;
                }
                let last = first + run.len() - 1;
                tree.name(format_args!("{first}-{last}"), run[0].summary());
                first += run.len();
            }
        });
    }
}
