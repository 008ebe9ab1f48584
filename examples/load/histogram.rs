//! Times by the thousand, in little memory, to within 2 %.

use std::time::Duration;

/// Steps within each power of two.
const STEPS: u32 = 64;

/// Counts of times by nanoseconds: buckets grow with what they hold.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; 64 * STEPS as usize], count: 0 }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        self.counts[bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))] += 1;
        self.count += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// The time that so many of a million stay below or reach, in microseconds; 0 where there is none.
    pub(crate) fn quantile(&self, of_a_million: u64) -> f64 {
        let wanted = (self.count * of_a_million).div_ceil(1_000_000).max(1);
        let mut seen = 0;
        for (bucket, count) in (0..).zip(&self.counts) {
            seen += count;
            if seen >= wanted {
                return upper_end(bucket) / 1000.0;
            }
        }
        0.0
    }
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(u64::from(STEPS));
    let power = nanos.ilog2() - STEPS.ilog2();
    // Between STEPS and 2 * STEPS: the step within the power.
    let step = (nanos >> power) - u64::from(STEPS);
    power as usize * STEPS as usize + usize::try_from(step).unwrap_or_default()
}

fn upper_end(bucket: u32) -> f64 {
    f64::from(STEPS + bucket % STEPS + 1) * f64::from(bucket / STEPS).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_2_percent_from_ns_to_minutes() {
        for micros in [1, 7, 100, 9_999, 1_000_000, 300_000_000] {
            let mut histogram = Histogram::default();
            for _ in 0..99 {
                histogram.add(Duration::from_micros(micros));
            }
            histogram.add(Duration::from_secs(1000));
            for wanted in [1, 500_000, 990_000] {
                let ratio = histogram.quantile(wanted) / Duration::from_micros(micros).as_secs_f64() / 1e6;
                assert!((1.0..1.02).contains(&ratio), "{micros} us: {ratio}");
            }
            assert!(histogram.quantile(999_000) >= 1e9, "the slowest of a hundred is beyond 99 %");
        }
    }

    #[test]
    fn merged_histograms_have_what_both_had() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.add(Duration::from_micros(10));
        other.add(Duration::from_millis(10));
        one.merge(&other);
        assert_eq!(one.count(), 2);
        assert!(one.quantile(500_000) < 11.0 && one.quantile(1_000_000) > 9_999.0);
    }

    #[test]
    fn no_times_have_no_quantile() {
        assert!(Histogram::default().quantile(990_000) < 1.0);
    }
}
