//! The card's two engines: what copies and signatures take, and which bytes are where.

use std::collections::BTreeMap;
use std::ops::Range;

use gdm::{Block, Card};

/// Versions of a block's bytes: on the card, on the host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Versions {
    pub(super) card: Option<u64>,
    pub(super) host: u64,
    /// Of what was stored last.
    pub(super) latest: u64,
}

/// What was moved and signed.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// Bytes of evictions alone.
    pub(crate) written_back: u64,
    pub(crate) evictions: u64,
    /// Signatures of blocks.
    pub(crate) signed: u64,
    /// Blocks of launches that stayed on the host.
    pub(crate) remote: u64,
    /// Bytes that were copied on the host because a source changed.
    pub(crate) staged: u64,
    /// The GPU's time: launches, copies, signatures.
    pub(crate) launch_ns: f64,
    pub(crate) copy_ns: f64,
    pub(crate) sign_ns: f64,
    /// When the last program ended.
    pub(crate) end_ns: f64,
}

impl Figures {
    pub(crate) fn moved(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }

    pub(crate) fn busy_ns(&self) -> f64 {
        self.launch_ns + self.copy_ns + self.sign_ns
    }
}

/// What an engine costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Costs {
    /// Of signing a block, and of a launch that does it.
    pub(crate) sign_ns: f64,
    pub(crate) launch_ns: f64,
}

/// Two engines, and what they did.
#[derive(Debug)]
pub(super) struct Engines {
    pub(super) block_bytes: u64,
    pub(super) costs: Costs,
    pub(super) bytes_per_ns: f64,
    pub(super) startup_ns: f64,
    pub(super) versions: BTreeMap<Block, Versions>,
    pub(super) version: u64,
    /// Nothing that is asked for now starts sooner.
    pub(super) now: f64,
    pub(super) copies_until: f64,
    pub(super) launches_until: f64,
    /// Where the last copy ended: a neighbour goes on with it.
    pub(super) last: Option<(Block, bool)>,
    pub(super) figures: Figures,
    /// A launch or a copy met other bytes than those stored last.
    pub(super) lost: u64,
}

impl Engines {
    pub(super) fn fresh(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Whether a place has what was stored last.
    pub(super) fn check(&mut self, block: Block, is_on_card: bool) {
        let versions = self.versions.entry(block).or_default();
        let here = if is_on_card {
            versions.card
        } else {
            Some(versions.host)
        };
        self.lost += u64::from(here != Some(versions.latest));
    }

    fn copy(&mut self, bytes: u64, block: Option<(Block, bool)>) {
        let is_next = |last: (Block, bool), (block, is_in): (Block, bool)| {
            last == (
                Block {
                    index: block.index.wrapping_sub(1),
                    ..block
                },
                is_in,
            )
        };
        let goes_on = self
            .last
            .zip(block)
            .is_some_and(|(last, block)| is_next(last, block));
        let startup = if goes_on { 0.0 } else { self.startup_ns };
        let ns = startup + bytes as f64 / self.bytes_per_ns;
        self.figures.copy_ns += ns;
        self.copies_until = self.copies_until.max(self.now) + ns;
        self.now = self.copies_until;
        self.last = block;
    }
}

impl Card for Engines {
    type Signature = u64;

    fn load(&mut self, block: Block) {
        self.figures.bytes_in += self.block_bytes;
        self.copy(self.block_bytes, Some((block, true)));
        let versions = self.versions.entry(block).or_default();
        versions.card = Some(versions.host);
    }

    fn clear(&mut self, block: Block) {
        // Zeros are version 0: whatever was ever stored there is lost.
        self.versions.entry(block).or_default().card = Some(0);
    }

    fn evict(&mut self, block: Block, writes_back: bool) {
        self.figures.evictions += 1;
        let versions = self.versions.entry(block).or_default();
        let card = versions.card.take();
        if writes_back {
            versions.host = card.unwrap_or_default();
            self.figures.bytes_out += self.block_bytes;
            self.figures.written_back += self.block_bytes;
            self.copy(self.block_bytes, Some((block, false)));
        }
    }

    fn discard(&mut self, block: Block) {
        self.versions.entry(block).or_default().card = None;
    }

    fn sign(&mut self, blocks: &[Block]) -> Vec<u64> {
        let ns = self.costs.launch_ns + self.costs.sign_ns * blocks.len() as f64;
        self.figures.sign_ns += ns;
        self.figures.signed += blocks.len() as u64;
        self.launches_until = self.launches_until.max(self.now) + ns;
        self.now = self.launches_until;
        let card = |block| self.versions.get(block).and_then(|versions| versions.card);
        blocks
            .iter()
            .map(|block| card(block).unwrap_or_default())
            .collect()
    }

    /// The replay knows the version.
    fn copy_in(&mut self, _owner: u32, bytes: Range<u64>) {
        self.figures.bytes_in += bytes.end - bytes.start;
        self.copy(bytes.end - bytes.start, None);
    }

    fn copy_out(&mut self, owner: u32, bytes: Range<u64>) {
        self.figures.bytes_out += bytes.end - bytes.start;
        self.copy(bytes.end - bytes.start, None);
        if bytes.end - bytes.start == self.block_bytes {
            let index = (bytes.start / self.block_bytes) as u32;
            let versions = self.versions.entry(Block { owner, index }).or_default();
            versions.host = versions.card.unwrap_or_default();
        }
    }
}
