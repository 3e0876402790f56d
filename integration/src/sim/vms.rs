//! The VMs of a run: what they are, how they are drawn, and what their guests do.

use std::sync::Arc;

use guests::{Input, Machine, Options};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};
use sim_host::bus::{Guest, SimBus};
use sim_host::turns::Player;
use vgpu::{VmConfig, VmId};
use vm_memory::VolatileMemory;

use super::drawn::{self, DrawnVm};
use super::log::hex;
use super::{ANSWER_NS, DMA, INPUT_GPA, MIB, Settings, Simulation, held};
use crate::{hostile, liar, witness};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Does the file workload, and must not fail.
    Honest,
    /// Does what it likes.
    Hostile,
    /// Knows each byte of its memory, and must not find another.
    Witness,
}

pub(super) struct Vm {
    pub(super) id: VmId,
    pub(super) kind: Kind,
    pub(super) player: Player,
    /// The VMM around its guest, where that does not behave.
    pub(super) vmm: Option<Player>,
    pub(super) digest: String,
    pub(super) expected: String,
    pub(super) held: held::Held,
    /// It is on its way out.
    pub(super) leaves: bool,
}

impl Vm {
    /// Who sends requests in its name.
    pub(super) fn players(&self) -> impl Iterator<Item = &Player> {
        std::iter::once(&self.player).chain(&self.vmm)
    }
}

fn input_bytes(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let length = rng.random_range(300_000..1_500_000);
    (0..length).map(|_| rng.random()).collect()
}

/// The file workload on the guest's own driver.
fn honest(bus: &mut SimBus, bytes: u64, seed: u64, rounds: u32) -> Result<(), String> {
    let options = Options {
        seed,
        rounds,
        ..Options::default()
    };
    let inputs = [Input {
        name: "input",
        gpa: INPUT_GPA,
        bytes,
    }];
    let machine = Machine {
        dma: DMA,
        scratch: &mut [],
        inputs: &inputs,
        options,
    };
    match guests::run(bus, machine) {
        Ok(summary) if summary.is_ok() => Ok(()),
        Ok(summary) => Err(format!("bytes are wrong: {summary:?}")),
        Err(error) => Err(error.to_string()),
    }
}

impl Simulation {
    pub(super) fn draw_kind(&mut self, settings: Settings) -> Kind {
        match self.rng.random_range(0..6u32) {
            0..=1 if settings.hostile => Kind::Hostile,
            2..=3 => Kind::Witness,
            _ => Kind::Honest,
        }
    }

    /// Draws a VM and notes what was drawn. Nothing happens to the host yet.
    pub(super) fn draw_vm(&mut self, id: VmId, kind: Kind, guest_vram_max: u64) -> DrawnVm {
        let rng = &mut self.rng;
        let chunk_bytes = [128 << 10, 512 << 10, 2 * MIB, 2 * MIB, 4 * MIB][rng.random_range(0..5)];
        let config = VmConfig {
            name: format!("vm{}", id.0),
            guest_vram: rng.random_range(drawn::GUEST_VRAM_MIN / MIB..=guest_vram_max / MIB) * MIB,
            chunk_bytes,
            quota: drawn::quota(rng),
            ..crate::bench::vm_config(0)
        };
        let lies = (kind == Kind::Hostile && self.lies.random()).then(|| self.lies.random());
        let text = drawn::vm_text(&config, kind, lies.is_some());
        let rng = &mut self.rng;
        let input = input_bytes(rng);
        let (seed, rounds) = (rng.random(), rng.random_range(1..=3));
        self.tell(vec![text]);
        DrawnVm {
            id,
            kind,
            config,
            input,
            seed,
            rounds,
            lies,
        }
    }

    pub(super) fn add_vm(&mut self, drawn: DrawnVm) {
        let DrawnVm {
            id,
            kind,
            config,
            input,
            seed,
            rounds,
            lies,
        } = drawn;
        self.world
            .attach(id, config, (witness::SPARE_GPA + witness::SPARE_BYTES) as usize);
        if kind == Kind::Hostile {
            self.world.watch.laws.harms(id);
        }
        let expected = hex(&Sha256::digest(&input));
        let ram = Arc::clone(&self.world.vm(id).ram);
        ram.get_slice(INPUT_GPA as usize, input.len())
            .expect("inside of RAM")
            .copy_from(&input);
        let bytes = input.len() as u64;
        let vmm = lies.map(|seed| {
            self.world.let_restless(id, seed);
            let vmm = Guest::start(Arc::clone(&ram), move |bus| liar::lie(bus, seed));
            Player::new(id, vmm, ANSWER_NS).may_be_refused()
        });
        let guest = match kind {
            Kind::Honest => Guest::start(ram, move |bus| honest(bus, bytes, seed, rounds)),
            Kind::Hostile => Guest::start(ram, move |bus| hostile::attack(bus, seed)),
            Kind::Witness => Guest::start(ram, move |bus| witness::watch(bus, seed)),
        };
        self.vms.push(Vm {
            id,
            kind,
            player: match vmm {
                Some(_) => Player::new(id, guest, ANSWER_NS).may_be_refused(),
                None => Player::new(id, guest, ANSWER_NS),
            },
            vmm,
            digest: String::new(),
            expected,
            held: held::Held::default(),
            leaves: false,
        });
    }
}
