//! The dashboard of the documents: panels, their places, and what they ask of Prometheus.
//!
//! What this does not know is an error, so that no panel is drawn otherwise than it says.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Path of the dashboard from the root of the workspace.
pub(super) const PATH: &str = "docs/examples/grafana.json";
/// Columns of Grafana's grid.
pub(super) const GRID_COLUMNS: u32 = 24;
/// Variables of Grafana, longest names first, as they are where all cards and VMs are chosen. Grafana's rate interval is four scrapes,
/// where points are as far from each other as scrapes; here those are a second apart.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "4s"), ("$gpu", ".+"), ("$vm", ".+")];

/// Labels of a series, by name.
pub(super) type Labels = BTreeMap<String, String>;

#[derive(Deserialize)]
pub(super) struct Dashboard {
    pub(super) panels: Vec<Panel>,
}

/// A panel, and what it asks.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Panel {
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    pub(super) title: String,
    #[serde(rename = "gridPos")]
    pub(super) place: Place,
    field_config: FieldConfig,
    pub(super) targets: Vec<Target>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// The last figure, as text.
    Stat,
    Timeseries,
}

/// In cells of the grid.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Place {
    pub(super) x: u32,
    pub(super) y: u32,
    #[serde(rename = "w")]
    pub(super) width: u32,
    #[serde(rename = "h")]
    pub(super) height: u32,
}

/// Units by Grafana's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum Unit {
    #[serde(rename = "none")]
    None,
    /// In steps of 1024.
    #[serde(rename = "bytes")]
    Bytes,
    /// In steps of 1000.
    #[serde(rename = "Bps")]
    BytesPerSecond,
    /// 1 is all.
    #[serde(rename = "percentunit")]
    Part,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ops")]
    PerSecond,
}

#[derive(Deserialize)]
struct FieldConfig {
    defaults: Defaults,
    #[serde(default)]
    overrides: Vec<Override>,
}

#[derive(Deserialize)]
struct Defaults {
    unit: Unit,
    #[serde(default)]
    custom: Custom,
}

/// How series are drawn.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Custom {
    #[serde(default)]
    fill_opacity: u8,
    #[serde(default)]
    stacking: Stacking,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct Stacking {
    #[serde(default)]
    mode: StackingMode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StackingMode {
    #[default]
    None,
    Normal,
}

/// What is otherwise for the series of one target.
#[derive(Deserialize)]
struct Override {
    matcher: Matcher,
    properties: Vec<Property>,
}

#[derive(Deserialize)]
#[serde(tag = "id", content = "options")]
enum Matcher {
    #[serde(rename = "byFrameRefID")]
    Target(String),
}

#[derive(Deserialize)]
#[serde(tag = "id", content = "value")]
enum Property {
    #[serde(rename = "custom.stacking")]
    Stacking(Stacking),
    #[serde(rename = "custom.fillOpacity")]
    FillOpacity(u8),
}

/// A question, and what its series are called.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    ref_id: String,
    expr: String,
    legend_format: String,
}

/// How the series of a target are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Style {
    /// Percent of its colour that the area below a line has.
    pub(super) fill_percent: u8,
    /// On top of the series before it.
    pub(super) is_stacked: bool,
}

impl Dashboard {
    /// Reads one, and sees that each panel asks something and has a place of its own on the grid.
    pub(super) fn read(text: &str) -> Result<Self> {
        let dashboard: Self = serde_json::from_str(text).context("it is no dashboard that can be drawn")?;
        ensure!(!dashboard.panels.is_empty(), "it has no panels");
        for (index, panel) in dashboard.panels.iter().enumerate() {
            let (title, place) = (&panel.title, panel.place);
            ensure!(!panel.targets.is_empty(), "panel {title} asks nothing");
            for target in &panel.targets {
                target.question().with_context(|| format!("panel {title}"))?;
            }
            ensure!(
                place.width > 0 && place.height > 0 && place.x + place.width <= GRID_COLUMNS,
                "panel {title} is not on the grid"
            );
            let other = dashboard.panels[..index]
                .iter()
                .find(|other| other.place.meets(place));
            if let Some(other) = other {
                anyhow::bail!("panel {title} lies on {}", other.title);
            }
        }
        Ok(dashboard)
    }
}

impl Place {
    fn meets(self, other: Self) -> bool {
        let meet = |a: u32, length_a: u32, b: u32, length_b: u32| a < b + length_b && b < a + length_a;
        meet(self.x, self.width, other.x, other.width) && meet(self.y, self.height, other.y, other.height)
    }
}

impl Panel {
    pub(super) fn unit(&self) -> Unit {
        self.field_config.defaults.unit
    }

    pub(super) fn style(&self, target: &Target) -> Style {
        let defaults = &self.field_config.defaults.custom;
        let (mut fill_percent, mut stacking) = (defaults.fill_opacity, defaults.stacking);
        let overrides = self.field_config.overrides.iter();
        let own = overrides.filter(|one| matches!(&one.matcher, Matcher::Target(id) if *id == target.ref_id));
        for property in own.flat_map(|one| &one.properties) {
            match property {
                Property::Stacking(value) => stacking = *value,
                Property::FillOpacity(value) => fill_percent = *value,
            }
        }
        Style {
            fill_percent,
            is_stacked: stacking.mode == StackingMode::Normal,
        }
    }
}

impl Target {
    /// What Prometheus is asked.
    pub(super) fn question(&self) -> Result<String> {
        let mut question = self.expr.clone();
        for (name, value) in VARIABLES {
            question = question.replace(name, value);
        }
        ensure!(!question.trim().is_empty(), "a target without an expression");
        ensure!(
            !question.contains('$'),
            "{question} has a variable that this does not know"
        );
        Ok(question)
    }

    /// What the series with these labels is called.
    pub(super) fn legend(&self, labels: &Labels) -> String {
        let mut name = String::new();
        let mut rest = self.legend_format.as_str();
        while let Some((before, after)) = rest.split_once("{{") {
            name += before;
            let Some((label, after)) = after.split_once("}}") else {
                return name + "{{" + after;
            };
            name += labels.get(label.trim()).map_or("", String::as_str);
            rest = after;
        }
        name + rest
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TEXT: &str = include_str!("../../../docs/examples/grafana.json");

    fn target(expr: &str, legend: &str) -> Target {
        serde_json::from_value(json!({"refId": "A", "expr": expr, "legendFormat": legend})).unwrap()
    }

    /// The dashboard with a change to its last panel.
    fn changed(change: impl FnOnce(&mut Value)) -> Result<Dashboard> {
        let mut value: Value = serde_json::from_str(TEXT).unwrap();
        let panels = value["panels"].as_array_mut().unwrap();
        change(panels.last_mut().unwrap());
        Dashboard::read(&value.to_string())
    }

    #[test]
    fn every_panel_of_the_documents_has_a_place_and_questions_without_variables() {
        let dashboard = Dashboard::read(TEXT).unwrap();
        let there: Value = serde_json::from_str(TEXT).unwrap();
        assert_eq!(dashboard.panels.len(), there["panels"].as_array().unwrap().len());
        assert!(dashboard.panels.len() >= 16);
        let questions: Vec<_> = dashboard
            .panels
            .iter()
            .flat_map(|panel| &panel.targets)
            .map(|target| target.question().unwrap())
            .collect();
        assert_eq!(questions.len(), TEXT.matches("\"expr\"").count());
        assert!(
            questions
                .iter()
                .all(|question| question.contains("vramd_") && !question.contains('$'))
        );
        let kinds = |kind| dashboard.panels.iter().filter(|panel| panel.kind == kind).count();
        assert!(kinds(Kind::Stat) >= 4 && kinds(Kind::Timeseries) >= 12);
    }

    #[test]
    fn variables_are_replaced_and_an_unknown_one_is_an_error() {
        let asked = target("rate(x{gpu=~\"$gpu\",vm=~\"$vm\"}[$__rate_interval])", "");
        assert_eq!(asked.question().unwrap(), "rate(x{gpu=~\".+\",vm=~\".+\"}[4s])");
        assert!(target("x{host=\"$host\"}", "").question().is_err());
        assert!(target(" ", "").question().is_err());
    }

    #[test]
    fn legend_has_the_labels_values() {
        let labels = Labels::from([
            ("gpu".to_owned(), "gpu0".to_owned()),
            ("vm".to_owned(), "a".to_owned()),
        ]);
        let legend = |format| target("x", format).legend(&labels);
        assert_eq!(legend("{{gpu}} {{ vm }} out"), "gpu0 a out");
        assert_eq!(legend("{{host}}!"), "!");
        assert_eq!(legend("all {{vm"), "all {{vm");
        assert_eq!(legend("plain"), "plain");
    }

    #[test]
    fn series_of_a_target_may_be_drawn_otherwise() {
        let dashboard = Dashboard::read(TEXT).unwrap();
        let panel = dashboard
            .panels
            .iter()
            .find(|panel| panel.title == "VRAM by VM")
            .unwrap();
        let style = |fill_percent, is_stacked| Style {
            fill_percent,
            is_stacked,
        };
        let styles: Vec<_> = panel.targets.iter().map(|target| panel.style(target)).collect();
        assert_eq!(styles, [style(30, true), style(0, false)]);
    }

    #[test]
    fn what_cannot_be_drawn_as_it_says_is_refused() {
        assert!(changed(|_| {}).is_ok());
        assert!(changed(|panel| panel["type"] = json!("heatmap")).is_err());
        assert!(changed(|panel| panel["fieldConfig"]["defaults"]["unit"] = json!("watt")).is_err());
        assert!(changed(|panel| panel["targets"] = json!([])).is_err());
        assert!(changed(|panel| panel["targets"][0]["expr"] = json!("x{a=\"$b\"}")).is_err());
        assert!(changed(|panel| panel["gridPos"]["x"] = json!(20)).is_err());
        assert!(changed(|panel| panel["gridPos"]["y"] = json!(0)).is_err());
        assert!(Dashboard::read("{\"panels\": []}").is_err());
    }
}
