//! What an operator looks into: the state of what decides, and what happened last to a VM.

use vgpu::VmId;
use vgpu::flight_recorder::Excerpt;
use vgpu::inspect::Node;

use crate::broker::Broker;
use crate::error::Ended;
use crate::perform::Performer;

/// A part of the state of what decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatePart {
    /// What is there.
    pub node: Node,
    /// Whether there was more than is shown at a time.
    pub is_cut: bool,
}

/// Why nothing is shown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookRefusal {
    /// No VM has that name.
    #[error("there is no vm {name:?}")]
    NoSuchVm {
        /// What was asked for.
        name: String,
    },
    /// There is nothing of it in the core.
    #[error("it is not connected, so there is nothing to look into")]
    NotConnected,
    /// The state has no such part.
    #[error("the state has nothing at this path")]
    NothingThere,
}

impl Broker {
    /// Asks for the state of what decides, at a path such as `card/arena`; of the VM of a name alone if one is named, at a path
    /// such as `chunks/list`. How much is shown at a time is bounded, see [`vgpu::inspect`]. `answer` is called on the event loop's
    /// thread, and must not wait; it is dropped if the broker ends before.
    pub fn ask_state(
        &self,
        vm: Option<String>,
        path: String,
        answer: impl FnOnce(Result<StatePart, LookRefusal>) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let of_vm = vm.map(|name| performer.looked_at(&name)).transpose();
            let found = of_vm.map(|vm| {
                let path = match vm {
                    Some(vm) => format!("vms/{vm}/{path}"),
                    None => path,
                };
                (performer.inspect(&path), path)
            });
            // The part is taken out of the tree without the lock.
            Box::new(move || answer(found.and_then(|(root, path)| part(root, &path))))
        })
    }

    /// Asks for what happened last to the VM of a name, `most` entries at most: the newest, or what came after the place
    /// [`Excerpt::until`] of an answer before. `answer` as above.
    pub fn ask_trace(
        &self,
        vm: String,
        after: Option<u64>,
        most: usize,
        answer: impl FnOnce(Result<Excerpt, LookRefusal>) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let excerpt = performer
                .looked_at(&vm)
                .map(|vm| performer.excerpt(vm, after, most));
            Box::new(move || answer(excerpt))
        })
    }
}

fn part(root: Option<Node>, path: &str) -> Result<StatePart, LookRefusal> {
    let root = root.ok_or(LookRefusal::NothingThere)?;
    let is_cut = root.at("is_cut").is_some();
    let node = root.into_at(path).ok_or(LookRefusal::NothingThere)?;
    Ok(StatePart { node, is_cut })
}

impl Performer {
    fn looked_at(&self, name: &str) -> Result<VmId, LookRefusal> {
        if let Some((vm, _)) = self.attached_named(name) {
            return Ok(vm);
        }
        Err(match self.roster.config(name) {
            Some(_) => LookRefusal::NotConnected,
            None => LookRefusal::NoSuchVm {
                name: name.to_owned(),
            },
        })
    }
}
