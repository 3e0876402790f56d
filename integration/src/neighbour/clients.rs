//! What a VMM does that wants its VM's neighbour to stand still, by messages and descriptors that no honest one sends.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use fermi_spec::regs::{PffbReg, PmcReg, pffb};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use super::Place;
use super::attacks::again;
use crate::commands::SET_IRQS;
use crate::raw_client::RawClient;

/// BAR0 of the vGPU as a region.
const BAR0: u32 = 0;
/// The region and the interrupt index by which doorbells trap (`docs/vfio-user.md`), what a SET_IRQS for it says, and how often it is said at a time.
const DEVICE_SPECIFIC_REGION: u32 = 9;
const DEVICE_SPECIFIC_IRQ: u32 = 5;
const IRQ_DATA_EVENTFD: u32 = 1 << 2;
const IRQ_ACTION_UNMASK: u32 = 1 << 4;
const IRQ_ACTION_TRIGGER: u32 = 1 << 5;
const TRAPS: usize = 8;
/// The interrupt index of INTx, and signals to one eventfd.
const INTX_IRQ: u32 = 0;
const UNMASKS: usize = 1000;
/// Loads that a client has under way, and stores in one of its batches.
const READS: usize = 48;
const BATCH: usize = 200;
/// Bytes that a client maps and leaves.
const RAM: u64 = 1 << 30;

/// Keeps as many loads under way as a client may, and batches of flushes between them.
pub(super) fn messages(place: &Place) -> Result<()> {
    again(place, || {
        let mut client = RawClient::connect(&place.socket)?;
        let stores = [(
            PffbReg::TlbInvalidate.offset(),
            pffb::TLB_GO | pffb::TLB_ALL_PAGES,
        ); BATCH];
        while !place.is_over() {
            for _ in 0..READS {
                client.read(BAR0, u64::from(PmcReg::Boot0.offset()), 4)?;
            }
            client.write_many(&stores)?;
            for _ in 0..=READS {
                client.reply()?;
            }
            place.meter.count_block();
        }
        Ok(())
    })
}

/// A client that says all the time that a store has trapped, by eventfds that it replaces, and says all the time that stores trap.
pub(super) fn doorbell_traps(place: &Place) -> Result<()> {
    again(place, || {
        let mut client = RawClient::connect(&place.socket)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        while !place.is_over() {
            for action in [IRQ_ACTION_TRIGGER, IRQ_ACTION_UNMASK].repeat(TRAPS) {
                let event = eventfd(1 << 16, flags).context("cannot make an eventfd")?;
                let words = [20, IRQ_DATA_EVENTFD | action, DEVICE_SPECIFIC_IRQ, 0, 1];
                let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                client.send(SET_IRQS, &body, &[event])?;
                client.read(DEVICE_SPECIFIC_REGION, 0, 16)?;
                client.write(DEVICE_SPECIFIC_REGION, 0, &[0; 8])?;
            }
            for _ in 0..6 * TRAPS {
                client.reply()?;
            }
            place.meter.count_block();
        }
        Ok(())
    })
}

/// A client that says all the time that its interrupt line is to be unmasked, in turns by eventfds that it replaces.
pub(super) fn unmasks(place: &Place) -> Result<()> {
    again(place, || {
        let mut client = RawClient::connect(&place.socket)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let connect = |client: &mut RawClient, action, event: OwnedFd| {
            let words = [20, IRQ_DATA_EVENTFD | action, INTX_IRQ, 0, 1];
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            client.send(SET_IRQS, &body, &[event])?;
            client.reply()
        };
        let raised = eventfd(0, flags).context("cannot make an eventfd")?;
        connect(&mut client, IRQ_ACTION_TRIGGER, raised)?;
        while !place.is_over() {
            let ended = eventfd(1, flags).context("cannot make an eventfd")?;
            let ours = ended.try_clone().context("cannot clone an eventfd")?;
            connect(&mut client, IRQ_ACTION_UNMASK, ended)?;
            for _ in 0..UNMASKS {
                // A full counter says the same.
                let _ = rustix::io::write(&ours, &1u64.to_ne_bytes());
            }
            place.meter.count_block();
        }
        Ok(())
    })
}

/// Memory that a client maps and leaves behind with its connection.
pub(super) fn large_ram(place: &Place) -> Result<()> {
    again(place, || {
        let mut client = RawClient::connect(&place.socket)?;
        let file = memfd_create("large", MemfdFlags::CLOEXEC).context("cannot make a file")?;
        ftruncate(&file, RAM).context("cannot make a file")?;
        fallocate(&file, FallocateFlags::empty(), 0, RAM).context("cannot fill a file")?;
        client.map(0, RAM, &[file])?;
        client.reply()?;
        place.meter.count_block();
        Ok(())
    })
}
