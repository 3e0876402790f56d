//! The host with everything that watches it here: laws, cores that are rewritten, recordings.

use broker::Recorder;
use vgpu::policy::Policy;
use vgpu::{Action, Actions, Event, GpuConfig, HostMemory, Manager, Tick};

use crate::checkers::Violation;
use crate::laws::{Laws, check_equal};
use crate::rewrite::Rewriter;
use sim_host::world;

/// A host whose laws are checked.
pub type World = world::World<Watch>;

/// Looks at the world between any two events.
pub(crate) type Observer = Box<dyn FnMut(&World, &Event)>;

/// Who watches a world.
#[derive(Default)]
pub struct Watch {
    pub(crate) laws: Laws,
    /// Called after each event, when its actions are done.
    pub(crate) observer: Option<Observer>,
    /// Writes and reads the core between events.
    pub(crate) rewriter: Option<Rewriter>,
    /// Takes all events down.
    pub(crate) recorder: Option<Recorder>,
}

impl world::Watch for Watch {
    fn apply(
        &mut self,
        manager: &mut Manager,
        now: Tick,
        event: Event,
        memory: &mut dyn HostMemory,
        actions: &mut Actions,
    ) {
        if let Some(rewriter) = &mut self.rewriter {
            rewriter.before_event(now, manager);
        }
        match &mut self.recorder {
            Some(recorder) => recorder.apply(manager, now, event, memory, actions),
            None => manager.apply(now, event, memory, actions),
        }
    }

    fn after(&mut self, world: &World, event: &Event, actions: &[Action]) {
        self.laws.after(world, event, actions);
        if let Some(observer) = &mut self.observer {
            observer(world, event);
        }
    }
}

/// A host that is recorded from the first event on, under the policy that its settings name; or under one without a name, which is not
/// recorded: a replay could not know it.
pub(crate) fn host(
    vram_bytes: u64,
    config: GpuConfig,
    policy: Option<Box<dyn Policy>>,
    recorder: Option<Recorder>,
) -> World {
    let (manager, recorder) = match policy {
        Some(policy) => (Manager::with_policy(config.clone(), policy), None),
        None => (Manager::new(config.clone()), recorder),
    };
    let watch = Watch {
        recorder,
        ..Watch::default()
    };
    World::with_manager(vram_bytes, config, manager, watch)
}

/// Checks that the core's accounts are the sums of its notices, and that what is in two places is equal.
pub(crate) fn check_sums(world: &World) -> Result<(), Violation> {
    world.watch.laws.check_accounts(world)?;
    check_equal(world)
}
