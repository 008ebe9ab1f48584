//! Receives a body: one worker at a time takes its pieces, while the next pieces arrive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::OptionFuture;
use futures_util::{Stream, StreamExt};

use super::BodyError;
use super::batch::Inbox;
use crate::runtime::blocking::Pool;
use crate::runtime::fair::Tenant;
use crate::service::Server;
use crate::service::error::UploadError;

/// Bytes at which a batch goes to a worker. Hashing this number of bytes takes much longer than the
/// switch to the worker, and the batches of a hundred uploads take little memory. While the worker
/// is busy, up to twice as many bytes are collected; then the client has to wait.
const BATCH_LEN: usize = 128 << 10;

/// The same length while there are few uploads, which saves context switches. With a hundred
/// uploads, batches of this length would take four times the memory.
const LARGE_BATCH_LEN: usize = 512 << 10;

/// Up to this number of uploads, `LARGE_BATCH_LEN` applies. The number of uploads is read anew for
/// each batch.
const FEW_UPLOADS: u64 = 8;

/// A worker that continues with further batches of an upload yields to waiting work after this
/// time. Continuing without a break saves two context switches for each batch.
const MAX_SLICE: Duration = Duration::from_millis(2);

/// What takes the pieces of a body.
pub(super) trait Sink: Sized + Send + 'static {
    /// The tenant that sends the body.
    fn tenant(&self) -> Tenant;

    /// The pool whose workers take the pieces.
    fn pool(&self) -> &Pool;

    /// Takes the next pieces. Blocks.
    fn take(&mut self, pieces: Vec<Bytes>) -> Result<(), UploadError>;

    /// Whether [`settle`](Self::settle) has something to do before the next pieces.
    fn must_settle(&self) -> bool {
        false
    }

    /// Frees what is not needed while it waits for its client or a permit, as most uploads do.
    /// `busy` is the time that the worker took.
    fn rest(&mut self, busy: Duration);

    /// Takes the received pieces, then further ones as long as a whole batch is ready. Blocks.
    fn take_from(mut self, inbox: &Inbox, batch_len: usize) -> Result<Self, UploadError> {
        let begin = Instant::now();
        let mut min_len = 1;
        while let Some(pieces) = inbox.take(min_len) {
            self.take(pieces)?;
            let is_over = begin.elapsed() >= MAX_SLICE && self.pool().is_awaited();
            if is_over || self.must_settle() {
                break;
            }
            min_len = batch_len;
        }
        self.rest(begin.elapsed());
        Ok(self)
    }

    /// Does what a worker cannot, between two batches. No piece is received meanwhile.
    fn settle(self, server: &Server) -> impl Future<Output = Result<Self, UploadError>> + Send;
}

impl Server {
    /// Receives the whole body. A worker takes one batch while the next one arrives.
    pub(super) async fn receive<K, S>(&self, sink: K, mut body: S) -> Result<K, UploadError>
    where
        K: Sink,
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        // Either `idle` has the sink, or a worker has it and `running` will return it.
        let (mut idle, mut running) = (Some(sink), None);
        let (inbox, mut ended) = (Arc::new(Inbox::default()), false);
        let mut batch_len = self.batch_len();
        loop {
            let has_capacity = inbox.len() < 2 * batch_len;
            tokio::select! {
                piece = body.next(), if !ended && has_capacity => match piece {
                    None => ended = true,
                    Some(Ok(piece)) => inbox.push(piece),
                    Some(Err(error)) => return Err(error.into()),
                },
                Some(taken) = OptionFuture::from(running.as_mut()) => {
                    running = None;
                    idle = Some(K::settle(taken?, self).await?);
                }
                () = inbox.taken(), if running.is_some() && !has_capacity => {}
            }
            let received_len = inbox.len();
            let due = received_len >= batch_len || (ended && received_len > 0);
            match idle.take() {
                Some(sink) if due => {
                    batch_len = self.batch_len();
                    let (tenant, inbox) = (sink.tenant(), Arc::clone(&inbox));
                    let work = move || sink.take_from(&inbox, batch_len);
                    running = Some(self.store.pool.start_for(tenant, work).await);
                }
                Some(sink) if ended => return Ok(sink),
                other => idle = other,
            }
        }
    }

    fn batch_len(&self) -> usize {
        if self.permits.admission.count() <= FEW_UPLOADS { LARGE_BATCH_LEN } else { BATCH_LEN }
    }
}
