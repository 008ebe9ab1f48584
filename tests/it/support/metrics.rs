//! The server's counters, and waiting for them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Client;

/// Longest wait for something that the server does by itself. Nothing takes that long; a test that fails does.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < DEADLINE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What `/metrics` says, by name and labels as they are written there.
#[derive(Clone, Debug)]
pub struct Metrics {
    samples: HashMap<String, f64>,
}

impl Metrics {
    /// Scrapes a server.
    pub async fn of(client: &Client) -> Self {
        let response = client.get("/metrics").await;
        assert_eq!(response.status, 200);
        Self::parse(std::str::from_utf8(&response.body).expect("metrics are text"))
    }

    /// Parses the text format strictly enough to notice a line that is none.
    pub fn parse(text: &str) -> Self {
        let mut samples = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line:?}"));
            let value = value.parse().unwrap_or_else(|_| panic!("no number: {line:?}"));
            let is_ours = ["zorb_", "process_"].iter().any(|prefix| name.starts_with(prefix));
            assert!(is_ours, "a name of somebody else's: {line:?}");
            assert_eq!(samples.insert(name.to_owned(), value), None, "twice: {line:?}");
        }
        Self { samples }
    }

    /// One sample; 0 where it does not exist yet.
    pub fn get(&self, name: &str) -> f64 {
        self.samples.get(name).copied().unwrap_or_default()
    }
}
