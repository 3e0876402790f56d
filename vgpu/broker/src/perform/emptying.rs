//! Images that are emptied at a reset, by the VM's own reaper: to free pages takes time for each, and all VMs would wait.
//!
//! ```text
//!  (Open) ──Reset──► (Resetting: what follows is held back) ──answered, image emptied──► (Open), and what was held back
//! ```
//!
//! The core takes the image for empty from the reset's end on. So nothing of the VM that could reach its image gets to
//! the core before it is: whatever it asks for behind a reset waits here, in order.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use fermi_spec::addr::GuestVramAddr;
use vfio_user_server::Leftover;
use vgpu::{Event, Request, RequestId, VmId};

use super::Performer;
use crate::mapping::punch_hole;
use crate::remote::Waker;

/// The largest part of an image that is emptied at once, under the lock: the largest chunk. More than that is emptied at
/// resets alone. Bytes.
const AT_ONCE_MAX: u64 = 64 << 20;

/// The requests of a VM that wait for the end of a reset.
#[derive(Debug, Default)]
pub(crate) struct Emptying {
    /// The reset that is not answered yet.
    reset: Option<RequestId>,
    /// The image is being emptied.
    is_under_way: bool,
    held_back: VecDeque<(RequestId, Request)>,
}

impl Emptying {
    fn is_open(&self) -> bool {
        self.reset.is_none() && !self.is_under_way
    }

    /// The request, if the core may have it now.
    pub(super) fn admit(&mut self, id: RequestId, request: Request) -> Option<Request> {
        if !self.is_open() {
            self.held_back.push_back((id, request));
            return None;
        }
        if matches!(request, Request::Reset) {
            self.reset = Some(id);
        }
        Some(request)
    }

    /// The core has answered a request. Returns those that it may have now.
    pub(super) fn answered(&mut self, id: RequestId) -> Vec<(RequestId, Request)> {
        if self.reset == Some(id) {
            self.reset = None;
            return self.next();
        }
        Vec::new()
    }

    /// What may go on: up to the next reset.
    fn next(&mut self) -> Vec<(RequestId, Request)> {
        let mut next = Vec::new();
        while self.is_open() {
            let Some((id, request)) = self.held_back.pop_front() else {
                break;
            };
            next.extend(self.admit(id, request).map(|request| (id, request)));
        }
        next
    }
}

/// What reapers have emptied, by VM and its serial, with what went wrong.
#[derive(Debug, Default)]
pub(super) struct Emptied(Mutex<Vec<(VmId, u64, std::io::Result<()>)>>);

/// A part of an image to be emptied.
struct Empty {
    file: Arc<File>,
    range: (u64, u64),
    vm: (VmId, u64),
    emptied: Arc<Emptied>,
    waker: Arc<Waker>,
}

impl Leftover for Empty {
    fn let_go(&mut self) -> bool {
        let done = punch_hole(&self.file, self.range.0, self.range.1);
        let mut emptied = self.emptied.0.lock().unwrap_or_else(PoisonError::into_inner);
        emptied.push((self.vm.0, self.vm.1, done));
        drop(emptied);
        self.waker.wake();
        true
    }
}

impl Performer {
    /// Gives image memory back: at once, or a large part by the VM's reaper.
    pub(super) fn drop_image(&mut self, vm: VmId, at: GuestVramAddr, bytes: u64) {
        if let Err(error) = self.memory.forget_image(vm, at, bytes) {
            let reason = format!("its windows cannot be emptied: {error}");
            self.expulsions.push((vm, reason));
        }
        let reset = self
            .vms
            .get_mut(&vm)
            .filter(|entry| entry.emptying.reset.is_some());
        if let (Some(entry), Some(file), true) = (reset, self.memory.image(vm), bytes > AT_ONCE_MAX) {
            entry.emptying.is_under_way = true;
            entry.reaper.leave(Empty {
                file,
                range: (at.0, bytes),
                vm: (vm, entry.serial),
                emptied: self.emptied.clone(),
                waker: self.waker.clone(),
            });
            return;
        }
        let dropped = self.memory.drop_image(vm, at, bytes);
        self.tell_undropped(bytes, dropped);
    }

    fn tell_undropped(&mut self, bytes: u64, dropped: std::io::Result<()>) {
        if let Err(error) = dropped {
            self.failed(
                None,
                &format!("cannot give back {bytes:#x} bytes of image: {error}"),
            );
        }
    }

    /// Lets VMs go on whose images are empty by now.
    pub(crate) fn take_emptied(&mut self) {
        let emptied = std::mem::take(&mut *self.emptied.0.lock().unwrap_or_else(PoisonError::into_inner));
        if emptied.is_empty() {
            return;
        }
        for (vm, serial, done) in emptied {
            // One that has left meanwhile has no image any more.
            let entry = self.vms.get_mut(&vm).filter(|entry| entry.serial == serial);
            let Some(entry) = entry else { continue };
            entry.emptying.is_under_way = false;
            let next = entry.emptying.next();
            self.tell_undropped(0, done);
            self.go_on(vm, next);
        }
        self.run();
    }

    /// Passes requests on that were held back.
    pub(super) fn go_on(&mut self, vm: VmId, requests: Vec<(RequestId, Request)>) {
        let event = |(id, request)| Event::Request { vm, id, request };
        self.queue.extend(requests.into_iter().map(event));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use fermi_spec::bar::Bar;

    use super::*;
    use crate::broker::Broker;
    use crate::testing::{FakeGpu, TestCore, setup, vm_config};

    /// Keeps a reaper's thread busy until it is told.
    struct Wait(Receiver<()>);

    impl Leftover for Wait {
        fn let_go(&mut self) -> bool {
            let _ = self.0.recv();
            true
        }
    }

    #[test]
    fn image_of_a_reset_is_emptied_by_another_thread_before_its_vm_goes_on_and_nobody_else_waits() {
        let broker = Broker::start(setup(TestCore::default(), &FakeGpu::default(), None)).unwrap();
        let resetting = broker.attach(vm_config("resetting")).unwrap();
        let neighbour = broker.attach(vm_config("neighbour")).unwrap();
        let (go, gone) = channel::<()>();
        broker.reaper().leave(Wait(gone));
        // Answered, while the thread that empties is busy.
        resetting.reset().unwrap();
        let (told, tells) = channel();
        let reader = std::thread::spawn(move || {
            let mut data = [0; 4];
            let read = resetting.read(Bar::Bar0, 0, &mut data).map(|()| data);
            told.send(()).unwrap();
            (read, resetting)
        });
        (0..100).for_each(|_| neighbour.read(Bar::Bar0, 0, &mut [0; 4]).unwrap());
        assert!(
            tells.recv_timeout(Duration::from_millis(50)).is_err(),
            "it went on"
        );
        go.send(()).unwrap();
        let (read, resetting) = reader.join().unwrap();
        assert_eq!(read.unwrap(), [0, 1, 2, 3]);
        // One that leaves while it is being emptied is gone all the same.
        let (_go, gone) = channel::<()>();
        broker.reaper().leave(Wait(gone));
        resetting.reset().unwrap();
        let start = Instant::now();
        resetting.detach().unwrap();
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }

    #[test]
    fn requests_behind_resets_keep_their_order() {
        let read = |offset| Request::ReadConfig { offset, bytes: 4 };
        let mut emptying = Emptying::default();
        assert!(emptying.admit(RequestId(1), Request::Reset).is_some());
        assert!(emptying.admit(RequestId(2), read(2)).is_none());
        assert!(emptying.admit(RequestId(3), Request::Reset).is_none());
        assert!(emptying.admit(RequestId(4), read(4)).is_none());
        let ids = |next: Vec<(RequestId, Request)>| next.iter().map(|(id, _)| id.0).collect::<Vec<_>>();
        assert_eq!(ids(emptying.answered(RequestId(7))), [0u64; 0]);
        emptying.is_under_way = true;
        assert_eq!(ids(emptying.answered(RequestId(1))), [0u64; 0]);
        emptying.is_under_way = false;
        assert_eq!(ids(emptying.next()), [2, 3]);
        assert_eq!(ids(emptying.answered(RequestId(3))), [4]);
        assert!(emptying.admit(RequestId(5), read(5)).is_some());
    }
}
