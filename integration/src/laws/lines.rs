//! Interrupt lines of VMs, by what their VMMs asked and were told. The mask is kept here anew: it shares nothing with the core's.

use std::collections::{BTreeMap, BTreeSet};

use vgpu::{Action, Audit, Event, InterruptKind, Reply, Request, RequestId, VmId};

use crate::checkers::Violation;

/// What VMMs have masked.
#[derive(Default)]
pub(super) struct Lines {
    /// Requests for a mask that are not answered.
    asked: BTreeMap<(VmId, RequestId), bool>,
    /// VMs whose VMM waits for a signal of INTx.
    open: BTreeSet<VmId>,
    /// VMs that leave: they are told nothing any more.
    leaving: BTreeSet<VmId>,
}

impl Lines {
    /// Looks at what was asked and done.
    pub(super) fn after(&mut self, event: &Event, actions: &[Action]) -> Result<(), Violation> {
        match *event {
            Event::Attach { vm, .. } => {
                self.open.remove(&vm);
                self.leaving.remove(&vm);
            }
            Event::Detach { vm } => {
                self.leaving.insert(vm);
                self.asked.retain(|(of, _), _| *of != vm);
            }
            Event::Request {
                vm,
                id,
                request: Request::MaskIntx { masked },
            } => {
                self.asked.insert((vm, id), masked);
            }
            _ => {}
        }
        for action in actions {
            match action {
                Action::Reply { vm, request, reply } => {
                    let asked = self.asked.remove(&(*vm, *request));
                    match asked.filter(|_| *reply == Reply::Done) {
                        Some(true) => drop(self.open.remove(vm)),
                        Some(false) => drop(self.open.insert(*vm)),
                        None => {}
                    }
                }
                Action::Interrupt {
                    vm,
                    kind: InterruptKind::Intx,
                } if !self.open.remove(vm) => {
                    return Err(Violation(format!("{vm} is told of its INTx, which is masked")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that no line is up of which a VMM that waits was not told.
    pub(super) fn check(&self, audit: &Audit) -> Result<(), Violation> {
        let mut vms = audit.vms.iter().filter(|of| of.wants_intx);
        let untold = vms.find(|of| self.open.contains(&of.vm) && !self.leaving.contains(&of.vm));
        match untold {
            Some(of) => Err(Violation(format!(
                "the interrupt line of {} is up, and its VMM waits for INTx",
                of.vm
            ))),
            None => Ok(()),
        }
    }
}
