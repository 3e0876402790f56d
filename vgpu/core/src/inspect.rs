//! The state of a running core as a tree of names, values and units, for people and for programs.
//!
//! A type that has something to show implements [`Inspect`] beside its definition and names its parts to a [`Tree`]. Who
//! asks gives a path such as `vms/vm1/chunks`; what lies elsewhere is not even looked at, and lists that may be long are
//! shown only to who asks for them by their path. So a tree is cheap enough to be asked for while the core is at work.
//!
//! As JSON a group is an object, a flag or a name is itself, and anything that is counted or measured is
//! `{"value": …, "unit": "…"}`. Addresses are hexadecimal text, since JSON's readers round large numbers.

use std::fmt::{self, Display};

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::event::Tick;

/// Leaves and groups of one tree at the most; what is more is left out, and the tree says so.
const NODES_MAX: usize = 20_000;

/// What a number counts or measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Bytes of memory.
    Bytes,
    /// A length of time in nanoseconds.
    Nanoseconds,
    /// A clock reading in nanoseconds since the edge started.
    NanosecondsSinceStart,
    /// How many there are of what the leaf's name says.
    Count,
    /// Which one: a channel id, a frame, a request. There is no arithmetic with it.
    Number,
    /// A share relative to those of others.
    Weight,
    /// Entries that are shown to who asks for this path.
    EntriesOnRequest,
}

/// Which addresses an address is among.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// VRAM of the card.
    VramAddress,
    /// VRAM as a guest sees it.
    GuestVramAddress,
    /// RAM of a VM.
    GuestPhysicalAddress,
    /// What the card names host memory by.
    BusAddress,
    /// An address in a channel's address space.
    GpuVirtualAddress,
    /// Bytes into a BAR.
    BarOffset,
}

/// What stands at a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A claim that holds or not.
    Flag(bool),
    /// The name of a state, a VM, a stage.
    Name(String),
    /// A number and what it counts.
    Quantity(u64, Unit),
    /// A place in memory.
    Address(u64, Space),
}

/// A part of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A value without parts.
    Leaf(Value),
    /// Named parts, in the order in which they were told. Names are unique within a group.
    Group(Vec<(String, Node)>),
}

/// What can be looked into.
pub trait Inspect {
    /// Names its parts.
    fn inspect(&self, tree: &mut Tree<'_>);
}

/// A group that is being filled.
#[derive(Debug)]
pub struct Tree<'a> {
    parts: Vec<(String, Node)>,
    /// What is asked for below here; everything if empty.
    path: &'a [&'a str],
    now: Tick,
    /// Nodes that may still be made.
    left: usize,
}

/// What `root` shows at `path`, parts separated by `/`, as a tree from the root on. An empty path asks for everything
/// but long lists. `None` if there is nothing at the path.
pub fn inspect(root: &dyn Inspect, now: Tick, path: &str) -> Option<Node> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let mut tree = Tree {
        parts: Vec::new(),
        path: &parts,
        now,
        left: NODES_MAX,
    };
    root.inspect(&mut tree);
    if tree.left == 0 {
        tree.parts
            .push(("is_cut".to_owned(), Node::Leaf(Value::Flag(true))));
    }
    let node = Node::Group(tree.parts);
    node.at(path).is_some().then_some(node)
}

impl Tree<'_> {
    fn put(&mut self, name: impl Display, node: impl FnOnce() -> Node) {
        let name = name.to_string();
        let is_asked_for = match self.path {
            [] => true,
            [asked] => *asked == name,
            _ => false,
        };
        if is_asked_for && self.left > 0 {
            self.left -= 1;
            self.parts.push((name, node()));
        }
    }

    /// Whether nothing more is taken: who has a long list to show may stop.
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }

    fn value(&mut self, name: impl Display, value: Value) {
        self.put(name, || Node::Leaf(value));
    }

    /// A claim that holds or not.
    pub(crate) fn flag(&mut self, name: impl Display, flag: bool) {
        self.value(name, Value::Flag(flag));
    }

    /// The name of a state, a VM, a stage.
    pub fn name(&mut self, name: impl Display, text: impl Display) {
        self.put(name, || Node::Leaf(Value::Name(text.to_string())));
    }

    /// Bytes of memory.
    pub fn bytes(&mut self, name: impl Display, bytes: u64) {
        self.value(name, Value::Quantity(bytes, Unit::Bytes));
    }

    /// A bound in bytes, of which the highest number means none.
    pub fn bytes_max(&mut self, name: impl Display, bytes: u64) {
        match bytes {
            u64::MAX => self.name(name, "max"),
            bytes => self.bytes(name, bytes),
        }
    }

    /// A length of time in nanoseconds.
    pub fn nanoseconds(&mut self, name: impl Display, nanoseconds: u64) {
        self.value(name, Value::Quantity(nanoseconds, Unit::Nanoseconds));
    }

    /// How long ago something was.
    pub fn age(&mut self, name: impl Display, since: Tick) {
        let age = self.now.since(since);
        self.nanoseconds(name, age);
    }

    /// How long it is until something is due; zero if it is overdue.
    pub(crate) fn due_in(&mut self, name: impl Display, at: Tick) {
        let left = at.since(self.now);
        self.nanoseconds(name, left);
    }

    /// How many there are of what the name says.
    pub fn count(&mut self, name: impl Display, count: usize) {
        self.value(name, Value::Quantity(count as u64, Unit::Count));
    }

    /// Which one: a channel id, a frame, a request.
    pub fn number(&mut self, name: impl Display, number: impl Into<u64>) {
        self.value(name, Value::Quantity(number.into(), Unit::Number));
    }

    /// A register or a part of one, whose bits have meanings of their own.
    pub(crate) fn bits(&mut self, name: impl Display, bits: u32) {
        self.value(name, Value::Name(format!("{bits:#010x}")));
    }

    /// A share relative to those of others.
    pub fn weight(&mut self, name: impl Display, weight: u32) {
        self.value(name, Value::Quantity(weight.into(), Unit::Weight));
    }

    /// A place in memory.
    pub fn address(&mut self, name: impl Display, at: u64, space: Space) {
        self.value(name, Value::Address(at, space));
    }

    /// A group of named parts, filled only if the path leads to it.
    pub fn group(&mut self, name: impl Display, fill: impl FnOnce(&mut Tree<'_>)) {
        let name = name.to_string();
        let path = match self.path {
            [] => self.path,
            [asked, rest @ ..] if *asked == name => rest,
            _ => return,
        };
        if self.left == 0 {
            return;
        }
        let mut below = Tree {
            parts: Vec::new(),
            path,
            now: self.now,
            left: self.left - 1,
        };
        fill(&mut below);
        self.left = below.left;
        // A path that leads nowhere leaves no empty groups on its way.
        if path.is_empty() || !below.parts.is_empty() {
            self.parts.push((name, Node::Group(below.parts)));
        }
    }

    /// The parts of something that has them.
    pub fn part(&mut self, name: impl Display, part: &impl Inspect) {
        self.group(name, |tree| part.inspect(tree));
    }

    /// Parts that may be many: only their number, unless they are asked for by name.
    pub(crate) fn on_request(
        &mut self,
        name: impl Display,
        entries: usize,
        fill: impl FnOnce(&mut Tree<'_>),
    ) {
        if self.path.is_empty() {
            self.value(name, Value::Quantity(entries as u64, Unit::EntriesOnRequest));
        } else {
            self.group(name, fill);
        }
    }
}

impl Node {
    /// The node at a path, parts separated by `/`.
    pub fn at(&self, path: &str) -> Option<&Node> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(self, |node, part| match node {
            Node::Group(parts) => parts.iter().find(|(name, _)| name == part).map(|(_, node)| node),
            Node::Leaf(_) => None,
        })
    }

    /// The same, of a tree that is not needed any more.
    pub fn into_at(self, path: &str) -> Option<Node> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(self, |node, part| match node {
            Node::Group(parts) => parts
                .into_iter()
                .find(|(name, _)| name == part)
                .map(|(_, node)| node),
            Node::Leaf(_) => None,
        })
    }

    /// The value at a path; `None` if nothing or a group is there.
    pub fn value_at(&self, path: &str) -> Option<&Value> {
        match self.at(path)? {
            Node::Leaf(value) => Some(value),
            Node::Group(_) => None,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        match self {
            Node::Leaf(value) => writeln!(f, "{value}"),
            Node::Group(parts) => parts.iter().try_for_each(|(name, node)| {
                write!(f, "{:1$}{name}:", "", 2 * depth)?;
                match node {
                    Node::Leaf(value) => writeln!(f, " {value}"),
                    Node::Group(parts) if parts.is_empty() => writeln!(f, " none"),
                    group => {
                        writeln!(f)?;
                        group.write(f, depth + 1)
                    }
                }
            }),
        }
    }
}

impl Display for Node {
    /// One line for each part, indented by its depth.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => write!(f, "{}", if *flag { "yes" } else { "no" }),
            Value::Name(name) => f.write_str(name),
            Value::Quantity(bytes, Unit::Bytes) if *bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
                write!(f, "{} MiB", bytes >> 20)
            }
            Value::Quantity(bytes, Unit::Bytes) if *bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
                write!(f, "{} KiB", bytes >> 10)
            }
            Value::Quantity(bytes, Unit::Bytes) => write!(f, "{bytes} bytes"),
            Value::Quantity(ns, Unit::Nanoseconds) => {
                write!(f, "{}.{:06} ms", ns / 1_000_000, ns % 1_000_000)
            }
            Value::Quantity(ns, Unit::NanosecondsSinceStart) => {
                write!(f, "at {}.{:06} ms", ns / 1_000_000, ns % 1_000_000)
            }
            Value::Quantity(number, Unit::Count | Unit::Weight) => write!(f, "{number}"),
            Value::Quantity(number, Unit::Number) => write!(f, "number {number}"),
            Value::Quantity(entries, Unit::EntriesOnRequest) => {
                write!(f, "{entries} entries, shown if this path is asked for")
            }
            Value::Address(at, space) => {
                let space = match space {
                    Space::VramAddress => "VRAM",
                    Space::GuestVramAddress => "guest VRAM",
                    Space::GuestPhysicalAddress => "guest RAM",
                    Space::BusAddress => "bus",
                    Space::GpuVirtualAddress => "GPU virtual",
                    Space::BarOffset => "BAR",
                };
                write!(f, "{at:#x} ({space})")
            }
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = match self {
            Node::Leaf(Value::Flag(flag)) => return serializer.serialize_bool(*flag),
            Node::Leaf(Value::Name(name)) => return serializer.serialize_str(name),
            Node::Leaf(Value::Quantity(number, unit)) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("value", number)?;
                map.serialize_entry("unit", unit)?;
                return map.end();
            }
            Node::Leaf(Value::Address(at, space)) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("value", &format_args!("{at:#x}"))?;
                map.serialize_entry("unit", space)?;
                return map.end();
            }
            Node::Group(parts) => parts,
        };
        let mut map = serializer.serialize_map(Some(parts.len()))?;
        for (name, node) in parts {
            map.serialize_entry(name, node)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(AnyVisitor)? {
            Any::Node(node) => Ok(node),
            Any::Number(_) => Err(D::Error::custom("a number without a unit")),
        }
    }
}

/// A node, or the bare number within one.
enum Any {
    Node(Node),
    Number(u64),
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a flag, a name, a value with its unit, or a group of these")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Any, E> {
        Ok(Any::Node(Node::Leaf(Value::Flag(flag))))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Any, E> {
        Ok(Any::Node(Node::Leaf(Value::Name(name.to_owned()))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Any, E> {
        Ok(Any::Number(number))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Any, A::Error> {
        let mut parts = Vec::new();
        while let Some((name, any)) = map.next_entry::<String, Any>()? {
            match any {
                Any::Node(node) => parts.push((name, node)),
                Any::Number(number) if name == "value" && parts.is_empty() => {
                    return quantity(number, map).map(Any::Node);
                }
                Any::Number(_) => return Err(A::Error::custom("a number without a unit")),
            }
        }
        Ok(Any::Node(address(&parts).unwrap_or(Node::Group(parts))))
    }
}

/// The rest of an object that began with a bare number.
fn quantity<'de, A: MapAccess<'de>>(number: u64, mut map: A) -> Result<Node, A::Error> {
    match map.next_entry::<String, Unit>()? {
        Some((name, unit)) if name == "unit" => Ok(Node::Leaf(Value::Quantity(number, unit))),
        _ => Err(A::Error::custom("a number without a unit")),
    }
}

/// A group that is an address: hexadecimal text and its space.
fn address(parts: &[(String, Node)]) -> Option<Node> {
    let [
        (value, Node::Leaf(Value::Name(at))),
        (unit, Node::Leaf(Value::Name(space))),
    ] = parts
    else {
        return None;
    };
    if value != "value" || unit != "unit" {
        return None;
    }
    let at = u64::from_str_radix(at.strip_prefix("0x")?, 16).ok()?;
    let space = Space::deserialize(serde::de::value::StrDeserializer::<serde::de::value::Error>::new(
        space,
    ));
    Some(Node::Leaf(Value::Address(at, space.ok()?)))
}

#[cfg(test)]
mod tests;
