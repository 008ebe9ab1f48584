//! The JSON of the Hub, as its clients write and read it.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::format::shard::Sha256;
use crate::runtime::clock::Timestamp;
use crate::service::{HubBlob, HubCommit, HubEntry, HubRepo, RepoKind};

/// Body of `POST /api/repos/create`.
#[derive(Debug, Deserialize)]
pub(super) struct CreateJson {
    pub(super) name: String,
    pub(super) organization: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) private: Option<bool>,
    pub(super) visibility: Option<String>,
}

/// Body of `DELETE /api/repos/delete`.
#[derive(Debug, Deserialize)]
pub(super) struct DeleteJson {
    pub(super) name: String,
    pub(super) organization: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
}

/// Body of `POST /api/repos/move`.
#[derive(Debug, Deserialize)]
pub(super) struct MoveJson {
    #[serde(rename = "fromRepo")]
    pub(super) from: String,
    #[serde(rename = "toRepo")]
    pub(super) to: String,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
}

/// Body of `PUT …/settings`.
#[derive(Debug, Deserialize)]
pub(super) struct SettingsJson {
    pub(super) private: Option<bool>,
    pub(super) visibility: Option<String>,
    /// `false`, or how access requests are approved.
    pub(super) gated: Option<serde_json::Value>,
}

/// Body of `POST /api/validate-yaml`.
#[derive(Debug, Deserialize)]
pub(super) struct CardJson {
    pub(super) content: String,
}

/// Body of `POST …/super-squash/{branch}`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SquashJson {
    pub(super) message: Option<String>,
}

/// Body of `POST …/preupload/{revision}`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PreuploadJson {
    pub(super) files: Vec<PreuploadFileJson>,
    /// The `.gitignore` that is uploaded with them.
    pub(super) git_ignore: Option<String>,
}

/// A file that a client is about to upload.
#[derive(Debug, Deserialize)]
pub(super) struct PreuploadFileJson {
    pub(super) path: String,
    pub(super) size: u64,
    /// The first bytes of the file, in base64.
    #[serde(default)]
    pub(super) sample: String,
}

/// What the client is to do with the file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UploadModeJson {
    pub(super) path: String,
    pub(super) upload_mode: &'static str,
    pub(super) should_ignore: bool,
    /// The sha256 of the large file, or the blob id of the regular file, that is at the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) oid: Option<String>,
}

/// A line of the body of `POST …/commit/{revision}`: `{"key": …, "value": …}`.
#[derive(Debug)]
pub(super) enum LineJson {
    Header(HeaderJson),
    File(FileJson),
    LfsFile(LfsFileJson),
    CopyFile(CopyFileJson),
    DeletedFile(PathJson),
    DeletedFolder(PathJson),
}

impl LineJson {
    /// Parses a line.
    ///
    /// Reads it twice, first for the key alone: a value that comes before its key would have to be
    /// kept as a tree of values, which takes up to 16 times the bytes of the line.
    pub(super) fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct KeyJson<'a> {
            #[serde(borrow)]
            key: Cow<'a, str>,
        }
        #[derive(Deserialize)]
        struct ValueJson<T> {
            value: T,
        }
        fn value<T: DeserializeOwned>(line: &[u8]) -> Result<T, serde_json::Error> {
            serde_json::from_slice(line).map(|ValueJson { value }| value)
        }
        const KEYS: &[&str] = &["header", "file", "lfsFile", "copyFile", "deletedFile", "deletedFolder"];
        let KeyJson { key } = serde_json::from_slice(line)?;
        Ok(match &*key {
            "header" => Self::Header(value(line)?),
            "file" => Self::File(value(line)?),
            "lfsFile" => Self::LfsFile(value(line)?),
            "copyFile" => Self::CopyFile(value(line)?),
            "deletedFile" => Self::DeletedFile(value(line)?),
            "deletedFolder" => Self::DeletedFolder(value(line)?),
            other => return Err(Error::unknown_variant(other, KEYS)),
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeaderJson {
    pub(super) summary: String,
    #[serde(default)]
    pub(super) description: String,
    pub(super) parent_commit: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct FileJson {
    pub(super) path: String,
    pub(super) content: String,
    #[serde(default)]
    pub(super) encoding: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct LfsFileJson {
    pub(super) path: String,
    #[serde(default)]
    pub(super) algo: Option<String>,
    pub(super) oid: String,
    pub(super) size: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CopyFileJson {
    pub(super) path: String,
    pub(super) src_path: String,
    pub(super) src_revision: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PathJson {
    pub(super) path: String,
}

/// Body of `POST …/branch/{name}` and `POST …/tag/{revision}`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RefJson {
    pub(super) starting_point: Option<String>,
    pub(super) tag: Option<String>,
}

/// Body of `POST …/paths-info/{revision}`.
#[derive(Debug, Deserialize)]
pub(super) struct PathsJson {
    pub(super) paths: Vec<String>,
    /// Whether each entry has its last commit.
    #[serde(default)]
    pub(super) expand: bool,
}

/// Body of a Git LFS batch.
#[derive(Debug, Deserialize)]
pub(super) struct BatchJson {
    #[serde(default)]
    pub(super) operation: Option<String>,
    #[serde(default)]
    pub(super) transfers: TransfersJson,
    pub(super) objects: Vec<LfsObjectJson>,
}

/// The names of the ways to transfer that a client knows. They are not stored, because a body has
/// space for a million of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TransfersJson {
    /// Whether `xet` is among them.
    pub(super) has_xet: bool,
}

impl<'de> Deserialize<'de> for TransfersJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = TransfersJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<TransfersJson, A::Error> {
                let mut has_xet = false;
                while let Some(name) = names.next_element::<Cow<'de, str>>()? {
                    has_xet |= name == "xet";
                }
                Ok(TransfersJson { has_xet })
            }
        }

        deserializer.deserialize_seq(Names)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct LfsObjectJson {
    pub(super) oid: String,
    pub(super) size: u64,
}

/// The plural of a kind is in paths, and this in bodies.
pub(super) fn parse_kind(text: Option<&str>) -> Option<RepoKind> {
    let Some(text) = text else { return Some(RepoKind::Model) };
    RepoKind::ALL.into_iter().find(|kind| kind.name() == text)
}

/// `namespace/name`.
pub(super) fn repo_id(repo: &HubRepo) -> String {
    format!("{}/{}", repo.namespace, repo.name)
}

/// A time as in RFC 3339, with milliseconds.
pub(super) fn date(at: Timestamp) -> String {
    // After the year 9999 there is no such text.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    let since = Duration::from_millis(at.as_millis()).min(LAST);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// The description of a repository, without its files.
pub(super) fn repo(repo: &HubRepo) -> Map<String, Value> {
    let fields = [
        ("id", json!(repo_id(repo))),
        ("modelId", json!(repo_id(repo))),
        ("author", json!(repo.namespace)),
        ("private", json!(repo.is_private)),
        ("gated", json!(false)),
        ("disabled", json!(false)),
        ("downloads", json!(0)),
        ("likes", json!(0)),
        ("tags", json!([])),
        // Clients of version 0.30 upload by Xet only then.
        ("xetEnabled", json!(true)),
        ("createdAt", json!(date(repo.created))),
        ("lastModified", json!(date(repo.updated))),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A description of a repository with its files. Their number is large, so they are not built as
/// [`Value`]s, which would take several times the memory of the text.
#[derive(Debug, Serialize)]
pub(super) struct InfoJson {
    #[serde(flatten)]
    pub(super) about: Map<String, Value>,
    pub(super) siblings: Vec<SiblingJson>,
}

/// A file in the description of a repository.
#[derive(Debug, Serialize)]
pub(super) struct SiblingJson {
    rfilename: String,
    #[serde(flatten)]
    blob: Option<BlobJson>,
}

#[derive(Debug, Serialize)]
struct BlobJson {
    size: u64,
    #[serde(rename = "blobId")]
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lfs: Option<LfsJson>,
}

/// What is special about a large file.
#[derive(Debug, Serialize)]
pub(super) struct LfsJson {
    #[serde(serialize_with = "as_text")]
    oid: Sha256,
    #[serde(serialize_with = "as_text")]
    sha256: Sha256,
    size: u64,
    #[serde(rename = "pointerSize")]
    pointer_len: usize,
}

impl SiblingJson {
    /// The file of an entry, if it is one; `has_blob`: with its id and length.
    pub(super) fn of(entry: HubEntry, has_blob: bool) -> Option<Self> {
        let blob = entry.blob?;
        let described = has_blob.then(|| BlobJson { size: blob.len, id: blob.id.to_string(), lfs: lfs(&blob) });
        Some(Self { rfilename: entry.path, blob: described })
    }
}

/// An entry of a list of files.
pub(super) fn entry(entry: &HubEntry) -> Value {
    let Some(blob) = &entry.blob else {
        return json!({ "type": "directory", "path": entry.path, "oid": entry.id.to_string(), "size": 0 });
    };
    let mut value = json!({ "type": "file", "path": entry.path, "oid": entry.id.to_string(), "size": blob.len });
    if let (Some(large), Some(fields)) = (lfs(blob), value.as_object_mut()) {
        fields.insert("lfs".to_owned(), json!(large));
        fields.insert("xetHash".to_owned(), json!(blob.file.to_string()));
    }
    value
}

/// Adds the field of an expanded list. Clients take `null` as a commit that is not known.
pub(super) fn expand(entry: &mut Value, last: Option<&HubCommit>) {
    if let Some(fields) = entry.as_object_mut() {
        let last = last.map(|last| json!({ "id": last.id.to_string(), "title": title(last), "date": date(last.at) }));
        fields.insert("lastCommit".to_owned(), last.unwrap_or(Value::Null));
    }
}

/// The first line of the message of a commit.
fn title(commit: &HubCommit) -> &str {
    commit.message.split_once('\n').map_or(&commit.message, |(title, _)| title)
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The description of a large file; `None` for a regular one.
pub(super) fn lfs(blob: &HubBlob) -> Option<LfsJson> {
    let sha256 = blob.sha256?;
    let pointer = crate::git::Pointer { sha256: *sha256.as_digest(), len: blob.len };
    Some(LfsJson { oid: sha256, sha256, size: blob.len, pointer_len: pointer.to_text().len() })
}

/// A commit of a history.
pub(super) fn commit(commit: &HubCommit) -> Value {
    let (_, rest) = commit.message.split_once('\n').unwrap_or_default();
    json!({
        "id": commit.id.to_string(),
        "title": title(commit),
        "message": rest.trim_start_matches('\n'),
        "authors": [{ "user": commit.author }],
        "date": date(commit.at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_remembers_of_its_transfers_only_xet() {
        let has_xet = |text: &str| {
            let text = format!(r#"{{"transfers":{text},"objects":[]}}"#);
            serde_json::from_str::<BatchJson>(&text).map(|batch| batch.transfers.has_xet).ok()
        };
        assert_eq!(has_xet(r#"["basic","xet","multipart"]"#), Some(true));
        assert_eq!(has_xet(r#"["basic","\u0078et"]"#), Some(true));
        assert_eq!(has_xet(r#"["basic"]"#), Some(false));
        assert_eq!(has_xet("[]"), Some(false));
        assert_eq!(has_xet(r#""xet""#), None);
        assert!(!serde_json::from_str::<BatchJson>(r#"{"objects":[]}"#).unwrap().transfers.has_xet);
    }
}
