//! Asks the server which chunks it has, with chunk queries (spec 5.7).

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

/// Chunk queries in flight at once.
const QUERY_COUNT: usize = 8;

/// Maximum bytes of a response: 80 xorbs of 8192 chunks, more than a zorb server lists.
const MAX_RESPONSE_LEN: usize = 32 << 20;

/// The chunks of a block that the client may query: the first one of each file, and those with an
/// eligible hash.
pub(super) fn chunks_to_query(block: &Block) -> Vec<ChunkHash> {
    let eligible = block.events.iter().filter_map(|event| match event {
        Event::Chunk { hash, is_first, .. } if *is_first || hash.is_dedup_eligible() => Some(*hash),
        _ => None,
    });
    eligible.collect()
}

/// Queries these chunks and adds the responses to the known chunks.
///
/// One response lists a whole xorb with up to 8192 chunks, and so it can make the queries for
/// thousands of small files unnecessary. Therefore each chunk is checked again before its query is
/// sent. For the same reason the number of queries in flight halves with each chunk that the server
/// has, and doubles with each chunk that it lacks.
pub(super) async fn ask(
    server: Server,
    chunks_to_query: Vec<ChunkHash>,
    mut known: Known,
    watch: Arc<dyn PushWatch>,
) -> Result<Known, PushError> {
    let mut chunks_to_query = chunks_to_query.into_iter();
    let mut asking = FuturesUnordered::new();
    let mut limit = 1;
    loop {
        while asking.len() < limit
            && let Some(chunk) = chunks_to_query.find(|chunk| known.should_query(chunk))
        {
            asking.push(find(&server, chunk, &watch));
        }
        let Some(response) = asking.next().await else { break };
        match response.map_err(PushError::Ask)? {
            Some(found) => {
                known.insert_response(&found);
                limit = (limit / 2).max(1);
            }
            None => limit = (limit * 2).min(QUERY_COUNT),
        }
    }
    drop(asking);
    Ok(known)
}

/// Queries one chunk. `None` if the server does not have it, refuses the query, or sends an invalid
/// response: then the chunk is sent, which is always correct. If the server cannot be reached, this
/// is an error, because the chunk could not be sent either.
async fn find(
    server: &Server,
    chunk: ChunkHash,
    watch: &Arc<dyn PushWatch>,
) -> Result<Option<DedupShard>, RequestError> {
    let mut retries = Retries::new(server.retry, Arc::new(RetriesOnly(Arc::clone(watch))));
    loop {
        let failed = match find_once(server, chunk).await {
            Ok(response) => return Ok(parse_dedup_response(&response).ok()),
            Err(RequestError::Refused { .. } | RequestError::InvalidResponse { .. }) => return Ok(None),
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
