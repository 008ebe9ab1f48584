//! Settings of the collection of garbage.

use std::time::Duration;

use super::{ConfigError, RawConfig};

/// The least `gc_grace_days`: for three weeks stock clients remember what is there, and do not send it again.
pub const MIN_GC_GRACE: Duration = Duration::from_secs(21 * DAY_SECS);

/// The least `gc_condemned_hours`: longer than URLs of data live.
pub const MIN_GC_CONDEMNED: Duration = Duration::from_secs(2 * HOUR_SECS);

const HOUR_SECS: u64 = 3600;
const DAY_SECS: u64 = 24 * HOUR_SECS;

/// When garbage goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectionConfig {
    /// Time between two collections by the server; `None` where it makes none.
    pub interval: Option<Duration>,
    /// How long a xorb stays that nothing needs.
    pub grace: Duration,
    /// How long it stays after it was condemned.
    pub condemned: Duration,
    /// The share of its bytes below which a xorb is rewritten, more than 0 and at most 1; `None` where none is.
    pub min_live: Option<f64>,
}

impl CollectionConfig {
    /// Validates what was written of it, and fills in the defaults.
    ///
    /// # Errors
    ///
    /// A value makes no sense, or would take from clients what they were promised.
    pub fn new(raw: &RawConfig) -> Result<Self, ConfigError> {
        let interval = span("gc_interval_secs", raw.gc_interval_secs, 3600, 1, Duration::ZERO, "it is 0 for never")?;
        let reason = "it must be at least 21: clients remember for three weeks what is there, and do not send it again";
        let grace = span("gc_grace_days", raw.gc_grace_days, 21, DAY_SECS, MIN_GC_GRACE, reason)?;
        let reason = "it must be at least 2: whoever has a URL of data may use it for an hour";
        let condemned = span("gc_condemned_hours", raw.gc_condemned_hours, 24, HOUR_SECS, MIN_GC_CONDEMNED, reason)?;
        let min_live = raw.gc_min_live.filter(|share| *share != 0.0);
        if let Some(share) = min_live.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            let reason = "it is a share: more than 0 and at most 1, such as 0.5, or 0 for never".to_owned();
            return Err(ConfigError::Value { key: "gc_min_live", value: share.to_string(), reason });
        }
        Ok(Self { interval: Some(interval).filter(|interval| !interval.is_zero()), grace, condemned, min_live })
    }
}

/// A time that is written as a number of units.
fn span(
    key: &'static str,
    value: Option<i64>,
    default: i64,
    unit_secs: u64,
    least: Duration,
    reason: &str,
) -> Result<Duration, ConfigError> {
    let value = value.unwrap_or(default);
    let secs = u64::try_from(value).ok().and_then(|value| value.checked_mul(unit_secs));
    secs.map(Duration::from_secs).filter(|span| *span >= least).ok_or_else(|| ConfigError::Value {
        key,
        value: value.to_string(),
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CollectionConfig, ConfigError> {
        CollectionConfig::new(&RawConfig::parse(text, "a test").unwrap())
    }

    #[test]
    fn nobody_can_ask_for_less_than_clients_were_promised() {
        let config = parse("").unwrap();
        assert_eq!((config.grace, config.condemned), (MIN_GC_GRACE, Duration::from_secs(DAY_SECS)));
        assert_eq!(config.interval, Some(Duration::from_secs(HOUR_SECS)));
        for text in ["gc_grace_days = 20", "gc_grace_days = 0", "gc_grace_days = -21", "gc_condemned_hours = 1"] {
            let key = text.split(' ').next().unwrap();
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(key) && refused.contains("at least"), "{text}: {refused}");
        }
        for text in ["gc_interval_secs = -1", "gc_grace_days = 9223372036854775807"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let config = parse("gc_interval_secs = 0\ngc_grace_days = 22\ngc_condemned_hours = 2").unwrap();
        assert_eq!((config.interval, config.condemned), (None, MIN_GC_CONDEMNED));
        assert!(config.grace > MIN_GC_GRACE);
    }

    #[test]
    fn xorbs_are_rewritten_below_a_share_and_not_unless_somebody_says_so() {
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
