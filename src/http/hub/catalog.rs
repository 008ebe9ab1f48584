//! Lists of repositories.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::LINK;
use axum::response::Response;
use serde_json::{Value, json};

use super::problem::HubProblem;
use super::repos::name_of;
use super::target::{Kind, NamespacePath, Pairs, encoded};
use super::{card, wire};
use crate::http::AppState;
use crate::http::auth::Caller;
use crate::http::origin::BaseUrl;
use crate::http::render::json as render;
use crate::runtime::clock::Timestamp;
use crate::service::access::Claims;
use crate::service::{HubRepo, RepoHead, RepoOrder, RepoPlace, ResponseBudget, StoredRepo};

/// Repositories on a page.
const PAGE_COUNT: usize = 1000;

/// Rows that are read at once for a page, and how often. A search that finds nothing in them ends
/// its page, and the client asks for the next one.
const ROW_COUNT: u32 = 1000;
const MAX_ROW_PAGE_COUNT: usize = 10;

/// Repositories whose heads and cards are read for a page. Each takes some tenths of a millisecond
/// if its card is in memory.
const MAX_HEAD_COUNT: usize = 1000;

/// Bytes of the metadata of a page, with those of one more repository. Common ones have 300 bytes;
/// parsed, they take up to a hundred times their length.
const MAX_METADATA_SUM: usize = 512 << 10;

/// Tags that a list is asked for.
const MAX_TAG_COUNT: usize = 100;

/// What a list is asked for.
struct Wanted<'a> {
    pairs: &'a Pairs,
    /// Of its description: all of these tags.
    tags: Arc<HashSet<String>>,
}

impl<'a> Wanted<'a> {
    fn of(pairs: &'a Pairs) -> Result<Self, HubProblem> {
        // Older clients send several tags with commas between them.
        let tags = pairs.all("filter").flat_map(|tags| tags.split(','));
        // A task and a library are tags, too.
        let others = ["pipeline_tag", "library"].into_iter().flat_map(|name| pairs.all(name));
        let tags: HashSet<String> = tags.chain(others).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        if tags.len() > MAX_TAG_COUNT {
            return Err(HubProblem::invalid(format!("A list has at most {MAX_TAG_COUNT} tags.")));
        }
        Ok(Self { pairs, tags: Arc::new(tags) })
    }

    /// Whether the name of a repository is wanted.
    fn has_name(&self, repo: &HubRepo) -> bool {
        let id = wire::repo_id(repo).to_lowercase();
        let has = |text: &str| id.contains(&text.to_lowercase());
        self.pairs.all("search").all(has)
            && self.pairs.get("author").is_none_or(|author| author.eq_ignore_ascii_case(&repo.namespace))
    }
}

/// Whether a description has all of these tags.
fn has_tags(description: &Value, tags: &HashSet<String>) -> bool {
    let found = description.get("tags").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let found: HashSet<&str> = found.iter().filter_map(Value::as_str).collect();
    tags.iter().all(|tag| found.contains(tag.as_str()))
}

/// `GET /api/{kind}`.
pub(super) async fn list(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    Kind(kind): Kind,
    pairs: Pairs,
) -> Result<Response, HubProblem> {
    let (limit, wanted) = (pairs.limit(PAGE_COUNT)?, Wanted::of(&pairs)?);
    let has_card =
        pairs.is_set("cardData") || pairs.is_set("full") || pairs.all("expand").any(|name| name == "cardData");
    let (mut found, mut head_count, mut metadata_sum): (Vec<Value>, _, _) = (Vec::new(), 0, 0);
    let mut next = Some(place(&pairs)?);
    // No repository has access requests here.
    if pairs.get("gated").is_some_and(|gated| !gated.eq_ignore_ascii_case("false")) {
        next = None;
    }
    'pages: for _ in 0..MAX_ROW_PAGE_COUNT {
        let Some(mut last) = next else { break };
        let (repos, after) = state.server.list_hub_repos(&claims, kind, last.clone(), ROW_COUNT).await?;
        next = after;
        for repo in repos.iter().filter(|repo| wanted.has_name(repo)) {
            if found.len() == limit || head_count == MAX_HEAD_COUNT || metadata_sum > MAX_METADATA_SUM {
                next = Some(last);
                break 'pages;
            }
            head_count += 1;
            last = last.after(repo);
            let head = state.server.hub_repo_head(&claims, repo).await?;
            metadata_sum += head.as_ref().and_then(|head| head.metadata.as_ref()).map_or(0, |metadata| metadata.len());
            found.extend(describe(&state, repo, head, (&wanted.tags, has_card)).await);
        }
        if found.len() == limit {
            // Not the place after the last row, which may be of a repository that is not shown.
            next = next.map(|_| last);
            break;
        }
    }
    let count = found.len();
    let mut response = render(&state, count, ResponseBudget::default(), move || found).await?;
    if let Some(next) = next {
        let rest = pairs.all_but("cursor");
        link(&mut response, &format!("{base}/api/{}?{rest}cursor={}", kind.plural(), cursor(&next)));
    }
    Ok(response)
}

/// The description of a listed repository, if it has these tags; with the metadata of its card if
/// they are asked for.
async fn describe(
    state: &AppState,
    repo: &HubRepo,
    head: Option<RepoHead>,
    (tags, has_card): (&Arc<HashSet<String>>, bool),
) -> Option<Value> {
    let (mut description, kind, tags) = (wire::repo(repo), repo.kind, Arc::clone(tags));
    let metadata_len = head.as_ref().and_then(|head| head.metadata.as_ref()).map_or(0, |metadata| metadata.len());
    let write = move || {
        if let Some(head) = head {
            description.insert("sha".to_owned(), json!(head.commit.id.to_string()));
            if let Some(metadata) = head.metadata {
                card::describe(&mut description, kind, &metadata);
            }
            if !has_card {
                description.remove("cardData");
            }
        }
        let description = Value::Object(description);
        has_tags(&description, &tags).then_some(description)
    };
    // YAML is parsed byte by byte, so that a long text is parsed on a worker.
    state.server.compute(metadata_len, write).await
}

/// Where a list begins: at its beginning, or at the cursor, which `cursor` has made. Lists that are
/// asked for in an order that needs what this server does not count, such as downloads, have the
/// newest repositories first.
fn place(pairs: &Pairs) -> Result<RepoPlace, HubProblem> {
    let is_by_change = pairs.get("sort") == Some("lastModified");
    let first = RepoPlace::first(if is_by_change { RepoOrder::Changed } else { RepoOrder::Created });
    let Some(cursor) = pairs.get("cursor") else { return Ok(first) };
    let is_of_names = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/');
    let parse = |(at, name): (&str, &str)| {
        let at = at.parse().ok().filter(|at| i64::try_from(*at).is_ok())?;
        let is_name = name.bytes().all(is_of_names);
        is_name.then(|| RepoPlace { at: Timestamp::from_millis(at), lower_name: name.to_owned(), ..first })
    };
    cursor.split_once('-').and_then(parse).ok_or_else(|| HubProblem::invalid("The parameter cursor is invalid."))
}

/// A place as a parameter of the next page.
fn cursor(place: &RepoPlace) -> String {
    encoded(&format!("{}-{}", place.at.as_millis(), place.lower_name))
}

/// Names the next page.
pub(super) fn link(response: &mut Response, url: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("<{url}>; rel=\"next\"")) {
        response.headers_mut().insert(LINK, value);
    }
}

/// `GET /api/settings/repositories`: those of the caller, with what they store.
pub(super) async fn own(State(state): State<AppState>, Caller(claims): Caller) -> Result<Response, HubProblem> {
    let namespace = name_of(&claims);
    stored(&state, &claims, &namespace).await
}

/// `GET /api/organizations/{namespace}/settings/repositories`.
pub(super) async fn of_organization(
    State(state): State<AppState>,
    Caller(claims): Caller,
    NamespacePath(namespace): NamespacePath,
) -> Result<Response, HubProblem> {
    stored(&state, &claims, namespace.as_str()).await
}

async fn stored(state: &AppState, claims: &Claims, namespace: &str) -> Result<Response, HubProblem> {
    let repos = state.server.own_hub_repos(claims, namespace).await?;
    let count = repos.len();
    let all: u64 = repos.iter().map(|repo| repo.stored_len).sum();
    let describe = move |StoredRepo { repo, stored_len }: &StoredRepo| {
        // The share in percent, with two digits.
        let share = stored_len.saturating_mul(10_000).checked_div(all).unwrap_or(0);
        json!({
            "id": wire::repo_id(repo),
            "type": repo.kind.name(),
            "updatedAt": wire::date(repo.updated),
            "visibility": if repo.is_private { "private" } else { "public" },
            "storage": stored_len,
            "storagePercent": share as f64 / 100.0,
        })
    };
    let write = move || repos.iter().map(describe).collect::<Vec<Value>>();
    Ok(render(state, count, ResponseBudget::default(), write).await?)
}
