//! Uploads share their workers with other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::Notify;

use super::Setup;
use crate::format::compression::Policy;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::xorb::XorbBuilder;
use crate::runtime::fair::Tenant;
use crate::service::access::Claims;
use crate::service::{BodyError, Upload};

/// Bytes of a piece, as from a socket.
const PIECE_LEN: usize = 64 << 10;

#[tokio::test]
async fn waiting_worker_runs_in_the_middle_of_a_steady_upload() {
    let setup = Setup::new().await;
    let server = setup.process();
    let mut builder = XorbBuilder::new(Policy::None);
    for index in 0..1000_u32 {
        builder.push(&index.to_le_bytes().repeat(15_000)).unwrap();
    }
    let xorb = builder.finish().unwrap();
    let bytes = Bytes::copy_from_slice(xorb.bytes());
    let piece_count = bytes.len().div_ceil(PIECE_LEN);

    // There are two workers. One is occupied until the end, so the upload has the other one.
    let (release, released) = mpsc::channel::<()>();
    let occupied = server.store.pool.start_for(Tenant::SERVER, move || released.recv().is_err()).await;
    let (sent_count, has_begun) = (Arc::new(AtomicUsize::new(0)), Notify::new());
    let pieces = (0..piece_count).map(|index| {
        let begin = index * PIECE_LEN;
        sent_count.fetch_add(1, Ordering::Relaxed);
        if index == piece_count / 10 {
            has_begun.notify_one();
        }
        Ok::<_, BodyError>(bytes.slice(begin..bytes.len().min(begin + PIECE_LEN)))
    });
    let upload = server.upload(Upload {
        claims: &Claims::UNRESTRICTED,
        claimed: xorb.xorb().hash(),
        max_len: MAX_XORB_SERIALIZED_LEN,
        declared_len: None,
        body: stream::iter(pieces).boxed(),
    });
    let other = async {
        has_begun.notified().await;
        let sent_count = Arc::clone(&sent_count);
        server.store.pool.run_for(Tenant::new(9), move || sent_count.load(Ordering::Relaxed)).await
    };
    let (uploaded, seen_count) = tokio::join!(upload, other);
    assert!(uploaded.unwrap().was_inserted);
    assert!(seen_count < piece_count, "the other work waited until all {piece_count} pieces had been sent");
    drop(release);
    assert!(occupied.await);
}
