//! Doc comments have to tell a stranger something: one or two words cannot.

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

use super::{Finding, finding};

/// Words of the shortest doc comment.
const WORDS_MIN: usize = 3;
/// Longer texts that say nothing.
const EMPTY: &[&str] = &["See the module.", "See the type.", "See the trait."];

/// Checks all doc comments of one file.
pub(super) fn check(path: &str, file: &syn::File, findings: &mut Vec<Finding>) {
    let mut walk = Walk { path, findings };
    // A module without any is found elsewhere.
    if file
        .attrs
        .iter()
        .filter_map(doc_line)
        .any(|(_, text)| !text.trim().is_empty())
    {
        walk.check(&file.attrs);
    }
    walk.visit_file(file);
}

struct Walk<'a> {
    path: &'a str,
    findings: &'a mut Vec<Finding>,
}

impl Walk<'_> {
    /// Checks the doc comment among the attributes of one item. Outer and inner lines are one comment.
    fn check(&mut self, attributes: &[Attribute]) {
        let mut lines = attributes.iter().filter_map(doc_line).peekable();
        let Some(line) = lines.peek().map(|(line, _)| *line) else {
            return;
        };
        let text: Vec<String> = lines.map(|(_, text)| text).collect();
        let text = text.join(" ");
        let text: Vec<&str> = text.split_whitespace().collect();
        let said = text.join(" ");
        if text.len() < WORDS_MIN || EMPTY.contains(&said.as_str()) {
            let what = format!(
                "the doc comment \"{said}\" tells a stranger nothing: say more, or leave it out if it may be"
            );
            self.findings.push(finding(self.path, line, what));
        }
    }
}

/// Line and text of an attribute that is a doc comment in words. What a macro writes is not looked at.
fn doc_line(attribute: &Attribute) -> Option<(usize, String)> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    let Expr::Lit(ExprLit {
        lit: Lit::Str(text), ..
    }) = &pair.value
    else {
        return None;
    };
    let is_doc = pair.path.is_ident("doc");
    is_doc.then(|| (text.span().start().line, text.value()))
}

macro_rules! check_attributes {
    ($($visit:ident: $node:ident),* $(,)?) => {
        impl<'ast> Visit<'ast> for Walk<'_> {
            $(fn $visit(&mut self, node: &'ast syn::$node) {
                self.check(&node.attrs);
                visit::$visit(self, node);
            })*
        }
    };
}

check_attributes! {
    visit_item_const: ItemConst,
    visit_item_enum: ItemEnum,
    visit_item_fn: ItemFn,
    visit_item_macro: ItemMacro,
    visit_item_mod: ItemMod,
    visit_item_static: ItemStatic,
    visit_item_struct: ItemStruct,
    visit_item_trait: ItemTrait,
    visit_item_type: ItemType,
    visit_item_union: ItemUnion,
    visit_impl_item_const: ImplItemConst,
    visit_impl_item_fn: ImplItemFn,
    visit_impl_item_type: ImplItemType,
    visit_trait_item_const: TraitItemConst,
    visit_trait_item_fn: TraitItemFn,
    visit_trait_item_type: TraitItemType,
    visit_field: Field,
    visit_variant: Variant,
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_with;

    fn found(code: &str) -> Vec<String> {
        findings_with("a/src/part.rs", &format!("//! A small part.\n{code}"))
    }

    #[test]
    fn doc_of_two_words_is_found_wherever_it_stands() {
        let expected = "a/src/part.rs:2: the doc comment \"Its name.\" tells a stranger nothing: say more, or leave it \
                        out if it may be";
        assert_eq!(found("/// Its name.\nconst A: u32 = 1;\n"), [expected]);
        let codes = [
            "struct S {\n    /// Whose.\n    a: u32,\n}\n",
            "enum E {\n    /// No\n    /// memory.\n    A,\n}\n",
            "enum E { A {\n    /// Which.\n    a: u32,\n} }\n",
            "struct S;\nimpl S {\n    /// Runs.\n    fn run() {}\n}\n",
            "trait T {\n    /// Runs.\n    fn run();\n}\n",
            "/// See the module.\nstruct S;\n",
            "mod m {\n    //! A part.\n}\n",
        ];
        let counts = codes.map(|code| found(code).len());
        assert_eq!(counts, [1; 7]);
        assert_eq!(findings_with("a/src/part.rs", "//! A part.\n").len(), 1);
    }

    #[test]
    fn doc_of_three_words_or_several_short_lines_is_allowed() {
        let code = "/// Bytes of it.\nconst A: u32 = 1;\n/// One,\n/// two,\n/// three.\nfn a() {}\n// Short.\nfn b() {}\n";
        assert_eq!(found(code), Vec::<String>::new());
    }
}
