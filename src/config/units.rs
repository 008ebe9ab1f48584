//! Sizes, rates and durations in settings: `"8GiB"`, `"8MiB/s"`, `"30s"`.

use std::convert::Infallible;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, de};

use super::error::ConfigError;

/// A size in bytes: a text such as `"8GiB"` or `"500MB"`, or a plain number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// A rate in bytes per second: a text such as `"8MiB/s"` or `"8MiB"`, or a plain number of bytes
/// per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);

/// A duration: a text such as `"30s"`, `"1h 30m"` or `"21d"`. A plain number has no unit and is
/// refused, except 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// The error for a text that is not a size, a rate or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid number or unit")]
pub struct UnitError;

/// The expected values of [`Size`], [`Rate`] and [`Span`], for error messages.
pub(super) const SIZE: &str = "a size like \"8GiB\", or a number of bytes";
pub(super) const RATE: &str = "a rate like \"8MiB/s\", or a number of bytes per second";
pub(super) const SPAN: &str = "a duration with its unit, like \"30s\"";

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        // Try a plain number first: `ByteSize` parses numbers as floats, which are not exact above
        // 2^53.
        let bytes = text.parse().ok().or_else(|| text.parse::<ByteSize>().ok().map(|size| size.as_u64()));
        bytes.map(Self).ok_or(UnitError)
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        let size = text.strip_suffix("/s").unwrap_or(text).parse::<Size>();
        size.map(|size| Self(size.0)).map_err(|_| UnitError)
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        humantime::parse_duration(text.trim()).map(Self).map_err(|_| UnitError)
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// Deserializes a text or a number. The text of both is parsed with [`FromStr`].
struct Visitor<T> {
    expected: &'static str,
    parse: fn(&str) -> Result<T, UnitError>,
}

impl<T> de::Visitor<'_> for Visitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.parse)(&number.to_string()).map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        (self.parse)(&number.to_string()).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }
}

macro_rules! deserialize {
    ($type:ty, $expected:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Visitor { expected: $expected, parse: str::parse })
            }
        }
    };
}

deserialize!(Size, SIZE);
deserialize!(Rate, RATE);
deserialize!(Span, SPAN);

/// The value of a key, or its default: a size that must be at least 1 byte.
pub(super) fn size(key: &'static str, value: Option<Size>, default: u64) -> Result<u64, ConfigError> {
    not_zero(key, value.map_or(default, |size| size.0), "must be at least 1 byte")
}

/// The value of a key, or its default: a rate that must be at least 1 byte per second.
pub(super) fn rate(key: &'static str, value: Option<Rate>, default: u64) -> Result<u64, ConfigError> {
    not_zero(key, value.map_or(default, |rate| rate.0), "must be at least 1 byte per second")
}

fn not_zero(key: &'static str, value: u64, reason: &str) -> Result<u64, ConfigError> {
    if value > 0 {
        return Ok(value);
    }
    Err(ConfigError::Value { key, value: "0".to_owned(), reason: reason.to_owned() })
}

/// The value of a key, or its default: a duration that must be longer than 0.
pub(super) fn span(key: &'static str, value: Option<Span>, default_secs: u64) -> Result<Duration, ConfigError> {
    let span = value.map_or(Duration::from_secs(default_secs), |span| span.0);
    if !span.is_zero() {
        return Ok(span);
    }
    Err(ConfigError::Value { key, value: "0".to_owned(), reason: "must be longer than 0s".to_owned() })
}

/// A secret. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// This secret.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The secret. Not for logs and errors.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::new(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_or_decimal_units_or_none() {
        let size = |text: &str| text.parse().map(|Size(bytes)| bytes);
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("1.5KiB", 1536),
            ("500MB", 500_000_000),
            ("0", 0),
            ("1073741824", 1 << 30),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "-1", "many", "8GiB/s", "GiB", "8 bananas"] {
            assert_eq!(size(text), Err(UnitError), "{text}");
        }
    }

    #[test]
    fn rates_are_sizes_with_or_without_their_time() {
        let rate = |text: &str| text.parse().map(|Rate(bytes)| bytes);
        for text in ["8MiB/s", "8MiB", "8388608", " 8 MiB/s "] {
            assert_eq!(rate(text), Ok(8 << 20), "{text}");
        }
        for text in ["", "/s", "8MiB/h", "-1"] {
            assert_eq!(rate(text), Err(UnitError), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit_unless_they_are_zero() {
        let span = |text: &str| text.parse().map(|Span(span)| span);
        for (text, secs) in [("30s", 30), ("1h 30m", 5400), ("21d", 21 * 86_400), ("0", 0), ("0s", 0), ("90m", 5400)] {
            assert_eq!(span(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        for text in ["", "30", "-1s", "30 bananas", "s"] {
            assert_eq!(span(text), Err(UnitError), "{text}");
        }
        assert_eq!(Span(Duration::from_secs(5400)).to_string(), "1h 30m");
    }

    #[test]
    fn a_file_has_them_as_texts_or_numbers() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct All {
            size: Size,
            rate: Rate,
            span: Span,
        }
        let read = |text: &str| toml::from_str::<All>(text);
        let expected = All { size: Size(1 << 30), rate: Rate(1024), span: Span(Duration::ZERO) };
        assert_eq!(read("size = 1073741824\nrate = 1024\nspan = 0").unwrap(), expected);
        assert_eq!(read("size = '1GiB'\nrate = '1KiB/s'\nspan = '0s'").unwrap(), expected);
        for (wrong, named) in [
            ("size = -1\nrate = 1\nspan = 0", "size"),
            ("size = 1\nrate = 1\nspan = 60", "span"),
            ("size = true\nrate = 1\nspan = 0", "size"),
        ] {
            let refused = read(wrong).unwrap_err().to_string();
            assert!(refused.contains(named) && refused.contains("expected"), "{refused}");
        }
    }
}
