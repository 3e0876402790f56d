//! The experiments, by name.

mod adaptive;
mod amm;
mod chunk_size;
mod delay;
mod demand;
mod effects;
mod fairness;
mod gdm;
mod hot_set;
mod link;
mod no_pressure;
mod oversubscribe;
mod pair;
mod precision;
mod random_walk;
mod systems;
mod turns;

use vgpu::VmId;

use crate::host::LabError;
use crate::jobs::Onlooker;
use crate::report::Report;
use crate::settings::{Settings, Sizes};
use crate::{MIB, SCALE};

/// The VMs of a pair.
const PAIR: [VmId; 2] = [VmId(0), VmId(1)];

macro_rules! experiments {
    ($($Experiment:ident, $module:ident, $name:literal: $about:literal,)*) => {
        /// What can be reproduced.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Experiment {
            $(#[doc = $about] $Experiment,)*
        }

        impl Experiment {
            /// All that there are.
            pub const ALL: &[Self] = &[$(Self::$Experiment),*];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Experiment => $name,)*
                }
            }

            /// One line on it.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$Experiment => $about,)*
                }
            }
        }

        /// Runs an experiment.
        ///
        /// # Errors
        /// Why there are no figures.
        pub fn run(experiment: Experiment, settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
            match experiment {
                $(Experiment::$Experiment => $module::run(settings, onlooker),)*
            }
        }
    };
}

experiments! {
    Fairness, fairness, "fairness": "Figure 4: who has VRAM while two programs allocate twice as much as there is",
    NoPressure, no_pressure, "no-pressure": "no figure: time of the GPU with vramd and on a bare card, memory enough",
    Oversubscribe, oversubscribe, "oversubscribe": "Figure 5: run time of six programs in pairs on less and less memory",
    Delay, delay, "delay": "Figure 6: how long requests wait, programs are stopped and copies take, by bytes",
    ChunkSize, chunk_size, "chunk-size": "Figures 7 to 9: run times and delays by the size of a chunk, unscaled",
    Turns, turns, "turns": "no figure: two programs that take turns, under each policy",
    Systems, systems, "systems": "no figure: all policies on all workloads; what the default is chosen from",
    Adaptive, adaptive, "adaptive": "Ganguly's thesis: what to bring, evict and leave on the host, on traces of twelve programs",
    Demand, demand, "demand": "Ganguly's policies on kernels that run: blocks come by replayable faults and access counters",
    Link, link, "link": "Ganguly's thesis: whose transfers go first, for pairs of ten programs on one link",
    Precision, precision, "precision": "no figure: how well what launches reach is known before they run",
    RandomWalk, random_walk, "random-walk": "no figure: memory for the lanes of a grid, by random walks, a queue and a locked list",
    Gdm, gdm, "gdm": "another paper's Figures 7 to 9: memory brought before each launch, for two programs, a leak, an attack",
    Amm, amm, "amm": "another paper: copies between RAM and VRAM by stale flags, by hand and around each launch",
}

impl Experiment {
    /// Sizes that the operator may choose.
    pub(crate) fn sizes(self) -> Option<Sizes> {
        match self {
            Self::Oversubscribe => Some(Sizes {
                between: 4 * MIB..=1400 * MIB,
                multiple: fermi_spec::addr::FRAME * SCALE,
                is_power: false,
                wanted: "a multiple of 2M between 4M and 1400M",
            }),
            Self::ChunkSize => Some(Sizes {
                between: vgpu::CHUNK_BYTES,
                multiple: *vgpu::CHUNK_BYTES.start(),
                is_power: true,
                wanted: "a power of two between 128K and 64M",
            }),
            Self::Fairness
            | Self::NoPressure
            | Self::Delay
            | Self::Turns
            | Self::Systems
            | Self::Adaptive
            | Self::Demand
            | Self::Link
            | Self::Precision
            | Self::RandomWalk
            | Self::Gdm
            | Self::Amm => None,
        }
    }

    /// Whether some of the policies can be compared in it.
    pub(crate) fn takes_policies(self) -> bool {
        self == Self::Oversubscribe
    }

    /// The fewest traces that it replays, if it replays any.
    pub fn traces_min(self) -> Option<usize> {
        match self {
            Self::Adaptive => Some(1),
            Self::Link => Some(2),
            _ => None,
        }
    }

    /// A report without results yet.
    fn report(self, figure: &'static str, paper: &'static str, settings: &Settings) -> Report {
        Report {
            experiment: self.name(),
            figure,
            profile: settings.profile.name(),
            seeds: settings.seeds,
            quick: settings.quick,
            paper,
            tables: Vec::new(),
            charts: Vec::new(),
            claims: Vec::new(),
            notes: Vec::new(),
        }
    }
}
