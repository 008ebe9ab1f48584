//! JSON of the lists of files and xorbs, of usage, and of removals.

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use super::HashText;

/// Response to `GET /v1/files`: one page of the list.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilesPage {
    /// The files, in the order of the bytes of their hashes. The texts have another order.
    pub files: Vec<ListedFile>,
    /// The `after` of the next page; null for the last one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<HashText>))]
    pub next: Option<String>,
}

/// A file of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedFile {
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub hash: String,
    /// Its bytes.
    pub len: u64,
    /// Its verified sha256, or else the one that the repository of the token has claimed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<HashText>))]
    pub sha256: Option<String>,
    /// When any repository registered it first, in seconds since 1970.
    pub registered_unix_secs: u64,
}

/// Response to `GET /v1/xorbs`: one page of the list.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct XorbsPage {
    /// The xorbs, in the order of the bytes of their hashes. The texts have another order.
    pub xorbs: Vec<ListedXorb>,
    /// The `after` of the next page; null for the last one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<HashText>))]
    pub next: Option<String>,
}

/// A xorb of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedXorb {
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub hash: String,
    /// The number of its chunks.
    pub chunks: u32,
    /// Bytes as they are stored.
    pub serialized_len: u64,
    /// Bytes when they are decompressed.
    pub raw_len: u64,
}

/// Response to `GET /v1/usage`: one page of the list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsagePage {
    /// The repositories, sorted by name.
    pub repos: Vec<RepoUsage>,
    /// The `after` of the next page; null for the last one.
    pub next: Option<String>,
}

/// Usage and limits of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepoUsage {
    /// Its name. `*` has the files of tokens for all repositories, and of servers without tokens.
    pub repo: String,
    /// Usage and limits of the repository.
    #[serde(flatten)]
    pub usage: Usage,
    /// Usage and limits of its owner; null if the owner has no limits.
    pub owner: Option<OwnerUsage>,
}

/// Usage and limits of all repositories of an owner together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnerUsage {
    /// The owner's name.
    pub owner: String,
    /// Usage and limits of the owner.
    #[serde(flatten)]
    pub usage: Usage,
}

/// Usage and limits of a repository or an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// The number of files.
    pub files: u64,
    /// Bytes of the files.
    pub logical_bytes: u64,
    /// Serialized bytes of the xorbs of the files, each xorb once and in full, and bytes of the
    /// registration records. A xorb of several repositories counts for each of them.
    pub physical_bytes: u64,
    /// The limits.
    pub limits: UsageLimits,
}

/// Limits of a repository or an owner; null means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageLimits {
    /// The number of files.
    pub files: Option<u64>,
    /// Bytes of the files.
    pub logical_bytes: Option<u64>,
    /// Bytes stored for the files.
    pub physical_bytes: Option<u64>,
}

/// Response to `DELETE /v1/files/{file}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedFile {
    /// The file.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub file: String,
    /// Whether the file was deleted because no repository has a claim to it any more. A token of
    /// one repository always gets true, so that it learns nothing about other repositories.
    pub file_removed: bool,
    /// The repositories whose claims were removed. `*` stands for the claim that tokens for all
    /// repositories share.
    pub claims_removed: Vec<String>,
}
