//! Settings of garbage collection (GC).

use std::time::Duration;

use super::error::ConfigError;
use super::raw::RawConfig;
use super::units::Span;

/// The minimum of `gc_grace`, and its default. Stock clients cache for three weeks which chunks are
/// stored, and do not upload these chunks again.
pub const MIN_GC_GRACE: Duration = Duration::from_secs(21 * DAY_SECS);

/// The minimum of `gc_delete_delay`. It is longer than data URLs are valid.
pub const MIN_GC_DELETE_DELAY: Duration = Duration::from_secs(2 * HOUR_SECS);

const DEFAULT_INTERVAL: Duration = Duration::from_secs(HOUR_SECS);
const DEFAULT_DELETE_DELAY: Duration = Duration::from_secs(DAY_SECS);

const HOUR_SECS: u64 = 3600;
const DAY_SECS: u64 = 24 * HOUR_SECS;

/// When GC runs, and which xorbs it condemns, deletes or rewrites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectionConfig {
    /// Time between two GC runs of the server; `None` for no runs.
    pub interval: Option<Duration>,
    /// Time from the last use of a xorb to its condemnation.
    pub grace: Duration,
    /// Time from the condemnation of a xorb to its deletion.
    pub condemned: Duration,
    /// A xorb is rewritten if files need less than this fraction of its bytes. The fraction is more
    /// than 0 and at most 1. `None` means that no xorb is rewritten.
    pub min_live: Option<f64>,
}

impl CollectionConfig {
    /// Validates the settings, and fills in the defaults.
    ///
    /// # Errors
    ///
    /// A value is invalid, or a duration is below its minimum.
    pub fn new(raw: &RawConfig) -> Result<Self, ConfigError> {
        let interval = raw.gc_interval.map_or(DEFAULT_INTERVAL, |span| span.0);
        let reason =
            "must be at least 21d: clients cache for three weeks which chunks are stored, and do not upload them";
        let grace = at_least("gc_grace", raw.gc_grace, MIN_GC_GRACE, MIN_GC_GRACE, reason)?;
        let reason = "must be at least 2h: data URLs are valid for an hour";
        let condemned =
            at_least("gc_delete_delay", raw.gc_delete_delay, DEFAULT_DELETE_DELAY, MIN_GC_DELETE_DELAY, reason)?;
        let min_live = raw.gc_min_live.filter(|share| *share != 0.0);
        if let Some(share) = min_live.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            let reason = "must be more than 0 and at most 1, such as 0.5, or 0 for never".to_owned();
            return Err(ConfigError::Value { key: "gc_min_live", value: share.to_string(), reason });
        }
        Ok(Self { interval: Some(interval).filter(|interval| !interval.is_zero()), grace, condemned, min_live })
    }
}

/// The value of a key, or its default: a duration that must be at least `least`.
fn at_least(
    key: &'static str,
    span: Option<Span>,
    default: Duration,
    least: Duration,
    reason: &str,
) -> Result<Duration, ConfigError> {
    let span = span.unwrap_or(Span(default));
    if span.0 >= least {
        return Ok(span.0);
    }
    Err(ConfigError::Value { key, value: span.to_string(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CollectionConfig, ConfigError> {
        CollectionConfig::new(&RawConfig::parse(text, "a test").unwrap())
    }

    #[test]
    fn gc_delays_below_their_minimum_are_refused() {
        let config = parse("").unwrap();
        assert_eq!((config.grace, config.condemned), (MIN_GC_GRACE, Duration::from_secs(DAY_SECS)));
        assert_eq!(config.interval, Some(Duration::from_secs(HOUR_SECS)));
        for text in ["gc_grace = '20d'", "gc_grace = 0", "gc_grace = '503h'", "gc_delete_delay = '1h'"] {
            let key = text.split(' ').next().unwrap();
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(key) && refused.contains("at least"), "{text}: {refused}");
        }
        for text in ["gc_interval = -1", "gc_interval = 3600", "gc_grace = '99999999999999999999d'"] {
            assert!(RawConfig::parse(text, "a test").is_err(), "{text}");
        }
        let config = parse("gc_interval = 0\ngc_grace = '22d'\ngc_delete_delay = '2h'").unwrap();
        assert_eq!((config.interval, config.condemned), (None, MIN_GC_DELETE_DELAY));
        assert!(config.grace > MIN_GC_GRACE);
    }

    #[test]
    fn min_live_is_a_fraction_and_zero_or_unset_means_never() {
        assert_eq!((parse("").unwrap().min_live, parse("gc_min_live = 0.0").unwrap().min_live), (None, None));
        for share in [0.01, 0.5, 1.0] {
            assert_eq!(parse(&format!("gc_min_live = {share:?}")).unwrap().min_live, Some(share));
        }
        for text in ["-0.1", "1.01", "50.0", "nan", "inf"] {
            let refused = parse(&format!("gc_min_live = {text}")).unwrap_err().to_string();
            assert!(
                refused.contains("gc_min_live") && refused.contains("more than 0 and at most 1"),
                "{text}: {refused}"
            );
        }
    }
}
