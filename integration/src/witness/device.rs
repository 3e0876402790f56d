//! What a witness knows of its device besides bytes: entries, interrupts, channels that come and go, RAM that does.

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::USERD_BYTES;
use fermi_spec::methods::host;
use fermi_spec::pte::Pte;
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::pmc::LINE_HARDWARE;
use fermi_spec::regs::{PfifoReg, PmcReg};
use guests::GuestBus;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use vgpu::{InterruptKind, Request};

use super::{
    COPIERS, DATA_VA, PAGE, PASSING, RAM_ENTRIES_GPA, RAM_TABLE_VA, REMAPPED_PAGES_MAX, Rights, SPARE_BYTES,
    SPARE_GPA, STAGING_GPA, Witness, differ,
};
use crate::rig::{self, COMMAND, CONFIG_MIRROR, DATA, DIRECTORY, MSI_CONTROL};
use sim_host::bus::SimBus;

/// Time in which an interrupt mostly comes.
const NOTICED_NS: u64 = 2_000_000;
/// In the second byte of the command register: the pin is off.
const INTX_DISABLE: u8 = 1 << 2;

/// What guest and VMM have made of the ways for interrupts, while the line is up all the time.
struct Listener {
    has_msi: bool,
    is_pin_off: bool,
    is_masked: bool,
}

impl Listener {
    /// The guest wants interrupts of this kind; the VMM listens to both.
    fn start(bus: &mut SimBus, kind: InterruptKind) -> Self {
        let has_msi = kind == InterruptKind::Msi;
        store_config(bus, false, COMMAND + 1, 0);
        store_config(bus, false, MSI_CONTROL, has_msi.into());
        bus.machine(Request::MaskIntx { masked: false });
        Self {
            has_msi,
            is_pin_off: false,
            is_masked: false,
        }
    }

    /// Guest or VMM change one thing. It is told then, once, if nothing holds it back, and only then.
    fn change(&mut self, bus: &mut SimBus, rng: &mut ChaCha8Rng) -> Result<(), String> {
        let before = [InterruptKind::Msi, InterruptKind::Intx].map(|kind| bus.interrupts(kind));
        let had_msi = self.has_msi;
        match rng.random_range(0..4u32) {
            0 => {
                self.has_msi = rng.random();
                store_config(bus, rng.random(), MSI_CONTROL, self.has_msi.into());
            }
            1 => {
                self.is_pin_off = rng.random();
                let value = if self.is_pin_off { INTX_DISABLE } else { 0 };
                store_config(bus, rng.random(), COMMAND + 1, value);
            }
            step => {
                self.is_masked = step == 2;
                let masked = self.is_masked;
                bus.machine(Request::MaskIntx { masked });
            }
        }
        let pulls = !self.has_msi && !self.is_pin_off && !self.is_masked;
        self.is_masked |= pulls;
        let due = [self.has_msi && !had_msi, pulls].map(u64::from);
        let after = [InterruptKind::Msi, InterruptKind::Intx].map(|kind| bus.interrupts(kind));
        let told = [after[0] - before[0], after[1] - before[1]];
        match told == due {
            true => Ok(()),
            false => Err(format!(
                "with its line up it was told {told:?} times by MSI and INTx, not {due:?}"
            )),
        }
    }
}

/// Stores a byte of the configuration space, by a cycle of the machine's or by the mirror.
fn store_config(bus: &mut SimBus, by_mirror: bool, offset: u64, value: u8) {
    match by_mirror {
        true => bus.write(Bar::Bar0, CONFIG_MIRROR + offset, &[value]),
        false => bus.machine(Request::WriteConfig {
            offset,
            data: vec![value],
        }),
    }
}

impl Witness {
    /// The shadow has the guest's attributes, and no large entry over instance memory.
    pub(super) fn check_entries(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        let frame = self.rng.random_range(0..self.table() / PAGE) * PAGE;
        let plain = rig::vram_pte(DATA + frame);
        let guest = [
            plain.with_kind(0xfe),
            plain.with_read_only(true),
            rig::ram_pte(STAGING_GPA).with_read_only(true),
            rig::ram_pte(STAGING_GPA),
            plain,
        ];
        let entries: Vec<u8> = guest
            .iter()
            .flat_map(|pte| pte.into_bits().to_le_bytes())
            .collect();
        const FIRST: u64 = 64;
        bus.ram_write(RAM_ENTRIES_GPA + FIRST * 8, &entries);
        rig::flush(bus, DIRECTORY);
        for (page, wanted) in (FIRST..).zip(guest) {
            let is = bus.shadow_entry(RAM_TABLE_VA + page * PAGE, false);
            let of = |pte: Pte| (pte.valid(), pte.kind(), pte.read_only());
            if of(is) != of(wanted) {
                return Err(format!("the guest's entry {wanted:?} has the shadow {is:?}"));
            }
        }
        Ok(())
    }

    /// An interrupt that a channel asks for comes, as a message or by the pin, and is told anew to a guest and a VMM that change
    /// between these.
    pub(super) fn interrupt(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        rig::write(bus, PmcReg::PmcIntrEnable(0), 0);
        let kind = [InterruptKind::Msi, InterruptKind::Intx][self.rng.random_range(0..2usize)];
        let mut listener = Listener::start(bus, kind);
        rig::write(bus, PfifoReg::EngineIntrEnable, 1);
        for engine in 0..6 {
            rig::write(bus, PfifoReg::EngineIntr(engine), !0);
        }
        rig::acknowledge(bus);
        rig::write(bus, PmcReg::PmcIntrMask(0), !0);
        let before = bus.interrupts(kind);
        rig::write(bus, PmcReg::PmcIntrEnable(0), LINE_HARDWARE);
        let channel = self.copier();
        let engine = if channel == 0 {
            Engine::Copy0
        } else {
            Engine::Copy1
        };
        let mut words = rig::bind_words(engine).to_vec();
        words.extend([incrementing(4, host::NON_STALL_INTERRUPT, 1), 0]);
        let sequence = self.rig.submit_with_release(bus, channel, &words);
        self.wait(bus, channel, sequence)?;
        let until = bus.now_ns() + NOTICED_NS;
        while rig::read(bus, PmcReg::PmcIntrLine(0)) == 0 {
            if bus.now_ns() > until {
                // The card's own message may be lost: then it is found at the next look, some time.
                return Ok(());
            }
            bus.relax();
        }
        if bus.interrupts(kind) == before {
            return Err("the interrupt line is up and nobody was interrupted".to_owned());
        }
        listener.is_masked = kind == InterruptKind::Intx;
        for _ in 0..self.rng.random_range(0..10) {
            listener.change(bus, &mut self.rng)?;
        }
        Ok(())
    }

    /// A channel comes and goes, a few times, while the card is busy with another.
    pub(super) fn pass(&mut self, bus: &mut SimBus) -> Result<(), String> {
        for _ in 0..self.rng.random_range(1..=4) {
            self.copy_in(bus)?;
            rig::write(
                bus,
                PfifoReg::Preempt,
                self.rng.random_range(0..u32::from(COPIERS)),
            );
            self.open(bus, PASSING)?;
            let word = self.rng.random_range(1..0xffff);
            for at in [0x40, 0x58, 0x88] {
                bus.write32(Bar::Bar1, u64::from(PASSING) * USERD_BYTES + at, word);
            }
            self.rig.unbind(bus, PASSING);
            self.forget_userd(bus);
        }
        Ok(())
    }

    /// A channel comes together with entries for data that may move meanwhile, copies to that, and goes with them. The
    /// entries were absent, so nothing has to be flushed before the copy.
    pub(super) fn visit(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        const FIRST: u64 = 192;
        let Some(range) = self.range(PAGE, REMAPPED_PAGES_MAX * PAGE) else {
            return Ok(());
        };
        Self::point_ram_table(bus, FIRST, &range);
        self.open(bus, PASSING)?;
        let mut list: Vec<u8> = (0..COPIERS).collect();
        list.push(PASSING);
        self.rig.commit(bus, &list);
        let base = RAM_TABLE_VA + FIRST * PAGE - range.start;
        self.start_copy_in(bus, PASSING, base, range);
        self.finish(bus, PASSING)?;
        list.pop();
        self.rig.commit(bus, &list);
        self.rig.unbind(bus, PASSING);
        self.forget_userd(bus);
        bus.ram_write(RAM_ENTRIES_GPA + FIRST * 8, &[0; REMAPPED_PAGES_MAX as usize * 8]);
        rig::flush(bus, DIRECTORY);
        Ok(())
    }

    /// What was stored for a channel that is not bound stays for the next one.
    fn forget_userd(&mut self, bus: &mut SimBus) {
        for at in (0x40..0xa0).step_by(4) {
            bus.write32(Bar::Bar1, u64::from(PASSING) * USERD_BYTES + at, 0);
        }
    }

    /// RAM comes and goes, sometimes such as the device must not write, while entries name it.
    pub(super) fn spare(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        const FIRST: u64 = 128;
        let (gpa, bytes) = (Gpa(SPARE_GPA), SPARE_BYTES);
        if self.spare.take().is_some() {
            bus.machine(Request::UnmapRam { gpa, bytes });
            return Ok(());
        }
        let writable = self.rng.random();
        bus.machine(Request::MapRam { gpa, bytes, writable });
        self.spare = Some(writable);
        bus.ram_write(
            RAM_ENTRIES_GPA + FIRST * 8,
            &rig::ram_pte(SPARE_GPA).into_bits().to_le_bytes(),
        );
        rig::flush(bus, DIRECTORY);
        if !writable {
            return Ok(());
        }
        let Some(range) = self
            .range(PAGE, PAGE)
            .filter(|range| self.allows(range, Rights::Load))
        else {
            return Ok(());
        };
        let expected = self.model(&range).to_vec();
        let places = (DATA_VA + range.start, RAM_TABLE_VA + FIRST * PAGE);
        self.submit(bus, 0, places, PAGE, range.clone(), None);
        self.finish(bus, 0)?;
        let mut is = vec![0; PAGE as usize];
        bus.ram_read(SPARE_GPA, &mut is);
        differ("a copy to spare RAM", range.start, &expected, &is)
    }
}
