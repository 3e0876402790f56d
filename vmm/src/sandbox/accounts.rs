//! Users and groups of the host, by name or by number.
//!
//! A name is looked up once. A broker that rereads its configuration when it is confined can open none of the host's files of users any
//! more, and still knows the names that it was started with.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;

/// What a name is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// `/etc/passwd` and the like.
    User,
    /// `/etc/group` and the like.
    Group,
}

/// Why a name or number is nobody.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccountError {
    /// The last number stands for "no change".
    #[error("there is no such number: a {0} has one up to 4294967294")]
    Number(Kind),
    /// The host does not know the name.
    #[error("there is no {kind} {name:?} on this host: name one that `getent {}` lists, or give a number", kind.database())]
    Unknown {
        /// What was looked for.
        kind: Kind,
        /// By this name.
        name: String,
    },
    /// The host was not able to say.
    #[error("cannot look up {kind} {name:?}: {errno}; give a number")]
    Lookup {
        /// What was looked for.
        kind: Kind,
        /// By this name.
        name: String,
        /// What the host said.
        errno: Errno,
    },
}

impl Kind {
    fn database(self) -> &'static str {
        match self {
            Kind::User => "passwd",
            Kind::Group => "group",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::User => "user",
            Kind::Group => "group",
        })
    }
}

/// Names that were looked up.
static KNOWN: Mutex<BTreeMap<(Kind, String), u32>> = Mutex::new(BTreeMap::new());

/// The number of a user or group. What is a number in itself is looked up nowhere.
pub fn id_of(kind: Kind, text: &str) -> Result<u32, AccountError> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = text.parse().ok().filter(|number| *number != u32::MAX);
        return number.ok_or(AccountError::Number(kind));
    }
    let key = (kind, text.to_owned());
    let known = KNOWN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
        .copied();
    if let Some(id) = known {
        return Ok(id);
    }
    let name = || text.to_owned();
    let found = match kind {
        Kind::User => nix::unistd::User::from_name(text).map(|user| user.map(|user| user.uid.as_raw())),
        Kind::Group => nix::unistd::Group::from_name(text).map(|group| group.map(|group| group.gid.as_raw())),
    };
    let found = found.map_err(|errno| AccountError::Lookup {
        kind,
        name: name(),
        errno,
    })?;
    let id = found.ok_or_else(|| AccountError::Unknown { kind, name: name() })?;
    KNOWN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(key, id);
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_host_and_numbers_are_found() {
        assert_eq!(id_of(Kind::User, "root"), Ok(0));
        assert_eq!(id_of(Kind::Group, "root"), Ok(0));
        assert_eq!(id_of(Kind::Group, "104"), Ok(104));
        // From what is known.
        assert_eq!(id_of(Kind::User, "root"), Ok(0));
    }

    #[test]
    fn nobody_is_named() {
        for (kind, name, words) in [
            (
                Kind::User,
                "vramd-nobody",
                "there is no user \"vramd-nobody\" on this host: name one that `getent passwd` lists",
            ),
            (
                Kind::Group,
                "vramd-nobody",
                "there is no group \"vramd-nobody\" on this host: name one that `getent group` lists",
            ),
            (Kind::User, "", "there is no user \"\""),
            (Kind::User, "-1", "there is no user \"-1\""),
            (Kind::User, "4294967295", "there is no such number"),
            (Kind::User, "99999999999", "there is no such number"),
        ] {
            let said = id_of(kind, name).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
