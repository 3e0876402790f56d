use super::*;

struct Shelf {
    books: usize,
}

impl Inspect for Shelf {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bytes("size", 3 << 20);
        tree.flag("is_full", true);
        tree.on_request("books", self.books, |tree| {
            for book in 0..self.books {
                tree.address(format_args!("book{book}"), 0x1000, Space::BusAddress);
            }
        });
    }
}

struct Room {
    books: usize,
}

impl Inspect for Room {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("state", "open");
        tree.age("open_since", Tick(400));
        tree.bytes_max("limit", u64::MAX);
        tree.part("shelf", &Shelf { books: self.books });
        tree.group("cellar", |tree| tree.number("key", 7_u8));
    }
}

fn look(path: &str) -> Option<Node> {
    inspect(&Room { books: 2 }, Tick(1000), path)
}

fn json(node: &Node) -> String {
    serde_json::to_string(node).expect("text")
}

#[test]
fn tree_has_a_unit_at_each_number() {
    let node = look("").expect("it is there");
    assert_eq!(
        json(&node),
        concat!(
            r#"{"state":"open","open_since":{"value":600,"unit":"nanoseconds"},"limit":"max","#,
            r#""shelf":{"size":{"value":3145728,"unit":"bytes"},"is_full":true,"#,
            r#""books":{"value":2,"unit":"entries-on-request"}},"cellar":{"key":{"value":7,"unit":"number"}}}"#
        )
    );
}

#[test]
fn path_shows_what_lies_there_and_nothing_beside_it() {
    let node = look("shelf/books").expect("it is there");
    assert_eq!(
        node.to_string(),
        "shelf:\n  books:\n    book0: 0x1000 (bus)\n    book1: 0x1000 (bus)\n"
    );
    let node = look("/shelf/size/").expect("it is there");
    assert_eq!(node.to_string(), "shelf:\n  size: 3 MiB\n");
}

#[test]
fn path_to_nothing_is_none() {
    assert_eq!(look("attic"), None);
    assert_eq!(look("shelf/size/more"), None);
    assert_eq!(look("shelf/books/book2"), None);
}

#[test]
fn json_reads_as_it_was_written() {
    for path in ["", "shelf/books"] {
        let node = look(path).expect("it is there");
        assert_eq!(serde_json::from_str::<Node>(&json(&node)).expect("a tree"), node);
    }
}

#[test]
fn number_without_a_unit_is_refused() {
    for text in [
        "7",
        r#"{"a":7}"#,
        r#"{"value":7}"#,
        r#"{"value":7,"unit":"parsecs"}"#,
        r#"{"unit":"bytes","value":7}"#,
        "[]",
        "null",
    ] {
        assert!(serde_json::from_str::<Node>(text).is_err(), "{text}");
    }
}

#[test]
fn long_list_is_cut_and_says_so() {
    let node = inspect(&Room { books: 30_000 }, Tick(0), "shelf/books").expect("it is there");
    let Some(Node::Group(books)) = node.at("shelf/books") else {
        panic!("{node}")
    };
    assert!(books.len() < NODES_MAX);
    assert_eq!(node.value_at("is_cut"), Some(&Value::Flag(true)));
}
