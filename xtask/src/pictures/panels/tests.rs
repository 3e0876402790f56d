//! Panels that are drawn, and where their lines are.

use serde_json::json;

use super::*;

fn span() -> Span {
    Span {
        start: 100.0,
        end: 160.0,
    }
}

fn series(vm: &str, points: &[(f64, f64)]) -> Series {
    Series {
        labels: [("vm".to_owned(), vm.to_owned())].into(),
        points: points.to_vec(),
    }
}

fn panel(title: &str, kind: &str, stacking: &str, x: u32) -> serde_json::Value {
    json!({
        "type": kind, "title": title, "gridPos": {"x": x, "y": 0, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": "bytes", "custom": {"fillOpacity": 30, "stacking": {"mode": stacking}}}},
        "targets": [{"refId": "A", "expr": "x", "legendFormat": "{{vm}} holds"}]
    })
}

fn dashboard() -> Dashboard {
    let panels = [
        panel("Memory & more", "timeseries", "normal", 0),
        panel("Last", "stat", "none", 12),
    ];
    Dashboard::read(&json!({ "panels": panels }).to_string()).unwrap()
}

fn answers() -> Vec<Answered> {
    let mib = f64::from(1 << 20);
    let a = series("a", &[(110.0, 10.0 * mib), (111.0, 20.0 * mib)]);
    let b = series("b", &[(111.0, 5.0 * mib), (112.0, f64::NAN), (113.0, 7.0 * mib)]);
    vec![vec![vec![a.clone(), b]], vec![vec![a]]]
}

#[test]
fn picture_has_titles_legends_units_and_marks() {
    let marks = [Mark {
        at: 130.0,
        what: "freeze <a>".to_owned(),
    }];
    let svg = draw(&dashboard(), &answers(), &marks, span()).unwrap();
    let texts: Vec<_> = svg
        .lines()
        .filter(|line| !line.starts_with('<'))
        .map(str::trim)
        .collect();
    for text in [
        "Memory &amp; more",
        "a holds",
        "b holds",
        "10 MiB",
        "20 MiB",
        "30 s",
        "1 freeze &lt;a&gt;",
        "Last",
    ] {
        assert!(texts.contains(&text), "no {text} in {texts:?}");
    }
    let colour = |index: usize| {
        let RGBColor(red, green, blue) = COLOURS[index];
        format!("#{red:02X}{green:02X}{blue:02X}")
    };
    assert!(svg.contains(&colour(0)) && svg.contains(&colour(1)) && !svg.contains(&colour(2)));
    assert_eq!(svg, draw(&dashboard(), &answers(), &marks, span()).unwrap());
}

#[test]
fn stacked_series_stand_on_each_other_where_both_are() {
    let mib = f64::from(1 << 20);
    let (dashboard, answers) = (dashboard(), answers());
    let lines = lines(&dashboard.panels[0], &answers[0], span());
    assert_eq!(lines[0].points, [(10.0, 10.0 * mib), (11.0, 20.0 * mib)]);
    assert_eq!(lines[1].points, [(11.0, 25.0 * mib), (13.0, 7.0 * mib)]);
    assert_eq!(lines[1].floor, [20.0 * mib, 0.0]);
    let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["a holds", "b holds"]);
}

#[test]
fn line_ends_where_points_are_missing() {
    let points = [(1.0, 0.0), (2.0, 0.0), (4.0, 0.0), (5.0, 0.0), (9.0, 0.0)];
    assert_eq!(pieces(&points), [0..2, 2..4, 4..5]);
    assert!(pieces(&[]).is_empty());
}

#[test]
fn legend_takes_as_many_rows_as_it_needs() {
    let names = ["a holds", "b holds", "a much longer name"];
    let rows = legend_rows(&names, 200);
    assert_eq!(rows, [vec![(0, 0), (1, 87)], vec![(2, 0)]]);
    assert_eq!(legend_rows(&names, 10).len(), 3);
    assert_eq!(legend_rows(&[], 10).len(), 0);
}

#[test]
fn panel_without_figures_says_so() {
    let picture = |answers: &[Answered]| draw(&dashboard(), answers, &[], span()).unwrap();
    let nothing = vec![vec![vec![series("a", &[(110.0, f64::NAN)])]], vec![Vec::new()]];
    assert_eq!(picture(&nothing).matches(NOTHING).count(), 1);
    assert_eq!(picture(&answers()).matches(NOTHING).count(), 0);
}
