//! Byte grouping by four: the transform before LZ4 in scheme 2 (spec 3.4), and a prediction of
//! whether it makes a chunk smaller.
//!
//! In numbers of four bytes, bytes at the same position are similar: the exponents of floats hardly
//! differ, their mantissas are noise. Grouping moves the bytes at positions 0, 4, 8, … to the
//! front, then those at 1, 5, 9, … and so on, so that LZ4 finds the repetitions. [`split`] and
//! [`join`] iterate over zipped slices of equal length, because the compiler makes vector code of
//! this without `unsafe`.

/// Writes the bytes of `raw` to `grouped`, grouped by their position modulo 4.
///
/// Both must have the same length. If they have not, `grouped` has no meaning afterwards, but
/// nothing panics.
pub(super) fn split(raw: &[u8], grouped: &mut [u8]) {
    let Some([g0, g1, g2, g3]) = groups_mut(grouped) else { return };
    let (quads, rest) = raw.as_chunks::<4>();
    let columns = g0.iter_mut().zip(g1.iter_mut()).zip(g2.iter_mut().zip(g3.iter_mut()));
    for (quad, ((b0, b1), (b2, b3))) in quads.iter().zip(columns) {
        [*b0, *b1, *b2, *b3] = *quad;
    }
    // The up to three bytes after the last quad are the last bytes of the first groups.
    for (group, byte) in [g0, g1, g2].into_iter().zip(rest) {
        if let Some(last) = group.last_mut() {
            *last = *byte;
        }
    }
}

/// The inverse of [`split`]: from groups back to the order of the raw bytes.
pub(super) fn join(grouped: &[u8], raw: &mut [u8]) {
    let Some([g0, g1, g2, g3]) = groups(grouped) else { return };
    let (quads, rest) = raw.as_chunks_mut::<4>();
    let columns = g0.iter().zip(g1).zip(g2.iter().zip(g3));
    for (quad, ((b0, b1), (b2, b3))) in quads.iter_mut().zip(columns) {
        // First pairs of bytes, then pairs of pairs. In this form the compiler uses the CPU's
        // interleaving instructions. Written as `[*b0, *b1, *b2, *b3]` the loop takes more than
        // twice as long.
        let low = u16::from(*b0) | u16::from(*b1) << 8;
        let high = u16::from(*b2) | u16::from(*b3) << 8;
        *quad = (u32::from(low) | u32::from(high) << 16).to_le_bytes();
    }
    for (byte, group) in rest.iter_mut().zip([g0, g1, g2]) {
        if let Some(last) = group.last() {
            *byte = *last;
        }
    }
}

/// Lengths of the first three of the four groups of `len` bytes: a quarter each, and one byte more
/// in the first `len mod 4` groups.
const fn group_lens(len: usize) -> [usize; 3] {
    [len.saturating_add(3) / 4, len.saturating_add(2) / 4, len.saturating_add(1) / 4]
}

/// Splits grouped bytes into the four groups.
fn groups(grouped: &[u8]) -> Option<[&[u8]; 4]> {
    let [l0, l1, l2] = group_lens(grouped.len());
    let (g0, rest) = grouped.split_at_checked(l0)?;
    let (g1, rest) = rest.split_at_checked(l1)?;
    let (g2, g3) = rest.split_at_checked(l2)?;
    Some([g0, g1, g2, g3])
}

/// Splits grouped bytes into the four groups, to be written.
fn groups_mut(grouped: &mut [u8]) -> Option<[&mut [u8]; 4]> {
    let [l0, l1, l2] = group_lens(grouped.len());
    let (g0, rest) = grouped.split_at_mut_checked(l0)?;
    let (g1, rest) = rest.split_at_mut_checked(l1)?;
    let (g2, g3) = rest.split_at_mut_checked(l2)?;
    Some([g0, g1, g2, g3])
}

/// Whether grouping is expected to help LZ4 with these bytes (spec 3.2).
///
/// Counts the one-bits of each byte, 0 to 8, and compares the distribution at each of the four
/// positions with that of all bytes. If one differs (Kullback-Leibler divergence above 0.02),
/// grouping usually helps.
///
/// The threshold is that of the reference, and so is one special case. If one of the nine counts
/// never occurs at a position, the divergence of this position is not a number, so the position is
/// ignored. With these choices a chunk gets the same scheme here as in the reference.
pub(super) fn is_recommended(raw: &[u8]) -> bool {
    const THRESHOLD: f64 = 0.02;
    let mut counts = [[0_u32; 9]; 4];
    let (quads, rest) = raw.as_chunks::<4>();
    for place in quads.iter().map(<[u8; 4]>::as_slice).chain(std::iter::once(rest)) {
        for (histogram, byte) in counts.iter_mut().zip(place) {
            if let Some(count) = histogram.get_mut(byte.count_ones() as usize) {
                *count = count.saturating_add(1);
            }
        }
    }
    let total = raw.len() as f64;
    // The sum of each count over the positions starts at one, so that no expected share is zero.
    let all: [f64; 9] = std::array::from_fn(|ones| {
        counts.iter().filter_map(|histogram| histogram.get(ones)).fold(1.0, |sum, count| sum + f64::from(*count))
            / total
    });
    counts.iter().any(|histogram| {
        let total: f64 = histogram.iter().map(|count| f64::from(*count)).sum();
        let divergence: f64 = histogram
            .iter()
            .zip(all)
            .map(|(count, expected)| {
                let share = f64::from(*count) / total;
                share * (share / expected).ln() // 0 · ln 0 is not a number: see above
            })
            .sum();
        divergence > THRESHOLD
    })
}
