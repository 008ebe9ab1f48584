//! Lists of what a server has, usage, and removal.

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use super::HashText;

/// Response to `GET /v1/files`; `next` is the `after` of the next page.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilesPage {
    /// The files, by their hashes.
    pub files: Vec<ListedFile>,
    /// Behind what the next page begins; null for the last one.
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
    /// Its sha256, if its client has claimed one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<HashText>))]
    pub sha256: Option<String>,
    /// When it was registered first, in seconds since 1970.
    pub registered_unix_secs: u64,
}

/// Response to `GET /v1/xorbs`; `next` is the `after` of the next page.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct XorbsPage {
    /// The xorbs, by their hashes.
    pub xorbs: Vec<ListedXorb>,
    /// Behind what the next page begins; null for the last one.
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
    /// Its chunks.
    pub chunks: u32,
    /// Bytes as they are stored.
    pub serialized_len: u64,
    /// Bytes when they are decompressed.
    pub raw_len: u64,
}

/// Response to `GET /v1/usage`; `next` is the `after` of the next page.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsagePage {
    /// The repositories, by their names.
    pub repos: Vec<RepoUsage>,
    /// Behind what the next page begins; null for the last one.
    pub next: Option<String>,
}

/// What a repository has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepoUsage {
    /// Its name; `*` is what tokens of all repositories have registered.
    pub repo: String,
    /// What it has, and may have.
    #[serde(flatten)]
    pub usage: Usage,
    /// All repositories of its owner together, where they have limits.
    pub owner: Option<OwnerUsage>,
}

/// What all repositories of an owner have together.
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
    /// Files.
    pub files: u64,
    /// Bytes of the files.
    pub logical_bytes: u64,
    /// Bytes stored for them; those of a xorb once for each repository.
    pub physical_bytes: u64,
    /// The limits.
    pub limits: UsageLimits,
}

/// Limits of a repository or an owner; null where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageLimits {
    /// Files.
    pub files: Option<u64>,
    /// Bytes of the files.
    pub logical_bytes: Option<u64>,
    /// Bytes stored for them.
    pub physical_bytes: Option<u64>,
}

/// Response to `DELETE /v1/files/{file}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedFile {
    /// The file.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub file: String,
    /// Whether no repository has the file any more. A token of one repository is told of that one
    /// only: always true.
    pub file_removed: bool,
    /// The repositories that had it; `*` stands for tokens of all of them.
    pub claims_removed: Vec<String>,
}
