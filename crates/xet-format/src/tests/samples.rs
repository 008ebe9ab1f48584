//! Sample bytes for tests, the same on every run.

/// The random number generator SplitMix64, which the chunking vector of the specification uses.
#[derive(Clone, Debug)]
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            std::iter::from_fn(|| Some(self.next().to_le_bytes())).take(len / 8 + 1).flatten().collect();
        bytes.truncate(len);
        bytes
    }

    /// Bytes of some kind.
    pub(crate) fn sample(&mut self, kind: Kind, len: usize) -> Vec<u8> {
        match kind {
            Kind::Random => self.bytes(len),
            Kind::Zeros => vec![0; len],
            Kind::Text => {
                let words = ["chunk ", "xorb ", "shard ", "of ", "the ", "file\n", "0x", "1234 "];
                let mut text = Vec::with_capacity(len + 8);
                while text.len() < len {
                    text.extend_from_slice(words[self.below(words.len())].as_bytes());
                }
                text.truncate(len);
                text
            }
            Kind::Floats => {
                let mut floats = Vec::with_capacity(len + 4);
                while floats.len() < len {
                    // Random floats between 1 and 2 with 16 random bits. So of the four bytes of
                    // each, one is always the same and one has few values.
                    let float = 1.0 + f32::from(self.next() as u16) / 65_536.0;
                    floats.extend_from_slice(&float.to_le_bytes());
                }
                floats.truncate(len);
                floats
            }
        }
    }
}

/// What the bytes of a sample look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Does not compress.
    Random,
    /// Compresses to next to nothing.
    Zeros,
    /// Compresses with LZ4.
    Text,
    /// Compresses only when the bytes are grouped.
    Floats,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Random, Self::Zeros, Self::Text, Self::Floats];
}
