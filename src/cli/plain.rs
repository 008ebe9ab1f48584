//! Names that others have chosen, as they are shown.

use std::fmt::{self, Display};

use crate::client::is_shown;

/// A name as people may be shown it: one line, and nothing that a terminal obeys.
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
