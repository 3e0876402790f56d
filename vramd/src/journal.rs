//! Where the log goes: to stderr, or to systemd's journal where stderr leads there, with what a line is about as fields of its own.
//!
//! `journalctl VRAMD_VM=a` finds what the broker says of VM `a`: each key of a record is a field with `VRAMD_` before its name. A line of a
//! thread that works for a card has that one's name as `VRAMD_GPU`. What is logged is chosen by `RUST_LOG` in both cases.

use log::kv::{Error, Key, Source, Value, VisitSource};
use log::{Log, Metadata, Record};
use systemd_journal_logger::{JournalLog, connected_to_journal};
use vfio_user_server::threads;

/// What the names of our fields begin with: the journal's own begin otherwise.
const PREFIX: &str = "VRAMD_";

/// Begins to log, with `default_filter` unless `RUST_LOG` says otherwise. The way to the journal is opened here, before rights are given up.
pub(crate) fn init(default_filter: &str) {
    let environment = env_logger::Env::default().default_filter_or(default_filter);
    let filter = env_logger::Builder::from_env(environment).build();
    let level = filter.filter();
    let logger: Box<dyn Log> = match connected_to_journal().then(JournalLog::new) {
        Some(Ok(journal)) => Box::new(FieldLog { filter, journal }),
        // A journal that takes no fields takes lines.
        Some(Err(_)) | None => Box::new(filter),
    };
    // A program has one logger: this is called once.
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(level);
    }
}

/// Sends records to the journal that pass a filter.
struct FieldLog {
    filter: env_logger::Logger,
    journal: JournalLog,
}

impl Log for FieldLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.filter.matches(record) {
            return;
        }
        let card = threads::card();
        let fields = fields(record.key_values(), card.as_deref());
        let named = record.to_builder().key_values(&fields).build();
        self.journal.log(&named);
    }

    fn flush(&self) {}
}

/// The key that has a card's name.
const GPU: &str = "gpu";

/// The pairs of `source` under the names of our fields, and the card that they are about, if the source does not name one.
fn fields<'kvs>(source: &'kvs dyn Source, card: Option<&'kvs str>) -> Vec<(String, Value<'kvs>)> {
    struct Collected<'kvs>(Vec<(String, Value<'kvs>)>);
    impl<'kvs> VisitSource<'kvs> for Collected<'kvs> {
        fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
            self.0.push((format!("{PREFIX}{key}"), value));
            Ok(())
        }
    }
    let mut collected = Collected(Vec::new());
    // The visitor refuses nothing, and a source that cannot go on has given what it has.
    let _ = source.visit(&mut collected);
    let name = format!("{PREFIX}{GPU}");
    if let Some(card) = card
        && !collected.0.iter().any(|(key, _)| *key == name)
    {
        collected.0.push((name, Value::from(card)));
    }
    collected.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_becomes_a_field_of_ours() {
        let pairs = [("vm", Value::from("a")), ("uid", Value::from(1001))];
        let source: &[(&str, Value<'_>)] = &pairs;
        assert_eq!(named(&source, None), ["VRAMD_vm=a", "VRAMD_uid=1001"]);
    }

    #[test]
    fn line_has_the_card_that_it_names_or_else_that_of_its_thread() {
        let none: &[(&str, Value<'_>)] = &[];
        assert_eq!(named(&none, Some("g0")), ["VRAMD_gpu=g0"]);
        let other: &[(&str, Value<'_>)] = &[("gpu", Value::from("g1"))];
        assert_eq!(named(&other, Some("g0")), ["VRAMD_gpu=g1"]);
    }

    fn named(source: &dyn Source, card: Option<&str>) -> Vec<String> {
        let all = fields(source, card).into_iter();
        all.map(|(name, value)| format!("{name}={value}")).collect()
    }
}
