//! Times of one thing at one size of the store.

use std::time::Instant;

use serde_json::{Value, json};

/// How a figure is compared with those of other sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The time of one question or change: flat or logarithmic.
    Latency,
    /// Something that reads everything there is, for each xorb: flat.
    PerXorb,
}

/// What one thing took, at one size.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) count: usize,
    /// What the median may be, in the same unit.
    pub(crate) bound: Option<f64>,
}

impl Figure {
    pub(crate) fn json(&self) -> Value {
        let Self { name, unit, median, p99, count, bound, .. } = self;
        json!({ "name": name, "unit": unit, "median": median, "p99": p99, "samples": count, "bound": bound })
    }
}

/// Collects times of one thing.
pub(crate) struct Times {
    name: &'static str,
    secs: Vec<f64>,
}

impl Times {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, secs: Vec::new() }
    }

    /// Does it once more.
    pub(crate) async fn take<T>(&mut self, work: impl Future<Output = T>) -> T {
        let begin = Instant::now();
        let done = work.await;
        self.secs.push(begin.elapsed().as_secs_f64());
        done
    }

    pub(crate) fn micros(self, bound: Option<f64>) -> Figure {
        self.figure(Kind::Latency, "µs", 1e6, bound)
    }

    pub(crate) fn millis(self, bound: Option<f64>) -> Figure {
        self.figure(Kind::Latency, "ms", 1e3, bound)
    }

    /// Seconds for 100 000 xorbs of so many.
    pub(crate) fn per_xorbs(self, xorb_count: u64) -> Figure {
        self.figure(Kind::PerXorb, "s per 10⁵ xorbs", 1e5 / xorb_count as f64, None)
    }

    fn figure(mut self, kind: Kind, unit: &'static str, scale: f64, bound: Option<f64>) -> Figure {
        self.secs.sort_by(f64::total_cmp);
        let at = |per_cent: usize| self.secs[(self.secs.len() * per_cent / 100).min(self.secs.len() - 1)] * scale;
        let (median, p99, count) = (at(50), at(99), self.secs.len());
        Figure { name: self.name, kind, unit, median, p99, count, bound }
    }
}
