//! Branches, tags and the history of a revision.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::catalog::link;
use super::problem::HubProblem;
use super::repos::{parse, parse_or_default};
use super::target::{Pairs, Target};
use super::wire::{self, RefJson, SquashJson};
use crate::http::AppState;
use crate::http::auth::Caller;
use crate::http::origin::BaseUrl;
use crate::http::render;
use crate::http::sending::RequestContext;
use crate::service::access::Scope::{Read, Write};
use crate::service::{HubRef, ResponseBudget};

/// Commits on a page if the client does not say how many, and at most.
const COMMIT_COUNT: usize = 50;
const MAX_COMMIT_COUNT: usize = 1000;

/// `GET …/refs`.
pub(super) async fn list(
    State(state): State<AppState>,
    Caller(claims): Caller,
    target: Target,
    pairs: Pairs,
) -> Result<Response, HubProblem> {
    let open = state.server.open_hub_repo(&claims, &target.name, Read).await?;
    let refs = state.server.hub_refs(&open).await?;
    let (count, has_requests) = (refs.len(), pairs.is_set("include_prs"));
    let write = move || {
        let below = |prefix: &str| -> Vec<Value> {
            let named = |HubRef { name, target }: &HubRef| {
                let short = name.strip_prefix(prefix)?;
                Some(json!({ "name": short, "ref": name, "targetCommit": target.to_string() }))
            };
            refs.iter().filter_map(named).collect()
        };
        let mut body = json!({ "branches": below("refs/heads/"), "converts": [], "tags": below("refs/tags/") });
        if let Some(fields) = body.as_object_mut().filter(|_| has_requests) {
            fields.insert("pullRequests".to_owned(), json!([]));
        }
        body
    };
    Ok(render::json(&state, count, ResponseBudget::default(), write).await?)
}

/// `POST …/branch/{name}`.
pub(super) async fn create_branch(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let request: Option<RefJson> = parse_or_default(&state, body).await?;
    let permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    let start = request.unwrap_or_default().starting_point.unwrap_or_else(|| "main".to_owned());
    let commit = state.server.find_revision(&open, &start).await?;
    // The change waits for other changes of the repository, and a permit must not.
    drop(permit);
    state.server.create_hub_ref(&open, format!("refs/heads/{}", target.revision), commit.id).await?;
    Ok(Json(json!({})))
}

/// `DELETE …/branch/{name}`.
pub(super) async fn delete_branch(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
) -> Result<Json<Value>, HubProblem> {
    let permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    drop(permit);
    state.server.delete_hub_ref(&open, format!("refs/heads/{}", target.revision)).await?;
    Ok(Json(json!({})))
}

/// `POST …/super-squash/{branch}`.
pub(super) async fn squash(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let request: Option<SquashJson> = parse_or_default(&state, body).await?;
    let permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    drop(permit);
    state.server.squash(&open, &target.revision, request.unwrap_or_default().message).await?;
    Ok(Json(json!({})))
}

/// `POST …/tag/{revision}`.
pub(super) async fn create_tag(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let request: RefJson = parse(&state, body).await?;
    let tag = request.tag.ok_or_else(|| HubProblem::invalid("The body must have the field tag."))?;
    let permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    let commit = state.server.find_revision(&open, &target.revision).await?;
    drop(permit);
    state.server.create_hub_ref(&open, format!("refs/tags/{tag}"), commit.id).await?;
    Ok(Json(json!({})))
}

/// `DELETE …/tag/{name}`.
pub(super) async fn delete_tag(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
) -> Result<Json<Value>, HubProblem> {
    let permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    drop(permit);
    state.server.delete_hub_ref(&open, format!("refs/tags/{}", target.revision)).await?;
    Ok(Json(json!({})))
}

/// `GET …/commits/{revision}`. The cursor is the commit at which the page begins.
pub(super) async fn history(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    target: Target,
    pairs: Pairs,
) -> Result<Response, HubProblem> {
    let open = state.server.open_hub_repo(&claims, &target.name, Read).await?;
    let limit = if pairs.get("limit").is_some() { pairs.limit(MAX_COMMIT_COUNT)? } else { COMMIT_COUNT };
    let from = state.server.find_revision(&open, pairs.get("cursor").unwrap_or(&target.revision)).await?;
    let (commits, next) = state.server.hub_history(&open, from, limit).await?;
    let is_formatted = pairs.all("expand[]").any(|field| field == "formatted");
    let count = commits.len();
    let write = move || -> Vec<Value> {
        let rendered = commits.iter().map(|commit| {
            let mut value = wire::commit(commit);
            if let Some(fields) = value.as_object_mut().filter(|_| is_formatted) {
                let formatted = json!({ "title": fields.get("title"), "message": fields.get("message") });
                fields.insert("formatted".to_owned(), formatted);
            }
            value
        });
        rendered.collect()
    };
    let mut response = render::json(&state, count, ResponseBudget::default(), write).await?;
    if let Some(next) = next {
        let id = wire::repo_id(&open.repo);
        // The revision of the path does not matter on the next page.
        let path = format!("/api/{}/{id}/commits/{next}", target.name.kind().plural());
        let rest = pairs.all_but("cursor");
        link(&mut response, &format!("{base}{path}?{rest}cursor={next}"));
    }
    Ok(response)
}
