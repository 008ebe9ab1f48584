//! Checks the environment variables that begin with `ZORB_`. A variable that no command reads is
//! refused, because it is probably a typing error in the name of a setting.

use std::collections::BTreeSet;

use anyhow::bail;
use clap::Command;

use crate::config::RawConfig;

/// The prefix of all variables of zorb.
const PREFIX: &str = "ZORB_";

/// Variables that only the tests, benchmarks and scripts of this repository read. They are
/// accepted, because tests and scripts start commands with their own environment.
const OF_SCRIPTS: &[&str] = &[
    "ZORB_BIN",
    "ZORB_BINARY",
    "ZORB_BINARY_TO",
    "ZORB_BUILD_IMAGE",
    "ZORB_COMMIT_COUNT",
    "ZORB_IMAGE",
    "ZORB_KILL_ROUNDS",
    "ZORB_PORT",
    "ZORB_PYTHON",
    "ZORB_QUICK_BUILD",
    "ZORB_RANGES",
    "ZORB_REFERENCE_DIR",
    "ZORB_ROUNDTRIP",
    "ZORB_ROUNDTRIP_DIR",
    "ZORB_RUNTIME_IMAGE",
    "ZORB_SEED",
    "ZORB_SHIM_DIRECTORY",
    "ZORB_SHIM_MODE",
    "ZORB_SWEEP_STEPS",
    "ZORB_TEST_S3",
    "ZORB_TEST_SEED",
    "ZORB_TEST_SERVERS",
    "ZORB_TEST_SLOW_WRITES",
    "ZORB_TEST_STORE",
    "ZORB_XORB",
];

/// Maximum edit distance between an unknown name and the known name that is suggested instead.
const MAX_DISTANCE: usize = 2;

/// Refuses variables that no command of this program reads.
pub(super) fn check(program: &Command) -> anyhow::Result<()> {
    let variables =
        std::env::vars_os().map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()));
    let variables: BTreeSet<[String; 2]> = variables.filter(|[name, _]| name.starts_with(PREFIX)).collect();
    if variables.is_empty() {
        return Ok(());
    }
    let known = known(program);
    let unknown = variables.iter().filter(|[name, value]| !is_known(name, &known) && !is_service_link(name, value));
    let unknown: Vec<String> = unknown.map(|[name, _]| with_suggestion(name, &known)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    bail!(
        "unknown environment variables: {}; unset them, or see config/default.toml for the settings",
        unknown.join(", ")
    )
}

/// Every variable that a command reads: one per setting, and those of flags.
fn known(program: &Command) -> BTreeSet<String> {
    let mut known: BTreeSet<String> =
        RawConfig::KEYS.iter().map(|key| format!("{PREFIX}{}", key.to_ascii_uppercase())).collect();
    let mut commands = vec![program];
    while let Some(command) = commands.pop() {
        let variables = command.get_arguments().filter_map(|argument| argument.get_env());
        known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
        commands.extend(command.get_subcommands());
    }
    known
}

fn is_known(name: &str, known: &BTreeSet<String>) -> bool {
    known.contains(name) || OF_SCRIPTS.contains(&name)
}

/// Whether Kubernetes, or Docker with links, may have set the variable. For a service whose name
/// begins with `zorb`, they set `ZORB_SERVICE_HOST`, `ZORB_PORT` and `ZORB_PORT_8080_TCP_ADDR` in
/// other containers. These are accepted, because the operator did not write them.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_of_port = |rest: &str| {
        let mut parts = rest.split('_');
        let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        parts.next().is_some_and(is_number) && matches!(parts.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
        || name.match_indices("_PORT_").any(|(at, link)| is_of_port(&name[at + link.len()..]))
}

/// An unknown name, with its new name or the nearest known name if there is one.
fn with_suggestion(name: &str, known: &BTreeSet<String>) -> String {
    let key = name.strip_prefix(PREFIX).unwrap_or_default().to_ascii_lowercase();
    if let Some((_, new)) = RawConfig::renamed(&key) {
        return format!("{name} (renamed to {PREFIX}{})", new.to_ascii_uppercase());
    }
    let nearest = known.iter().map(|other| (distance(name, other), other)).min();
    match nearest {
        Some((distance, other)) if distance <= MAX_DISTANCE => format!("{name} (did you mean {other}?)"),
        _ => name.to_owned(),
    }
}

/// The edit distance: how many characters must be inserted, removed, replaced or swapped with the
/// next one to turn one text into the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // The rows of the matrix of distances: the one before the last, the last, and `next`.
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, from) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, to) in other.iter().enumerate() {
            let mut least = (last[column] + usize::from(from != to)).min(last[column + 1] + 1).min(next[column] + 1);
            if row > 0 && column > 0 && one[row - 1] == *to && other[column - 1] == *from {
                // The compiler cannot infer the type of `before` at its declaration.
                let before: &Vec<usize> = &before;
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn all_known() -> BTreeSet<String> {
        known(&Cli::command())
    }

    #[test]
    fn settings_and_variables_of_flags_are_known() {
        let known = all_known();
        for name in ["ZORB_MAX_UPLOADS", "ZORB_LOG", "ZORB_SERVER", "ZORB_TOKEN", "ZORB_CONFIG", "ZORB_CA_FILE"] {
            assert!(is_known(name, &known), "{name}");
        }
        for name in ["ZORB_", "ZORB_MAX_UPLOAD", "ZORB_max_uploads", "ZORB_QUOTA", "ZORB_TOKENS"] {
            assert!(!is_known(name, &known), "{name}");
        }
    }

    #[test]
    fn a_near_or_renamed_name_is_suggested() {
        let known = all_known();
        for (name, meant) in [
            ("ZORB_MAX_UPLAODS", "ZORB_MAX_UPLOADS"),
            ("ZORB_DATADIR", "ZORB_DATA_DIR"),
            ("ZORB_SEVER", "ZORB_SERVER"),
            ("ZORB_MAX_CONECTIONS", "ZORB_MAX_CONNECTIONS"),
        ] {
            assert_eq!(with_suggestion(name, &known), format!("{name} (did you mean {meant}?)"));
        }
        assert_eq!(with_suggestion("ZORB_NOTHING_LIKE_IT", &known), "ZORB_NOTHING_LIKE_IT");
        let renamed = "ZORB_READ_TURNS (renamed to ZORB_MAX_CONCURRENT_READS)";
        assert_eq!(with_suggestion("ZORB_READ_TURNS", &known), renamed);
        assert_eq!((distance("", "ab"), distance("ab", "ba"), distance("abc", "abc")), (2, 1, 0));
    }

    #[test]
    fn variables_that_kubernetes_sets_are_accepted() {
        for (name, value) in [
            ("ZORB_SERVICE_HOST", "10.0.0.1"),
            ("ZORB_SERVICE_PORT", "8080"),
            ("ZORB_SERVICE_PORT_HTTP", "8080"),
            ("ZORB_BLUE_PORT", "tcp://10.0.0.1:8080"),
            ("ZORB_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("ZORB_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("ZORB_METRICS_PORT_9090_UDP_PROTO", "udp"),
        ] {
            assert!(is_service_link(name, value), "{name}");
        }
        for name in ["ZORB_LISTEN_PORT", "ZORB_PORTS", "ZORB_PORT_", "ZORB_PORT_X_TCP", "ZORB_PORT_80", "ZORB_SERVICE"]
        {
            assert!(!is_service_link(name, "8080"), "{name}");
        }
    }

    #[test]
    fn every_variable_of_the_tests_and_scripts_is_known() {
        let known = all_known();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut directories: Vec<_> = ["src", "crates", "tests", "benches", "examples", "docs", "config", ".ci"]
            .map(|name| root.join(name))
            .into();
        let mut seen = 0;
        while let Some(directory) = directories.pop() {
            for entry in directory.read_dir().unwrap().map(Result::unwrap) {
                let path = entry.path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                // This file and the startup tests name wrong variables on purpose.
                let has_wrong = ["cli/environment.rs", "it/startup.rs"].iter().any(|name| path.ends_with(name));
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                for (at, _) in text.match_indices(PREFIX).filter(|_| !has_wrong) {
                    let is_part = |c: &char| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_';
                    let name: String = text[at..].chars().take_while(is_part).collect();
                    // The prefix alone is fine: there a program appends the rest of the name.
                    let is_fine = name == PREFIX || is_known(&name, &known) || is_service_link(&name, "");
                    assert!(is_fine, "{name} in {} is not known here", path.display());
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "only {seen} were found");
    }
}
