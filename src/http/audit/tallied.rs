//! A body that counts its bytes and observes its end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

/// A body that reports the length of each piece, and its end.
pub(super) struct Tallied<F> {
    pub(super) body: Body,
    /// Called with the length of each piece, and with `None` at the end. Not called for an error.
    pub(super) tell: F,
}

impl<F: FnMut(Option<u64>) + Unpin> HttpBody for Tallied<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => (self.tell)(Some(frame.data_ref().map_or(0, Bytes::len) as u64)),
            Some(Err(_)) => {}
            None => (self.tell)(None),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.body)
    }
}
