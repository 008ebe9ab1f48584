//! Commits.

use gix_actor::Signature;
use gix_object::{Kind, WriteTo};

use crate::{ObjectError, ObjectId};

/// A commit with at most one parent, whose author is its committer, at a time in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The root directory.
    pub tree: ObjectId,
    /// The commit before it; `None` for the first one.
    pub parent: Option<ObjectId>,
    /// The name of the author. In the object, characters that git does not allow are left out.
    pub author: String,
    /// The address of the author, likewise.
    pub email: String,
    /// When it was made, in seconds since 1970.
    pub unix_secs: u64,
    /// The message: a line, and optionally an empty line and further text.
    pub message: String,
}

impl Commit {
    /// The id and the bytes of the commit object.
    ///
    /// # Errors
    ///
    /// [`ObjectError::Collision`], or a field cannot be encoded.
    pub fn to_object(&self) -> Result<(ObjectId, Vec<u8>), ObjectError> {
        let seconds = i64::try_from(self.unix_secs).map_err(|_| ObjectError::NotEncodable)?;
        let signature = Signature {
            name: allowed(&self.author).into(),
            email: allowed(&self.email).into(),
            time: gix_object::date::Time::new(seconds, 0),
        };
        let commit = gix_object::Commit {
            tree: self.tree.to_gix(),
            parents: self.parent.map(ObjectId::to_gix).into_iter().collect(),
            author: signature.clone(),
            committer: signature,
            encoding: None,
            message: self.message.replace('\0', "").into(),
            extra_headers: Vec::new(),
        };
        let mut bytes = Vec::new();
        commit.write_to(&mut bytes).map_err(|_| ObjectError::NotEncodable)?;
        Ok((ObjectId::of(Kind::Commit, &bytes)?, bytes))
    }
}

/// The text without characters that end a signature or a line.
fn allowed(text: &str) -> String {
    let kept = text.chars().filter(|character| !matches!(character, '<' | '>') && !character.is_control());
    kept.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_has_the_bytes_of_git() {
        let commit = Commit {
            tree: "4b825dc642cb6eb9a060e54bf8d69288fbee4904".parse().unwrap(),
            parent: None,
            author: "ali<ce>\n".to_owned(),
            email: "alice@example.org".to_owned(),
            unix_secs: 1_795_000_000,
            message: "title\n\nbody\n".to_owned(),
        };
        let (id, bytes) = commit.to_object().unwrap();
        let expected = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n\
             author alice <alice@example.org> 1795000000 +0000\n\
             committer alice <alice@example.org> 1795000000 +0000\n\ntitle\n\nbody\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        let child = Commit { parent: Some(id), ..commit };
        let (_, bytes) = child.to_object().unwrap();
        assert!(String::from_utf8(bytes).unwrap().contains(&format!("\nparent {id}\nauthor")));
    }
}
