//! The plan of many small files (spec 5.3).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use xet_format::FileHash;

use super::PullError;
use super::plan::{MAX_PLAN_LEN, Places, Plan, parse_parts, parse_term};
use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;
use crate::wire::{BatchJson, DescriptorJson, FetchJson};

/// Requests the plan of these files, with retries. Returns the plan, which has the terms of all
/// files, and the number of terms of each file.
pub(super) async fn batch_plan(
    server: &Server,
    files: &[(FileHash, u64)],
    watch: &Arc<dyn Watch>,
) -> Result<(Plan, Vec<usize>), PullError> {
    let failed = |error| PullError::Batch { count: files.len(), source: Box::new(error) };
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        match batch_plan_once(server, files).await {
            Ok(json) => return parse(json, files).map_err(|what| failed(server.invalid_response(what))),
            Err(error) => retries.after(error).await.map_err(failed)?,
        }
    }
}

async fn batch_plan_once(server: &Server, files: &[(FileHash, u64)]) -> Result<BatchJson, RequestError> {
    let keys: Vec<_> = files.iter().map(|(file, _)| json!({"prefix": "default", "hash": file.to_string()})).collect();
    let response = server.send(server.post_request("v1/reconstructions").json(&keys), &Activity::new()).await?;
    server.json_within(response, MAX_PLAN_LEN).await
}

/// Parses a plan and checks it against the limits, because the fetcher allocates memory by its
/// lengths.
fn parse(mut json: BatchJson, files: &[(FileHash, u64)]) -> Result<(Plan, Vec<usize>), &'static str> {
    let entries = json.fetch_info.into_iter().map(|(xorb, entries)| {
        let parts = entries.into_iter().map(|entry| FetchJson {
            url: entry.url,
            ranges: vec![DescriptorJson { chunks: entry.range, bytes: entry.url_range }],
        });
        (xorb, parts.collect())
    });
    let xorbs: BTreeMap<String, Vec<FetchJson>> = entries.collect();
    let (parts, places): (_, Places) = parse_parts(&xorbs)?;
    let mut plan = Plan { skipped_len: 0, terms: Vec::new(), parts };
    let mut counts = Vec::with_capacity(files.len());
    for (file, len) in files {
        let terms = json.files.remove(&file.to_string()).ok_or("a file is not in its plan")?;
        counts.push(terms.len());
        let mut planned_len = 0_u64;
        for term in &terms {
            let term = parse_term(term, &plan.parts, &places)?;
            planned_len = planned_len.saturating_add(term.raw_len);
            plan.terms.push(term);
        }
        if planned_len != *len {
            return Err("a file has an unexpected length");
        }
    }
    Ok((plan, counts))
}
