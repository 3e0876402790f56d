//! Rights that a VM's process gives up before it does anything else.
//!
//! It needs none of root's rights: the operator gives a user access to /dev/kvm, the vGPU's socket and the images.
//! So the change of user comes first, and every file is opened with that user's rights, at a reboot too.

use std::str::FromStr;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::accounts::{AccountError, Kind, id_of};

/// Most groups beside the first.
const GROUPS_MAX: usize = 32;

/// A user and groups, each by name or number: `USER:GROUP[,GROUP…]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The error in a user as it was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseUserError {
    /// Parts are missing, or too many.
    #[error(
        "{0:?} is not USER:GROUP or USER:GROUP,GROUP,... by names or numbers, such as vramd:vramd,kvm or 1000:1000,104"
    )]
    Form(String),
    /// One of them is nobody.
    #[error(transparent)]
    Account(#[from] AccountError),
}

/// The step that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct PrivilegeError {
    what: &'static str,
    #[source]
    source: Errno,
}

impl User {
    /// Number of the user, without those of its groups.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Number of its first group.
    pub fn gid(&self) -> u32 {
        self.gid
    }
}

impl FromStr for User {
    type Err = ParseUserError;

    fn from_str(text: &str) -> Result<User, ParseUserError> {
        let wrong = || ParseUserError::Form(text.to_owned());
        let (user, groups) = text.split_once(':').ok_or_else(wrong)?;
        let groups: Vec<_> = groups.split(',').collect();
        let is_part = |part: &&str| !part.is_empty();
        if !is_part(&user) || !groups.iter().all(is_part) || groups.len() > GROUPS_MAX {
            return Err(wrong());
        }
        let uid = id_of(Kind::User, user)?;
        let groups = groups.iter().map(|group| id_of(Kind::Group, group));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let gid = *groups.first().ok_or_else(wrong)?;
        Ok(User { uid, gid, groups })
    }
}

/// Becomes `user`, if one is given, without capabilities and without a way to get any. Only threads that are
/// started later are changed too, so this comes before all threads.
pub fn give_up(user: Option<&User>) -> Result<(), PrivilegeError> {
    let step = |what| move |source| PrivilegeError { what, source };
    if let Some(user) = user {
        let groups: Vec<_> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups).map_err(step("take the groups of --user, for which it takes root"))?;
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        set_thread_res_gid(gid, gid, gid).map_err(step("become the group of --user"))?;
        set_thread_res_uid(uid, uid, uid).map_err(step("become the user of --user"))?;
    }
    clear_ambient_capability_set().map_err(step("give up ambient capabilities"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(step("give up capabilities"))?;
    set_no_new_privs(true).map_err(step("renounce new privileges"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_read_with_its_groups() {
        let user = User {
            uid: 1000,
            gid: 100,
            groups: vec![100, 104],
        };
        assert_eq!("1000:100,104".parse(), Ok(user));
    }

    #[test]
    fn names_are_those_of_the_host() {
        let root = User {
            uid: 0,
            gid: 0,
            groups: vec![0, 104],
        };
        assert_eq!("root:root,104".parse(), Ok(root));
        let said = "root:vramd-nobody".parse::<User>().unwrap_err().to_string();
        assert!(
            said.starts_with("there is no group \"vramd-nobody\" on this host"),
            "{said}"
        );
    }

    #[test]
    fn halves_are_refused() {
        for text in ["root", "1000", "1000:", "", ":1", "1:2,", "1:,2"] {
            assert_eq!(text.parse::<User>(), Err(ParseUserError::Form(text.to_owned())));
        }
        for text in ["4294967295:1", "-1:1", "1:2:3", "1: 2"] {
            assert!(
                matches!(text.parse::<User>(), Err(ParseUserError::Account(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn rights_are_gone_for_good() {
        // On a thread of its own, for a test's thread is the harness'.
        let left = std::thread::spawn(|| {
            give_up(None).unwrap();
            (
                rustix::thread::capabilities(None).unwrap().permitted,
                rustix::thread::no_new_privs().unwrap(),
            )
        });
        assert_eq!(left.join().unwrap(), (CapabilitySet::empty(), true));
    }
}
