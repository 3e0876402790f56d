//! A strict reader of the text of OpenMetrics 1.0, written from its specification and not from what writes it here: the part that has
//! gauges, counters and histograms without exemplars and timestamps.

use std::collections::{BTreeMap, BTreeSet};

/// A set of labels, by name.
pub(crate) type Labels = BTreeMap<String, String>;

/// A line with a value.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
}

/// A family of metrics.
#[derive(Debug)]
struct Family {
    name: String,
    kind: String,
    samples: Vec<Sample>,
}

/// All samples of a text; panics where it is not as it has to be.
pub(crate) fn read(text: &str) -> Vec<Sample> {
    let body = text.strip_suffix("# EOF\n").expect("the last line is # EOF");
    let mut families: Vec<Family> = Vec::new();
    let mut lines = body.split_terminator('\n').peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect(line);
            assert!(is_name(name) && !help.is_empty(), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
            let kind = kind
                .and_then(|kind| kind.strip_prefix(name))
                .expect("TYPE follows HELP");
            let kind = kind.trim_start();
            assert!(
                ["gauge", "counter", "histogram"].contains(&kind),
                "{name}: {kind}"
            );
            if let Some(unit) = lines.peek().and_then(|line| line.strip_prefix("# UNIT ")) {
                let (of, unit) = unit.split_once(' ').unwrap();
                assert!(
                    of == name && name.ends_with(&format!("_{unit}")),
                    "{name}: {unit}"
                );
                lines.next();
            }
            families.push(Family {
                name: name.to_owned(),
                kind: kind.to_owned(),
                samples: Vec::new(),
            });
        } else {
            let family = families.last_mut().expect("samples follow their family's HELP");
            let sample = sample(line);
            let suffix = sample
                .name
                .strip_prefix(&family.name)
                .unwrap_or_else(|| panic!("{line}"));
            let allowed: &[&str] = match family.kind.as_str() {
                "gauge" => &[""],
                "counter" => &["_total"],
                _ => &["_bucket", "_sum", "_count"],
            };
            assert!(allowed.contains(&suffix), "{line}");
            assert!(sample.value.is_finite(), "{line}");
            assert!(family.kind == "gauge" || sample.value >= 0.0, "{line}");
            family.samples.push(sample);
        }
    }
    let names: BTreeSet<_> = families.iter().map(|family| &family.name).collect();
    assert_eq!(names.len(), families.len(), "a family is there twice");
    families.iter().for_each(check);
    families.into_iter().flat_map(|family| family.samples).collect()
}

fn check(family: &Family) {
    assert!(!family.samples.is_empty(), "{} has nothing", family.name);
    let series: BTreeSet<_> = family
        .samples
        .iter()
        .map(|sample| (&sample.name, &sample.labels))
        .collect();
    assert_eq!(
        series.len(),
        family.samples.len(),
        "{}: one is there twice",
        family.name
    );
    if family.kind == "histogram" {
        check_histogram(family);
    }
}

/// Buckets rise, in their bounds and in what they count, to one that holds all.
fn check_histogram(family: &Family) {
    let named = |end: &str| {
        let name = format!("{}{end}", family.name);
        family.samples.iter().filter(move |sample| sample.name == name)
    };
    let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in named("_bucket") {
        let mut labels = sample.labels.clone();
        let le = labels.remove("le").expect("a bucket has a bound");
        let le = if le == "+Inf" {
            f64::INFINITY
        } else {
            le.parse().unwrap()
        };
        buckets.entry(labels).or_default().push((le, sample.value));
    }
    assert_eq!(named("_count").count(), buckets.len(), "{}", family.name);
    assert_eq!(named("_sum").count(), buckets.len(), "{}", family.name);
    for count in named("_count") {
        let of = &buckets[&count.labels];
        assert!(
            of.windows(2)
                .all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1),
            "{of:?}"
        );
        assert_eq!(of.last(), Some(&(f64::INFINITY, count.value)), "{}", family.name);
    }
}

fn is_name(name: &str) -> bool {
    let is_first = |sign: char| sign.is_ascii_alphabetic() || sign == '_';
    name.starts_with(is_first) && name.chars().all(|sign| is_first(sign) || sign.is_ascii_digit())
}

/// Reads a name, labels in braces if there are any, and a number.
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Labels::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        while !inside.starts_with('}') {
            let (label, value) = inside.split_once("=\"").expect(line);
            assert!(is_name(label), "{line}");
            let (value, after) = quoted(value);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            inside = after.strip_prefix(',').unwrap_or(after);
            assert!(after.starts_with([',', '}']), "{line}");
        }
        rest = &inside[1..];
    }
    let number = rest.strip_prefix(' ').expect(line);
    assert!(
        number
            .chars()
            .all(|sign| sign.is_ascii_digit() || "+-.e".contains(sign)),
        "{line}"
    );
    Sample {
        name: name.to_owned(),
        labels,
        value: number.parse().expect(line),
    }
}

/// A label's value up to its quotation mark, and what follows.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut signs = text.char_indices();
    while let Some((index, sign)) = signs.next() {
        match sign {
            '"' => return (value, &text[index + 1..]),
            '\\' => value.push(match signs.next() {
                Some((_, 'n')) => '\n',
                Some((_, sign @ ('"' | '\\'))) => sign,
                other => panic!("{other:?} is not escaped so"),
            }),
            sign => value.push(sign),
        }
    }
    panic!("{text}: no end");
}

#[test]
fn reader_takes_what_is_right_and_refuses_what_is_wrong() {
    let right = "# HELP a_bytes x\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes{vm=\"q\\\"\\\\\"} 1.5\n# EOF\n";
    let samples = read(right);
    assert_eq!(
        (samples[0].value, samples[0].labels["vm"].as_str()),
        (1.5, "q\"\\")
    );
    for wrong in [
        "# HELP a x\n# TYPE a gauge\na 1\n",
        "# TYPE a gauge\na 1\n# EOF\n",
        "# HELP a x\na 1\n# EOF\n",
        "# HELP a x\n# TYPE a gauge\n# EOF\n",
        "# HELP a x\n# TYPE a counter\na 1\n# EOF\n",
        "# HELP a x\n# TYPE a gauge\na inf\n# EOF\n",
        "# HELP a x\n# TYPE a gauge\na 1\na 2\n# EOF\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"1\" 1\n# EOF\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_count 1\na_sum 1\n# EOF\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_count 1\na_sum 1\n# EOF\n",
    ] {
        let told = std::panic::catch_unwind(|| read(wrong));
        assert!(told.is_err(), "{wrong}");
    }
}
