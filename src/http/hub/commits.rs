//! Uploads to a repository: which files go by Xet, and the commit that names them.

use std::collections::{HashMap, HashSet};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::problem::HubProblem;
use super::repos::{parse_long, url};
use super::target::{Pairs, Target};
use super::wire::{
    self, FileJson, HeaderJson, LfsFileJson, LineJson, PreuploadFileJson, PreuploadJson, UploadModeJson,
};
use crate::git::{IgnoreError, IgnoreRules, RepoPath};
use crate::http::AppState;
use crate::http::auth::Caller;
use crate::http::body::PacedBody;
use crate::http::error::{Code, Problem};
use crate::http::origin::BaseUrl;
use crate::http::sending::RequestContext;
use crate::http::shards::RECEIVE_TIMEOUT;
use crate::runtime::telemetry::brief;
use crate::service::access::Scope::Write;
use crate::service::{Change, CommitRequest, HubEntry, MAX_CHANGE_COUNT, ReceivedShard, UploadError};

/// Longer files go by Xet. The body of a commit is in memory while it is read, so it has only small
/// files.
const MAX_REGULAR_LEN: u64 = 1 << 20;

/// If the files of one preupload that would be in the commit have more bytes together, all of them
/// go by Xet. Clients put the files of several preuploads into one commit, whose body has a limit.
const MAX_REGULAR_SUM: u64 = 8 << 20;

/// Files in one preupload. Clients send at most 256.
const MAX_PREUPLOAD_COUNT: usize = 1000;

/// `POST …/preupload/{revision}`.
pub(super) async fn preupload(
    State(state): State<AppState>,
    Caller(claims): Caller,
    target: Target,
    pairs: Pairs,
    RequestContext { tenant, .. }: RequestContext,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    refuse_pull_request(&pairs)?;
    let (request, _budget): (PreuploadJson, _) = parse_long(&state, tenant, body).await?;
    if request.files.len() > MAX_PREUPLOAD_COUNT {
        return Err(HubProblem::invalid(format!("A request has at most {MAX_PREUPLOAD_COUNT} files.")));
    }
    let _permit = state.server.lookup_permit(tenant).await?;
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    let commit = state.server.find_revision(&open, &target.revision).await?;
    let paths: Vec<String> = request.files.iter().map(|file| file.path.clone()).collect();
    let known = state.server.find_hub_paths(&open, &commit, &paths).await?;
    // A client does not upload what is there already, so it must be readable.
    let known = state.server.readable_files(&open, known).await?;
    let ignored = match request.git_ignore {
        Some(text) => ignored(&state, text, paths)
            .await
            .map_err(|error| HubProblem::invalid(format!("The .gitignore cannot be used: {error}.")))?,
        None => match state.server.hub_gitignore(&open, &commit).await? {
            // An invalid one must not refuse the upload that replaces it.
            Some(text) => ignored(&state, text, paths).await.unwrap_or_default(),
            None => HashSet::new(),
        },
    };
    let regular = request.files.iter().filter(|file| !is_large(file));
    let has_many = regular.map(|file| file.size).sum::<u64>() > MAX_REGULAR_SUM;
    let known: HashMap<String, HubEntry> = known.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let files = request.files.into_iter().map(|file| {
        let should_ignore = ignored.contains(&file.path);
        let blob = known.get(&file.path).and_then(|entry| entry.blob.as_ref());
        let oid = blob.map(|blob| blob.sha256.map_or_else(|| blob.id.to_string(), |sha256| sha256.to_string()));
        let upload_mode = if file.size > 0 && (has_many || is_large(&file)) { "lfs" } else { "regular" };
        UploadModeJson { path: file.path, upload_mode, should_ignore, oid }
    });
    let files: Vec<UploadModeJson> = files.collect();
    Ok(Json(json!({ "files": files })))
}

/// Those of these paths that a `.gitignore` means.
async fn ignored(state: &AppState, text: String, paths: Vec<String>) -> Result<HashSet<String>, IgnoreError> {
    let find = move || {
        let rules = IgnoreRules::parse(&text)?;
        // Other paths are refused by the commit.
        let paths: Vec<RepoPath> = paths.iter().filter_map(|path| path.parse().ok()).collect();
        let found = rules.ignores_each(&paths)?;
        let ignored = paths.iter().zip(found).filter(|(_, is_ignored)| *is_ignored);
        Ok(ignored.map(|(path, _)| path.as_str().to_owned()).collect())
    };
    // On a worker, because patterns take time to compile, also for one path.
    state.server.compute(usize::MAX, find).await
}

/// Whether a file goes by Xet: it is long, or it is not text.
fn is_large(file: &PreuploadFileJson) -> bool {
    let sample = STANDARD.decode(&file.sample).unwrap_or_default();
    // The end of the sample may be in the middle of a character.
    let is_text = match str::from_utf8(&sample) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    file.size > MAX_REGULAR_LEN || (file.size > 0 && (!is_text || sample.contains(&0)))
}

/// `POST …/commit/{revision}`.
pub(super) async fn commit(
    State(state): State<AppState>,
    Caller(claims): Caller,
    BaseUrl(base): BaseUrl,
    RequestContext { tenant, .. }: RequestContext,
    target: Target,
    pairs: Pairs,
    body: Body,
) -> Result<Json<Value>, HubProblem> {
    refuse_pull_request(&pairs)?;
    // Before the body, so that a caller without the right sends none.
    let open = state.server.open_hub_repo(&claims, &target.name, Write).await?;
    let declared_len = http_body::Body::size_hint(&body).exact();
    let receiving = state.server.receive_shard(tenant, declared_len, PacedBody::new(body, &state));
    let received = timeout(RECEIVE_TIMEOUT, receiving).await;
    let ReceivedShard { bytes, budget } = received.unwrap_or(Err(UploadError::Stalled)).map_err(of_body)?;
    let branch = target.revision.strip_prefix("refs/heads/").unwrap_or(&target.revision).to_owned();
    let request = state.server.compute(bytes.len(), move || parse_commit(&bytes, branch)).await?;
    let committed = tenant.doing(state.server.commit(&open, request)).await?;
    drop(budget);
    let page = url(&base, target.name.kind(), &wire::repo_id(&open.repo));
    Ok(Json(json!({
        "success": true,
        "commitOid": committed.id.to_string(),
        "commitUrl": format!("{page}/commit/{}", committed.id),
        "hookOutput": "",
    })))
}

/// Why the body of a commit was not received.
fn of_body(error: UploadError) -> Problem {
    match error {
        UploadError::TooLarge { limit } => {
            let detail = format!("The commit is longer than {limit} bytes; make several, or upload its files by Xet.");
            Problem::new(Code::TooLarge, detail).with("limit", limit)
        }
        other => other.into(),
    }
}

/// Pull requests are not served.
pub(super) fn refuse_pull_request(pairs: &Pairs) -> Result<(), HubProblem> {
    if !pairs.is_set("create_pr") {
        return Ok(());
    }
    let detail = "This server has no pull requests; commit to a branch instead.";
    Err(Problem::new(Code::Forbidden, detail).into())
}

/// Parses the lines of a commit. Blocks for as long as the decoding of its contents takes.
fn parse_commit(bytes: &[u8], branch: String) -> Result<CommitRequest, HubProblem> {
    let mut request = CommitRequest { branch, message: String::new(), parent: None, changes: Vec::new() };
    let mut has_header = false;
    for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1_u32..) {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        // Some messages of libraries end with a full stop.
        let at =
            |what: String| HubProblem::invalid(format!("Line {number} of the commit: {}.", what.trim_end_matches('.')));
        let line = LineJson::parse(line).map_err(|error| at(brief(error)))?;
        match line {
            LineJson::Header(HeaderJson { summary, description, parent_commit }) if !has_header => {
                has_header = true;
                request.message = if description.is_empty() { summary } else { format!("{summary}\n\n{description}") };
                request.parent = parent_commit;
            }
            LineJson::Header(_) => return Err(at("a second header".to_owned())),
            _ if request.changes.len() == MAX_CHANGE_COUNT => {
                return Err(HubProblem::invalid(format!("A commit has at most {MAX_CHANGE_COUNT} changes.")));
            }
            line => request.changes.push(change(line).map_err(at)?),
        }
    }
    if !has_header || request.message.trim().is_empty() {
        return Err(HubProblem::invalid("The commit has no header with a summary."));
    }
    Ok(request)
}

/// The change of a line. An error says what is wrong with it, and quotes the line only in part: it
/// may be as long as the whole commit, and six times as long with its characters escaped.
fn change(line: LineJson) -> Result<Change, String> {
    let path = |text: &str| {
        let parsed = text.parse::<RepoPath>();
        parsed.map_err(|error| format!("the path {} is refused: {error}", brief(format_args!("{text:?}"))))
    };
    Ok(match line {
        LineJson::Header(_) => return Err("a second header".to_owned()),
        LineJson::File(FileJson { path: text, content, encoding }) => {
            let contents = match encoding.as_deref() {
                None | Some("base64") => {
                    STANDARD.decode(&content).map_err(|error| format!("{}: {error}", brief(&text)))?
                }
                Some("utf-8") => content.into_bytes(),
                Some(other) => return Err(format!("{}: the encoding {} is unknown", brief(&text), brief(other))),
            };
            Change::Put { path: path(&text)?, contents }
        }
        LineJson::LfsFile(LfsFileJson { path: text, algo, oid, size }) => {
            if algo.is_some_and(|algo| algo != "sha256") {
                return Err(format!("{}: the only algorithm is sha256", brief(&text)));
            }
            let sha256 = oid.parse().map_err(|_| format!("{}: the oid is not 64 hex digits", brief(&text)))?;
            Change::PutLarge { path: path(&text)?, sha256, len: size }
        }
        LineJson::CopyFile(copy) => {
            Change::Copy { path: path(&copy.path)?, from: path(&copy.src_path)?, revision: copy.src_revision }
        }
        LineJson::DeletedFile(deleted) => Change::Delete { path: path(&deleted.path)? },
        LineJson::DeletedFolder(deleted) => Change::DeleteDirectory { path: path(deleted.path.trim_end_matches('/'))? },
    })
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    fn parsed(text: &str) -> Result<CommitRequest, HubProblem> {
        parse_commit(text.as_bytes(), "main".to_owned())
    }

    const HEADER: &str = r#"{"key":"header","value":{"summary":"one","description":"two","parentCommit":"1234567"}}"#;

    #[test]
    fn value_of_a_line_may_come_before_its_key() {
        let lines = [
            r#"{"value":{"summary":"one"},"key":"header"}"#,
            r#"{"value":{"path":"a","content":"","encoding":"utf-8"},"key":"file"}"#,
            r#"{"other":[[]],"value":{"path":"b"},"key":"deletedFolder"}"#,
        ];
        let request = parsed(&lines.join("\n")).ok().unwrap();
        assert_eq!((request.message.as_str(), request.changes.len()), ("one", 2));
        for refused in
            [r#"{"value":[0,0],"key":"header"}"#, r#"{"value":{"path":"a"},"key":"other"}"#, r#"{"value":1}"#]
        {
            assert!(parsed(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn commit_has_a_header_and_the_changes_in_order() {
        let sha256 = "ab".repeat(32);
        let text = format!(
            "{HEADER}\n\
             {{\"key\":\"file\",\"value\":{{\"path\":\"a.txt\",\"content\":\"aGVsbG8=\",\"encoding\":\"base64\"}}}}\n\n\
             {{\"key\":\"lfsFile\",\"value\":{{\"path\":\"b.bin\",\"algo\":\"sha256\",\"oid\":\"{sha256}\",\"size\":7}}}}\n\
             {{\"key\":\"copyFile\",\"value\":{{\"path\":\"c\",\"srcPath\":\"b.bin\",\"srcRevision\":\"main\"}}}}\n\
             {{\"key\":\"deletedFile\",\"value\":{{\"path\":\"d\"}}}}\n\
             {{\"key\":\"deletedFolder\",\"value\":{{\"path\":\"e/f/\"}}}}\n"
        );
        let request = parsed(&text).unwrap();
        assert_eq!((request.message.as_str(), request.parent.as_deref()), ("one\n\ntwo", Some("1234567")));
        let shown = format!("{:?}", request.changes);
        for part in ["contents: [104, 101, 108, 108, 111]", "len: Some(7)", "RepoPath(\"e/f\")"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert_eq!(request.changes.len(), 5);
    }

    #[test]
    fn every_prefix_of_a_commit_and_hostile_lines_are_refused() {
        let file = r#"{"key":"file","value":{"path":"a","content":"aGVsbG8="}}"#;
        let text = format!("{HEADER}\n{file}");
        for len in 0..text.len() {
            let refused = parsed(&text[..len]);
            // A header alone is a commit without changes.
            let is_header = [HEADER.len(), HEADER.len() + 1].contains(&len);
            assert_eq!(refused.is_ok(), is_header, "{len} bytes");
        }
        for line in [
            r#"{"key":"file","value":{"path":"../a","content":""}}"#,
            r#"{"key":"file","value":{"path":"a","content":"a"}}"#,
            r#"{"key":"file","value":{"path":"a","content":"","encoding":"rot13"}}"#,
            r#"{"key":"lfsFile","value":{"path":"a","oid":"ab","size":1}}"#,
            r#"{"key":"lfsFile","value":{"path":"a","algo":"md5","oid":"ab","size":1}}"#,
            r#"{"key":"deletedFolder","value":{"path":"/"}}"#,
            r#"{"key":"other","value":{}}"#,
            "[]",
            HEADER,
        ] {
            assert!(parsed(&format!("{HEADER}\n{line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn refusal_of_a_long_line_is_short() {
        let long = "\u{7f}".repeat(1 << 20);
        for line in [
            json!({ "key": "deletedFile", "value": { "path": long } }),
            json!({ "key": "file", "value": { "path": long, "content": "a" } }),
            json!({ "key": "file", "value": { "path": long, "content": "", "encoding": long } }),
            json!({ "key": "lfsFile", "value": { "path": long, "oid": "ab", "size": 1 } }),
            json!({ "key": "lfsFile", "value": { "path": long, "algo": "md5", "oid": "ab", "size": 1 } }),
            json!({ "key": long, "value": {} }),
        ] {
            let refused = parsed(&format!("{HEADER}\n{line}")).unwrap_err().into_response();
            let message = refused.headers()["x-error-message"].to_str().unwrap();
            assert!(message.starts_with("Line 2 of the commit: "), "{message}");
            assert!(message.len() < 1100, "{} bytes", message.len());
        }
    }

    #[test]
    fn long_files_and_files_that_are_not_text_go_by_xet() {
        let file =
            |size, sample: &[u8]| PreuploadFileJson { path: "a".to_owned(), size, sample: STANDARD.encode(sample) };
        let cut = "grün".as_bytes();
        for (file, large) in [
            (file(5, b"hello"), false),
            (file(0, b""), false),
            (file(5, b"he\0lo"), true),
            (file(5, b"\xff\xfe\x01ab"), true),
            (file(900, &cut[..3]), false),
            (file(MAX_REGULAR_LEN + 1, b"hello"), true),
        ] {
            assert_eq!(is_large(&file), large, "{file:?}");
        }
    }
}
