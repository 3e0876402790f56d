//! Counts of the messages over the socket.

use std::fmt;

use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END};
use vfio_user_server::Region;

/// Target of an access, as far as it matters for its cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Registers,
    Prom,
    Pramin,
    Bar1,
    Bar3,
    Config,
}

impl Target {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Registers, "registers"),
        (Self::Prom, "PROM"),
        (Self::Pramin, "PRAMIN"),
        (Self::Bar1, "BAR1"),
        (Self::Bar3, "BAR3"),
        (Self::Config, "configuration"),
    ];

    pub(super) fn of(region: Region, offset: u64) -> Self {
        match region {
            Region::Bar1 => Self::Bar1,
            Region::Bar3 => Self::Bar3,
            Region::Bar0 if (PROM_BASE.into()..PROM_END.into()).contains(&offset) => Self::Prom,
            Region::Bar0 if offset.wrapping_sub(PRAMIN_BASE.into()) < PRAMIN_BYTES.into() => Self::Pramin,
            Region::Bar0 => Self::Registers,
            _ => Self::Config,
        }
    }
}

/// Reads and writes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Accesses {
    reads: u64,
    writes: u64,
}

/// Everything since the server started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Traffic {
    accesses: [Accesses; 6],
    /// Reads, for which the client waits.
    pub(super) reads: u64,
    /// Writes for which the client does not wait.
    pub(super) posted_writes: u64,
    /// Writes for which the client waits.
    pub(super) waited_writes: u64,
    /// Batches of writes.
    pub(super) batches: u64,
    /// Commands that change DMA maps.
    pub(super) dma_changes: u64,
    /// Commands that change interrupts, and resets.
    pub(super) others: u64,
    /// Stores of the card to addresses without a map, the first of each burst.
    pub(super) strays: u64,
    /// Times that requests had arrived.
    pub(super) turns: u64,
}

impl Traffic {
    pub(super) fn count_read(&mut self, target: Target) {
        self.accesses[target as usize].reads += 1;
    }

    pub(super) fn count_write(&mut self, target: Target) {
        self.accesses[target as usize].writes += 1;
    }

    /// Whether no client ever came.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn messages(&self) -> u64 {
        self.waits() + self.posted_writes + self.batches
    }

    /// Messages whose answer the client waits for.
    fn waits(&self) -> u64 {
        self.reads + self.waited_writes + self.dma_changes + self.others
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} messages in {} turns: {} reads, {} posted writes, {} batches of writes, {} writes waited for, \
             {} changes of DMA maps, {} others; waited for: {}",
            self.messages(),
            self.turns,
            self.reads,
            self.posted_writes,
            self.batches,
            self.waited_writes,
            self.dma_changes,
            self.others,
            self.waits(),
        )?;
        f.write_str("accesses (reads/writes):")?;
        for (target, name) in Target::ALL {
            let Accesses { reads, writes } = self.accesses[target as usize];
            write!(f, " {name} {reads}/{writes}")?;
        }
        if self.strays > 0 {
            write!(f, "\nstores to where nothing is mapped: {}", self.strays)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_bar0_are_told_from_registers() {
        let of = |offset| Target::of(Region::Bar0, offset);
        assert_eq!(of(0x2270), Target::Registers);
        assert_eq!((of(0x30_0000), of(0x38_0000)), (Target::Prom, Target::Registers));
        assert_eq!(
            (of(0x7f_fffc), of(0x80_0000)),
            (Target::Pramin, Target::Registers)
        );
    }

    #[test]
    fn names_stand_at_the_index_of_their_target() {
        let indices: Vec<usize> = Target::ALL.iter().map(|(target, _)| *target as usize).collect();
        assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    }
}
