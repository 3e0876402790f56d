//! Chunks that leave because a window is to show a page of them.

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::regs::{Bar0Reg, PbusReg};

use super::scene::{DATA, MIB, MS, Scene};
use super::{A, B};
use crate::config::GpuConfig;
use crate::event::{Action, Event, Reply, RequestId};
use crate::manager::Manager;
use crate::memory::{ChunkNo, GuestPage};

const CHUNK: u64 = 2 * MIB;
/// The chunk that the window is to show pages of, to which the tables lead.
const SHOWN: ChunkNo = ChunkNo((DATA / CHUNK) as u32);

/// Moves of so many bytes at most.
fn config(batch_bytes: u64) -> GpuConfig {
    GpuConfig {
        batch_bytes,
        part_bytes: batch_bytes,
        // Copies take as long as a test lets them.
        copy_budget_ns: 1_000 * MS,
        ..GpuConfig::default()
    }
}

/// A VM whose chunk has left for a window, and its store, which waits for the VM's turn.
fn left(batch_bytes: u64) -> (Scene, RequestId) {
    let mut scene = Scene::with(config(batch_bytes));
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
    (scene, store)
}

/// The store that waits for the page is tried again when its VM has its turn. Were the chunk back by then, it would leave once more, and so on
/// without end; in the end the window would show zeros.
#[test]
fn chunk_that_left_for_a_window_stays_out_until_the_window_shows_it() {
    // All of it in one suspension, and in four.
    for batch_bytes in [CHUNK, CHUNK / 4] {
        let (mut scene, store) = left(batch_bytes);
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
        let page = GuestPage((DATA / SMALL_PAGE) as u32);
        assert!(scene.chunks_of(A).is_instance(page));
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

/// Without a store that waits nobody would let the chunk come back.
#[test]
fn chunk_that_is_kept_out_is_read_with_the_store_that_waits_and_not_without() {
    let load = |state: &str| {
        let (scene, _) = left(CHUNK);
        Manager::load(config(CHUNK), state, scene.manager.into_volatile())
    };
    let (scene, _) = left(CHUNK);
    let state = scene.manager.save();
    assert_eq!(load(&state).map(|loaded| loaded.save()).ok(), Some(state.clone()));
    let (before, waits) = state.split_once(r#""patience":{"Waits":"#).expect("it waits");
    let (_, after) = waits.split_once('}').expect("since some time");
    let calm = format!(r#"{before}"patience":"Calm"{after}"#);
    let error = load(&calm).err().expect("nobody waits").to_string();
    assert!(error.contains("a store that does not wait"), "{error}");
}
