//! How long a file is, as the server says it.

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

/// Length of a file, as the server says it.
pub(super) async fn file_len(server: &Server, file: FileHash, watch: &Arc<dyn Watch>) -> Result<u64, PullError> {
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        let request = server.head_request(&format!("v1/files/{file}"));
        let error = match server.send(request, &Activity::new()).await {
            Ok(response) => {
                let len = response.headers().get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
                let strange = || PullError::request(file, server.strange("it does not state the file length"));
                return len.ok_or_else(strange);
            }
            Err(error) => error,
        };
        let error = match &error {
            RequestError::Refused { refusal, .. } if refusal.status == 404 => return Err(PullError::NotFound { file }),
            // The response to a HEAD has no body that would say why.
            RequestError::Refused { refusal, .. } if refusal.detail.is_none() && !error.is_transient() => {
                explained(server, file).await.unwrap_or(error)
            }
            _ => error,
        };
        retries.after(error).await.map_err(|error| PullError::request(file, error))?;
    }
}

/// The refusal of a request whose response has a body.
async fn explained(server: &Server, file: FileHash) -> Option<RequestError> {
    let error = plan_once(server, file, ByteRange::new(0, 1)?).await.err()?;
    matches!(&error, RequestError::Refused { refusal, .. } if refusal.detail.is_some()).then_some(error)
}
