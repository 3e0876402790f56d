//! `cargo xtask layers`: the direction of dependency between our crates.
//!
//! [`TABLE`] is the whole rule. A normal or build dependency must be listed in the crate's row; a dev-dependency may go
//! to any crate of the same or a lower level, so that a test can hold a crate against its neighbours. A crate without a
//! row and a row without a crate are errors too: the table stays true.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::workspace::Workspace;

/// The allowed dependencies of one crate.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    /// Level of the crate; dev-dependencies never point upwards.
    level: u8,
    /// Our crates that code and build scripts of this crate may name.
    may_use: &'static [&'static str],
    /// Our crates of a higher level that its tests may name nevertheless.
    tests_may_use: &'static [&'static str],
    why: &'static str,
}

const fn row(name: &'static str, level: u8, may_use: &'static [&'static str], why: &'static str) -> Row {
    Row {
        name,
        level,
        may_use,
        tests_may_use: &[],
        why,
    }
}

/// Every crate of the workspace, lowest level first.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    row("fermi_spec", 0, &[],
        "says what the hardware defines, to everybody; it holds no state and knows nobody"),
    row("sizes", 0, &[],
        "is how operators write sizes, to whoever reads one"),
    row("planted", 0, &[],
        "names faults that a test may plant in whoever asks it; it knows nobody"),
    row("adaptive", 0, &[],
        "decides about blocks that have numbers, whoever moves them and whatever that takes"),
    row("gdm", 0, &[],
        "decides about blocks of owners before launches; its trait Card moves them, on whatever card"),
    row("lockmap", 0, &[],
        "gives numbers to threads, whatever has them and whoever waits"),
    row("mmio", 1, &["fermi_spec"],
        "names a trapped access and does not know what a vGPU is"),
    row("shadow_pt", 1, &["fermi_spec", "planted"],
        "translates tables; where memory lies is told to it through its traits"),
    row("kernels", 1, &["fermi_spec", "kernel_sets"],
        "is programs for a GPU, whoever launches them; what they reach is found out when it is built"),
    row("guests", 1, &["fermi_spec", "kernels"],
        "runs inside a virtual machine, where no host crate exists"),
    row("kernel_sets", 1, &["fermi_spec"],
        "tells from code what it may reach, and knows nobody who asks"),
    row("fermi_model", 1, &["fermi_spec"],
        "is a GPU, and a GPU knows nothing of sharing"),
    row("vfio_user_server", 1, &[],
        "is a protocol and does not know what a GPU is"),
    row("control", 1, &["sizes"],
        "is what may be asked of a running broker and what it answers; who asks and who answers is the program's"),
    row("vgpu", 2, &["adaptive", "fermi_spec", "kernel_sets", "launches", "mmio", "planted", "shadow_pt"],
        "decides without waiting for anything; it names neither VFIO nor the model"),
    row("launches", 1, &["fermi_spec", "kernel_sets"],
        "finds out what a channel asks for; it moves nothing and decides nothing"),
    row("broker", 3, &["fermi_spec", "mmio", "shadow_pt", "vfio_user_server", "vgpu"],
        "drives any GPU through the trait HostGpu; the model is joined to it in card"),
    row("card", 4, &["broker", "fermi_model", "fermi_spec", "guests", "vfio_user_server", "vgpu"],
        "makes the model a card that runs, whoever drives it, a guest's code too, and knows no VM"),
    row("sim_host", 4, &["fermi_model", "fermi_spec", "guests", "vgpu"],
        "is a host on one thread, whoever owns it and whatever is checked on it"),
    row("lab", 5,
        &["adaptive", "card", "fermi_model", "fermi_spec", "gdm", "guests", "kernel_sets", "kernels", "launches", "lockmap",
          "shadow_pt", "sim_host", "vgpu"],
        "runs experiments on a simulated host; how they are shown and asked for is the program's"),
    row("vmm", 4, &["fermi_spec", "vfio_user_server"],
        "is a virtual machine; its GPU is whatever answers the trait VgpuLink"),
    row("vramd_vm", 5, &["fermi_spec", "guests", "sizes", "vmm"],
        "is the program of a VM's process, which holds whatever is named here"),
    row("vramd", 6,
        &["broker", "card", "control", "fermi_model", "fermi_spec", "guests", "kernel_sets", "lab", "launches", "planted", "sizes",
          "vfio_user_server", "vgpu", "vmm", "vramd_vm"],
        "is the program that joins brokers, cards and virtual machines"),
    row("integration", 7,
        &["broker", "card", "fermi_model", "fermi_spec", "guests", "kernel_sets", "launches", "mmio", "planted", "shadow_pt",
          "sim_host", "vfio_user_server", "vgpu", "vmm", "vramd", "vramd_vm"],
        "puts everything together; only xtask may name it"),
    row("xtask", 7,
        &["broker", "card", "fermi_model", "fermi_spec", "guests", "integration", "mmio", "planted",
          "shadow_pt", "sim_host", "vfio_user_server", "vgpu", "vmm", "vramd", "vramd_vm"],
        "runs what integration offers; nobody names it"),
];

/// One dependency between two crates of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edge {
    source: String,
    target: String,
    is_for_tests: bool,
}

/// The workspace's crates and the dependencies among them.
#[derive(Clone, Debug, Default)]
struct Graph {
    crates: BTreeSet<String>,
    edges: Vec<Edge>,
}

/// Why the graph does not agree with the table.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Violation {
    NoRow {
        name: String,
    },
    NoCrate {
        name: &'static str,
    },
    NotAllowed {
        edge: Edge,
        why: &'static str,
    },
    UpwardInTests {
        edge: Edge,
        source_level: u8,
        target_level: u8,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRow { name } => {
                write!(
                    f,
                    "crate {name} has no row in the table of xtask/src/layers.rs: add one with its reason"
                )
            }
            Self::NoCrate { name } => {
                write!(
                    f,
                    "row {name} in the table of xtask/src/layers.rs has no crate: remove it"
                )
            }
            Self::NotAllowed {
                edge: Edge { source, target, .. },
                why,
            } => {
                write!(f, "{source} may not depend on {target}: {source} {why}")
            }
            Self::UpwardInTests {
                edge: Edge { source, target, .. },
                source_level,
                target_level,
            } => write!(
                f,
                "tests of {source} (level {source_level}) may not depend on {target} (level {target_level}): \
                 move the test to a crate that knows both",
            ),
        }
    }
}

/// Everything in `graph` that `table` does not allow, crates first, then edges in the order given.
fn check(table: &'static [Row], graph: &Graph) -> Vec<Violation> {
    let find = |name: &str| table.iter().find(|row| row.name == name);
    let mut violations: Vec<_> = graph
        .crates
        .iter()
        .filter(|name| find(name).is_none())
        .map(|name| Violation::NoRow { name: name.clone() })
        .collect();
    let missing = table.iter().filter(|row| !graph.crates.contains(row.name));
    violations.extend(missing.map(|row| Violation::NoCrate { name: row.name }));
    for edge in &graph.edges {
        // An end without a row was reported above.
        let (Some(source), Some(target)) = (find(&edge.source), find(&edge.target)) else {
            continue;
        };
        violations.extend(check_edge(source, target, edge));
    }
    violations
}

fn check_edge(source: &Row, target: &Row, edge: &Edge) -> Option<Violation> {
    if source.may_use.contains(&target.name) {
        return None;
    }
    if !edge.is_for_tests {
        return Some(Violation::NotAllowed {
            edge: edge.clone(),
            why: source.why,
        });
    }
    if target.level <= source.level || source.tests_may_use.contains(&target.name) {
        return None;
    }
    let (source_level, target_level) = (source.level, target.level);
    Some(Violation::UpwardInTests {
        edge: edge.clone(),
        source_level,
        target_level,
    })
}

/// The part of `cargo metadata` that is read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    /// Set for path dependencies only, so a crates.io package of the same name is not taken for ours.
    path: Option<String>,
}

fn parse(metadata: &str) -> Result<Graph> {
    let metadata: Metadata =
        serde_json::from_str(metadata).context("cannot read the output of cargo metadata")?;
    let mut graph = Graph::default();
    for package in &metadata.packages {
        graph.crates.insert(package.name.clone());
    }
    for package in metadata.packages {
        for dependency in package
            .dependencies
            .into_iter()
            .filter(|dependency| dependency.path.is_some())
        {
            let is_for_tests = dependency.kind.as_deref() == Some("dev");
            graph.edges.push(Edge {
                source: package.name.clone(),
                target: dependency.name,
                is_for_tests,
            });
        }
    }
    Ok(graph)
}

/// Checks the manifests of all members; fails with one line for each violation.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let output = workspace
        .cargo(&["metadata", "--no-deps", "--format-version", "1"])
        .output();
    let output = output.context("cannot start cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let graph = parse(&String::from_utf8(output.stdout).context("cargo metadata printed no UTF-8")?)?;
    let violations = check(TABLE, &graph);
    for violation in &violations {
        eprintln!("{violation}");
    }
    if !violations.is_empty() {
        bail!(
            "{} dependencies or rows break the table of levels",
            violations.len()
        );
    }
    println!(
        "layers: {} crates, {} dependencies among them, all as the table says",
        graph.crates.len(),
        graph.edges.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All crates of the table, and the edges given as `source -> target` or `source dev-> target`.
    fn graph(edges: &[(&str, &str, bool)]) -> Graph {
        let crates = TABLE.iter().map(|row| row.name.to_owned()).collect();
        let edge = |&(source, target, is_for_tests): &(&str, &str, bool)| Edge {
            source: source.to_owned(),
            target: target.to_owned(),
            is_for_tests,
        };
        Graph {
            crates,
            edges: edges.iter().map(edge).collect(),
        }
    }

    fn messages(graph: &Graph) -> Vec<String> {
        check(TABLE, graph).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn downward_edges_are_allowed() {
        let graph = graph(&[
            ("mmio", "fermi_spec", false),
            ("vgpu", "shadow_pt", false),
            ("broker", "vfio_user_server", false),
            ("card", "fermi_model", false),
            ("xtask", "integration", false),
        ]);
        assert_eq!(messages(&graph), Vec::<String>::new());
    }

    #[test]
    fn broker_on_model_is_refused_with_the_reason() {
        let expected = "broker may not depend on fermi_model: broker drives any GPU through the trait HostGpu; \
                        the model is joined to it in card";
        assert_eq!(messages(&graph(&[("broker", "fermi_model", false)])), [expected]);
    }

    #[test]
    fn neighbour_of_the_same_level_is_refused() {
        assert_eq!(check(TABLE, &graph(&[("mmio", "shadow_pt", false)])).len(), 1);
        assert_eq!(check(TABLE, &graph(&[("fermi_model", "mmio", false)])).len(), 1);
        assert_eq!(
            check(TABLE, &graph(&[("vfio_user_server", "fermi_spec", false)])).len(),
            1
        );
    }

    #[test]
    fn integration_is_refused_to_all_but_xtask() {
        assert_eq!(check(TABLE, &graph(&[("vmm", "integration", false)])).len(), 1);
        assert_eq!(check(TABLE, &graph(&[("integration", "xtask", false)])).len(), 1);
    }

    #[test]
    fn tests_may_use_neighbours_but_not_higher_levels() {
        assert_eq!(
            messages(&graph(&[
                ("mmio", "shadow_pt", true),
                ("vgpu", "fermi_model", true)
            ]))
            .len(),
            0
        );
        let expected = "tests of guests (level 1) may not depend on broker (level 3): \
                        move the test to a crate that knows both";
        assert_eq!(messages(&graph(&[("guests", "broker", true)])), [expected]);
    }

    #[test]
    fn listed_exception_lets_a_test_look_up() {
        static WITH_EXCEPTION: &[Row] = &[
            Row {
                tests_may_use: &["high"],
                ..row("low", 0, &[], "is low")
            },
            row("high", 1, &["low"], "is high"),
        ];
        let edge = Edge {
            source: "low".to_owned(),
            target: "high".to_owned(),
            is_for_tests: true,
        };
        let crates = ["low", "high"].map(str::to_owned).into();
        let mut graph = Graph {
            crates,
            edges: vec![edge],
        };
        assert_eq!(check(WITH_EXCEPTION, &graph), []);
        graph.edges[0].is_for_tests = false;
        assert_eq!(check(WITH_EXCEPTION, &graph).len(), 1);
    }

    #[test]
    fn crate_without_row_is_reported() {
        let mut graph = graph(&[]);
        graph.crates.insert("extra".to_owned());
        assert_eq!(
            check(TABLE, &graph),
            [Violation::NoRow {
                name: "extra".to_owned()
            }]
        );
    }

    #[test]
    fn row_without_crate_is_reported() {
        let mut graph = graph(&[]);
        graph.crates.remove("mmio");
        assert_eq!(check(TABLE, &graph), [Violation::NoCrate { name: "mmio" }]);
    }

    #[test]
    fn table_never_points_upwards() {
        let level = |name: &str| TABLE.iter().find(|row| row.name == name).map(|row| row.level);
        let upward = TABLE
            .iter()
            .flat_map(|row| row.may_use.iter().map(move |target| (row, *target)));
        let upward: Vec<_> = upward
            .filter(|(row, target)| level(target) > Some(row.level))
            .collect();
        assert!(upward.is_empty(), "{upward:?}");
    }

    #[test]
    fn metadata_gives_path_dependencies_with_their_kind() {
        let metadata = r#"{"packages": [{"name": "a", "dependencies": [
            {"name": "b", "kind": null, "path": "b"}, {"name": "c", "kind": "build", "path": "c"},
            {"name": "d", "kind": "dev", "path": "d"}, {"name": "log", "kind": null, "path": null}]}]}"#;
        let edges = parse(metadata).unwrap().edges;
        let edges: Vec<_> = edges
            .iter()
            .map(|edge| (edge.target.as_str(), edge.is_for_tests))
            .collect();
        assert_eq!(edges, [("b", false), ("c", false), ("d", true)]);
    }
}
