//! Varints: little-endian base-128 numbers. Every block begins with one.

/// Bytes of a padded varint, see [`encode_padded`].
pub(crate) const PADDED_LEN: usize = 6;

/// Largest value that [`encode_padded`] can hold: 42 bits.
pub(crate) const PADDED_MAX: u64 = (1 << (7 * PADDED_LEN)) - 1;

/// Appends the shortest form of `value` to `out`.
pub(crate) fn encode(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(low_bits(value) | 0x80);
        value >>= 7;
    }
    out.push(low_bits(value));
}

/// The six-byte form of `value`, even if a shorter form exists; `None` beyond [`PADDED_MAX`].
///
/// Because this form always has six bytes, a writer can reserve them and fill in a blob's length
/// after its payload was written. The reference accepts such overlong forms.
pub(crate) fn encode_padded(value: u64) -> Option<[u8; PADDED_LEN]> {
    if value > PADDED_MAX {
        return None;
    }
    let mut out = [0; PADDED_LEN];
    for (i, byte) in out.iter_mut().enumerate() {
        let more = if i + 1 < PADDED_LEN { 0x80 } else { 0 };
        *byte = low_bits(value >> (7 * i)) | more;
    }
    Some(out)
}

fn low_bits(value: u64) -> u8 {
    value.to_le_bytes()[0] & 0x7f
}

/// A varint that is read byte by byte. It may have any number of bytes, so only its value is
/// stored.
#[derive(Debug, Default)]
pub(crate) struct Varint {
    value: u128,
    shift: u32,
}

impl Varint {
    /// Takes the next byte; `true` if it was the last.
    pub(crate) fn push(&mut self, byte: u8) -> bool {
        let bits = u128::from(byte & 0x7f);
        if self.shift < 121 {
            self.value |= bits << self.shift;
            self.shift += 7;
        } else if bits != 0 {
            // The value is larger than any file, so only the top bit is set. The low bits stay,
            // because they are the kind of the block.
            self.value |= 1 << 127;
        }
        byte & 0x80 == 0
    }

    /// The value, exact below 2¹²⁶; a larger one is replaced by a number of at least 2¹²⁷.
    pub(crate) fn value(&self) -> u128 {
        self.value
    }
}
