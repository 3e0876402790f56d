//! The recipe of `docs/examples/libvirt.xml`, as the page on installing has it, is a domain that libvirt's schema knows.

use anyhow::Result;

use super::trial::Trial;
use crate::host_env::GuestFile;
use crate::workspace::Workspace;

const RECIPE: &str = "docs/examples/libvirt.xml";

/// The recipe itself.
pub(super) fn file(workspace: &Workspace) -> GuestFile {
    GuestFile::payload("libvirt.xml", workspace.root().join(RECIPE))
}

/// Has libvirt look at the recipe.
pub(super) fn check(trial: &mut Trial) -> Result<()> {
    trial
        .says("virt-xml-validate libvirt.xml domain", &["validates"])
        .map(drop)
}
