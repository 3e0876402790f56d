//! `cargo xtask unused`: public items of our libraries that nobody outside of their crate names.
//!
//! The compiler finds private items without a user; what is public counts as used for it. Here an item is used if its
//! name stands as an identifier in the code of another package or of another program of its own: binaries, benches,
//! fuzz targets and guests count, the crate's own tests do not. So does what the interface of a used item names: types
//! of parameters, of public fields, of associated types. Names are compared, not meanings: an item whose name is used
//! for something else elsewhere is not found. Fields, variants, and items that macros make are not looked at.
//!
//! [`items`] lists what a library offers. [`KEPT`] are the exceptions; one that excepts nothing is an error too.

mod items;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;

use crate::workspace::Workspace;
use items::PublicItem;

/// Items that are public without a user: crate, name, and why.
#[rustfmt::skip]
const KEPT: &[(&str, &str, &str)] = &[
    ("vfio_user_server", "descriptors_max", "what an embedder allows its process; the test of hoarding clients holds it"),
    ("vmm", "MsiState", "what msi_state gives"),
    ("vmm", "msi_state", "tests of whole VMs look where the vGPU's interrupts go"),
    ("vmm", "take_console", "tests of whole VMs read what the guest wrote"),
];

/// Crates that exist for tests: their own count as users.
const FOR_TESTS: &[&str] = &["integration"];

/// Words before a name that is not used there but given.
const DEFINING: &[&str] = &[
    "fn", "struct", "enum", "union", "trait", "mod", "const", "static", "type",
];

/// Our text files by path.
type Texts = BTreeMap<String, String>;

/// A package with its folder, which ends in a slash.
struct Package {
    name: String,
    folder: String,
    /// Names of all packages that its code may name, of ours and others.
    dependencies: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Option<PackageTable>,
    #[serde(flatten)]
    rest: toml::Table,
}

#[derive(Deserialize)]
struct PackageTable {
    name: String,
}

fn packages(texts: &Texts) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for (path, text) in texts {
        let Some(folder) = path.strip_suffix("Cargo.toml") else {
            continue;
        };
        let manifest: Manifest = toml::from_str(text).with_context(|| format!("cannot read {path}"))?;
        let Some(package) = manifest.package else { continue };
        let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
        let names = tables
            .iter()
            .filter_map(|table| manifest.rest.get(*table)?.as_table());
        packages.push(Package {
            name: package.name,
            folder: folder.to_owned(),
            dependencies: names.flat_map(|table| table.keys().cloned()).collect(),
        });
    }
    Ok(packages)
}

/// The packages that see `name`: by themselves or through another of `packages`, which may hand its types on.
fn dependents<'a>(packages: &'a [Package], name: &'a str) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::from([name]);
    loop {
        let sees = |package: &&Package| {
            package
                .dependencies
                .iter()
                .any(|dependency| known.contains(dependency.as_str()))
        };
        let more: Vec<_> = packages
            .iter()
            .filter(sees)
            .map(|package| &*package.name)
            .collect();
        let before = known.len();
        known.extend(more);
        if known.len() == before {
            return known;
        }
    }
}

/// Adds the identifiers of `tokens` to `names`, without those that a definition gives.
fn collect_names(tokens: TokenStream, names: &mut BTreeSet<String>) {
    let mut is_defined = false;
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                let name = name.to_string();
                if !std::mem::replace(&mut is_defined, DEFINING.contains(&&*name)) {
                    names.insert(name.trim_start_matches("r#").to_owned());
                }
            }
            TokenTree::Group(group) => collect_names(group.stream(), names),
            TokenTree::Literal(literal) => {
                // Names in braces of a format.
                let text = literal.to_string();
                let names_in = text.split('{').skip(1).map(|rest| {
                    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                    rest[..end.unwrap_or(0)].to_owned()
                });
                names.extend(names_in.filter(|name| !name.is_empty()));
            }
            TokenTree::Punct(_) => is_defined = false,
        }
    }
}

fn names_of(text: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let tokens = text.parse::<TokenStream>();
    collect_names(tokens.map_err(|error| anyhow::anyhow!("{error}"))?, &mut names);
    Ok(names)
}

/// The package that `path` belongs to: the one with the longest folder.
fn owner<'a>(packages: &'a [Package], path: &str) -> Option<&'a Package> {
    let owners = packages
        .iter()
        .filter(|package| path.starts_with(&package.folder));
    owners.max_by_key(|package| package.folder.len())
}

/// Public items of all libraries among `texts` that nobody outside names, as `path:line: what`.
fn check(texts: &Texts, kept: &[(&str, &str, &str)]) -> Result<Vec<String>> {
    let packages = packages(texts)?;
    // By package: what it offers, and what its other programs name.
    let mut offers: BTreeMap<&str, Vec<PublicItem>> = BTreeMap::new();
    let mut named: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut named_by_programs: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in &packages {
        let library = items::of_library(texts, &format!("{}src/lib.rs", package.folder))?;
        offers.insert(&package.name, library.items);
        for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            if owner(&packages, path).is_none_or(|owner| owner.name != package.name) {
                continue;
            }
            let names = names_of(text).with_context(|| format!("cannot read {path}"))?;
            let is_own_test = path[package.folder.len()..].starts_with("tests/")
                && !FOR_TESTS.contains(&package.name.as_str());
            if !is_own_test && !library.files.contains(path) {
                let programs = named_by_programs.entry(&package.name).or_default();
                programs.extend(names.iter().cloned());
            }
            named.entry(&package.name).or_default().extend(names);
        }
    }
    let mut findings = Vec::new();
    let mut excepted = BTreeSet::new();
    for (&package, items) in &offers {
        let mut used = named_by_programs.remove(package).unwrap_or_default();
        for other in dependents(&packages, package) {
            if other != package {
                used.extend(named.get(other).into_iter().flatten().cloned());
            }
        }
        for item in unused(items, used) {
            let is_kept = |(of, name, _): &&(&str, &str, &str)| *of == package && *name == item.name;
            match kept.iter().find(is_kept) {
                Some(exception) => drop(excepted.insert(*exception)),
                None => findings.push(format!(
                    "{}:{}: nobody outside of {package} names {}: make it pub(crate) or private, or remove it",
                    item.path, item.line, item.name
                )),
            }
        }
    }
    let stale = kept.iter().filter(|exception| !excepted.contains(*exception));
    findings.extend(
        stale.map(|(of, name, _)| {
            format!("xtask/src/unused.rs: {name} of {of} needs no exception: remove it")
        }),
    );
    findings.sort();
    Ok(findings)
}

/// The items that are neither in `used` nor named by the interface of one that is.
fn unused(items: &[PublicItem], mut used: BTreeSet<String>) -> Vec<&PublicItem> {
    let mut left: Vec<&PublicItem> = items.iter().collect();
    loop {
        let (more, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|item| used.contains(&item.name));
        left = rest;
        if more.is_empty() {
            left.retain(|item| item.is_offer);
            return left;
        }
        used.extend(more.into_iter().flat_map(|item| item.interface.iter().cloned()));
    }
}

/// Checks every library of the workspace; fails with one line for each item.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut texts = Texts::new();
    for path in workspace.files()? {
        if path.ends_with(".rs") || path.ends_with("Cargo.toml") {
            let text = fs::read_to_string(workspace.root().join(&path));
            texts.insert(path.clone(), text.with_context(|| format!("cannot read {path}"))?);
        }
    }
    let findings = check(&texts, KEPT)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} public items without a user", findings.len());
    }
    println!(
        "unused: every public item has a user outside of its crate, {} excepted",
        KEPT.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests;
