//! What repositories have, and may have.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::AppState;
use super::auth::Caller;
use super::error::{Code, Problem};
use super::render::json;
use crate::service::access::RepoScope;
use crate::service::{Holding, Limits, MeteredRepo, ResponseBudget, Usage, UsageError};

/// `GET /v1/usage?repo=NAME`, or `?after=NAME&limit=N` for pages.
pub(super) async fn usage(
    State(state): State<AppState>,
    Caller(claims): Caller,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Problem> {
    let garbled = |what: &str| Problem::new(Code::InvalidRequest, what.to_owned());
    let Query(pairs) = query.map_err(|_| garbled("The query string is malformed."))?;
    let (mut repo, mut after, mut count): (Option<RepoScope>, _, u32) = (None, None, u32::MAX);
    for (name, value) in pairs {
        match name.as_str() {
            "repo" => {
                let malformed = |error| garbled(&format!("The parameter repo is not a repository name: {error}."));
                repo = Some(value.parse().map_err(malformed)?);
            }
            "after" => after = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| *limit > 0);
                count = limit.ok_or_else(|| garbled("The parameter limit must be a number above 0."))?;
            }
            // Proxies and signers add parameters of their own.
            _ => {}
        }
    }
    let page = state.cas.usage(&claims, repo, after, count).await.map_err(|error| match error {
        UsageError::Foreign => {
            let detail = "Reading the usage of other repositories requires an admin token for all repositories.";
            Problem::new(Code::Forbidden, detail)
        }
        UsageError::Store(error) => error.into(),
    })?;
    let repos: Vec<_> = page.entries.into_iter().map(RepoUsageJson::from).collect();
    let next = repos.last().filter(|_| page.is_full).map(|last| last.repo.clone());
    json(&state, repos.len(), ResponseBudget::default(), || UsagePageJson { repos, next }).await
}

/// Response to `GET /v1/usage`; `next` is the `after` of the next page.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UsagePageJson {
    repos: Vec<RepoUsageJson>,
    next: Option<String>,
}

/// One repository of [`UsagePageJson`].
#[derive(Debug, Serialize, ToSchema)]
struct RepoUsageJson {
    /// `*` is what tokens of all repositories have registered.
    repo: String,
    #[serde(flatten)]
    usage: UsageJson,
    /// All repositories of its owner together, where they have limits.
    owner: Option<OwnerUsageJson>,
}

/// All repositories of an owner together.
#[derive(Debug, Serialize, ToSchema)]
struct OwnerUsageJson {
    owner: String,
    #[serde(flatten)]
    usage: UsageJson,
}

/// What there is, and may be.
#[derive(Debug, Serialize, ToSchema)]
struct UsageJson {
    files: u64,
    /// Bytes of the files.
    logical_bytes: u64,
    /// Bytes stored for them; those of a xorb once for each repository.
    physical_bytes: u64,
    limits: LimitsJson,
}

/// What there may be; null for any number.
#[derive(Debug, Serialize, ToSchema)]
struct LimitsJson {
    files: Option<u64>,
    logical_bytes: Option<u64>,
    physical_bytes: Option<u64>,
}

impl From<MeteredRepo> for RepoUsageJson {
    fn from(repo: MeteredRepo) -> Self {
        let (name, usage) = split(repo.repo);
        let owner = repo.owner.map(|owner| {
            let (owner, usage) = split(owner);
            OwnerUsageJson { owner, usage }
        });
        Self { repo: name, usage, owner }
    }
}

fn split(holding: Holding) -> (String, UsageJson) {
    let Usage { file_count, logical_len, physical_len } = holding.usage;
    let Limits { file_count: files, logical_len: logical_bytes, physical_len: physical_bytes } = holding.limits;
    let limits = LimitsJson { files, logical_bytes, physical_bytes };
    (holding.name, UsageJson { files: file_count, logical_bytes: logical_len, physical_bytes: physical_len, limits })
}
