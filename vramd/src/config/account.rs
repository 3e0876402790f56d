//! Users and groups in `host.toml`: numbers, or names that the host knows.

use serde::Deserialize;
use toml::Spanned;
use vmm::sandbox::accounts::{AccountError, Kind, id_of};
use vramd_vm::config::Wrong;

/// One as it is written.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "a number, or a name in quotes")]
pub(super) enum Account {
    Number(u32),
    Name(String),
}

impl Account {
    fn id(&self, kind: Kind) -> Result<u32, AccountError> {
        match self {
            Account::Number(u32::MAX) => Err(AccountError::Number(kind)),
            Account::Number(number) => Ok(*number),
            Account::Name(name) => id_of(kind, name),
        }
    }
}

/// The number of one, if there is one.
pub(super) fn id(value: &Option<Spanned<Account>>, kind: Kind, field: &str) -> Result<Option<u32>, Wrong> {
    let id = |value: &Spanned<Account>| {
        let id = value.get_ref().id(kind);
        id.map_err(|reason| Wrong::new(value.span(), field, reason.to_string()))
    };
    value.as_ref().map(id).transpose()
}

/// The numbers of users, at least one.
pub(super) fn uids(values: &Spanned<Vec<Account>>, field: &str) -> Result<Vec<u32>, Wrong> {
    let wrong = |reason: String| Wrong::new(values.span(), field, reason);
    let ids = values.get_ref().iter().map(|user| user.id(Kind::User));
    let ids = ids
        .collect::<Result<Vec<_>, _>>()
        .map_err(|reason| wrong(reason.to_string()))?;
    match ids.is_empty() {
        true => Err(wrong("nobody could connect".to_owned())),
        false => Ok(ids),
    }
}
