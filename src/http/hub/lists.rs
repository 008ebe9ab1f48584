//! Lists and descriptions of files.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::Value;

use super::catalog::link;
use super::problem::HubProblem;
use super::repos::receive;
use super::target::{Pairs, Target, encoded};
use super::wire::{self, PathsJson};
use crate::http::AppState;
use crate::http::auth::Caller;
use crate::http::origin::BaseUrl;
use crate::http::render::json;
use crate::http::sending::RequestContext;
use crate::service::{Depth, HubCommit, HubEntry, HubPage, OpenRepo, ResponseBudget};

/// Entries on a page, and paths in one query.
const PAGE_COUNT: usize = 1000;

/// Entries on a page with their last commits.
const EXPANDED_COUNT: usize = 50;

/// `GET …/tree/{revision}` and `…/tree/{revision}/{path}`.
pub(super) async fn tree(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    target: Target,
    pairs: Pairs,
) -> Result<Response, HubProblem> {
    let (open, commit) = state.server.open_hub_revision(&claims, &target.name, &target.revision).await?;
    let is_expanded = pairs.is_set("expand");
    let page = (pairs.get("cursor"), pairs.limit(if is_expanded { EXPANDED_COUNT } else { PAGE_COUNT })?);
    let depth = if pairs.is_set("recursive") { Depth::All } else { Depth::One };
    let page = state.server.list_hub_files(&open, &commit, &target.path, depth, page).await?;
    let HubPage { entries, next } = page;
    let mut response = render(&state, (&open, &commit), entries, is_expanded).await?;
    if let Some(next) = next {
        let id = wire::repo_id(&open.repo);
        let path = if target.path.is_empty() { String::new() } else { format!("/{}", encoded(&target.path)) };
        let kind = target.name.kind().plural();
        // All pages are of one commit, also if the branch moves meanwhile.
        let url = format!("{base}/api/{kind}/{id}/tree/{}{path}", commit.id);
        link(&mut response, &format!("{url}?{}cursor={}", pairs.all_but("cursor"), encoded(&next)));
    }
    Ok(response)
}

/// `POST …/paths-info/{revision}`, with a form or JSON.
pub(super) async fn paths_info(
    State(state): State<AppState>,
    Caller(claims): Caller,
    target: Target,
    RequestContext { tenant, .. }: RequestContext,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, HubProblem> {
    let (bytes, _budget) = receive(&state, tenant, body).await?;
    let is_json = headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
    let (paths, is_expanded) = if is_json {
        let parsed: Result<PathsJson, _> = serde_json::from_slice(&bytes);
        let parsed =
            parsed.map_err(|error| HubProblem::invalid(format!("The body must have the field paths: {error}.")))?;
        (parsed.paths, parsed.expand)
    } else {
        let text = str::from_utf8(&bytes).map_err(|_| HubProblem::invalid("The form is not valid UTF-8."))?;
        // The paths, and whether they are expanded. Each pair of a form of `&` takes 50 bytes.
        if text.split('&').count() > PAGE_COUNT + 10 {
            return Err(too_many_paths());
        }
        let form = Pairs::of(text);
        (form.all("paths").map(str::to_owned).collect(), form.is_set("expand"))
    };
    if paths.len() > PAGE_COUNT {
        return Err(too_many_paths());
    }
    let _permit = state.server.lookup_permit(tenant).await?;
    let (open, commit) = state.server.open_hub_revision(&claims, &target.name, &target.revision).await?;
    let found = state.server.find_hub_paths(&open, &commit, &paths).await?;
    render(&state, (&open, &commit), found, is_expanded).await
}

fn too_many_paths() -> HubProblem {
    HubProblem::invalid(format!("A request has at most {PAGE_COUNT} paths."))
}

/// The response with these entries of a commit, and if it is expanded with the last commit of each.
async fn render(
    state: &AppState,
    (open, commit): (&OpenRepo, &HubCommit),
    entries: Vec<HubEntry>,
    is_expanded: bool,
) -> Result<Response, HubProblem> {
    let last = if is_expanded { Some(state.server.last_commits(open, commit, &entries).await?) } else { None };
    let write = move || -> Vec<Value> {
        let mut values: Vec<Value> = entries.iter().map(wire::entry).collect();
        for (value, last) in values.iter_mut().zip(last.into_iter().flatten()) {
            wire::expand(value, last.as_deref());
        }
        values
    };
    Ok(json(state, PAGE_COUNT, ResponseBudget::default(), write).await?)
}
