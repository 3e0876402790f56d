//! Names, parameters and macros: replaces them in the text before it is assembled.
//!
//! | directive | meaning |
//! |---|---|
//! | `.equ NAME TEXT` | `%NAME` in later lines is TEXT |
//! | `.param NAME u32`, `f32`, `u64` | the next parameter of the launch in constant bank 0, from 0x20 on, naturally aligned; `%NAME` is its offset, for `c0[%NAME]` |
//! | `.macro NAME A B` … `.endm` | a line `NAME x y` becomes the lines between, with `%A`, `%B` replaced; `%@` is a number of this use, for labels |
//!
//! `%{NAME}` is `%NAME` where a letter follows. A sum of two numbers in a constant's brackets is added up, so that
//! `c0[%NAME+4]` is the upper word of a `u64`. Values are expanded where they are defined.
//!
//! The macros of `prelude.asm` are always defined.

use alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{AssemblyError, SOURCE_BYTES_MAX, matching};

/// Macros that every program has.
const PRELUDE: &str = include_str!("prelude.asm");
/// Offset of the first parameter.
const PARAMETERS_START: u32 = 0x20;
/// End of the parameters (CUDA: up to 4 KiB of them).
const PARAMETERS_END: u32 = 0x1020;
/// Greatest depth of macros within macros.
const DEPTH_MAX: u32 = 16;

/// A value that a launch has to provide in constant bank 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Where it lies, bytes.
    pub offset: u32,
    /// Its length: 4 or 8.
    pub bytes: u32,
}

/// A line to be assembled.
pub(super) struct Text {
    /// Line of the source.
    pub(super) number: u32,
    pub(super) text: String,
    /// Column in the source of each character; the last one goes for what is behind.
    columns: Vec<u32>,
    /// The macro that it is from.
    origin: Option<String>,
}

impl Text {
    /// Column in the source of a column of the text.
    pub(super) fn column(&self, column: u32) -> u32 {
        let index = (column.max(1) as usize - 1).min(self.columns.len().saturating_sub(1));
        self.columns.get(index).map_or(column, |column| *column)
    }

    /// A message about this line.
    pub(super) fn message(&self, message: String) -> String {
        match &self.origin {
            Some(name) => format!("in macro {name}: {message}"),
            None => message,
        }
    }
}

/// A source without names and macros.
#[derive(Default)]
pub(super) struct Expanded {
    pub(super) lines: Vec<Text>,
    pub(super) parameters: Vec<Parameter>,
}

struct Macro {
    arguments: Vec<String>,
    body: Vec<String>,
}

/// The text around a `%`: the source, or a use of a macro.
#[derive(Default)]
struct Scope<'a> {
    arguments: BTreeMap<&'a str, &'a str>,
    number: u32,
}

struct Expander {
    values: BTreeMap<String, String>,
    macros: BTreeMap<String, Macro>,
    expanded: Expanded,
    bytes: usize,
    uses: u32,
}

/// Takes names, parameters and macros out of a source.
pub(super) fn expand(source: &str) -> Result<Expanded, AssemblyError> {
    let mut expander = Expander {
        values: BTreeMap::new(),
        macros: BTreeMap::new(),
        expanded: Expanded::default(),
        bytes: 0,
        uses: 0,
    };
    expander.source(PRELUDE)?;
    expander.source(source)?;
    Ok(expander.expanded)
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_of_name)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Column of the `index`th word, from 1.
fn column_of(line: &str, index: usize) -> u32 {
    let word = line.split_whitespace().nth(index);
    let offset = word.map_or(line.len(), |word| word.as_ptr() as usize - line.as_ptr() as usize);
    line[..offset].chars().count() as u32 + 1
}

impl Expander {
    fn source(&mut self, source: &str) -> Result<(), AssemblyError> {
        let mut lines = source.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let words: Vec<&str> = code(line).split_whitespace().collect();
            let error = |word, message| AssemblyError {
                line: number,
                column: column_of(line, word),
                message,
            };
            match words.split_first() {
                Some((&".equ", rest)) => self
                    .define(line, rest)
                    .map_err(|(word, message)| error(word, message))?,
                Some((&".param", rest)) => self
                    .parameter(rest)
                    .map_err(|(word, message)| error(word, message))?,
                Some((&".macro", rest)) => {
                    let mut body = Vec::new();
                    loop {
                        let Some((line, _)) = lines.next() else {
                            return Err(error(0, ".macro without .endm".to_owned()));
                        };
                        let line = code(line).trim();
                        if line == ".endm" {
                            break;
                        }
                        body.push(line.to_owned());
                    }
                    self.define_macro(rest, body)
                        .map_err(|(word, message)| error(word, message))?;
                }
                Some((&".endm", _)) => return Err(error(0, ".endm without .macro".to_owned())),
                _ => self.line(line, number)?,
            }
        }
        Ok(())
    }

    fn define(&mut self, line: &str, words: &[&str]) -> Result<(), (usize, String)> {
        let Some((name, [_, ..])) = words.split_first() else {
            return Err((0, ".equ takes a name and a text".to_owned()));
        };
        self.check_free(name)?;
        let start = name.as_ptr() as usize - line.as_ptr() as usize + name.len();
        let scope = Scope::default();
        let (value, _) = self
            .substitute(code(line)[start..].trim(), &scope)
            .map_err(|(_, message)| (2, message))?;
        self.bytes += value.len();
        self.values.insert((*name).to_owned(), value);
        Ok(())
    }

    fn parameter(&mut self, words: &[&str]) -> Result<(), (usize, String)> {
        let [name, kind] = words else {
            return Err((0, ".param takes a name and a type".to_owned()));
        };
        self.check_free(name)?;
        let bytes = match *kind {
            "u32" | "f32" => 4,
            "u64" => 8,
            _ => {
                return Err((
                    2,
                    format!("{kind} is not a type of a parameter: use u32, f32 or u64"),
                ));
            }
        };
        let last = self.expanded.parameters.last();
        let end = last.map_or(PARAMETERS_START, |last| last.offset + last.bytes);
        let offset = end.next_multiple_of(bytes);
        if offset + bytes > PARAMETERS_END {
            return Err((0, "parameters have at most 4096 bytes".to_owned()));
        }
        self.values.insert((*name).to_owned(), format!("{offset:#x}"));
        self.expanded.parameters.push(Parameter {
            name: (*name).to_owned(),
            offset,
            bytes,
        });
        Ok(())
    }

    fn define_macro(&mut self, words: &[&str], body: Vec<String>) -> Result<(), (usize, String)> {
        let Some((name, arguments)) = words.split_first() else {
            return Err((0, ".macro takes a name".to_owned()));
        };
        if let Some(index) = words.iter().position(|word| !is_name(word)) {
            return Err((
                index + 1,
                format!("{:?} cannot be a name: use letters, digits and _", words[index]),
            ));
        }
        if self.macros.contains_key(*name) {
            return Err((1, format!("macro {name} was defined before")));
        }
        let arguments = arguments.iter().map(ToString::to_string).collect();
        self.macros.insert((*name).to_owned(), Macro { arguments, body });
        Ok(())
    }

    fn check_free(&self, name: &str) -> Result<(), (usize, String)> {
        if !is_name(name) {
            return Err((1, format!("{name:?} cannot be a name: use letters, digits and _")));
        }
        if self.values.contains_key(name) {
            return Err((1, format!("{name} was defined before")));
        }
        Ok(())
    }

    /// A line of the source that is no directive of this module.
    fn line(&mut self, line: &str, number: u32) -> Result<(), AssemblyError> {
        let scope = Scope::default();
        let (text, columns) = self
            .substitute(line, &scope)
            .map_err(|(column, message)| AssemblyError {
                line: number,
                column,
                message,
            })?;
        let call = column_of(line, 0);
        self.emit(text, columns, number, None, 0)
            .map_err(|message| AssemblyError {
                line: number,
                column: call,
                message,
            })
    }

    /// A line without `%`: the body of a macro if it names one, itself otherwise.
    fn emit(
        &mut self,
        text: String,
        columns: Vec<u32>,
        number: u32,
        origin: Option<&str>,
        depth: u32,
    ) -> Result<(), String> {
        self.bytes += text.len() + 1;
        if self.bytes > SOURCE_BYTES_MAX {
            return Err(too_long());
        }
        let words: Vec<&str> = code(&text).split_whitespace().collect();
        let Some((name, arguments)) = words.split_first() else {
            return Ok(());
        };
        let Some(found) = self.macros.get(*name) else {
            let origin = origin.map(str::to_owned);
            let text = text.clone();
            self.expanded.lines.push(Text {
                number,
                text,
                columns,
                origin,
            });
            return Ok(());
        };
        if depth == DEPTH_MAX {
            return Err(format!("macros are nested deeper than {DEPTH_MAX}"));
        }
        if arguments.len() != found.arguments.len() {
            return Err(format!("macro {name} takes {}", found.arguments.join(" ")));
        }
        let (names, body) = (found.arguments.clone(), found.body.clone());
        self.uses += 1;
        let scope = Scope {
            arguments: names
                .iter()
                .map(String::as_str)
                .zip(arguments.iter().copied())
                .collect(),
            number: self.uses,
        };
        let at = columns
            .get(text.len() - text.trim_start().len())
            .map_or(1, |column| *column);
        for line in body {
            let (line, columns) = self
                .substitute(&line, &scope)
                .map_err(|(_, message)| format!("in macro {name}: {message}"))?;
            let columns = columns.iter().map(|_| at).collect();
            self.emit(line, columns, number, Some(name), depth + 1)?;
        }
        Ok(())
    }

    /// `line` with every `%` replaced, and the column of each of its characters. No longer than what is left for the text:
    /// names of names grow without bound.
    fn substitute(&self, line: &str, scope: &Scope<'_>) -> Result<(String, Vec<u32>), (u32, String)> {
        let mut text = String::new();
        let mut columns = Vec::new();
        let mut rest = code(line);
        let mut column = 1;
        while let Some(c) = rest.chars().next() {
            if c != '%' {
                text.push(c);
                columns.push(column);
                (rest, column) = (&rest[c.len_utf8()..], column + 1);
                continue;
            }
            let (name, after) =
                name_behind(&rest[1..]).ok_or_else(|| (column, "a name has to follow %".to_owned()))?;
            let value = match name {
                "@" => scope.number.to_string(),
                _ => scope
                    .arguments
                    .get(name)
                    .copied()
                    .or_else(|| self.values.get(name).map(String::as_str))
                    .ok_or_else(|| (column, format!("{name} is not defined")))?
                    .to_owned(),
            };
            if self.bytes + text.len() + value.len() > SOURCE_BYTES_MAX {
                return Err((column, too_long()));
            }
            columns.extend(value.chars().map(|_| column));
            text.push_str(&value);
            column += (rest.chars().count() - after.chars().count()) as u32;
            rest = after;
        }
        columns.push(column);
        Ok(add_up(text, columns))
    }
}

fn too_long() -> String {
    format!("the text with its macros is longer than {SOURCE_BYTES_MAX} bytes")
}

/// The name behind a `%`, and what follows it.
fn name_behind(text: &str) -> Option<(&str, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        return braced.split_once('}').filter(|(name, _)| is_name(name));
    }
    let end = match text.strip_prefix('@') {
        Some(_) => 1,
        None => text.find(|c| !is_of_name(c)).unwrap_or(text.len()),
    };
    (end != 0).then(|| text.split_at(end))
}

/// Makes `[A]` of `[A+B]` with numbers A and B.
fn add_up(text: String, columns: Vec<u32>) -> (String, Vec<u32>) {
    let mut sum = String::new();
    let mut places = Vec::new();
    let mut rest = text.as_str();
    let mut done = 0;
    while let Some((before, inside, after)) = rest.split_once('[').and_then(|(before, behind)| {
        behind
            .split_once(']')
            .map(|(inside, after)| (before, inside, after))
    }) {
        let value = inside
            .split_once('+')
            .and_then(|(a, b)| matching::number(a)?.checked_add(matching::number(b)?))
            .map_or_else(|| inside.to_owned(), |value| format!("{value:#x}"));
        let [before_count, inside_count] = [before, inside].map(|text| text.chars().count());
        let start = done + before_count + 1;
        places.extend_from_slice(&columns[done..start]);
        places.extend(value.chars().map(|_| columns[start]));
        places.push(columns[start + inside_count]);
        sum.extend([before, "[", &value, "]"]);
        done = start + inside_count + 1;
        rest = after;
    }
    sum.push_str(rest);
    places.extend_from_slice(&columns[done..]);
    (sum, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::assembler::assemble;

    fn words(source: &str) -> Vec<u64> {
        assemble(source).unwrap().words
    }

    fn error(source: &str) -> (u32, u32, String) {
        let error = assemble(source).unwrap_err();
        (error.line, error.column, error.message)
    }

    #[test]
    fn parameters_are_aligned_and_their_words_have_names() {
        let source = ".param n u32\n.param data u64\nmov b32 $r1 c0[%n]\nmov b32 $r2 c0[%data+4]\n";
        let program = assemble(source).unwrap();
        let places: Vec<_> = program.parameters.iter().map(|p| (p.offset, p.bytes)).collect();
        assert_eq!(places, [(0x20, 4), (0x28, 8)]);
        assert_eq!(program.words, words("mov b32 $r1 c0[0x20]\nmov b32 $r2 c0[0x2c]"));
    }

    #[test]
    fn names_stand_for_text() {
        let source = ".equ sum $r3\n.equ pair 4\nadd b32 %sum %sum 0x1\nld b32 $r1 ca g[$r%{pair}d+0x4]";
        assert_eq!(
            words(source),
            words("add b32 $r3 $r3 0x1\nld b32 $r1 ca g[$r4d+0x4]")
        );
    }

    #[test]
    fn macro_takes_arguments_and_has_labels_of_its_own() {
        let source = ".macro count n\nmov b32 $r1 %n\nagain%@: sub b32 $r1 $r1 0x1\n.endm\n\
                      count 0x5\ncount 0x6\nbra #again2";
        let plain = "mov b32 $r1 0x5\nsub b32 $r1 $r1 0x1\nmov b32 $r1 0x6\nx: sub b32 $r1 $r1 0x1\nbra #x";
        assert_eq!(words(source), words(plain));
    }

    #[test]
    fn prelude_finds_a_thread_and_an_element() {
        let source = ".param data u64\nthread_x $r0 $r1\nelement $r2 $r3 $r0 %data\nexit";
        let program = assemble(source).unwrap();
        assert_eq!(program.registers, 4);
    }

    #[test]
    fn errors_name_line_and_column_of_the_source() {
        assert_eq!(
            error("exit\n mov b32 $r1 %n"),
            (2, 14, "n is not defined".to_owned())
        );
        let (line, column, message) = error(".equ a $r1\nexit\nadd b32 %a wrong $r2");
        assert_eq!((line, column), (3, 12), "{message}");
        let (line, column, message) = error(".macro m r\nadd b32 %r wrong $r2\n.endm\n  m $r1");
        assert_eq!((line, column), (4, 3), "{message}");
        assert!(message.starts_with("in macro m: "), "{message}");
        assert_eq!(
            error(".macro m r\n.endm\nm"),
            (3, 1, "macro m takes r".to_owned())
        );
        assert_eq!(error(".macro m\nexit"), (1, 1, ".macro without .endm".to_owned()));
        assert_eq!(error(".param n f64").0, 1);
        assert_eq!(
            error(".equ a 1\n.equ a 2"),
            (2, 6, "a was defined before".to_owned())
        );
        let (line, column, message) = error(".param n u32\nmov b32 $r1 c0[%n+4");
        assert_eq!((line, column), (2, 13), "{message}");
    }

    #[test]
    fn macros_without_end_are_refused() {
        let (.., message) = error(".macro m\nm\n.endm\nm");
        assert!(message.contains("nested deeper"), "{message}");
        let mut source = String::from(".macro m0\nexit\nexit\n.endm\n");
        for level in 1..15 {
            let call = format!("m{}\n", level - 1).repeat(8);
            source.push_str(&format!(".macro m{level}\n{call}.endm\n"));
        }
        let (.., message) = error(&format!("{source}m14"));
        assert!(message.contains("longer than"), "{message}");
    }

    /// Forty names or arguments that double would be a terabyte of text.
    #[test]
    fn names_that_double_are_refused_where_the_text_gets_too_long() {
        let mut names = String::from(".equ a0 0123456789abcdef\n");
        for level in 1..=40 {
            names.push_str(&format!(".equ a{level} %a{}%{{a{}}}\n", level - 1, level - 1));
        }
        let (line, column, message) = error(&names);
        assert!(message.contains("longer than"), "{message}");
        assert!((10..30).contains(&line) && column > 1, "{line}:{column}");

        let mut macros = String::from(".macro m0 x\nexit // %x\n.endm\n");
        for level in 1..=15 {
            let wide = "%x".repeat(16);
            macros.push_str(&format!(".macro m{level} x\nm{} {wide}\n.endm\n", level - 1));
        }
        let (.., message) = error(&format!("{macros}m15 0123456789abcdef"));
        assert!(message.contains("longer than"), "{message}");

        // Many long lines in one macro: each is counted before the next is made.
        let body = "exit %x%x%x%x\n".repeat(1 << 12);
        let (.., message) = error(&format!(".macro m x\n{body}.endm\nm {}", "y".repeat(1 << 16)));
        assert!(
            message.contains("longer than") || message.contains("exit"),
            "{message}"
        );
    }
}
