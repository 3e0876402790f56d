//! Prometheus itself, which scrapes a broker each second and answers questions about what it scraped.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::dashboard::Labels;
use crate::process::{PATIENCE, Process, until};

/// A running Prometheus.
pub(super) struct Prometheus {
    process: Process,
    address: SocketAddr,
}

/// Points of a time series: seconds since 1970, and a figure, which may be no number.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Series {
    pub(super) labels: Labels,
    pub(super) points: Vec<(f64, f64)>,
}

/// A span of time, in seconds since 1970.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Span {
    pub(super) start: f64,
    pub(super) end: f64,
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    data: Option<Data>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Matrix>,
}

#[derive(Deserialize)]
struct Matrix {
    metric: Labels,
    values: Vec<(f64, String)>,
}

impl Prometheus {
    /// Starts it, to scrape `metrics` each second. Files go to `folder`.
    pub(super) fn start(program: &Path, folder: &Path, metrics: SocketAddr) -> Result<Self> {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: vramd\n  static_configs:\n  - \
             targets: [\"{metrics}\"]\n"
        );
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        // It takes no port that the kernel chooses and says which; so one is taken that was free a moment ago.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        let address = free.local_addr()?;
        drop(free);
        let mut option = std::ffi::OsString::from("--storage.tsdb.path=");
        option.push(folder.join("prometheus"));
        let mut command = Command::new(program);
        command
            .arg("--config.file")
            .arg(&config)
            .arg(option)
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn");
        let mut process = Process::start("prometheus", command, folder.join("prometheus.log"))?;
        until("Prometheus to be ready", || {
            if let Some(status) = process.child.try_wait()? {
                anyhow::bail!("prometheus ended with {status}: {}", process.last_words()?);
            }
            Ok(get(address, "/-/ready").ok().map(drop))
        })?;
        Ok(Self { process, address })
    }

    /// What it has for a question, a point a second.
    pub(super) fn range(&self, question: &str, span: Span) -> Result<Vec<Series>> {
        let path = format!(
            "/api/v1/query_range?query={}&start={:.3}&end={:.3}&step=1",
            percent_encoded(question),
            span.start,
            span.end
        );
        let body =
            get(self.address, &path).with_context(|| format!("Prometheus does not answer {question}"))?;
        read(&body).with_context(|| format!("Prometheus is asked {question}"))
    }

    pub(super) fn stop(mut self) -> Result<()> {
        let status = self.process.terminate()?;
        ensure!(status.success(), "prometheus ended with {status}");
        Ok(())
    }
}

/// The series of an answer, in the order of their labels.
fn read(body: &str) -> Result<Vec<Series>> {
    let answer: Answer = serde_json::from_str(body).with_context(|| format!("it says {body}"))?;
    ensure!(
        answer.status == "success",
        "it says {}",
        answer.error.unwrap_or(answer.status)
    );
    let series = answer.data.context("it has no data")?.result.into_iter();
    let series = series.map(|Matrix { metric, values }| {
        let figure = |(at, text): (f64, String)| {
            let figure = text.parse().with_context(|| format!("{text:?} is no figure"))?;
            Ok((at, figure))
        };
        let points = values.into_iter().map(figure).collect::<Result<_>>()?;
        Ok(Series {
            labels: metric,
            points,
        })
    });
    let mut series = series.collect::<Result<Vec<_>>>()?;
    series.sort_by(|one, other| one.labels.cmp(&other.labels));
    Ok(series)
}

/// The body of an answer. By HTTP/1.0, whose answers come in one piece.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    // What is wrong with a question is in the body.
    ensure!(status == "200" || status == "400", "HTTP: {head}");
    Ok(body.to_owned())
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_in_the_order_of_their_labels() {
        let body = r#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"vm":"b"},"values":[[1.5,"2"]]},
            {"metric":{"vm":"a"},"values":[[1,"NaN"],[2,"1e3"],[3,"+Inf"]]}]}}"#;
        let series = read(body).unwrap();
        assert_eq!(series[0].labels["vm"], "a");
        assert!(series[0].points[0].1.is_nan());
        assert_eq!(series[0].points[1..], [(2.0, 1000.0), (3.0, f64::INFINITY)]);
        assert_eq!(series[1].points, [(1.5, 2.0)]);
    }

    #[test]
    fn refusal_and_nonsense_are_errors() {
        let body = r#"{"status":"error","errorType":"bad_data","error":"parse error: no"}"#;
        let error = format!("{:#}", read(body).unwrap_err());
        assert!(error.contains("parse error: no"), "{error}");
        assert!(read("<html>").is_err());
        let body = r#"{"status":"success","data":{"result":[{"metric":{},"values":[[1,"x"]]}]}}"#;
        assert!(read(body).is_err());
    }

    #[test]
    fn question_fits_an_address() {
        assert_eq!(
            percent_encoded("a{b=~\".+\"}[4s]"),
            "a%7Bb%3D~%22.%2B%22%7D%5B4s%5D"
        );
        assert_eq!(percent_encoded("µ"), "%C2%B5");
    }
}
