//! Queries the length of a file.

use std::sync::Arc;

use reqwest::header::CONTENT_LENGTH;
use xet_format::{ByteRange, FileHash};

use super::PullError;
use super::plan::plan_once;
use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;

/// The length of a file, from the server. It is not trusted: the hash of the file proves it.
pub(super) async fn file_len(server: &Server, file: FileHash, watch: &Arc<dyn Watch>) -> Result<u64, PullError> {
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        let request = server.head_request(&format!("v1/files/{file}"));
        let error = match server.send(request, &Activity::new()).await {
            Ok(response) => {
                let len = response.headers().get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
                let invalid_response =
                    || PullError::request(file, server.invalid_response("it does not state the file length"));
                return len.ok_or_else(invalid_response);
            }
            Err(error) => error,
        };
        let error = match &error {
            RequestError::Refused { refusal, .. } if refusal.status == 404 => return Err(PullError::NotFound { file }),
            // The response to a HEAD has no body, so it does not say why the server refused.
            RequestError::Refused { refusal, .. } if refusal.detail.is_none() && !error.is_transient() => {
                explained(server, file).await.unwrap_or(error)
            }
            _ => error,
        };
        retries.after(error).await.map_err(|error| PullError::request(file, error))?;
    }
}

/// Requests a plan, to get a refusal with a body that says why; `None` if the request succeeds or
/// fails otherwise.
async fn explained(server: &Server, file: FileHash) -> Option<RequestError> {
    let error = plan_once(server, file, ByteRange::new(0, 1)?).await.err()?;
    matches!(&error, RequestError::Refused { refusal, .. } if refusal.detail.is_some()).then_some(error)
}
