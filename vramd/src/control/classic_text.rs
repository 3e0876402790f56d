//! Metrics as text of Prometheus' format 0.0.4, for scrapers and tools that do not read OpenMetrics.
//!
//! It differs in little: a family of counters is named as its samples are, with `_total`; there are no units, and no last line.

use axum::http::{HeaderMap, header};

/// What the text is, as scrapers name it.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether whoever asks wants this text, and not the other.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter();
    let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
    let has = |kind: &str| values.iter().any(|value| value.contains(kind));
    has("text/plain") && !has("application/openmetrics-text")
}

/// The text that OpenMetrics' `text` is.
pub(super) fn of(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut classic = String::with_capacity(text.len());
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            // The kind of a family follows its help.
            let is_counter = lines.peek().is_some_and(|next| next.ends_with(" counter"));
            let total = if is_counter { "_total" } else { "" };
            classic += &format!("# HELP {name}{total} {help}\n");
        } else if let Some(name) = line
            .strip_prefix("# TYPE ")
            .and_then(|kind| kind.strip_suffix(" counter"))
        {
            classic += &format!("# TYPE {name}_total counter\n");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            classic += line;
            classic.push('\n');
        }
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples() {
        let text = "# HELP a_seconds Time\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{vm=\"x\"} 1.5\n\
                    # HELP b A counter\n# TYPE b gauge\nb 2\n# EOF\n";
        let classic = "# HELP a_seconds_total Time\n# TYPE a_seconds_total counter\na_seconds_total{vm=\"x\"} 1.5\n\
                       # HELP b A counter\n# TYPE b gauge\nb 2\n";
        assert_eq!(of(text), classic);
    }

    #[test]
    fn it_is_for_those_who_name_it_alone() {
        let wanted = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            is_wanted(&headers)
        };
        assert!(wanted("text/plain"));
        assert!(wanted("text/plain;version=0.0.4;q=1,*/*;q=0.1"));
        assert!(!wanted("*/*"));
        // What Prometheus sends.
        assert!(!wanted(
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
        ));
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
