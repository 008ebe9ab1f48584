//! Formats untrusted names for a terminal.

use std::fmt::{self, Display};

use crate::client::is_shown;

/// A name as one line. Characters that control a terminal are escaped. Backslashes are escaped,
/// too, so that two different names never look the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain<'a>(pub(super) &'a str);

impl Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if !is_shown(c) || c == '\\' {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}
