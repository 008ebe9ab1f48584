//! Trees: the directories of a commit.

use std::collections::BTreeMap;

use gix_object::tree::{Entry as GixEntry, EntryKind as GixKind};
use gix_object::{Kind, TreeRef, WriteTo};

use crate::{ObjectError, ObjectId};

/// A directory: its entries by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<String, Entry>);

/// What a name in a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// File or directory.
    pub kind: EntryKind,
    /// Its blob or tree.
    pub id: ObjectId,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file that is not executable, mode 100644.
    File,
    /// An executable file, mode 100755.
    Executable,
    /// A symbolic link, mode 120000.
    Link,
    /// A directory.
    Directory,
}

impl Tree {
    /// Parses the bytes of a tree object. Names are unique, and none has a slash.
    ///
    /// # Errors
    ///
    /// [`ObjectError::NotATree`]: also for a submodule, a name that is not UTF-8, entries out of
    /// order, and modes that git writes no more.
    pub fn parse(bytes: &[u8]) -> Result<Self, ObjectError> {
        let parsed = TreeRef::from_bytes(bytes, gix_hash::Kind::Sha1).map_err(|_| ObjectError::NotATree)?;
        let mut entries = BTreeMap::new();
        // Git sorts a directory as if its name ended with a slash.
        if !parsed.entries.is_sorted() {
            return Err(ObjectError::NotATree);
        }
        for entry in parsed.entries {
            // Old programs wrote other modes of the same kinds.
            if entry.mode != entry.mode.kind().into() {
                return Err(ObjectError::NotATree);
            }
            let kind = match entry.mode.kind() {
                GixKind::Blob => EntryKind::File,
                GixKind::BlobExecutable => EntryKind::Executable,
                GixKind::Link => EntryKind::Link,
                GixKind::Tree => EntryKind::Directory,
                GixKind::Commit => return Err(ObjectError::NotATree),
            };
            let name = std::str::from_utf8(entry.filename).map_err(|_| ObjectError::NotATree)?;
            let id = ObjectId::from_gix(entry.oid).ok_or(ObjectError::NotATree)?;
            if name.is_empty() || name.contains('/') {
                return Err(ObjectError::NotATree);
            }
            if entries.insert(name.to_owned(), Entry { kind, id }).is_some() {
                return Err(ObjectError::NotATree);
            }
        }
        Ok(Self(entries))
    }

    /// The id and the bytes of the tree object.
    ///
    /// # Errors
    ///
    /// A name cannot be encoded, or [`ObjectError::Collision`].
    pub fn to_object(&self) -> Result<(ObjectId, Vec<u8>), ObjectError> {
        let entries = self.0.iter().map(|(name, entry)| GixEntry {
            mode: match entry.kind {
                EntryKind::File => GixKind::Blob,
                EntryKind::Executable => GixKind::BlobExecutable,
                EntryKind::Link => GixKind::Link,
                EntryKind::Directory => GixKind::Tree,
            }
            .into(),
            filename: name.as_str().into(),
            oid: entry.id.to_gix(),
        });
        let mut tree = gix_object::Tree { entries: entries.collect() };
        // Git sorts a directory as if its name ended with a slash.
        tree.entries.sort();
        let mut bytes = Vec::new();
        tree.write_to(&mut bytes).map_err(|_| ObjectError::NotEncodable)?;
        Ok((ObjectId::of(Kind::Tree, &bytes)?, bytes))
    }

    /// The entry with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Entry> {
        self.0.get(name).copied()
    }

    /// Inserts an entry, in place of an earlier one with this name.
    pub fn insert(&mut self, name: &str, entry: Entry) {
        self.0.insert(name.to_owned(), entry);
    }

    /// Removes the entry with this name, and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Entry> {
        self.0.remove(name)
    }

    /// The entries, in the order of the bytes of their names.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (&str, Entry)> {
        self.0.iter().map(|(name, entry)| (name.as_str(), *entry))
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn weight(&self) -> u32 {
        let len: usize = self.0.keys().map(|name| name.len() + 64).sum();
        u32::try_from(len).unwrap_or(u32::MAX).saturating_add(64)
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of entries.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind) -> Entry {
        Entry { kind, id: ObjectId::from_bytes([7; 20]) }
    }

    fn sample() -> Tree {
        let mut tree = Tree::default();
        tree.insert("a", entry(EntryKind::Directory));
        tree.insert("a.b", entry(EntryKind::File));
        tree.insert("a0", entry(EntryKind::Executable));
        tree.insert("ü", entry(EntryKind::Link));
        tree
    }

    #[test]
    fn directory_is_sorted_as_if_its_name_ended_with_a_slash() {
        let (_, bytes) = sample().to_object().unwrap();
        let at = |name: &[u8]| bytes.windows(name.len()).position(|part| part == name).unwrap();
        assert!(at(b" a.b\0") < at(b" a\0") && at(b" a\0") < at(b" a0\0"));
        assert_eq!(Tree::parse(&bytes), Ok(sample()));
    }

    #[test]
    fn every_prefix_and_changed_byte_is_refused_or_another_tree() {
        let (id, bytes) = sample().to_object().unwrap();
        for len in 1..bytes.len() {
            match Tree::parse(&bytes[..len]) {
                Err(error) => assert_eq!(error, ObjectError::NotATree),
                Ok(tree) => assert!(tree.count() < 4 && tree.to_object().unwrap().1 == bytes[..len]),
            }
        }
        for (at, byte) in bytes.iter().enumerate() {
            let mut changed = bytes.clone();
            changed[at] = byte ^ 1;
            if let Ok(tree) = Tree::parse(&changed) {
                assert_ne!(tree.to_object().unwrap().0, id, "byte {at}");
            }
        }
    }

    #[test]
    fn submodules_old_modes_disorder_and_duplicates_are_refused() {
        let record = |mode: &str, name: &str| [mode.as_bytes(), b" ", name.as_bytes(), b"\0", &[7; 20]].concat();
        let good = record("100644", "a");
        assert!(Tree::parse(&good).is_ok());
        for bytes in [
            record("160000", "module"),
            record("100664", "a"),
            record("040000", "a"),
            record("100644", "a/b"),
            record("100644", ""),
            [record("100644", "b"), good.clone()].concat(),
            [good.clone(), good.clone()].concat(),
            [b"100644 \xff\0".as_slice(), &[7; 20]].concat(),
        ] {
            assert_eq!(Tree::parse(&bytes), Err(ObjectError::NotATree), "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
