//! Formats sizes, shares, counts and delays for people.

use std::fmt;
use std::time::Duration;

/// A number of bytes, rounded to a tenth of the unit: `17 B`, `1.5 KiB`, `64.0 MiB`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = size_text(self.0);
        // `pad` applies the width and the alignment of the format string, such as `{:>10}`.
        f.pad(&text)
    }
}

fn size_text(len: u64) -> String {
    if len < 1024 {
        return format!("{len} B");
    }
    // `u128`, because `len * 10` may overflow a `u64`.
    let mut unit_len: u128 = 1;
    let mut tenths = 0;
    for unit in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        unit_len *= 1024;
        // The length in tenths of the unit, rounded to the nearest.
        tenths = (u128::from(len) * 10 + unit_len / 2) / unit_len;
        // From `1024.0` on, the next unit is used.
        if tenths < 10_240 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    // Never reached: a `u64` is at most 16.0 EiB.
    format!("{}.{} EiB", tenths / 10, tenths % 10)
}

/// A part of a whole, in percent: `64.4%`. If the whole is 0, `-`.
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
        // Rounded to the nearest tenth of a percent.
        let per_mille = (u128::from(self.part) * 1000 + whole / 2) / whole;
        f.pad(&format!("{}.{}%", per_mille / 10, per_mille % 10))
    }
}

/// A number and its noun, which is given in the singular: `1 chunk`, `2 chunks`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(pub(super) u64, pub(super) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// A delay in seconds, rounded to a tenth: `0.3 s`, `12.0 s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait(pub(super) Duration);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The delay in tenths of a second, rounded to the nearest.
        let tenths = (self.0.as_millis() + 50) / 100;
        write!(f, "{}.{} s", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests;
