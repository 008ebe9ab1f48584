//! Compresses a full xorb and uploads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use xet_format::XorbHash;
use xet_format::compression::Policy;
use xet_format::shard::CasInfo;
use xet_format::xorb::XorbBuilder;

use super::assemble::RawXorb;
use super::{PushError, PushWatch, RetriesOnly};
use crate::activity::Activity;
use crate::body::with_body;
use crate::error::RequestError;
use crate::machine::Workers;
use crate::retry::Retries;
use crate::server::Server;
use crate::wire::WasInsertedJson;

/// A xorb that was sent and that the server has stored.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) info: CasInfo,
    pub(super) serialized_len: u64,
}

/// Compresses a xorb and sends it, with retries. After `Ok` the server has stored it.
pub(super) async fn send(
    server: Server,
    workers: Workers,
    xorb: RawXorb,
    policy: Policy,
    watch: Arc<dyn PushWatch>,
) -> Result<Sent, PushError> {
    let RawXorb { info, chunks } = xorb;
    let hash = info.hash;
    let bytes = workers.run(move || compress(hash, chunks, policy)).await;
    let serialized_len = bytes.len() as u64;
    watch.to_send(serialized_len);
    let mut retries = Retries::new(server.retry, Arc::new(RetriesOnly(Arc::clone(&watch))));
    loop {
        let sent_len = Arc::new(AtomicU64::new(0));
        let Err(error) = send_once(&server, hash, &bytes, &sent_len, &watch).await else { break };
        watch.unsent(sent_len.load(Ordering::Relaxed));
        retries.after(error).await.map_err(|source| PushError::Send { xorb: hash, source })?;
    }
    Ok(Sent { info, serialized_len })
}

/// The serialized xorb. Each chunk is freed after it was compressed, so that memory never holds the
/// whole raw and the whole serialized xorb at once.
fn compress(hash: XorbHash, chunks: Vec<Vec<u8>>, policy: Policy) -> Bytes {
    let mut builder = XorbBuilder::new(policy);
    for chunk in chunks {
        builder.push(&chunk).expect("chunks were chosen to fit, compressed or not");
    }
    let (bytes, xorb) = builder.finish().expect("a xorb that is sent has a chunk").into_parts();
    assert_eq!(xorb.hash(), hash, "a xorb is the aggregate of its chunks");
    bytes.into()
}

async fn send_once(
    server: &Server,
    hash: XorbHash,
    bytes: &Bytes,
    sent_len: &Arc<AtomicU64>,
    watch: &Arc<dyn PushWatch>,
) -> Result<(), RequestError> {
    let (activity, sent_len, watch) = (Arc::new(Activity::new()), Arc::clone(sent_len), Arc::clone(watch));
    // This is the route of stock clients, so other servers have it, too. Only zorb has
    // `/xorbs/{hash}`.
    let request = server.post_request(&format!("v1/xorbs/default/{hash}"));
    let request = with_body(request, bytes.clone(), Arc::clone(&activity), move |len| {
        sent_len.fetch_add(len, Ordering::Relaxed);
        watch.sent(len);
    });
    let response = server.send(request, &activity).await?;
    // Whether the xorb was new does not matter: the server has it now.
    server.json::<WasInsertedJson>(response).await.map(drop)
}
