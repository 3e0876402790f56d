//! A client that manages its own addresses: VM_INIT, VM_BIND and EXEC.

use std::path::Path;

use anyhow::Result;

use crate::device::{Device, Object};
use crate::uapi::{self, Exec, ExecPush, Sync, VmBind, VmBindOp, address_of};

/// Where the kernel maps its own buffers of such a client: the upper half of 40 bits, which is more than it needs.
const KERNEL_ADDRESS: u64 = 1 << 39;
/// Bytes of that region; the last page of 40 bits stays out of it.
const KERNEL_BYTES: u64 = 1 << 38;

/// Opens the card and takes its address space into our own hands.
pub(crate) fn open(path: &Path) -> Result<Device> {
    let device = Device::open(path)?;
    device.init_address_space(KERNEL_ADDRESS, KERNEL_BYTES)?;
    Ok(device)
}

/// Maps `bytes` of `object` from `object_offset` at `address`.
pub(crate) fn map(object: &Object, object_offset: u64, address: u64, bytes: u64) -> VmBindOp {
    VmBindOp {
        op: uapi::BIND_MAP,
        handle: object.handle(),
        address,
        object_offset,
        bytes,
        ..VmBindOp::default()
    }
}

/// Unmaps whatever is at `address`.
pub(crate) fn unmap(address: u64, bytes: u64) -> VmBindOp {
    VmBindOp {
        op: uapi::BIND_UNMAP,
        address,
        bytes,
        ..VmBindOp::default()
    }
}

/// Does `operations` now.
pub(crate) fn bind(device: &Device, operations: &[VmBindOp]) -> Result<()> {
    bind_with(device, operations, 0, &[], &[])
}

/// Does `operations` once `waits` are signaled, then signals `signals`.
pub(crate) fn bind_later(
    device: &Device,
    operations: &[VmBindOp],
    waits: &[Sync],
    signals: &[Sync],
) -> Result<()> {
    bind_with(device, operations, uapi::BIND_ASYNC, waits, signals)
}

fn bind_with(
    device: &Device,
    operations: &[VmBindOp],
    flags: u32,
    waits: &[Sync],
    signals: &[Sync],
) -> Result<()> {
    let mut message = VmBind {
        op_count: operations.len() as u32,
        flags,
        wait_count: waits.len() as u32,
        signal_count: signals.len() as u32,
        waits: address_of(waits),
        signals: address_of(signals),
        ops: address_of(operations),
    };
    device.call(&uapi::VM_BIND, &mut message)
}

/// Executes `pushes` on the channel once `waits` are signaled, then signals `signals`.
pub(crate) fn execute(
    device: &Device,
    channel: i32,
    pushes: &[ExecPush],
    waits: &[Sync],
    signals: &[Sync],
) -> Result<()> {
    let mut message = Exec {
        channel: channel as u32,
        push_count: pushes.len() as u32,
        wait_count: waits.len() as u32,
        signal_count: signals.len() as u32,
        waits: address_of(waits),
        signals: address_of(signals),
        pushes: address_of(pushes),
    };
    device.call(&uapi::EXEC, &mut message)
}
