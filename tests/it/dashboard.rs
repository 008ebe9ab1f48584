//! docs/grafana.json and docs/monitoring.md speak of the metrics that a server really has, and of all of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::{TestServer, read};

/// Metrics that the dashboard does without, each with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[];

/// What a server exports: the families, and the family of every name that a query may have.
async fn exported() -> (BTreeSet<String>, BTreeMap<String, String>) {
    let server = TestServer::start();
    // Families with labels show once something has happened.
    assert_eq!(server.client().get("/healthz").await.status, 200);
    let text = server.client().get("/metrics").await.body;
    let text = std::str::from_utf8(&text).expect("metrics are text");
    let (mut families, mut names) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (family, kind) = line.split_once(' ').expect("a type line has a type");
        let ends: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" => &[""],
            kind => panic!("this test does not know the type {kind}; say which names its samples have"),
        };
        families.insert(family.to_owned());
        names.extend(ends.iter().map(|end| (format!("{family}{end}"), family.to_owned())));
    }
    assert!(families.len() >= 17, "{families:?}");
    (families, names)
}

/// Every word of a text that is the name of one of our metrics.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_name = |word: &&str| ["zorb_", "process_"].iter().any(|prefix| word.starts_with(prefix));
    let words = text.split(|c| !is_part(c)).filter(is_name);
    words.map(str::to_owned).collect()
}

/// Every query of the dashboard.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(query) if name == "expr" => found.push(query.clone()),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn dashboard_queries_existing_metrics_and_every_one() {
    let (families, names) = exported().await;
    let dashboard: Value = serde_json::from_str(&read("docs/grafana.json")).expect("the dashboard is JSON");
    let mut found = Vec::new();
    queries(&dashboard, &mut found);
    assert!(found.len() >= 10, "{found:?}");
    let asked = names_in(&found.join("\n"));
    let unknown: Vec<_> = asked.iter().filter(|name| !names.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "docs/grafana.json asks for what no server has: {unknown:?}; there is: {names:#?}");
    let shown: BTreeSet<_> = asked.iter().filter_map(|name| names.get(name)).collect();
    let left_out: BTreeSet<_> = NOT_SHOWN.iter().map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<_> =
        families.iter().filter(|family| !shown.contains(family) && !left_out.contains(*family)).collect();
    assert!(
        missing.is_empty(),
        "{missing:?} are not on the dashboard: add a panel to docs/grafana.json (copy one that is like it; `expr` has the \
         query), or a line with the reason to NOT_SHOWN in tests/it/dashboard.rs"
    );
    let stale: Vec<_> = left_out.iter().filter(|name| !families.contains(*name) || shown.contains(name)).collect();
    assert!(stale.is_empty(), "{stale:?} are in NOT_SHOWN in vain");
}

#[tokio::test]
async fn the_alerts_are_about_metrics_that_there_are() {
    let (_, names) = exported().await;
    let mentioned = names_in(&read("docs/alerts.yml"));
    assert!(mentioned.len() >= 10, "{mentioned:?}");
    let unknown: Vec<_> = mentioned.iter().filter(|name| !names.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "docs/alerts.yml asks for what no server has: {unknown:?}");
}

#[test]
fn panels_have_titles_and_unique_ids_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&read("docs/grafana.json")).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        assert!(ids.insert(panel["id"].as_u64().expect("a panel has an id")), "two panels have the id of {panel}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a panel has its place");
        assert!(at("x") + at("w") <= 24, "{panel}");
        for (x, y) in (0..at("w")).flat_map(|x| (0..at("h")).map(move |y| (x, y))) {
            assert!(cells.insert((at("x") + x, at("y") + y)), "{} lies on another panel", panel["title"]);
        }
    }
}

#[tokio::test]
async fn the_documents_name_every_metric_and_none_that_there_is_not() {
    let (families, names) = exported().await;
    let text = read("docs/monitoring.md");
    let mentioned = names_in(&text);
    let known = |name: &String| names.contains_key(name) || families.contains(name);
    let unknown: Vec<_> = mentioned.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "docs/monitoring.md speaks of metrics that no server has: {unknown:?}");
    let told: BTreeSet<_> = mentioned.iter().map(|name| names.get(name).unwrap_or(name)).collect();
    let missing: Vec<_> = families.iter().filter(|family| !told.contains(family)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in the tables of docs/monitoring.md#metrics: add a row for each");
}
