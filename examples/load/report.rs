//! What happened, for people and as JSON.

use std::time::Duration;

use serde::Serialize;

use crate::account::Cost;
use crate::histogram::Histogram;

/// What the threads of a load have counted.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) latencies: Histogram,
    pub(crate) len: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: String,
    /// How long the load lasted, where that is not what its account says.
    pub(crate) time: Option<Duration>,
}

#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) bytes_per_sec: f64,
    pub(crate) requests_per_sec: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) server_cpu_secs: f64,
    pub(crate) server_cpu_secs_per_gib: f64,
    pub(crate) server_peak_rss: u64,
    pub(crate) server_disk_bytes: u64,
    pub(crate) client_cpu_secs: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) first_error: String,
}

impl Tally {
    pub(crate) fn fail(&mut self, error: &anyhow::Error) {
        if self.errors == 0 {
            self.first_error = format!("{error:#}");
        }
        self.errors += 1;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.latencies.merge(&other.latencies);
        self.len += other.len;
        if self.errors == 0 {
            self.first_error = other.first_error;
        }
        self.errors += other.errors;
        self.time = self.time.max(other.time);
    }
}

impl Report {
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    pub(crate) fn new(tally: &Tally, cost: &Cost) -> Self {
        let seconds = tally.time.map_or(cost.seconds, |time| time.as_secs_f64());
        let requests = tally.latencies.count();
        Self {
            seconds,
            requests,
            bytes: tally.len,
            errors: tally.errors,
            bytes_per_sec: tally.len as f64 / seconds,
            requests_per_sec: requests as f64 / seconds,
            p50_us: tally.latencies.quantile(500_000),
            p99_us: tally.latencies.quantile(990_000),
            p999_us: tally.latencies.quantile(999_000),
            server_cpu_secs: cost.cpu_secs,
            server_cpu_secs_per_gib: cost.cpu_secs / (tally.len.max(1) as f64 / f64::from(1 << 30)),
            server_peak_rss: cost.peak_rss,
            server_disk_bytes: cost.disk_len,
            client_cpu_secs: cost.client_cpu_secs,
            first_error: tally.first_error.clone(),
        }
    }

    #[expect(clippy::print_stdout, reason = "the result of a program")]
    pub(crate) fn print(&self, what: &str, is_json: bool) {
        if is_json {
            let mut value = serde_json::json!({ "what": what });
            if let (Some(value), Ok(serde_json::Value::Object(report))) =
                (value.as_object_mut(), serde_json::to_value(self))
            {
                value.extend(report);
            }
            println!("{value}");
            return;
        }
        let mib = f64::from(1 << 20);
        println!(
            "{what}: {:.0} MiB/s, {:.0} requests/s, p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, {} errors in {:.2} s",
            self.bytes_per_sec / mib,
            self.requests_per_sec,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.errors,
            self.seconds,
        );
        println!(
            "  server: {:.2} s of processor, {:.2} s per GiB, at most {} MiB of memory, {} MiB from disk; client: {:.2} s",
            self.server_cpu_secs,
            self.server_cpu_secs_per_gib,
            self.server_peak_rss >> 20,
            self.server_disk_bytes >> 20,
            self.client_cpu_secs,
        );
    }
}
