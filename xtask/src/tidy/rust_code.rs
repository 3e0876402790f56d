//! Rules for one Rust file: module docs, lengths, raw numbers in patterns, `unsafe`, unfinished code.

use std::ops::RangeInclusive;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, ImplItem, Item, Lit, Meta};

use super::{Finding, finding};

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// The only crate where a number is its own definition.
const DEFINITIONS: &str = "fermi/spec/";

/// Which lines of a file are tests.
#[derive(Debug, Default)]
pub(super) struct TestLines {
    is_whole_file: bool,
    ranges: Vec<RangeInclusive<usize>>,
}

impl TestLines {
    pub(super) fn contains(&self, line: usize) -> bool {
        self.is_whole_file || self.ranges.iter().any(|range| range.contains(&line))
    }
}

/// Whether these attributes keep their item out of an ordinary build: `#[test]`, `#[cfg(test)]`, `#[cfg(kani)]`.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => list.path.is_ident("cfg") && names_test(list.tokens.clone()),
        Meta::NameValue(_) => false,
    })
}

fn names_test(tokens: TokenStream) -> bool {
    let mut is_negated = false;
    for token in tokens {
        match token {
            TokenTree::Ident(name) if name == "test" || name == "kani" => return true,
            TokenTree::Group(group) if !is_negated && names_test(group.stream()) => return true,
            TokenTree::Ident(name) => is_negated = name == "not",
            _ => is_negated = false,
        }
    }
    false
}

/// Checks one file and tells which of its lines are tests. `is_test` says that tests alone reach the file.
pub(super) fn check(
    path: &str,
    text: &str,
    file: &syn::File,
    is_test: bool,
    findings: &mut Vec<Finding>,
) -> TestLines {
    let tests = TestLines {
        is_whole_file: is_test || is_test_only(&file.attrs),
        ranges: Vec::new(),
    };
    let mut walk = Walk {
        path,
        tests,
        test_depth: 0,
        findings,
    };
    walk.visit_file(file);
    let Walk { tests, .. } = walk;
    check_module_docs(path, file, findings);
    check_file_length(path, text, &tests, findings);
    check_unsafe(path, text, findings);
    tests
}

fn check_module_docs(path: &str, file: &syn::File, findings: &mut Vec<Finding>) {
    let is_doc = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text), ..
            }) => !text.value().trim().is_empty(),
            _ => true,
        },
        _ => false,
    };
    let is_exempt = path.ends_with("/tests.rs");
    if !is_exempt && !file.attrs.iter().any(is_doc) {
        findings.push(finding(
            path,
            1,
            "no module docs: say with //! what it is for and what it leaves to others",
        ));
    }
}

fn check_file_length(path: &str, text: &str, tests: &TestLines, findings: &mut Vec<Finding>) {
    let lines = (1..=text.lines().count()).filter(|line| !tests.contains(*line));
    let (count, last) = lines.fold((0, 1), |(count, _), line| (count + 1, line));
    if count > FILE_LINES_MAX {
        let what = format!("{count} lines without tests, {FILE_LINES_MAX} are allowed: split the file");
        findings.push(finding(path, last, what));
    }
}

fn check_unsafe(path: &str, text: &str, findings: &mut Vec<Finding>) {
    // The reason stands above all code, before or after the module docs.
    let mut heading = text
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("//"));
    if heading.any(|line| line.starts_with("// UNSAFETY: ")) {
        return;
    }
    let line = text.parse::<TokenStream>().ok().and_then(first_unsafe);
    if let Some(line) = line {
        let what = "unsafe in a file that does not start with \"// UNSAFETY: why\": move it to one that does";
        findings.push(finding(path, line, what));
    }
}

fn first_unsafe(tokens: TokenStream) -> Option<usize> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(name) if name == "unsafe" => Some(name.span().start().line),
        TokenTree::Group(group) => first_unsafe(group.stream()),
        _ => None,
    })
}

/// Walks the file's items, knowing whether it is inside of tests.
struct Walk<'a> {
    path: &'a str,
    tests: TestLines,
    test_depth: usize,
    findings: &'a mut Vec<Finding>,
}

impl Walk<'_> {
    fn is_in_tests(&self) -> bool {
        self.tests.is_whole_file || self.test_depth > 0
    }

    /// Runs `visit`, inside of tests if `attributes` say so.
    fn enter(&mut self, attributes: &[Attribute], node: &impl Spanned, visit: impl FnOnce(&mut Self)) {
        let is_test = is_test_only(attributes);
        if is_test {
            let span = node.span();
            self.tests.ranges.push(span.start().line..=span.end().line);
        }
        self.test_depth += usize::from(is_test);
        visit(self);
        self.test_depth -= usize::from(is_test);
    }

    fn check_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let start = signature.span().start().line;
        let count = block.brace_token.span.close().end().line + 1 - start;
        if count > FUNCTION_LINES_MAX {
            let name = &signature.ident;
            let what = format!("{name} has {count} lines, {FUNCTION_LINES_MAX} are allowed: split it");
            self.findings.push(finding(self.path, start, what));
        }
    }
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        self.enter(item_attributes(item), item, |walk| visit::visit_item(walk, item));
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => item.attrs.as_slice(),
            ImplItem::Fn(item) => &item.attrs,
            _ => &[],
        };
        self.enter(attributes, item, |walk| visit::visit_impl_item(walk, item));
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check_function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check_function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.check_function(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let mut numbers = HexNumbers(None);
        numbers.visit_pat(&arm.pat);
        if let HexNumbers(Some((line, number))) = numbers
            && !self.is_in_tests()
            && !self.path.starts_with(DEFINITIONS)
        {
            let what =
                format!("match on the raw number {number}: match on a name, and define the number once");
            self.findings.push(finding(self.path, line, what));
        }
        visit::visit_arm(self, arm);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let unfinished = ["todo", "unimplemented"]
            .iter()
            .find(|name| call.path.is_ident(name));
        if let Some(name) = unfinished.filter(|_| !self.is_in_tests()) {
            let what = format!("{name}! leaves the code unfinished: finish it, or leave it out");
            self.findings
                .push(finding(self.path, call.span().start().line, what));
        }
        visit::visit_macro(self, call);
    }
}

/// The first hexadecimal number in a pattern, with its line.
struct HexNumbers(Option<(usize, String)>);

impl<'ast> Visit<'ast> for HexNumbers {
    fn visit_lit_int(&mut self, number: &'ast syn::LitInt) {
        let digits = number.token().to_string();
        if digits.starts_with("0x") {
            self.0.get_or_insert((number.span().start().line, digits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_with;

    /// Findings in a documented module with `code` below its docs, which are line 1.
    fn found(code: &str) -> Vec<String> {
        findings_with("a/src/part.rs", &format!("//! A small part.\n{code}"))
    }

    fn function(attribute: &str, lines: usize) -> String {
        format!(
            "{attribute}\nfn long() {{\n{}}}\n",
            "    step();\n".repeat(lines - 2)
        )
    }

    #[test]
    fn module_without_docs_is_found() {
        let expected =
            ["a/src/part.rs:1: no module docs: say with //! what it is for and what it leaves to others"];
        assert_eq!(findings_with("a/src/part.rs", "//!\nfn a() {}\n"), expected);
        assert_eq!(
            findings_with("a/src/part.rs", "/// Not the module's.\nfn a() {}\n"),
            expected
        );
    }

    #[test]
    fn test_module_needs_no_docs() {
        let lib = "//! A small crate.\nmod part;\n#[cfg(test)]\nmod tests;\n";
        let mut texts: super::super::Texts = super::super::Texts::new();
        texts.insert("a/src/lib.rs".to_owned(), lib.to_owned());
        texts.insert("a/src/tests.rs".to_owned(), "#[test]\nfn a() {}\n".to_owned());
        let found = super::super::check(&texts);
        assert!(
            !found
                .iter()
                .any(|finding| finding.what.contains("no module docs")),
            "{found:?}"
        );
    }

    #[test]
    fn file_past_the_limit_is_found_and_at_the_limit_is_not() {
        let lines = |count: usize| found(&"const _: () = ();\n".repeat(count - 1));
        assert_eq!(lines(600), Vec::<String>::new());
        assert_eq!(
            lines(601),
            ["a/src/part.rs:601: 601 lines without tests, 600 are allowed: split the file"]
        );
    }

    #[test]
    fn tests_do_not_count_as_file_length_but_code_after_them_does() {
        let tests = format!(
            "#[cfg(test)]\nmod tests {{\n{}}}\n",
            "const _: () = ();\n".repeat(700)
        );
        assert_eq!(found(&tests), Vec::<String>::new());
        let code = "const _: () = ();\n".repeat(600);
        assert_eq!(found(&format!("{tests}{code}")).len(), 1);
        assert_eq!(
            findings_with("a/tests/long.rs", &format!("//! A small test.\n{code}{code}")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn function_past_the_limit_is_found_wherever_it_is() {
        assert_eq!(found(&function("", 70)), Vec::<String>::new());
        assert_eq!(
            found(&function("", 71)),
            ["a/src/part.rs:3: long has 71 lines, 70 are allowed: split it"]
        );
        let method = function("", 71);
        assert_eq!(found(&format!("struct S;\nimpl S {{ {method} }}\n")).len(), 1);
        assert_eq!(found(&format!("trait T {{ {method} }}\n")).len(), 1);
        assert_eq!(found(&function("#[test]", 71)).len(), 1);
    }

    #[test]
    fn hexadecimal_match_arm_is_found_in_code_only() {
        let arms = "fn a(x: u32) -> u32 { match x {\n    1 => 1,\n    2 | 0x2270 => 3,\n    _ => 0,\n} }\n";
        let expected =
            "a/src/part.rs:4: match on the raw number 0x2270: match on a name, and define the number once";
        assert_eq!(found(arms), [expected]);
        let range = "fn a(x: u32) -> u32 { match x { 0x10..=0x1f => 1, _ => 0 } }\n";
        assert_eq!(found(range).len(), 1);
        assert_eq!(
            found(&format!("#[cfg(test)]\nmod tests {{ {arms} }}\n")),
            Vec::<String>::new()
        );
        assert_eq!(
            found(&format!("#[cfg(not(test))]\nmod code {{ {arms} }}\n")).len(),
            1
        );
        let defined = findings_with("fermi/spec/src/lib.rs", &format!("//! A small crate.\n{arms}"));
        assert!(
            !defined.iter().any(|line| line.contains("raw number")),
            "{defined:?}"
        );
    }

    #[test]
    fn unsafe_outside_its_modules_is_found_even_in_tests_and_macros() {
        let expected = "a/src/part.rs:2: unsafe in a file that does not start with \"// UNSAFETY: why\": \
                        move it to one that does";
        assert_eq!(found("fn a() { unsafe { b() } }\n"), [expected]);
        assert_eq!(
            found("#[cfg(test)]\nmod tests { unsafe impl Send for X {} }\n").len(),
            1
        );
        assert_eq!(found("m!({ unsafe { b() } });\n").len(), 1);
        assert_eq!(
            found("#![expect(unsafe_code)]\n// unsafe in words\n"),
            Vec::<String>::new()
        );
        let declared = "// UNSAFETY: maps memory.\n//! A small part.\nfn a() { unsafe { b() } }\n";
        assert_eq!(findings_with("a/src/part.rs", declared), Vec::<String>::new());
        assert_eq!(
            found("\n// UNSAFETY: maps memory.\nfn a() { unsafe { b() } }\n"),
            Vec::<String>::new()
        );
        assert_eq!(
            found("fn c() {}\n// UNSAFETY: maps memory.\nfn a() { unsafe { b() } }\n").len(),
            1
        );
    }

    #[test]
    fn unfinished_code_is_found() {
        let expected = "a/src/part.rs:2: todo! leaves the code unfinished: finish it, or leave it out";
        assert_eq!(found("fn a() { todo!() }\n"), [expected]);
        assert_eq!(found("fn a() { unimplemented!(\"b\") }\n").len(), 1);
        assert_eq!(
            found("#[test]\nfn a() { unimplemented!() }\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn cfg_of_a_feature_named_like_a_test_is_code() {
        let arms = "fn a(x: u32) { match x { 0x1 => (), _ => () } }\n";
        assert_eq!(found(&format!("#[cfg(feature = \"test\")]\n{arms}")).len(), 1);
        assert_eq!(found(&format!("#[cfg(all(test, unix))]\n{arms}")).len(), 0);
        assert_eq!(found(&format!("#[cfg(all(unix, not(test)))]\n{arms}")).len(), 1);
    }
}
