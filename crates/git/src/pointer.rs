//! Pointers: the blobs that stand for large files in a git tree, in the format of Git LFS.

use crate::{ObjectError, ObjectId};

/// The pointer of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Length of the file in bytes.
    pub len: u64,
}

impl Pointer {
    /// The pointer with exactly this text; `None` for any other text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        const MAX_TEXT_LEN: usize = 160;
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_TEXT_LEN)?;
        let mut words = text.split_ascii_whitespace();
        let digest = words.find_map(|word| word.strip_prefix("sha256:"))?;
        let len = words.nth(1)?.parse().ok()?;
        let mut sha256 = [0; 32];
        for (byte, index) in sha256.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(digest.get(index..index + 2)?, 16).ok()?;
        }
        let pointer = Self { sha256, len };
        (pointer.to_text() == text).then_some(pointer)
    }

    /// The text of the pointer, which is the contents of its blob.
    #[must_use]
    pub fn to_text(&self) -> String {
        let digest: String = self.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {}\n", self.len)
    }

    /// The id of the blob.
    ///
    /// # Errors
    ///
    /// [`ObjectError::Collision`].
    pub fn id(&self) -> Result<ObjectId, ObjectError> {
        ObjectId::of_blob(self.to_text().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_has_the_text_of_git_lfs() {
        let pointer = Pointer { sha256: [0xab; 32], len: 300_000 };
        let text = pointer.to_text();
        assert!(text.starts_with("version https://git-lfs.github.com/spec/v1\noid sha256:abab"), "{text}");
        assert!(text.ends_with("ab\nsize 300000\n"), "{text}");
        assert_eq!(text.len(), 131);
        assert_eq!(Pointer::parse(text.as_bytes()), Some(pointer));
        for len in 0..text.len() {
            assert_eq!(Pointer::parse(&text.as_bytes()[..len]), None, "{len} bytes");
        }
        for other in
            [format!("{text}\n"), text.replace("ab", "AB"), text.replace("size ", "size +"), text.replace('\n', "\r\n")]
        {
            assert_eq!(Pointer::parse(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(pointer.id(), ObjectId::of_blob(text.as_bytes()));
    }
}
