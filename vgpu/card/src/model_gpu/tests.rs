//! The adapter as a broker uses it.

use std::time::{Duration, Instant};

use fermi_spec::addr::{FRAME, GuestVramAddr};
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbusReg, PtimerReg};
use vgpu::VmId;

use super::*;

const VM_A: VmId = VmId(0);
const VM_B: VmId = VmId(1);

fn card() -> ModelGpu {
    ModelGpu::new(CardConfig {
        board: Board::Gtx480,
        vram_bytes: 16 << 20,
        needs_microcode: false,
        strict: false,
        paced: false,
        workers: 0,
    })
    .unwrap()
}

fn vm(vm: VmId, at: u64) -> FrameOwner {
    FrameOwner::Vm {
        vm,
        at: GuestVramAddr(at),
    }
}

fn write_register(card: &mut ModelGpu, register: impl Into<Bar0Reg>, value: u32) {
    card.write(Bar::Bar0, register.into().offset().into(), &value.to_le_bytes())
        .unwrap();
}

/// Points PRAMIN at the start of a frame.
fn look_at(card: &mut ModelGpu, frame: FrameNo) {
    write_register(
        card,
        PbusReg::PraminBase,
        ((u64::from(frame.0) * FRAME) >> 16) as u32,
    );
}

fn read_window(card: &mut ModelGpu, offset: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0x55; bytes];
    card.read(Bar::Bar0, u64::from(PRAMIN_BASE) + offset, &mut data)
        .unwrap();
    data
}

#[test]
fn frame_moved_between_owners_reads_zero_and_leaves_no_byte() {
    let mut card = card();
    card.place_frames(&[FrameNo(3)], vm(VM_A, 0)).unwrap();
    card.place_frames(&[FrameNo(4)], vm(VM_A, FRAME)).unwrap();
    look_at(&mut card, FrameNo(3));
    card.write(Bar::Bar0, PRAMIN_BASE.into(), &[7; 64]).unwrap();
    assert_eq!(read_window(&mut card, 0, 64), [7; 64]);
    assert_eq!(card.frames.held_bytes(VM_A), Some(4096));
    card.place_frames(&[FrameNo(3)], vm(VM_B, 2 * FRAME)).unwrap();
    assert_eq!(read_window(&mut card, 0, 64), [0; 64]);
    // A thread clears the pages.
    let start = std::time::Instant::now();
    while card.frames.peek(VM_A, 0) != 0 {
        assert!(start.elapsed().as_secs() < 10, "still not");
        std::thread::yield_now();
    }
}

#[test]
fn free_frame_is_nowhere() {
    let mut card = card();
    card.place_frames(&[FrameNo(3)], FrameOwner::Broker).unwrap();
    card.place_frames(&[FrameNo(3)], FrameOwner::Free).unwrap();
    look_at(&mut card, FrameNo(3));
    card.write(Bar::Bar0, PRAMIN_BASE.into(), &[7; 8]).unwrap();
    assert_eq!(read_window(&mut card, 0, 8), [0xff; 8]);
}

#[test]
fn unaligned_access_to_registers_is_cut_into_aligned_pieces() {
    let mut card = card();
    card.place_frames(&[FrameNo(0)], FrameOwner::Broker).unwrap();
    look_at(&mut card, FrameNo(0));
    card.write(Bar::Bar0, u64::from(PRAMIN_BASE) + 3, &[1, 2, 3, 4, 5, 6, 7])
        .unwrap();
    assert_eq!(read_window(&mut card, 2, 9), [0, 1, 2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn time_of_an_idle_card_goes_on() {
    let mut card = card();
    let mut word = [0; 4];
    let mut time = || {
        card.read(Bar::Bar0, PtimerReg::PtimerLow.offset().into(), &mut word)
            .unwrap();
        u32::from_le_bytes(word)
    };
    let before = time();
    let deadline = Instant::now() + Duration::from_secs(20);
    // Nothing but the host's clock moves it; the bound only keeps a card that stands still from hanging the test.
    while time().wrapping_sub(before) < 5_000_000 {
        assert!(Instant::now() < deadline, "the card's time stands still");
    }
}

#[test]
fn unmap_of_what_is_not_mapped_is_refused() {
    let refused = card().unmap_dma(Iova(0x1000), 0x1000);
    assert!(matches!(refused, Err(HostGpuError::Map { .. })));
}

#[test]
fn dropped_card_leaves_no_thread() {
    let card = card();
    // Held by the model, which the thread holds.
    let maps = Arc::downgrade(&card.maps);
    drop(card);
    assert!(maps.upgrade().is_none());
}
