//! Events that the card counts for its embedder.

/// Events since the card was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Reads of BAR0 words that the model does not know; they gave zero.
    pub unmodelled_reads: u64,
    /// Writes to BAR0 words that the model does not know; they were dropped.
    pub unmodelled_writes: u64,
    /// Reads of system memory that no map covers; they gave all ones.
    pub dma_unmapped_reads: u64,
    /// Writes to system memory that no map covers; they were dropped.
    pub dma_unmapped_writes: u64,
    /// Reads of VRAM without a frame or beyond its end; they gave all ones.
    pub vram_missing_reads: u64,
    /// Writes to VRAM without a frame or beyond its end; they were dropped.
    pub vram_missing_writes: u64,
    /// Translations answered by a TLB.
    pub tlb_hits: u64,
    /// Translations that walked the tables.
    pub tlb_misses: u64,
    /// TLB invalidations asked for.
    pub tlb_flushes: u64,
    /// Walks that found a valid large and a valid small entry for one address.
    pub overlapping_entries: u64,
    /// Accesses that the access counters had no room for.
    pub uncounted_accesses: u64,
    /// Replayable faults that came into the buffer.
    pub replayable_faults: u64,
    /// Replayable faults that found the buffer full: their warps wait, and report again after the next replay.
    pub stalled_faults: u64,
    /// Replays that let warps go on.
    pub replays: u64,
    /// MMU faults, dropped ones included.
    pub mmu_faults: u64,
    /// Errors that PBDMAs raised.
    pub pbdma_errors: u64,
    /// Dispatch, class and data errors of engines.
    pub engine_errors: u64,
    /// Draws, and operations of 2D and clears of kinds that are not modelled; they did nothing.
    pub unmodelled_draws: u64,
    /// GP_PUT stores seen in the polling area.
    pub doorbells: u64,
    /// GPFIFO entries fetched.
    pub gp_entries: u64,
    /// Methods of pushbuffers executed.
    pub methods: u64,
    /// Channels loaded on a PBDMA.
    pub channel_loads: u64,
    /// Engine context switches.
    pub engine_switches: u64,
    /// Words that register lists of contexts put into registers.
    pub list_words: u64,
    /// Preempts that were completed.
    pub preempts: u64,
    /// Runlists taken over.
    pub runlists: u64,
    /// Copy operations completed, inline ones included.
    pub copies: u64,
    /// Times that a copy gave way to another channel's work.
    pub paused_copies: u64,
    /// Channels that came into the table with such a copy to go on with.
    pub carried_copies: u64,
    /// Bytes that copies moved.
    pub copied_bytes: u64,
    /// Clears of 3D completed.
    pub clears: u64,
    /// Bytes that clears wrote.
    pub cleared_bytes: u64,
    /// Grids that ran to their end.
    pub grids: u64,
    /// Instructions of warps.
    pub warp_instructions: u64,
    /// Instructions of lanes.
    pub lane_instructions: u64,
    /// Bytes between shaders and VRAM, in the 128-byte segments that they move in.
    pub shader_vram_bytes: u64,
    /// Bytes from shaders to system memory, in the same segments.
    pub shader_upstream_bytes: u64,
    /// Bytes from system memory to shaders, in the same segments.
    pub shader_downstream_bytes: u64,
    /// Interrupt messages (MSI) raised.
    pub interrupts: u64,
}
