//! Chunks that something waits for: a sync for their memory, a guest's store for what is to be shown of them.

use super::{ChunkNo, Chunks};

impl Chunks {
    /// A sync asks memory for chunks, and will make them reached.
    pub(crate) fn expect(&mut self, chunks: impl IntoIterator<Item = ChunkNo>) {
        for chunk in chunks {
            self.change(chunk, |chunks| chunks.expected.insert(chunk));
        }
    }

    /// The sync is built, or given up: what it made reached is reached.
    pub(crate) fn end_expecting(&mut self) {
        while let Some(&chunk) = self.expected.first() {
            self.change(chunk, |chunks| chunks.expected.remove(&chunk));
        }
    }

    pub(crate) fn is_expected(&self, chunk: ChunkNo) -> bool {
        self.expected.contains(&chunk)
    }

    /// A guest's store waits until the chunk has left, and then until it has its turn: whoever would bring it back has to wait.
    pub(crate) fn keep_out(&mut self, chunk: ChunkNo) {
        self.change(chunk, |chunks| chunks.kept_out.insert(chunk));
    }

    /// The store was tried again, or waits no more.
    pub(crate) fn end_keeping_out(&mut self) {
        while let Some(&chunk) = self.kept_out.first() {
            self.change(chunk, |chunks| chunks.kept_out.remove(&chunk));
        }
    }

    /// A guest's store waits for some of them.
    pub(crate) fn keeps_any_out(&self) -> bool {
        !self.kept_out.is_empty()
    }

    /// It is in host RAM and stays there for now.
    pub(crate) fn is_kept_out(&self, chunk: ChunkNo) -> bool {
        self.is_out(chunk) && self.kept_out.contains(&chunk)
    }
}
