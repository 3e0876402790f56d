//! What a library offers: its public items, each with the names that its interface needs.

use std::collections::{BTreeSet, VecDeque};

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{Fields, Generics, ImplItem, Item, Signature, Visibility};

use super::{Texts, collect_names};
use crate::tidy::{Places, collect_modules, is_test_only};

/// A public item, or a part of a type's interface that is none itself.
#[derive(Debug)]
pub(super) struct PublicItem {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) name: String,
    /// Names that must be public if this one is used.
    pub(super) interface: BTreeSet<String>,
    /// Whether it is an item of its own.
    pub(super) is_offer: bool,
}

/// The files of a library, those of its tests too, and what it offers.
#[derive(Debug, Default)]
pub(super) struct Library {
    pub(super) files: BTreeSet<String>,
    pub(super) items: Vec<PublicItem>,
}

/// Follows the modules from `root`, if there is such a library. What only tests have is no offer.
pub(super) fn of_library(texts: &Texts, root: &str) -> Result<Library> {
    let mut library = Library::default();
    let mut open = VecDeque::from([(root.to_owned(), true, false)]);
    while let Some((path, is_root, is_test)) = open.pop_front() {
        let Some(text) = texts.get(&path) else { continue };
        let file = syn::parse_file(text)
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("cannot read {path}"))?;
        let mut children = Vec::new();
        let places = Places::of_file(&path, is_root);
        collect_modules(&file.items, &places, is_test, &mut children);
        open.extend(
            children
                .into_iter()
                .map(|(child, is_test)| (child, false, is_test)),
        );
        library.files.insert(path.clone());
        if is_test {
            continue;
        }
        let mut walk = Walk {
            path: &path,
            items: &mut library.items,
        };
        walk.items(&file.items);
    }
    Ok(library)
}

struct Walk<'a> {
    path: &'a str,
    items: &'a mut Vec<PublicItem>,
}

fn names(parts: &[&dyn ToTokens]) -> BTreeSet<String> {
    let (mut names, mut tokens) = (BTreeSet::new(), TokenStream::new());
    parts.iter().for_each(|part| part.to_tokens(&mut tokens));
    collect_names(tokens, &mut names);
    names
}

fn public_fields(generics: &Generics, fields: &Fields) -> BTreeSet<String> {
    let public = fields.iter().filter(|field| is_public(&field.vis));
    let mut all = names(&[generics]);
    public.for_each(|field| all.extend(names(&[&field.ty])));
    all
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

impl Walk<'_> {
    fn offer(&mut self, visibility: &Visibility, name: &Ident, interface: BTreeSet<String>) {
        if is_public(visibility) {
            self.add(name, interface, true);
        }
    }

    fn add(&mut self, name: &Ident, interface: BTreeSet<String>, is_offer: bool) {
        self.items.push(PublicItem {
            path: self.path.to_owned(),
            line: name.span().start().line,
            name: name.to_string(),
            interface,
            is_offer,
        });
    }

    fn function(&mut self, visibility: &Visibility, signature: &Signature) {
        self.offer(visibility, &signature.ident, names(&[signature]));
    }

    fn items(&mut self, items: &[Item]) {
        for item in items {
            self.item(item);
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Fn(item) if !is_test_only(&item.attrs) => self.function(&item.vis, &item.sig),
            Item::Struct(item) if !is_test_only(&item.attrs) => {
                self.offer(
                    &item.vis,
                    &item.ident,
                    public_fields(&item.generics, &item.fields),
                );
            }
            Item::Enum(item) => self.offer(&item.vis, &item.ident, names(&[&item.generics, &item.variants])),
            Item::Union(item) => self.offer(&item.vis, &item.ident, names(&[&item.fields])),
            Item::Trait(item) => {
                let mut interface = names(&[&item.generics, &item.supertraits]);
                interface.extend(item.items.iter().flat_map(|part| names(&[part])));
                self.offer(&item.vis, &item.ident, interface);
            }
            Item::TraitAlias(item) => self.offer(&item.vis, &item.ident, names(&[&item.bounds])),
            Item::Type(item) => self.offer(&item.vis, &item.ident, names(&[&item.ty])),
            Item::Const(item) => self.offer(&item.vis, &item.ident, names(&[&item.ty])),
            Item::Static(item) => self.offer(&item.vis, &item.ident, names(&[&item.ty])),
            // A macro writes all of its body at the place where it is used.
            Item::Macro(item) if item.attrs.iter().any(|at| at.path().is_ident("macro_export")) => {
                if let Some(name) = &item.ident {
                    self.add(name, names(&[&item.mac.tokens]), true);
                }
            }
            Item::Mod(module) if !is_test_only(&module.attrs) => {
                if let Some((_, items)) = &module.content {
                    self.items(items);
                }
            }
            Item::Impl(item) if !is_test_only(&item.attrs) => self.implementation(item),
            _ => {}
        }
    }

    fn implementation(&mut self, item: &syn::ItemImpl) {
        for part in &item.items {
            match part {
                ImplItem::Fn(part) if item.trait_.is_none() && !is_test_only(&part.attrs) => {
                    self.function(&part.vis, &part.sig);
                }
                ImplItem::Const(part) if item.trait_.is_none() => {
                    self.offer(&part.vis, &part.ident, names(&[&part.ty]));
                }
                // An associated type, such as an iterator's item, is as public as the type that has it.
                ImplItem::Type(part) => {
                    if let syn::Type::Path(of) = &*item.self_ty
                        && let Some(of) = of.path.segments.last()
                    {
                        self.add(&of.ident, names(&[&part.ty]), false);
                    }
                }
                _ => {}
            }
        }
    }
}
