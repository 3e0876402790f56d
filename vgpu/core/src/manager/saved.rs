//! The manager's state, written and read.
//!
//! ```text
//!            ┌ state: what stands        ──save──► text ──load──┐
//!  Manager ──┤                                                  ├──► Manager
//!            └ volatile: what is under way ──into_volatile──────┘
//! ```
//!
//! *State* is all that a broker must know to go on with its VMs: the VMs with their device units, chunks, queues and
//! address spaces, frames and bus addresses, channels of the card, demands, the move under way with its stage, what
//! leaves, the generator of draws, accounts. *Volatile* is what the card was told or asked and has not answered ([`Lanes`],
//! the look at its interrupts), the wake-up asked for, and a bring-up that is not over. Settings come from the operator
//! at each start, and a policy writes its own state.
//!
//! A wait that is state (a request's, a sync point's, a stage of a move) says what it waits for. So a load without what is
//! volatile can be told what to ask again; nobody does so yet (`[RESTART]` in `docs/todo.md`).

use serde::{Deserialize, Serialize};

use super::running::{self, Running};
use super::{Manager, Phase};
use crate::account::Accounts;
use crate::config::{GpuConfig, VmConfig};
use crate::event::VmId;
use crate::host::card::Lanes;
use crate::policy::Policy;
use crate::reason::{CardOperation, StartFailure};
use crate::saved::{FORMAT, LoadError, Unsound};

/// The part that every version writes first.
#[derive(Deserialize)]
struct Header {
    vramd_state: u32,
}

/// The text: of what it holds, or of what it borrows.
#[derive(Serialize, Deserialize)]
struct Saved<Early, Sums, Up> {
    vramd_state: u32,
    policy: String,
    early: Early,
    accounts: Sums,
    card: SavedCard<Up>,
}

#[derive(Serialize, Deserialize)]
enum SavedCard<Up> {
    /// It is being brought up, which begins anew if what is volatile is lost.
    Starting,
    Failed(StartFailure),
    Lost(CardOperation),
    Up(Up),
}

/// The parts of a manager beside its state.
#[derive(Default)]
pub struct Volatile {
    inner: Inner,
}

#[derive(Default)]
enum Inner {
    /// Nothing is under way: the card cannot be used.
    #[default]
    Nothing,
    /// The card is not up yet.
    Starting(Box<Phase>),
    Up(Box<(running::Volatile, Lanes)>),
}

impl std::fmt::Debug for Volatile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volatile").finish_non_exhaustive()
    }
}

impl Manager {
    /// The state as text. [`Manager::load`] reads it.
    pub fn save(&self) -> String {
        let policy = match &self.phase {
            Phase::Up(running) => Some(&running.policy),
            _ => self.policy.as_ref(),
        };
        let saved = Saved {
            vramd_state: FORMAT,
            policy: policy.map_or_else(String::new, |policy| policy.save()),
            early: &self.early,
            accounts: &self.accounts,
            card: match &self.phase {
                Phase::Waiting | Phase::Identifying { .. } | Phase::Programming { .. } => SavedCard::Starting,
                Phase::Failed(failure) => SavedCard::Failed(failure.clone()),
                Phase::Lost(operation) => SavedCard::Lost(*operation),
                Phase::Up(running) => SavedCard::Up(running),
            },
        };
        serde_json::to_string(&saved).expect("numbers, names, lists, and maps by numbers or names")
    }

    /// What the state does not have. The manager is of no use afterwards.
    pub fn into_volatile(self) -> Volatile {
        let inner = match self.phase {
            Phase::Failed(_) | Phase::Lost(_) => Inner::Nothing,
            Phase::Up(running) => Inner::Up(Box::new((running.volatile, running.card.lanes))),
            starting => Inner::Starting(Box::new(starting)),
        };
        Volatile { inner }
    }

    /// A manager with the state of another one, under the policy that the settings name. `volatile` is that other one's:
    /// then it goes on as that would have.
    ///
    /// # Errors
    /// The text is not what [`Manager::save`] writes, or does not fit the settings or `volatile`.
    pub fn load(config: GpuConfig, text: &str, volatile: Volatile) -> Result<Self, LoadError> {
        let policy = config.policy.policy(&config);
        Self::load_with_policy(config, policy, text, volatile)
    }

    /// The same under a policy that settings do not name, which is new.
    ///
    /// # Errors
    /// As for [`Manager::load`].
    pub fn load_with_policy(
        config: GpuConfig,
        mut policy: Box<dyn Policy>,
        text: &str,
        volatile: Volatile,
    ) -> Result<Self, LoadError> {
        let Header { vramd_state: found } = serde_json::from_str(text).map_err(LoadError::Malformed)?;
        if found != FORMAT {
            return Err(LoadError::Format { found });
        }
        let saved: Saved<Vec<(VmId, VmConfig)>, Accounts, Box<Running>> =
            serde_json::from_str(text).map_err(LoadError::Malformed)?;
        policy
            .restore(&saved.policy)
            .map_err(|reason| LoadError::Policy { reason })?;
        let mut manager = Self::with_policy(config, policy);
        manager.early = saved.early;
        manager.accounts = saved.accounts;
        if let SavedCard::Up(running) = &saved.card {
            running.check(&manager.config)?;
            Unsound::unless(
                running.vms.keys().eq(manager.accounts.vms()),
                "each VM has an account, and nobody else",
            )?;
        }
        manager.phase = match (saved.card, volatile.inner) {
            (SavedCard::Starting, Inner::Starting(phase)) => *phase,
            (SavedCard::Failed(failure), Inner::Nothing) => Phase::Failed(failure),
            (SavedCard::Lost(operation), Inner::Nothing) => Phase::Lost(operation),
            (SavedCard::Up(mut running), Inner::Up(volatile)) => {
                (running.volatile, running.card.lanes) = *volatile;
                running.config.clone_from(&manager.config);
                if let Some(policy) = manager.policy.take() {
                    running.policy = policy;
                }
                Phase::Up(running)
            }
            _ => return Err(LoadError::Volatile),
        };
        Ok(manager)
    }
}
