//! The route for the usage and the quotas of repositories.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Response;

use super::AppState;
use super::auth::{Caller, foreign};
use super::error::{Code, Problem};
use super::render::json;
use crate::service::access::RepoScope;
use crate::service::{Holding, Limits, MeteredRepo, ResponseBudget, UsageError};
use crate::wire::{OwnerUsage, RepoUsage, Usage, UsageLimits, UsagePage};

/// `GET /v1/usage`: with `?repo=NAME` the usage of one repository, with `?after=NAME&limit=N` a
/// page of several.
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
            // Unknown parameters are ignored, because proxies and signers add their own.
            _ => {}
        }
    }
    let page = state.server.usage(&claims, repo, after, count).await.map_err(|error| match error {
        UsageError::Foreign => {
            let detail = "Reading the usage of other repositories requires an admin token for all repositories.";
            foreign(&claims, detail)
        }
        UsageError::Store(error) => error.into(),
    })?;
    let repos: Vec<_> = page.entries.into_iter().map(RepoUsage::from).collect();
    let next = repos.last().filter(|_| page.is_full).map(|last| last.repo.clone());
    json(&state, repos.len(), ResponseBudget::default(), || UsagePage { repos, next }).await
}

impl From<MeteredRepo> for RepoUsage {
    fn from(repo: MeteredRepo) -> Self {
        let (name, usage) = split(repo.repo);
        let owner = repo.owner.map(|owner| {
            let (owner, usage) = split(owner);
            OwnerUsage { owner, usage }
        });
        Self { repo: name, usage, owner }
    }
}

/// The name of a repository or an owner, and its usage with its limits.
fn split(holding: Holding) -> (String, Usage) {
    let Limits { file_count: files, logical_len: logical_bytes, physical_len: physical_bytes } = holding.limits;
    let limits = UsageLimits { files, logical_bytes, physical_bytes };
    let used = holding.usage;
    let (files, logical_bytes, physical_bytes) = (used.file_count, used.logical_len, used.physical_len);
    (holding.name, Usage { files, logical_bytes, physical_bytes, limits })
}
