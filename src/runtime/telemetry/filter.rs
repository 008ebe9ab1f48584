//! The log filter, which decides what events are logged: a level for all targets, and levels for
//! single targets. The target of an event is the path of the module that logs it.

use thiserror::Error;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// Every level by its name. Other names are refused, because a misspelled level would silence the
/// log.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
    ("off", LevelFilter::OFF),
];

/// The crate that logs every SQL statement at debug.
const SQL_TARGET: &str = "sqlx";

/// A validated log filter, such as `info`, `zorb=debug,info` or `debug,sqlx=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    /// The level of targets that are not listed.
    level: LevelFilter,
    targets: Vec<(String, LevelFilter)>,
}

/// Why a text is not a log filter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// There is no entry.
    #[error("it is empty; levels are {}", level_names())]
    Empty,
    /// The level of an entry is not in the list of levels.
    #[error("{0:?} is not a level; levels are {levels}, for one target as in zorb=debug,info", levels = level_names())]
    Level(String),
    /// The part before `=` is not the path of a module.
    #[error("{0:?} is not a target; a target is the path of a module, as in zorb::http=debug")]
    Target(String),
    /// Two entries set the level of the same target, or of all other targets.
    #[error("{0} is given two levels")]
    Twice(String),
}

fn level_names() -> String {
    LEVELS.map(|(name, _)| name).join(", ")
}

impl LogFilter {
    /// The filter with this text: levels and `target=level`, separated by commas. If no entry is a
    /// plain level, the targets that are not listed are off.
    ///
    /// # Errors
    ///
    /// See [`FilterError`].
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let (mut level, mut targets) = (None, Vec::new());
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry.split_once('=') {
                None if level.replace(parse_level(entry)?).is_some() => {
                    return Err(FilterError::Twice("the log".to_owned()));
                }
                None => {}
                Some((target, level)) => {
                    let (target, level) = (parse_target(target.trim())?, parse_level(level.trim())?);
                    if targets.iter().any(|(other, _)| *other == target) {
                        return Err(FilterError::Twice(target));
                    }
                    targets.push((target, level));
                }
            }
        }
        if level.is_none() && targets.is_empty() {
            return Err(FilterError::Empty);
        }
        Ok(Self { level: level.unwrap_or(LevelFilter::OFF), targets })
    }

    /// The filter in the form that the subscriber takes. SQL statements are logged at debug only if
    /// the filter names their target, because they would be most of the log.
    pub(super) fn to_targets(&self) -> Targets {
        let is_sql_named = self.targets.iter().any(|(target, _)| target == SQL_TARGET);
        let sql = (!is_sql_named && self.level > LevelFilter::INFO).then(|| (SQL_TARGET.to_owned(), LevelFilter::INFO));
        Targets::new().with_default(self.level).with_targets(self.targets.iter().cloned().chain(sql))
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self { level: LevelFilter::INFO, targets: Vec::new() }
    }
}

fn parse_level(text: &str) -> Result<LevelFilter, FilterError> {
    let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|(_, level)| *level).ok_or_else(|| FilterError::Level(text.to_owned()))
}

fn parse_target(text: &str) -> Result<String, FilterError> {
    let is_name =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if text.split("::").all(is_name) { Ok(text.to_owned()) } else { Err(FilterError::Target(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn enabled(text: &str, target: &str) -> Vec<&'static str> {
        let targets = LogFilter::parse(text).unwrap().to_targets();
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        let names = ["error", "warn", "info", "debug", "trace"];
        let pairs = levels.iter().zip(names).filter(|(level, _)| targets.would_enable(target, level));
        pairs.map(|(_, name)| name).collect()
    }

    #[test]
    fn each_level_enables_itself_and_more_severe_ones() {
        let all = ["error", "warn", "info", "debug", "trace"];
        for (count, level) in all.iter().enumerate() {
            assert_eq!(enabled(level, "zorb::http"), all[..=count], "{level}");
            assert_eq!(enabled(&level.to_uppercase(), "zorb::http"), all[..=count], "{level}");
        }
        assert!(enabled("off", "zorb").is_empty());
        assert_eq!(LogFilter::default(), LogFilter::parse("info").unwrap());
    }

    #[test]
    fn a_target_has_a_level_of_its_own() {
        for text in ["zorb::http=trace,warn", " warn , zorb::http = trace "] {
            assert_eq!(enabled(text, "zorb::http::layers").len(), 5, "{text}");
            assert_eq!(enabled(text, "zorb::service"), ["error", "warn"], "{text}");
        }
        assert!(enabled("zorb=debug", "hyper").is_empty(), "a target without a level is off");
    }

    #[test]
    fn sql_is_logged_only_where_its_target_is_named() {
        let statements = format!("{SQL_TARGET}::query");
        for text in ["debug", "trace", "zorb=trace,debug"] {
            assert_eq!(enabled(text, &statements), ["error", "warn", "info"], "{text}");
        }
        assert_eq!(enabled("warn", &statements), ["error", "warn"]);
        for text in ["info,sqlx=debug", &format!("debug,{statements}=debug"), "sqlx=debug"] {
            assert!(enabled(text, &statements).contains(&"debug"), "{text}");
        }
    }

    #[test]
    fn unknown_level_is_refused_with_the_list_of_levels() {
        for text in ["warning", "verbose", "inof", "5", "zorb=inof", "info,zorb=", "zorb=nonsense=x", "info;debug"] {
            let refused = LogFilter::parse(text).unwrap_err().to_string();
            assert!(refused.contains("error, warn, info, debug, trace, off"), "{text}: {refused}");
        }
        for text in ["=debug", "zorb[request]=debug", "zorb:http=debug", "a b=info", "info,é=warn"] {
            assert!(matches!(LogFilter::parse(text), Err(FilterError::Target(_))), "{text}");
        }
        assert_eq!(LogFilter::parse(" , "), Err(FilterError::Empty));
        assert!(matches!(LogFilter::parse("info,debug"), Err(FilterError::Twice(_))));
        assert!(matches!(LogFilter::parse("zorb=info,zorb=info"), Err(FilterError::Twice(_))));
    }
}
