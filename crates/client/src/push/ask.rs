//! Asking the server which chunks it has (spec 5.7).

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use xet_format::ChunkHash;
use xet_format::shard::{DedupShard, parse_dedup_response};

use super::known::Known;
use super::scan::{Block, Event};
use super::{PushError, PushWatch, RetriesOnly};
use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;

/// Questions that are under way at once.
const QUESTION_COUNT: usize = 8;

/// Maximum bytes of a response: 80 xorbs of 8192 chunks, more than a zorb server lists.
const MAX_RESPONSE_LEN: usize = 32 << 20;

/// The chunks of a block that the server may be asked for: those that it responds to with a shard,
/// if it has them.
pub(super) fn questions(block: &Block) -> Vec<ChunkHash> {
    let eligible = block.events.iter().filter_map(|event| match event {
        Event::Chunk { hash, is_first, .. } if *is_first || hash.is_dedup_eligible() => Some(*hash),
        _ => None,
    });
    eligible.collect()
}

/// Adds what the server tells about these chunks to what is known.
///
/// One response lists a whole xorb, with up to 8192 chunks. Of thousands of small files that are
/// known it has most at once, so whether a chunk is still unknown is checked before each request,
/// and few are in flight while the responses have something.
pub(super) async fn ask(
    server: Server,
    questions: Vec<ChunkHash>,
    mut known: Known,
    watch: Arc<dyn PushWatch>,
) -> Result<Known, PushError> {
    let mut questions = questions.into_iter();
    let mut asking = FuturesUnordered::new();
    let mut limit = 1;
    loop {
        while asking.len() < limit
            && let Some(chunk) = questions.find(|chunk| known.wants_response(chunk))
        {
            asking.push(find(&server, chunk, &watch));
        }
        let Some(response) = asking.next().await else { break };
        match response.map_err(PushError::Ask)? {
            Some(told) => {
                known.insert_response(&told);
                limit = (limit / 2).max(1);
            }
            None => limit = (limit * 2).min(QUESTION_COUNT),
        }
    }
    drop(asking);
    Ok(known)
}

/// What the server knows about one chunk. A refusal or an invalid response counts as "not known":
/// then the chunk is sent, which is always right. An unreachable server is an error, since nothing
/// can be sent either.
async fn find(
    server: &Server,
    chunk: ChunkHash,
    watch: &Arc<dyn PushWatch>,
) -> Result<Option<DedupShard>, RequestError> {
    let mut retries = Retries::new(server.retry, Arc::new(RetriesOnly(Arc::clone(watch))));
    loop {
        let failed = match find_once(server, chunk).await {
            Ok(response) => return Ok(parse_dedup_response(&response).ok()),
            Err(RequestError::Refused { .. } | RequestError::Strange { .. }) => return Ok(None),
            Err(error) => error,
        };
        retries.after(failed).await?;
    }
}

async fn find_once(server: &Server, chunk: ChunkHash) -> Result<Vec<u8>, RequestError> {
    let request = server.get_request(&format!("v1/chunks/default/{chunk}"));
    let response = server.send(request, &Activity::new()).await?;
    server.body(response, MAX_RESPONSE_LEN).await
}
