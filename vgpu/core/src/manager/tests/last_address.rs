//! A VM whose image ends at the last bus address that an entry can name.

use fermi_spec::addr::{GuestVramAddr, PHYS_BITS, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::pte::Pte;

use super::scene::{MIB, MS, Scene, vm_config};
use super::{A, B};
use crate::config::{BUS_UNIT, Quota, VmConfig};
use crate::event::{Action, Event, Place, Reply, VmId};
use crate::host::copy::OWN_BYTES;

/// Where bus addresses begin.
const BUS_START: u64 = 4 << 30;
const BUS_END: u64 = 1 << PHYS_BITS;

/// The second VM's image ends at 1 TiB, because others have been promised everything below for their RAM.
fn image_at_the_end() -> Scene {
    let mut scene = Scene::up();
    let with_ram = |ram: u64| VmConfig { ram, ..vm_config(16) };
    let large = with_ram(1 << 39);
    let least = with_ram(2 * MIB).bus_bytes() - 2 * MIB;
    let left = BUS_END - BUS_START - OWN_BYTES.next_multiple_of(BUS_UNIT) - large.bus_bytes();
    let rest = with_ram(left - vm_config(16).bus_bytes() - least);
    for (vm, config) in [(A, large), (VmId(2), rest)] {
        scene.apply(Event::Attach { vm, config });
        assert!(scene.has(&Action::Attached { vm }));
    }
    scene.apply(Event::Attach {
        vm: B,
        config: vm_config(16),
    });
    let is_last = |action: &Action| {
        matches!(action, Action::MapDma { iova, bytes, memory: Place::Image { vm: B, at: GuestVramAddr(0) }, .. }
            if iova.0 + bytes == BUS_END)
    };
    scene.first("image that ends at 1 TiB", is_last);
    scene
}

#[test]
fn page_that_ends_at_the_last_bus_address_has_an_entry() {
    let mut scene = image_at_the_end();
    let bound = scene.bind(B, 12);
    assert_eq!(scene.reply(bound), Some(&Reply::Done));
    assert_eq!(scene.resident(B), 12 * MIB);
    scene.take();
    let quota = Quota {
        max: 2 * MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: B, quota });
    scene.pass(1000 * MS);
    assert_eq!(scene.resident(B), 2 * MIB);
    let names_last = |action: &Action| {
        let Action::HostWrite {
            bar: Bar::Bar3, data, ..
        } = action
        else {
            return false;
        };
        let entries = data.as_chunks::<8>().0.iter().map(|raw| u64::from_le_bytes(*raw));
        entries
            .map(Pte::from_bits)
            .any(|pte| pte.valid() && pte.address().0 == BUS_END - SMALL_PAGE)
    };
    scene.first("entry of the last page", names_last);
}
