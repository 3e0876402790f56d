//! Screens after bytes of a program, and what is drawn of them.

use std::num::NonZeroU16;

use vt100::Parser;

use super::*;

const ROWS: NonZeroU16 = NonZeroU16::new(4).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(20).unwrap();

fn after(bytes: &str) -> Screen {
    let mut parser = Parser::new(ROWS, COLUMNS, 0);
    parser.process(bytes.as_bytes());
    parser.screen().clone()
}

/// Elements of the picture that begin so, in their order.
fn elements(bytes: &str, begin: &str) -> Vec<String> {
    let screen = after(bytes);
    let svg = draw(&screen, Area::whole(&screen), "a title");
    // The first is the ground of all.
    let lines = svg
        .lines()
        .skip(3)
        .filter(|line| line.starts_with(begin))
        .map(str::to_owned);
    lines.collect()
}

fn texts(bytes: &str) -> Vec<String> {
    elements(bytes, "<text ")
}

fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let (_, rest) = element
        .split_once(&format!(" {name}=\""))
        .unwrap_or_else(|| panic!("{element} has no {name}"));
    rest.split_once('"').unwrap().0
}

fn words(element: &str) -> &str {
    element
        .split_once('>')
        .unwrap()
        .1
        .strip_suffix("</text>")
        .unwrap()
}

#[test]
fn markup_in_text_is_text() {
    let drawn = texts("a<b>&\"c'");
    assert_eq!(drawn.len(), 1, "{drawn:?}");
    assert_eq!(words(&drawn[0]), "a&lt;b&gt;&amp;\"c'");
    let screen = after("");
    let svg = draw(&screen, Area::whole(&screen), "<&>\u{7}");
    assert!(svg.contains("<title>&lt;&amp;&gt; </title>"), "{svg}");
}

#[test]
fn each_piece_stands_in_its_column_and_has_its_width() {
    let drawn = texts("one two   three\r\n  x");
    let places: Vec<_> = drawn
        .iter()
        .map(|text| {
            (
                words(text),
                attribute(text, "x"),
                attribute(text, "y"),
                attribute(text, "textLength"),
            )
        })
        .collect();
    let expected = [
        ("one two", "14.0", "27.5", "58.8"),
        ("three", "98.0", "27.5", "42.0"),
        ("x", "30.8", "45.5", "8.4"),
    ];
    assert_eq!(places, expected);
}

#[test]
fn wide_sign_takes_two_columns_and_moves_what_follows() {
    let drawn = texts("漢\x1b[31mx");
    assert_eq!(
        (words(&drawn[0]), attribute(&drawn[0], "textLength")),
        ("漢", "16.8")
    );
    assert_eq!((words(&drawn[1]), attribute(&drawn[1], "x")), ("x", "30.8"));
}

#[test]
fn colours_are_those_that_were_asked_for() {
    let drawn = texts("\x1b[31mr\x1b[mn\x1b[38;5;196mi\x1b[38;2;1;2;3mt\x1b[38;5;255mg");
    let inks: Vec<_> = drawn
        .iter()
        .map(|text| (words(text), attribute(text, "fill")))
        .collect();
    let red = NAMED[1].to_string();
    let own = TEXT.to_string();
    let expected = [
        ("r", red.as_str()),
        ("n", &own),
        ("i", "#ff0000"),
        ("t", "#010203"),
        ("g", "#eeeeee"),
    ];
    assert_eq!(inks, expected);
}

#[test]
fn inverse_exchanges_ink_and_ground() {
    let bytes = "a\x1b[7mb\x1b[32mc";
    let drawn = texts(bytes);
    assert_eq!(attribute(&drawn[1], "fill"), GROUND.to_string());
    let grounds = elements(bytes, "<rect ");
    let grounds: Vec<_> = grounds.iter().map(|rect| attribute(rect, "fill")).collect();
    assert_eq!(grounds, [TEXT.to_string(), NAMED[2].to_string()]);
}

#[test]
fn bold_dim_and_underlined_are_seen() {
    let drawn = texts("n\x1b[1mb\x1b[m\x1b[2md");
    assert!(!drawn[0].contains("font-weight"));
    assert_eq!(attribute(&drawn[1], "font-weight"), "bold");
    assert_eq!(attribute(&drawn[2], "fill"), TEXT.on(GROUND, DIM).to_string());
    assert_ne!(attribute(&drawn[2], "fill"), TEXT.to_string());
    // The line goes on below blanks.
    let lines = elements("\x1b[4mu  \x1b[mx", "<rect ");
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (attribute(&lines[0], "width"), attribute(&lines[0], "height")),
        ("25.2", "1.0")
    );
}

#[test]
fn blocks_are_areas_without_gaps() {
    let bytes = "[\x1b[32m██\x1b[33m▒▒▒\x1b[m]";
    assert_eq!(
        texts(bytes).iter().map(|text| words(text)).collect::<Vec<_>>(),
        ["[", "]"]
    );
    let areas = elements(bytes, "<rect ");
    let areas: Vec<_> = areas
        .iter()
        .map(|rect| {
            (
                attribute(rect, "x"),
                attribute(rect, "width"),
                attribute(rect, "fill"),
            )
        })
        .collect();
    let (full, half) = (NAMED[2].to_string(), NAMED[3].on(GROUND, 0.5).to_string());
    assert_eq!(
        areas,
        [("22.4", "16.8", full.as_str()), ("39.2", "25.2", half.as_str())]
    );
}

#[test]
fn same_screen_gives_the_same_picture_whatever_was_on_it_before() {
    let (one, other) = (after("\x1b[1mab"), after("zzz\x1b[2J\x1b[H\x1b[1ma\x1b[1mb"));
    let picture = |screen: &Screen| draw(screen, Area::used(screen), "t");
    assert_eq!(picture(&one), picture(&other));
    assert_ne!(picture(&one), picture(&after("\x1b[1mac")));
}

#[test]
fn used_part_ends_with_what_is_seen() {
    let area = |rows, columns| Area { rows, columns };
    assert_eq!(Area::used(&after("ab\r\n   c")), area(2, 4));
    assert_eq!(Area::used(&after("ab\r\n\x1b[7m      ")), area(2, 6));
    assert_eq!(Area::used(&after("")), area(1, 1));
    assert_eq!(Area::whole(&after("ab")), area(4, 20));
}
