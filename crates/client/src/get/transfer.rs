//! A download of one resource that continues over new connections.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode};

use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;

/// Whenever this many bytes have arrived that were never received before, the count of consecutive
/// failures is reset.
const PROGRESS_LEN: u64 = 64 << 10;

/// The next event of a transfer.
pub(super) enum Event {
    /// The next bytes.
    Piece(Bytes),
    /// All bytes so far are invalid; the next piece starts at byte 0.
    Restart,
}

/// A GET that continues after a broken connection.
pub(super) struct Transfer<'a> {
    server: &'a Server,
    path: String,
    retries: Retries,
    watch: Arc<dyn Watch>,
    /// The response that is being received.
    response: Option<Response>,
    /// The strong `ETag` of the last response with status 200. Without one a broken transfer
    /// restarts.
    etag: Option<String>,
    received_len: u64,
    total_len: Option<u64>,
    /// The position at which the count of failures was last reset. It never decreases: bytes that
    /// are received again are not progress.
    best_len: u64,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(server: &'a Server, path: String, watch: Arc<dyn Watch>) -> Self {
        Self {
            server,
            path,
            retries: Retries::new(server.retry, Arc::clone(&watch)),
            watch,
            response: None,
            etag: None,
            received_len: 0,
            total_len: None,
            best_len: 0,
        }
    }

    /// What comes next; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, RequestError> {
        loop {
            let error = match &mut self.response {
                None => match self.open().await {
                    Ok(None) => continue,
                    Ok(event) => return Ok(event),
                    Err(error) => error,
                },
                Some(response) => match self.server.next_piece(response).await {
                    Ok(piece) => {
                        self.count(piece.as_ref().map_or(0, Bytes::len));
                        return Ok(piece.map(Event::Piece));
                    }
                    Err(error) => error,
                },
            };
            self.response = None;
            // The connection may break after the last byte.
            if self.total_len.is_some_and(|len| len == self.received_len) {
                return Ok(None);
            }
            self.retries.after(error).await?;
        }
    }

    /// Requests the missing bytes, or all of them. `Ok(None)`: call [`next`](Self::next) again.
    async fn open(&mut self) -> Result<Option<Event>, RequestError> {
        let mut request = self.server.get_request(&self.path);
        let resumed = self.etag.clone().filter(|_| self.received_len > 0);
        if let Some(etag) = &resumed {
            request = request.header(RANGE, format!("bytes={}-", self.received_len)).header(IF_RANGE, etag);
        }
        let response = self.server.send(request, &Activity::new()).await?;
        match (response.status(), resumed) {
            (StatusCode::OK, _) => {}
            (StatusCode::PARTIAL_CONTENT, Some(etag)) => {
                if !self.continues(response.headers(), &etag) {
                    return Err(self.server.invalid_response("it sent another range than requested"));
                }
                self.response = Some(response);
                return Ok(None);
            }
            _ => {
                return Err(self
                    .server
                    .invalid_response("it responded to a download with a success status other than 200"));
            }
        }
        let is_restart = self.received_len > 0;
        self.etag = text(response.headers(), &ETAG).filter(|etag| etag.starts_with('"')).map(str::to_owned);
        self.total_len = response.content_length();
        self.received_len = 0;
        self.response = Some(response);
        self.watch.position(0);
        self.total_len.into_iter().for_each(|len| self.watch.total(len));
        Ok(is_restart.then_some(Event::Restart))
    }

    /// Whether a 206 response has all bytes from where the transfer broke off to the end, of the
    /// same serialization.
    fn continues(&self, headers: &HeaderMap, etag: &str) -> bool {
        let range = text(headers, &CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes "));
        let Some((first, rest)) = range.and_then(|range| range.split_once('-')) else { return false };
        let Some((last, total)) = rest.split_once('/') else { return false };
        let total_len: Option<u64> = total.parse().ok();
        let last: Option<u64> = last.parse().ok();
        first.parse() == Ok(self.received_len)
            && total_len.is_none_or(|len| last.and_then(|last| last.checked_add(1)) == Some(len))
            && (self.total_len.is_none() || total_len == self.total_len)
            && text(headers, &ETAG).is_none_or(|tag| tag == etag)
    }

    /// Counts received bytes, and resets the count of failures after enough new ones.
    fn count(&mut self, len: usize) {
        self.received_len += len as u64;
        self.watch.position(self.received_len);
        if self.received_len >= self.best_len + PROGRESS_LEN {
            self.best_len = self.received_len;
            self.retries.progressed();
        }
    }
}

/// A header as text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
