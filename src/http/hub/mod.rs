//! The routes of the Hugging Face Hub that `hf`, `huggingface_hub`, `transformers` and `datasets`
//! use, so that they work with this server as their `HF_ENDPOINT`.
//!
//! Requests and responses have the form that these clients send and read. A refusal is problem JSON
//! as everywhere, with the fields and headers that they look at ([`problem`]).

mod card;
mod catalog;
mod commits;
mod files;
mod lfs;
mod lists;
mod problem;
mod refs;
mod repos;
mod target;
mod tokens;
mod wire;

use axum::response::{IntoResponse, Response};

use super::AppState;
use super::cost::CostClass::{Light, Open, Upload};
use super::route::{Content, Route};
use crate::service::access::Scope::{Read, Write};

/// Maximum length of a request body in bytes that is received without a budget of memory. Above
/// it are only lists of many files, metadata of a README.md, and commits.
const MAX_SMALL_BODY_LEN: u64 = 64 << 10;

/// Maximum length of a request body in bytes, except for commits: 1000 paths of 1 KiB.
const MAX_BODY_LEN: u64 = 2 << 20;

/// All routes of the Hub.
pub(super) fn routes(_: &AppState) -> Vec<Route> {
    let all = [for_accounts(), for_repos(), for_revisions(), for_files()];
    let refusing = |route: Route| {
        let names_repo = route.paths.iter().all(|path| path.contains("{name}"));
        let is_list = route.paths == ["/api/{kind}"];
        let is_public = route.needs == Some(Read) && (names_repo || is_list);
        let route = if is_public { route.shows_public(problem::for_anonymous) } else { route };
        route.refuses(if names_repo { problem::refuse_for_repo } else { problem::refuse })
    };
    all.into_iter().flatten().map(refusing).collect()
}

/// The response to a request without a route, if it is about a repository whose name has no
/// namespace, as old models have on the Hugging Face Hub: that it does not exist. By the code in
/// its header a client knows that it need not retry, or fails with a message about the name.
pub(super) fn no_namespace(path: &str) -> Option<Response> {
    target::has_no_namespace(path).then(|| problem::HubProblem::no_namespace().into_response())
}

fn json() -> Content {
    Content::json::<serde_json::Value>()
}

fn for_accounts() -> Vec<Route> {
    vec![
        Route::get("/api/whoami-v2", Read, repos::whoami).says("Who the token is for").responses(
            200,
            "the account",
            json(),
        ),
        Route::get("/api/agent-harnesses", None, repos::agent_harnesses)
            .costs(Open)
            .says("Known agents: none")
            .responses(200, "none", json()),
        Route::head("/api/telemetry/{*topic}", None, repos::telemetry)
            .costs(Open)
            .says("Dropped")
            .responses(200, "dropped", None),
    ]
}

fn for_repos() -> Vec<Route> {
    vec![
        Route::post("/api/repos/create", Write, repos::create)
            .costs(Light)
            .says("Create a repository")
            .takes(json())
            .responses(200, "created", json())
            .fails(&[409]),
        Route::delete("/api/repos/delete", Write, repos::delete)
            .costs(Light)
            .says("Delete a repository, with its history and its claims to files")
            .takes(json())
            .responses(200, "deleted", json())
            .fails(&[404]),
        Route::post("/api/repos/move", Write, repos::rename)
            .costs(Light)
            .says("Rename a repository in its namespace; the former name leads to it until another one takes it")
            .takes(json())
            .responses(200, "renamed", json())
            .fails(&[404, 409]),
        Route::put("/api/{kind}/{namespace}/{name}/settings", Write, repos::set)
            .costs(Light)
            .says("Make a repository private or public")
            .takes(json())
            .responses(200, "changed", json())
            .fails(&[404]),
        Route::get("/api/{kind}", Read, catalog::list)
            .says("List repositories")
            .query("search", "a part of the name; several must all be in it")
            .query("author", "the namespace")
            .query("filter", "a tag; several must all be there")
            .query("sort", "lastModified, else the newest are first")
            .query("limit", "repositories on a page, 1000 at most")
            .query("cursor", "from the Link header of the page before")
            .responses(200, "a page", json())
            .fails(&[404]),
        Route::get("/api/settings/repositories", Read, catalog::own)
            .says("List the repositories of the caller, with what they store")
            .responses(200, "all of them", json()),
        Route::get("/api/organizations/{namespace}/settings/repositories", Read, catalog::of_organization)
            .says("List the repositories of a namespace in which the caller has a role")
            .responses(200, "all of them", json())
            .fails(&[404]),
        Route::get("/api/{kind}/{namespace}/{name}", Read, repos::info)
            .also(&["/api/{kind}/{namespace}/{name}/revision/{revision}"])
            .says("Describe a revision of a repository, main if none is named")
            .responses(200, "the description", json())
            .fails(&[404]),
        Route::get("/api/{kind}/{namespace}/{name}/auth-check", Read, repos::check)
            .says("Whether the repository can be read")
            .responses(200, "it can", json())
            .fails(&[404]),
        Route::get("/api/{kind}/{namespace}/{name}/auth-check/write", Write, repos::check_write)
            .says("Whether the repository can be written")
            .responses(200, "it can", json())
            .fails(&[404]),
        Route::post("/api/validate-yaml", Read, repos::validate)
            .costs(Light)
            .says("Check the metadata of a README.md")
            .takes(json())
            .responses(200, "no errors", json()),
    ]
}

fn for_revisions() -> Vec<Route> {
    vec![
        Route::get("/api/{kind}/{namespace}/{name}/refs", Read, refs::list)
            .says("List branches and tags")
            .responses(200, "all of them", json())
            .fails(&[404]),
        Route::post("/api/{kind}/{namespace}/{name}/branch/{revision}", Write, refs::create_branch)
            .costs(Light)
            .says("Create a branch")
            .takes(json())
            .responses(200, "created", json())
            .fails(&[404, 409]),
        Route::delete("/api/{kind}/{namespace}/{name}/branch/{revision}", Write, refs::delete_branch)
            .costs(Light)
            .says("Delete a branch")
            .responses(200, "deleted", json())
            .fails(&[404]),
        Route::post("/api/{kind}/{namespace}/{name}/tag/{revision}", Write, refs::create_tag)
            .costs(Light)
            .says("Create a tag at a revision")
            .takes(json())
            .responses(200, "created", json())
            .fails(&[404, 409]),
        Route::delete("/api/{kind}/{namespace}/{name}/tag/{revision}", Write, refs::delete_tag)
            .costs(Light)
            .says("Delete a tag")
            .responses(200, "deleted", json())
            .fails(&[404]),
        Route::post("/api/{kind}/{namespace}/{name}/super-squash/{revision}", Write, refs::squash)
            .costs(Light)
            .says("Replace the history of a branch by one commit")
            .takes(json())
            .responses(200, "squashed", json())
            .fails(&[404, 409]),
        Route::get("/api/{kind}/{namespace}/{name}/commits/{revision}", Read, refs::history)
            .says("List the commits of a revision, the newest first")
            .responses(200, "a page", json())
            .fails(&[404]),
        Route::get("/api/{kind}/{namespace}/{name}/xet-read-token/{revision}", Read, tokens::read)
            .audited()
            .says("A token for Xet downloads of the repository")
            .responses(200, "the token", json())
            .fails(&[404]),
        Route::get("/api/{kind}/{namespace}/{name}/xet-write-token/{revision}", Write, tokens::write)
            .audited()
            .says("A token for Xet uploads to the repository")
            .responses(200, "the token", json())
            .fails(&[404]),
        Route::post("/api/{kind}/{namespace}/{name}/preupload/{revision}", Write, commits::preupload)
            .costs(Light)
            .says("Which files to upload by Xet, and which in the commit")
            .takes(json())
            .responses(200, "a mode for each file", json())
            .fails(&[404]),
        Route::post("/api/{kind}/{namespace}/{name}/commit/{revision}", Write, commits::commit)
            .costs(Upload)
            .says("Commit changes to a branch")
            .takes(Content::bytes("application/x-ndjson"))
            .responses(200, "the commit", json())
            .fails(&[404, 409, 412]),
    ]
}

fn for_files() -> Vec<Route> {
    const TREE: &str = "/api/{kind}/{namespace}/{name}/tree/{revision}";
    // The routes of models have no prefix.
    const RESOLVE: &str = "/{namespace}/{name}/resolve/{revision}/{*path}";
    const RESOLVE_DATASET: &str = "/datasets/{namespace}/{name}/resolve/{revision}/{*path}";
    const RESOLVE_SPACE: &str = "/spaces/{namespace}/{name}/resolve/{revision}/{*path}";
    const BATCH: &str = "/{namespace}/{name}/info/lfs/objects/batch";
    const BATCH_DATASET: &str = "/datasets/{namespace}/{name}/info/lfs/objects/batch";
    const BATCH_SPACE: &str = "/spaces/{namespace}/{name}/info/lfs/objects/batch";
    vec![
        Route::get(TREE, Read, lists::tree)
            .also(&["/api/{kind}/{namespace}/{name}/tree/{revision}/{*path}"])
            .says("List files and directories")
            .query("recursive", "true: also below the directories")
            .query("limit", "entries on a page, 1000 at most")
            .query("cursor", "from the Link header of the page before")
            .responses(200, "a page", json())
            .fails(&[404]),
        Route::post("/api/{kind}/{namespace}/{name}/paths-info/{revision}", Read, lists::paths_info)
            .costs(Light)
            .says("Describe files and directories by their paths")
            .takes(json())
            .responses(200, "those that exist", json())
            .fails(&[404]),
        Route::get(RESOLVE, Read, files::resolve)
            .also(&[RESOLVE_DATASET, RESOLVE_SPACE])
            .costs(Light)
            .says("The bytes of a file of a revision")
            .header("range", "bytes of the file, as in RFC 9110")
            .responses(200, "the file", Content::bytes("application/octet-stream"))
            .responses(206, "the bytes of the Range header", Content::bytes("application/octet-stream"))
            .responses(304, "not modified (If-None-Match)", None)
            .fails(&[404, 412, 416]),
        Route::post(BATCH, Write, lfs::batch)
            .also(&[BATCH_DATASET, BATCH_SPACE])
            .costs(Light)
            .says("Git LFS batch: how to upload large files")
            .takes(json())
            .responses(200, "an entry for each object", json())
            .fails(&[404]),
        Route::put("/lfs/objects/{digest}", None, lfs::receive)
            .costs(Upload)
            .says("Upload a large file as a whole, to the signed URL of a batch")
            .query("len", "its length in bytes")
            .required()
            .query("s", "the signature")
            .required()
            .takes(Content::bytes("application/octet-stream"))
            .responses(200, "stored and registered", None)
            .fails(&[403]),
    ]
}
