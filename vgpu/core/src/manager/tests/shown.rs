//! Chunks that leave because a window is to show a page of them.

use fermi_spec::regs::{Bar0Reg, PbusReg};

use super::scene::{DATA, MIB, MS, Scene};
use super::{A, B};
use crate::config::GpuConfig;
use crate::event::{Action, Event, Reply};
use crate::memory::{ChunkNo, GuestPage};

const CHUNK: u64 = 2 * MIB;
/// The chunk that the window is to show pages of, to which the tables lead.
const SHOWN: ChunkNo = ChunkNo((DATA / CHUNK) as u32);

/// The store that waits for the page is tried again when its VM has its turn. Were the chunk back by then, it would leave once more, and so on
/// without end; in the end the window would show zeros.
#[test]
fn chunk_that_left_for_a_window_stays_out_until_the_window_shows_it() {
    // All of it in one suspension, and in four.
    for batch_bytes in [CHUNK, CHUNK / 4] {
        let mut scene = Scene::with(GpuConfig {
            batch_bytes,
            part_bytes: batch_bytes,
            copy_budget_ns: 1_000 * MS,
            ..GpuConfig::default()
        });
        scene.attach(A, 32);
        scene.attach(B, 16);
        scene.bind(A, 20);
        scene.run_channel(A);
        scene.pass(500 * MS);
        scene.apply(Event::LetWindows { vm: A });
        scene.take();
        scene.copies_end = false;
        scene.gives_turns = false;
        let store = scene.register(A, Bar0Reg::from(PbusReg::PraminBase), (DATA >> 16) as u32);
        assert!(scene.is_moving(), "the GPU reaches the page");
        let started = scene.now;
        while !scene.chunks_of(A).is_out(SHOWN) {
            // So much is done for the VM that it waits for the others.
            let vgpu = scene.running().vms.get_mut(&A).expect("it is attached");
            vgpu.share.charge(1_000 * MS);
            scene.end_copy();
            scene.pass(MS);
            assert!(scene.now - started < 200 * MS, "it leaves");
        }
        let mut waited = 0;
        while scene.reply(store).is_none() {
            assert!(
                scene.chunks_of(A).is_out(SHOWN) && !scene.is_moving(),
                "after {waited} ms"
            );
            scene.chunks_of(A).check();
            scene.pass(MS);
            waited += 1;
        }
        assert!(waited > 5, "it waited for its turn for {waited} ms");
        assert_eq!(scene.reply(store), Some(&Reply::Done));
        assert!(scene.chunks_of(A).is_instance(GuestPage((DATA / 4096) as u32)));
        assert!(
            scene
                .actions
                .iter()
                .any(|action| matches!(action, Action::Lend(_)))
        );
        scene.copies_end = true;
        scene.end_copy();
        scene.pass(200 * MS);
        assert!(scene.chunks_of(A).place(SHOWN).is_in_vram(), "without the page");
    }
}
