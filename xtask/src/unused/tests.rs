use super::*;

/// A library `low` with `library` as its code, and `high`, which depends on it, with `user`.
fn tree(library: &str, user: &str) -> Texts {
    let files = [
        ("low/Cargo.toml", "[package]\nname = \"low\"\n"),
        ("low/src/lib.rs", library),
        (
            "high/Cargo.toml",
            "[package]\nname = \"high\"\n[dev-dependencies]\nlow.workspace = true\n",
        ),
        ("high/src/lib.rs", user),
    ];
    files
        .map(|(path, text)| (path.to_owned(), text.to_owned()))
        .into()
}

fn found(texts: &Texts) -> Vec<String> {
    let findings = check(texts, &[]).unwrap();
    let name = |finding: &String| {
        let rest = finding.split(" names ").nth(1).unwrap_or(finding);
        rest.split(':').next().unwrap_or_default().to_owned()
    };
    findings.iter().map(name).collect()
}

#[test]
fn item_that_nobody_names_is_found_at_its_line() {
    let texts = tree(
        "pub fn used() {}\n\npub fn planted() {}\n",
        "fn user() { low::used() }",
    );
    let wanted =
        "low/src/lib.rs:3: nobody outside of low names planted: make it pub(crate) or private, or remove it";
    assert_eq!(check(&texts, &[]).unwrap(), [wanted]);
}

#[test]
fn every_kind_of_item_is_looked_at() {
    let library = "pub struct A; pub enum B {} pub trait C {} pub const D: u8 = 0; pub static E: u8 = 0;
        pub type F = u8; pub union G { a: u8 } impl A { pub fn h(&self) {} pub const I: u8 = 0; }
        pub mod inner { pub fn j() {} } #[macro_export] macro_rules! k { () => {} }
        pub(crate) fn l() {} fn m() {} #[cfg(test)] pub fn n() {} #[cfg(test)] mod tests { pub fn o() {} }";
    let all = ["A", "B", "C", "D", "E", "F", "G", "I", "h", "j", "k"];
    assert_eq!(sorted(found(&tree(library, ""))), all);
    assert_eq!(
        found(&tree(library, "fn user() { A.B(C, D, E, F, G, h, I, j, k!()) }")).len(),
        0
    );
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[test]
fn interface_of_a_used_item_is_used() {
    let library = "pub fn used(a: Given) -> Result<(), Failure> {} pub struct Given { pub part: Part, own: Own }
        pub struct Part; pub struct Own; pub enum Failure { Of(Cause) } pub struct Cause; pub struct Each;
        impl Iterator for Part { type Item = Each; fn next(&mut self) -> Option<Each> { Inside } } pub struct Inside;";
    let texts = tree(library, "fn user() { low::used() }");
    assert_eq!(sorted(found(&texts)), ["Inside", "Own"]);
}

#[test]
fn tests_of_the_crate_are_no_users_and_its_programs_are() {
    let mut texts = tree("pub fn tested() {}\npub fn run() {}\npub fn timed() {}\n", "");
    texts.insert(
        "low/tests/all.rs".to_owned(),
        "fn a() { low::tested() }".to_owned(),
    );
    texts.insert(
        "low/src/main.rs".to_owned(),
        "fn main() { low::run() }".to_owned(),
    );
    texts.insert(
        "low/benches/b.rs".to_owned(),
        "fn main() { low::timed() }".to_owned(),
    );
    assert_eq!(found(&texts), ["tested"]);
}

#[test]
fn definition_of_the_same_name_elsewhere_is_no_use() {
    assert_eq!(found(&tree("pub fn twice() {}", "fn twice() {}")), ["twice"]);
    assert_eq!(
        found(&tree("pub fn twice() {}", "struct S { twice: u8 }")).len(),
        0
    );
}

#[test]
fn package_that_does_not_depend_on_the_crate_is_no_user() {
    let mut texts = tree("pub fn wanted() {}", "");
    texts.insert(
        "other/Cargo.toml".to_owned(),
        "[package]\nname = \"other\"\n".to_owned(),
    );
    texts.insert("other/src/lib.rs".to_owned(), "fn a() { wanted() }".to_owned());
    assert_eq!(found(&texts), ["wanted"]);
    // Types go on through those that depend on it.
    let depends = "[package]\nname = \"other\"\n[dependencies]\nhigh.workspace = true\n";
    texts.insert("other/Cargo.toml".to_owned(), depends.to_owned());
    assert_eq!(found(&texts).len(), 0);
}

#[test]
fn names_in_macros_and_formats_are_uses() {
    let texts = tree(
        "pub const A: u8 = 0;\npub fn b() {}\n",
        "fn user() { println!(\"{A}\"); all![b] }",
    );
    assert_eq!(found(&texts).len(), 0);
}

#[test]
fn modules_of_the_library_are_followed_but_those_of_tests() {
    let mut texts = tree("pub mod part; #[cfg(test)] mod tests;", "");
    texts.insert("low/src/part.rs".to_owned(), "pub fn planted() {}".to_owned());
    texts.insert(
        "low/src/tests.rs".to_owned(),
        "pub fn helper() { planted() }".to_owned(),
    );
    assert_eq!(found(&texts), ["planted"]);
}

#[test]
fn exception_is_an_error_as_soon_as_it_excepts_nothing() {
    let kept = [("low", "planted", "a reason")];
    assert_eq!(check(&tree("pub fn planted() {}", ""), &kept).unwrap().len(), 0);
    let findings = check(
        &tree("pub fn planted() {}", "fn user() { low::planted() }"),
        &kept,
    )
    .unwrap();
    assert_eq!(
        findings,
        ["xtask/src/unused.rs: planted of low needs no exception: remove it"]
    );
}
