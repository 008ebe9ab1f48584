//! Numbers as people read them.

use std::fmt;
use std::time::Duration;

/// Bytes: `17 B`, `1.5 KiB`, `64.0 MiB`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = size_text(self.0);
        f.pad(&text)
    }
}

fn size_text(len: u64) -> String {
    if len < 1024 {
        return format!("{len} B");
    }
    let mut unit_len: u128 = 1;
    let mut tenths = 0;
    for unit in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        unit_len *= 1024;
        tenths = (u128::from(len) * 10 + unit_len / 2) / unit_len;
        // What would print as 1024.0 goes to the next unit.
        if tenths < 10_240 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{}.{} EiB", tenths / 10, tenths % 10)
}

/// A part of a whole: `64.4%`; of nothing, `-`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) part: u64,
    pub(super) whole: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whole == 0 {
            return f.pad("-");
        }
        let whole = u128::from(self.whole);
        let per_mille = (u128::from(self.part) * 1000 + whole / 2) / whole;
        f.pad(&format!("{}.{}%", per_mille / 10, per_mille % 10))
    }
}

/// A number of things: `1 chunk`, `2 chunks`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(pub(super) u64, pub(super) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// A short time: `0.3 s`, `12.0 s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait(pub(super) Duration);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0.as_millis() + 50) / 100;
        write!(f, "{}.{} s", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests;
