//! A VM whose image ends at the last bus address that an entry can name.

use fermi_spec::addr::{Gpa, GuestVramAddr, PHYS_BITS, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::pte::Pte;

use super::scene::{MIB, MS, Scene, vm_config};
use super::{A, B};
use crate::config::{BUS_UNIT, Quota};
use crate::event::{Action, Event, Place, Reply, Request};
use crate::host::copy::OWN_BYTES;

/// Where bus addresses begin.
const BUS_START: u64 = 4 << 30;
const BUS_END: u64 = 1 << PHYS_BITS;

/// The second VM's image ends at 1 TiB, because the first has mapped everything below as RAM.
fn image_at_the_end() -> Scene {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    let taken = OWN_BYTES.next_multiple_of(BUS_UNIT) + 32 * MIB;
    let sparse = scene.ask(
        A,
        Request::MapRam {
            gpa: Gpa(16 * MIB),
            bytes: BUS_END - BUS_START - taken - 16 * MIB,
            writable: true,
        },
    );
    assert_eq!(scene.reply(sparse), Some(&Reply::Done));
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
