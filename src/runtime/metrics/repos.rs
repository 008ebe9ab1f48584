//! Metrics of the usage of the largest repositories. Prometheus keeps a time series per value of a
//! label, and a large store has too many repositories for this. So the caller passes only some.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The usage of one repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoSample {
    /// Its name.
    pub repo: String,
    /// The number of its files.
    pub files: u64,
    /// Raw bytes of its files.
    pub logical_bytes: u64,
    /// Serialized bytes of the xorbs of its files, and bytes of their records.
    pub physical_bytes: u64,
}

/// Usage of the largest repositories, at the last scrape. All samples change at once.
#[derive(Clone, Debug, Default)]
pub struct RepoMetrics {
    latest: Arc<RwLock<Vec<RepoSample>>>,
}

impl RepoMetrics {
    /// Replaces all samples.
    pub fn replace(&self, samples: Vec<RepoSample>) {
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = samples;
    }
}

impl Collector for RepoMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        type Value = fn(&RepoSample) -> u64;
        let families: [(&str, &str, Option<&Unit>, Value); 3] = [
            ("repo_files", "Files of the largest repositories.", None, |sample| sample.files),
            ("repo_logical", "Bytes of the files of the largest repositories.", Some(&Unit::Bytes), |sample| {
                sample.logical_bytes
            }),
            (
                "repo_physical",
                "Stored bytes that the files of the largest repositories need.",
                Some(&Unit::Bytes),
                |sample| sample.physical_bytes,
            ),
        ];
        let samples = self.latest.read().unwrap_or_else(PoisonError::into_inner);
        for (name, help, unit, value) in families {
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for sample in samples.iter() {
                let labels = [("repo", sample.repo.as_str())];
                ConstGauge::new(value(sample).cast_signed()).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
