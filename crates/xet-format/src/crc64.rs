//! CRC-64/NVME: tells apart different serializations of one xorb, and is the checksum in upload
//! grants.
//!
//! It detects accidental damage only. An attacker can forge it; the hashes protect against that.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of bytes that come in pieces.
#[derive(Clone, Debug)]
pub struct Crc64(Digest);

impl Crc64 {
    /// The checksum of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    /// The checksum of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u64 {
        let mut crc64 = Self::new();
        crc64.update(bytes);
        crc64.value()
    }

    /// Adds the next bytes to the checksum.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes up to here.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Crc64 {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// The checksum by its definition, one bit at a time: the polynomial is reflected, and all bits
    /// are inverted before and after.
    fn bit_by_bit(bytes: &[u8]) -> u64 {
        let step = |crc: u64| (crc >> 1) ^ if crc & 1 == 1 { 0x9a6c_9329_ac4b_c9b5 } else { 0 };
        !bytes.iter().fold(u64::MAX, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| step(crc)))
    }

    #[test]
    fn crc_of_the_check_string_is_the_specified_value() {
        assert_eq!(Crc64::of(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(Crc64::of(b""), 0);
    }

    #[test]
    fn crc_follows_the_polynomial_for_every_length_and_split() {
        let mut rng = StdRng::seed_from_u64(64);
        let mut bytes = vec![0; 3000];
        rng.fill(&mut bytes[..]);
        for len in (0..1100).chain([2047, 2048, 2049, 3000]) {
            let part = bytes.get(..len).unwrap();
            let (first, second) = part.split_at(rng.random_range(0..=len));
            let mut crc64 = Crc64::new();
            crc64.update(first);
            crc64.update(second);
            assert_eq!(crc64.value(), bit_by_bit(part), "{len} bytes");
        }
    }
}
