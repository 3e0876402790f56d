//! Cores that are written and read in the midst of what they do: the one that comes out must go on as the one that went
//! in would have.

use broker::Core;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vgpu::inspect::Node;
use vgpu::policy::Policy;
use vgpu::{Actions, Event, GpuConfig, HostMemory, LoadError, Manager, Tick, Volatile};

/// Before which events a core is written and read.
#[derive(Clone, Copy, Debug)]
pub enum Rewrites {
    /// Before each n-th one.
    Every(u64),
    /// Before one in so many, drawn from a seed.
    Drawn {
        /// Seed of the draws, which nobody else uses.
        seed: u64,
        /// One event in so many, about.
        one_in: u32,
    },
}

/// Writes and reads a core.
pub struct Rewriter {
    when: Rewrites,
    rng: ChaCha8Rng,
    events: u64,
    config: GpuConfig,
    /// Makes a policy that remembers nothing yet, where the settings name none.
    policy: Option<fn() -> Box<dyn Policy>>,
    /// How often the core was written and read.
    pub done: u64,
    /// Texts with one wrong number that were refused.
    pub refused: u64,
}

impl Rewriter {
    /// For a core with these settings, under the policy that they name or under one that `policy` makes anew.
    pub fn new(when: Rewrites, config: &GpuConfig, policy: Option<fn() -> Box<dyn Policy>>) -> Self {
        let seed = match when {
            Rewrites::Every(_) => 0,
            Rewrites::Drawn { seed, .. } => seed,
        };
        Self {
            when,
            rng: ChaCha8Rng::seed_from_u64(seed),
            events: 0,
            config: config.clone(),
            policy,
            done: 0,
            refused: 0,
        }
    }

    /// Called before each event; writes and reads the core before some.
    pub(crate) fn before_event(&mut self, now: Tick, manager: &mut Manager) {
        self.events += 1;
        let is_due = match self.when {
            Rewrites::Every(every) => self.events.is_multiple_of(every),
            Rewrites::Drawn { one_in, .. } => self.rng.random_range(0..one_in) == 0,
        };
        if is_due {
            self.rewrite(now, manager).expect("the core reads what it wrote");
            self.done += 1;
        }
    }

    fn load(&self, text: &str, volatile: Volatile) -> Result<Manager, LoadError> {
        let config = self.config.clone();
        match self.policy {
            Some(policy) => Manager::load_with_policy(config, policy(), text, volatile),
            None => Manager::load(config, text, volatile),
        }
    }

    /// Reads a text in which one number stands for another. It is refused, or nobody can tell that it is wrong; a panic it
    /// is not.
    fn read_wrong(&mut self, text: &str) {
        let is_digit = |at: &usize| text.as_bytes()[*at].is_ascii_digit();
        let numbers: Vec<usize> = (1..text.len())
            .filter(|at| is_digit(at) && !is_digit(&(at - 1)))
            .collect();
        let at = numbers[self.rng.random_range(0..numbers.len())];
        let end = (at..text.len()).find(|at| !is_digit(at)).unwrap_or(text.len());
        let others = [
            0,
            1,
            7,
            4096,
            u64::from(u32::MAX),
            1 << 40,
            u64::MAX - 4095,
            u64::MAX,
        ];
        let other = others[self.rng.random_range(0..others.len())];
        let wrong = format!("{}{other}{}", &text[..at], &text[end..]);
        match self.load(&wrong, Volatile::default()) {
            Err(LoadError::Volatile) => {}
            Err(_) => self.refused += 1,
            // A card that cannot be used, which has nothing under way.
            Ok(_) => {}
        }
    }

    fn rewrite(&mut self, now: Tick, manager: &mut Manager) -> Result<(), LoadError> {
        let shown = manager.inspect(now, "");
        let text = manager.save();
        self.read_wrong(&text);
        let volatile = std::mem::replace(manager, Manager::new(self.config.clone())).into_volatile();
        *manager = self.load(&text, volatile)?;
        assert!(
            manager.save() == text,
            "a state that was read is written otherwise"
        );
        // What a text leaves out it leaves out again; what people see does not depend on it.
        assert_eq!(
            manager.inspect(now, ""),
            shown,
            "what was read is not what was written"
        );
        Ok(())
    }
}

/// A core that is written and read now and then, for a replay.
pub struct Rewritten {
    /// The core as it is now.
    pub manager: Manager,
    /// What writes and reads it, if anything does.
    pub rewriter: Option<Rewriter>,
}

impl Core for Rewritten {
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        if let Some(rewriter) = &mut self.rewriter {
            rewriter.before_event(now, &mut self.manager);
        }
        self.manager.apply(now, event, memory, actions);
    }

    fn inspect(&self, now: Tick, path: &str) -> Option<Node> {
        self.manager.inspect(now, path)
    }
}
