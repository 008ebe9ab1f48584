//! Repositories: who the caller is, creation, deletion, descriptions.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::problem::HubProblem;
use super::target::{Pairs, Target};
use super::wire::{self, CardJson, CreateJson, DeleteJson, InfoJson, MoveJson, SettingsJson, SiblingJson};
use super::{MAX_BODY_LEN, MAX_SMALL_BODY_LEN, card};
use crate::http::AppState;
use crate::http::audit::AuditContext;
use crate::http::auth::Caller;
use crate::http::body::PacedBody;
use crate::http::error::{Code, Problem};
use crate::http::origin::BaseUrl;
use crate::http::render;
use crate::http::sending::RequestContext;
use crate::runtime::fair::{Permit, Tenant};
use crate::service::access::Scope::{Read, Write};
use crate::service::access::{AccountName, Claims, RepoScope, Role, Scope};
use crate::service::{Depth, HubEntry, HubError, HubName, RepoKind, metadata_of};

/// Maximum number of files in the description of a repository. Clients of version 0.30 download
/// exactly these; newer ones list the files instead if there are more than 50 000.
const MAX_SIBLING_COUNT: usize = 50_001;

/// `GET /api/whoami-v2`.
pub(super) async fn whoami(Caller(claims): Caller) -> Json<Value> {
    let role = if claims.allow(Write) { "write" } else { "read" };
    let name = name_of(&claims);
    let organizations = match &claims.repo {
        RepoScope::Account(account) => account.organizations(),
        _ => &[],
    };
    let organization = |(name, role): &(AccountName, Role)| json!({ "type": "org", "name": name.as_str(), "fullname": name.as_str(), "roleInOrg": role.to_string() });
    Json(json!({
        "type": "user",
        "name": name,
        "fullname": name,
        "orgs": organizations.iter().map(organization).collect::<Vec<_>>(),
        "auth": { "type": "access_token", "accessToken": { "displayName": name, "role": role } },
    }))
}

/// The namespace of a caller: that of its token, else the subject, else that of the repository.
pub(super) fn name_of(claims: &Claims) -> String {
    let namespace = match &claims.repo {
        RepoScope::One(repo) => repo.as_str().split('/').nth(1).map(str::to_owned),
        // What clients upload without a namespace goes there, whatever the name of the user.
        RepoScope::Namespace(namespace) => return namespace.name().to_owned(),
        RepoScope::Account(account) => return account.name().to_string(),
        RepoScope::All | RepoScope::Public(_) => None,
    };
    let subject = claims.subject.as_ref().map(|subject| subject.as_str().to_owned());
    subject.or(namespace).unwrap_or_else(|| "anonymous".to_owned())
}

/// `GET /api/agent-harnesses`: newer clients ask until they get a list.
pub(super) async fn agent_harnesses() -> Json<Value> {
    Json(json!({ "standardEnvVars": [], "harnesses": {} }))
}

/// `HEAD /api/telemetry/…`.
pub(super) async fn telemetry() -> StatusCode {
    StatusCode::OK
}

/// `POST /api/validate-yaml`: clients send a README.md before they upload it.
pub(super) async fn validate(
    State(state): State<AppState>,
    _: Caller,
    RequestContext { tenant, .. }: RequestContext,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let (CardJson { content }, _budget) = parse_long(&state, tenant, body).await?;
    let len = content.len();
    let parse = move || card::parse_metadata(metadata_of(&content).unwrap_or_default());
    let parsed = state.server.compute(len, parse).await;
    let Err(error) = parsed else { return Ok(Json(json!({ "errors": [], "warnings": [] }))) };
    let problem = Problem::new(Code::InvalidRequest, format!("The metadata of the README.md are invalid: {error}."));
    Err(problem.with("errors", json!([{ "message": error }])).with("warnings", json!([])).into())
}

/// `POST /api/repos/create`.
pub(super) async fn create(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    RequestContext { tenant, .. }: RequestContext,
    audit: AuditContext,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let request: CreateJson = parse(&state, body).await?;
    let _permit = state.server.repo_change_permit(tenant).await?;
    let name = parse_name(&claims, request.kind.as_deref(), request.organization, request.name)?;
    audit.set_hub_repo(&name);
    let kind = name.kind();
    let is_private = match (request.private, request.visibility.as_deref()) {
        (Some(is_private), _) => is_private,
        (None, Some(visibility)) => visibility != "public",
        (None, None) => state.shared.creates_private,
    };
    let created = state.server.create_hub_repo(&claims, &name, is_private).await;
    let id = format!("{}/{}", name.namespace(), name.name());
    let url = url(&base, kind, &id);
    match created {
        Ok(()) => Ok(Json(json!({ "url": url, "name": id, "id": id }))),
        // With the fields of a success: clients that may find the repository there go on.
        Err(HubError::Exists { what }) => {
            let problem = Problem::new(Code::Conflict, format!("{what} exists already."));
            Err(problem.with("url", url).with("name", id.clone()).with("id", id).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// `DELETE /api/repos/delete`.
pub(super) async fn delete(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    audit: AuditContext,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let DeleteJson { name, organization, kind } = parse(&state, body).await?;
    let _permit = state.server.repo_change_permit(tenant).await?;
    let name = parse_name(&claims, kind.as_deref(), organization, name)?;
    audit.set_hub_repo(&name);
    state.server.delete_hub_repo(&claims, &name).await?;
    Ok(Json(json!({})))
}

/// `POST /api/repos/move`.
pub(super) async fn rename(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    audit: AuditContext,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let MoveJson { from, to, kind } = parse(&state, body).await?;
    let _permit = state.server.repo_change_permit(tenant).await?;
    let from = parse_name(&claims, kind.as_deref(), None, from)?;
    let to = parse_name(&claims, kind.as_deref(), None, to)?;
    audit.set_hub_repo(&from);
    state.server.rename_hub_repo(&claims, &from, &to).await?;
    Ok(Json(json!({})))
}

/// The name of a repository in a body.
fn parse_name(
    claims: &Claims,
    kind: Option<&str>,
    organization: Option<String>,
    name: String,
) -> Result<HubName, HubProblem> {
    let kind = wire::parse_kind(kind);
    let kind = kind.ok_or_else(|| HubProblem::invalid("The type must be model, dataset or space."))?;
    // Some clients send the whole id as the name.
    let (namespace, name) = match (organization, name.split_once('/')) {
        (Some(organization), _) => (organization, name),
        (None, Some((namespace, name))) => (namespace.to_owned(), name.to_owned()),
        (None, None) => (name_of(claims), name),
    };
    Ok(HubName::new(kind, &namespace, &name)?)
}

/// `PUT …/settings`.
pub(super) async fn set(
    State(state): State<AppState>,
    Caller(claims): Caller,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    let SettingsJson { private, visibility, gated } = parse(&state, body).await?;
    let permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    // The change waits for other changes of the repository, and a permit must not.
    drop(permit);
    if gated.is_some_and(|gated| gated != json!(false)) {
        return Err(HubProblem::invalid("This server has no access requests; gated can only be false."));
    }
    let is_private = match (private, visibility.as_deref()) {
        (Some(is_private), _) => Some(is_private),
        (None, Some("private")) => Some(true),
        (None, Some("public")) => Some(false),
        (None, Some(_)) => return Err(HubProblem::invalid("The visibility must be private or public.")),
        (None, None) => None,
    };
    if let Some(is_private) = is_private {
        state.server.set_hub_repo_private(&open, is_private).await?;
    }
    Ok(Json(json!({})))
}

/// The page of a repository, from which clients parse its id.
pub(super) fn url(base: &str, kind: RepoKind, id: &str) -> String {
    match kind {
        RepoKind::Model => format!("{base}/{id}"),
        RepoKind::Dataset | RepoKind::Space => format!("{base}/{}/{id}", kind.plural()),
    }
}

/// `GET /api/{kind}/{id}` and `…/revision/{revision}`.
pub(super) async fn info(
    State(state): State<AppState>,
    Caller(claims): Caller,
    target: Target,
    pairs: Pairs,
) -> Result<Response, HubProblem> {
    let (open, commit) = state.server.open_hub_revision(&claims, &target.name, &target.revision).await?;
    let page = state.server.list_hub_files(&open, &commit, "", Depth::Files, (None, MAX_SIBLING_COUNT)).await?;
    let card = state.server.hub_card(&open, &commit).await?;
    let stored_len = state.server.stored_len(&open).await?;
    let has_blobs = pairs.is_set("blobs");
    // A card is parsed byte by byte, so that a long one is parsed on a worker, too.
    let card_len = card.as_ref().map_or(0, |metadata| metadata.len());
    let (count, repo) = (page.entries.len().saturating_add(card_len), open.repo.clone());
    // For the paths, which are in memory already, and for the text, before it is made.
    let described_len = |entry: &HubEntry| 2 * entry.path.len() + if has_blobs { 512 } else { 128 };
    let budget = state.server.response_budget(page.entries.iter().map(described_len).sum()).await?;
    let write = move || {
        let mut about = wire::repo(&repo);
        about.insert("sha".to_owned(), json!(commit.id.to_string()));
        about.extend(stored_len.map(|len| ("usedStorage".to_owned(), json!(len))));
        if let Some(metadata) = card {
            card::describe(&mut about, repo.kind, &metadata);
        }
        let siblings = page.entries.into_iter().filter_map(|entry| SiblingJson::of(entry, has_blobs)).collect();
        InfoJson { about, siblings }
    };
    Ok(render::json(&state, count, budget, write).await?)
}

/// `GET …/auth-check`.
pub(super) async fn check(state: State<AppState>, caller: Caller, target: Target) -> Result<Json<Value>, HubProblem> {
    check_for(state, caller, &target, Read).await
}

/// `GET …/auth-check/write`.
pub(super) async fn check_write(
    state: State<AppState>,
    caller: Caller,
    target: Target,
) -> Result<Json<Value>, HubProblem> {
    check_for(state, caller, &target, Write).await
}

async fn check_for(
    State(state): State<AppState>,
    Caller(claims): Caller,
    target: &Target,
    needed: Scope,
) -> Result<Json<Value>, HubProblem> {
    state.server.open_hub_repo(&claims, &target.name, needed).await?;
    Ok(Json(json!({})))
}

/// Like [`parse`]; an empty body is the default.
pub(super) async fn parse_or_default<T: DeserializeOwned + Default>(
    state: &AppState,
    body: Body,
) -> Result<T, HubProblem> {
    let bytes = PacedBody::new(body, state).collect(MAX_SMALL_BODY_LEN).await.map_err(Problem::from)?;
    if bytes.is_empty() { Ok(T::default()) } else { of_json(&bytes) }
}

fn of_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HubProblem> {
    let expected = |error| HubProblem::invalid(format!("The body is not the expected JSON: {error}."));
    serde_json::from_slice(bytes).map_err(expected)
}

/// Receives a JSON body of at most [`MAX_SMALL_BODY_LEN`] bytes.
pub(super) async fn parse<T: DeserializeOwned>(state: &AppState, body: Body) -> Result<T, HubProblem> {
    let bytes = PacedBody::new(body, state).collect(MAX_SMALL_BODY_LEN).await.map_err(Problem::from)?;
    of_json(&bytes)
}

/// Receives a JSON body of at most [`MAX_BODY_LEN`] bytes. The permit is for its memory.
pub(super) async fn parse_long<T: DeserializeOwned>(
    state: &AppState,
    tenant: Tenant,
    body: Body,
) -> Result<(T, Option<Permit>), HubProblem> {
    let (bytes, budget) = receive(state, tenant, body).await?;
    Ok((of_json(&bytes)?, budget))
}

/// Receives a body of at most [`MAX_BODY_LEN`] bytes. The permit is for its memory, if it is longer
/// than [`MAX_SMALL_BODY_LEN`].
pub(super) async fn receive(
    state: &AppState,
    tenant: Tenant,
    body: Body,
) -> Result<(Bytes, Option<Permit>), HubProblem> {
    let declared_len = http_body::Body::size_hint(&body).exact();
    let body = PacedBody::new(body, state);
    if declared_len.is_some_and(|len| len <= MAX_SMALL_BODY_LEN) {
        return Ok((body.collect(MAX_SMALL_BODY_LEN).await.map_err(Problem::from)?, None));
    }
    let receiving = state.server.receive_body(tenant, declared_len, MAX_BODY_LEN, body);
    let (bytes, budget) = receiving.await.map_err(Problem::from)?;
    Ok((bytes, Some(budget)))
}
