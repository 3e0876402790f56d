//! Packages, their READMEs and names, and which Rust file is part of which module tree.

use std::collections::BTreeMap;

use serde::Deserialize;
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use super::rust_code::is_test_only;
use super::{Finding, Texts, finding};

/// Names that do not describe the contents.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "base"];

/// Folders in which cargo finds targets by itself; the flag says whether they are tests.
const TARGET_FOLDERS: &[(&str, bool)] = &[
    ("src/bin", false),
    ("examples", false),
    ("tests", true),
    ("benches", true),
];

#[derive(Deserialize)]
struct Manifest {
    package: Option<PackageTable>,
    lib: Option<Target>,
    #[serde(default)]
    bin: Vec<Target>,
    #[serde(default)]
    example: Vec<Target>,
    #[serde(default)]
    test: Vec<Target>,
    #[serde(default)]
    bench: Vec<Target>,
}

#[derive(Deserialize)]
struct PackageTable {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    path: Option<String>,
}

/// A folder with a manifest.
pub(super) struct Package {
    manifest_path: String,
    /// Folder of the manifest, ending in a slash, or empty for the root.
    folder: String,
    /// None for a manifest that is only a workspace.
    name: Option<String>,
    /// Rust files named in the manifest, and whether they are tests.
    targets: Vec<(String, bool)>,
}

/// All packages among `texts`.
pub(super) fn packages(texts: &Texts, findings: &mut Vec<Finding>) -> Vec<Package> {
    let mut packages = Vec::new();
    for (path, text) in texts {
        let Some(folder) = path
            .strip_suffix("Cargo.toml")
            .filter(|folder| folder.is_empty() || folder.ends_with('/'))
        else {
            continue;
        };
        match toml::from_str::<Manifest>(text) {
            Ok(manifest) => packages.push(package(path, folder, manifest)),
            Err(error) => findings.push(finding(
                path,
                1,
                format!("not a valid manifest: {}", error.message()),
            )),
        }
    }
    packages
}

fn package(path: &str, folder: &str, manifest: Manifest) -> Package {
    let code = manifest
        .lib
        .into_iter()
        .chain(manifest.bin)
        .chain(manifest.example)
        .map(|target| (target, false));
    let tests = manifest
        .test
        .into_iter()
        .chain(manifest.bench)
        .map(|target| (target, true));
    let targets = code
        .chain(tests)
        .filter_map(|(target, is_test)| Some((folder.to_owned() + &target.path?, is_test)));
    Package {
        manifest_path: path.to_owned(),
        folder: folder.to_owned(),
        name: manifest.package.map(|package| package.name),
        targets: targets.collect(),
    }
}

/// Whether cargo takes `path` as the root of one of `package`'s targets, and if so, whether it is a test.
fn root_kind(package: &Package, path: &str) -> Option<bool> {
    if let Some((_, is_test)) = package.targets.iter().find(|(target, _)| target == path) {
        return Some(*is_test);
    }
    let inside = path.strip_prefix(&package.folder)?;
    if matches!(inside, "src/lib.rs" | "src/main.rs" | "build.rs") {
        return Some(false);
    }
    let (folder, is_test) = TARGET_FOLDERS
        .iter()
        .find(|(folder, _)| inside.starts_with(&format!("{folder}/")))?;
    let name = &inside[folder.len() + 1..];
    // Either `tests/name.rs` or `tests/name/main.rs`.
    let is_root = !name.contains('/') || name.ends_with("/main.rs") && name.matches('/').count() == 1;
    is_root.then_some(*is_test)
}

/// Every file that a target reaches through `mod`, with whether tests alone reach it.
pub(super) fn reach(packages: &[Package], parsed: &BTreeMap<&str, syn::File>) -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let mut open = Vec::new();
    for path in parsed.keys() {
        let kind = packages.iter().find_map(|package| root_kind(package, path));
        open.extend(kind.map(|is_test| ((*path).to_owned(), true, is_test)));
    }
    while let Some((path, is_root, is_test)) = open.pop() {
        let Some(file) = parsed.get(path.as_str()) else {
            continue;
        };
        let is_test = is_test || is_test_only(&file.attrs);
        // A file is entered twice at most: as a test and as code. The entry as code has precedence.
        if reached.get(&path).is_some_and(|&was_test| is_test || !was_test) {
            continue;
        }
        reached.insert(path.clone(), is_test);
        let mut children = Vec::new();
        let places = Places::of_file(&path, is_root);
        collect_modules(&file.items, &places, is_test, &mut children);
        open.extend(
            children
                .into_iter()
                .map(|(child, is_test)| (child, false, is_test)),
        );
    }
    reached
}

/// Folder and names of a module's children.
pub(crate) struct Places {
    /// Folder of the files for `mod name;`.
    children: String,
    /// Folder of the files for `#[path = "…"] mod name;`.
    by_path: String,
}

impl Places {
    pub(crate) fn of_file(path: &str, is_root: bool) -> Self {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = name.strip_suffix(".rs").unwrap_or(name);
        let children = if is_root || stem == "mod" {
            folder.to_owned()
        } else {
            format!("{folder}/{stem}")
        };
        Self {
            children,
            by_path: folder.to_owned(),
        }
    }

    fn of_inline_module(&self, name: &str) -> Self {
        let folder = format!("{}/{name}", self.children);
        Self {
            children: folder.clone(),
            by_path: folder,
        }
    }
}

/// Adds the files that `items` declare as modules, each with whether tests alone reach it. A file need not exist.
pub(crate) fn collect_modules(
    items: &[Item],
    places: &Places,
    is_test: bool,
    children: &mut Vec<(String, bool)>,
) {
    for item in items {
        if let Item::Macro(item) = item
            && item.mac.path.is_ident("include")
            && let Ok(file) = item.mac.parse_body::<syn::LitStr>()
        {
            children.push((join(&places.by_path, &file.value()), is_test));
        }
        let Item::Mod(module) = item else { continue };
        let is_test = is_test || is_test_only(&module.attrs);
        let name = module_name(module);
        if let Some((_, items)) = &module.content {
            collect_modules(items, &places.of_inline_module(&name), is_test, children);
        } else if let Some(path) = module.attrs.iter().find_map(path_attribute) {
            children.push((join(&places.by_path, &path), is_test));
        } else {
            children.push((join(&places.children, &format!("{name}.rs")), is_test));
            children.push((join(&places.children, &format!("{name}/mod.rs")), is_test));
        }
    }
}

fn module_name(module: &ItemMod) -> String {
    module.ident.to_string().trim_start_matches("r#").to_owned()
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    let Expr::Lit(ExprLit {
        lit: Lit::Str(path), ..
    }) = &pair.value
    else {
        return None;
    };
    pair.path.is_ident("path").then(|| path.value())
}

/// `folder/path` without `.` and `..`.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// READMEs of packages, names of packages and modules, files outside every module tree.
pub(super) fn check(
    texts: &Texts,
    packages: &[Package],
    parsed: &BTreeMap<&str, syn::File>,
    reached: &BTreeMap<String, bool>,
    findings: &mut Vec<Finding>,
) {
    for package in packages {
        if !texts.contains_key(&format!("{}README.md", package.folder)) {
            let what =
                "no README.md beside it: write one that says what the folder is for and what may enter";
            findings.push(finding(&package.manifest_path, 1, what));
        }
        if let Some(name) = package.name.as_deref().filter(|name| EMPTY_NAMES.contains(name)) {
            findings.push(finding(&package.manifest_path, 1, empty_name(name)));
        }
    }
    for (&path, file) in parsed {
        if !reached.contains_key(path) {
            findings.push(finding(
                path,
                1,
                "no target reaches this file through mod: declare it or remove it",
            ));
        }
        check_module_names(path, &file.items, findings);
    }
}

fn check_module_names(path: &str, items: &[Item], findings: &mut Vec<Finding>) {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let name = module_name(module);
        if EMPTY_NAMES.contains(&name.as_str()) {
            findings.push(finding(path, module.ident.span().start().line, empty_name(&name)));
        }
        if let Some((_, items)) = &module.content {
            check_module_names(path, items, findings);
        }
    }
}

fn empty_name(name: &str) -> String {
    format!("the name {name} says nothing: name it after what is inside, or move that to its users")
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_with;
    use super::*;

    const ORPHAN: &str = "no target reaches this file through mod: declare it or remove it";

    #[test]
    fn file_that_nobody_declares_is_an_orphan() {
        assert_eq!(
            findings_with("a/src/lost.rs", "//! A lost part.\n"),
            [format!("a/src/lost.rs:1: {ORPHAN}")]
        );
        assert_eq!(
            findings_with("a/tests/deep/lost.rs", "//! A lost part.\n").len(),
            1
        );
        assert_eq!(findings_with("stray.rs", "//! A lost part.\n").len(), 1);
    }

    #[test]
    fn targets_that_cargo_finds_by_itself_are_no_orphans() {
        let targets = [
            "build.rs",
            "src/main.rs",
            "src/bin/x.rs",
            "src/bin/y/main.rs",
            "tests/t.rs",
            "benches/b.rs",
        ];
        let found = targets.map(|target| findings_with(&format!("a/{target}"), "//! A small target.\n"));
        assert!(found.iter().all(Vec::is_empty), "{found:?}");
    }

    fn reached(manifest: &str, files: &[(&str, &str)]) -> Vec<(String, bool)> {
        let texts = [(
            "p/Cargo.toml".to_owned(),
            format!("[package]\nname = \"p\"\n{manifest}"),
        )]
        .into();
        let mut findings = Vec::new();
        let packages = packages(&texts, &mut findings);
        assert_eq!(findings, []);
        let parsed = files
            .iter()
            .map(|(path, text)| (*path, syn::parse_file(text).unwrap()))
            .collect();
        reach(&packages, &parsed).into_iter().collect()
    }

    fn code(path: &str) -> (String, bool) {
        (path.to_owned(), false)
    }

    fn test(path: &str) -> (String, bool) {
        (path.to_owned(), true)
    }

    #[test]
    fn modules_are_followed_as_the_compiler_does() {
        let files = [
            (
                "p/src/lib.rs",
                "mod a; mod inline { mod b; } #[path = \"odd/c.rs\"] mod c; include!(\"d.rs\");",
            ),
            ("p/src/a.rs", "mod deep; mod r#type;"),
            ("p/src/a/deep/mod.rs", "mod deeper;"),
            ("p/src/a/deep/deeper.rs", ""),
            ("p/src/a/type.rs", ""),
            ("p/src/inline/b.rs", ""),
            ("p/src/odd/c.rs", ""),
            ("p/src/d.rs", ""),
        ];
        assert_eq!(reached("", &files).len(), files.len());
    }

    #[test]
    fn file_reached_by_tests_alone_is_a_test() {
        let files = [
            ("p/src/lib.rs", "#[cfg(test)] mod cases; mod both;"),
            ("p/src/cases.rs", "mod more;"),
            ("p/src/cases/more.rs", ""),
            ("p/src/both.rs", ""),
            ("p/tests/t.rs", "#[path = \"../src/both.rs\"] mod both;"),
        ];
        let expected = [
            code("p/src/both.rs"),
            test("p/src/cases.rs"),
            test("p/src/cases/more.rs"),
            code("p/src/lib.rs"),
            test("p/tests/t.rs"),
        ];
        assert_eq!(reached("", &files), expected);
    }

    #[test]
    fn target_named_in_the_manifest_is_a_root() {
        let manifest =
            "[[bin]]\nname = \"x\"\npath = \"odd/x.rs\"\n[[bench]]\nname = \"y\"\npath = \"odd/y.rs\"\n";
        let files = [("p/odd/x.rs", ""), ("p/odd/y.rs", ""), ("p/odd/z.rs", "")];
        assert_eq!(
            reached(manifest, &files),
            [code("p/odd/x.rs"), test("p/odd/y.rs")]
        );
    }

    #[test]
    fn empty_names_of_modules_and_packages_are_found() {
        let found = findings_with(
            "a/src/lib.rs",
            "//! A small crate.\nmod part;\nmod x { mod util {} }\n",
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("a/src/lib.rs:3: the name util says nothing"),
            "{found:?}"
        );
        assert_eq!(
            findings_with("a/Cargo.toml", "[package]\nname = \"common\"\n").len(),
            1
        );
    }

    #[test]
    fn broken_manifest_is_found() {
        let found = findings_with("a/Cargo.toml", "[package\n");
        assert!(
            found[0].starts_with("a/Cargo.toml:1: not a valid manifest"),
            "{found:?}"
        );
    }
}
