//! Memory for long answers: a plan while it is made, and a text until its client has taken it.
//!
//! A whole file of 800 000 terms is about a gigabyte while it is planned and a fifth of that as text, and clients that take a
//! kilobyte in a second keep that for hours. So a plan has room before it is begun and a text before it is sent, all of them
//! together as much as the constants here say, or there is none: who asks is refused at once, since it would wait for such
//! clients in a turn that others need for short answers. Who has less than its share is not refused while there are slow clients
//! of others to be cut. What is moderate has room of its own, which those do not take. What is
//! small, like a window of a common file, takes none.
//!
//! What it does not bound: a plan with a xorb for each of its terms takes half as much again as it has room for; what the index says
//! of a file, 100 bytes for each term while it is read, is there before the plan's room; so is the text of an answer that is no
//! plan, of a chunk's xorbs or of an edit, while it is made within its turn.

use std::sync::Arc;

use super::Cas;
use super::admission::{Admission, Admitted, Limits, Refusal, Transfer};
use super::error::StoreError;
use crate::runtime::fair::{Busy, Tenant};

/// Bytes of large answers: about the largest plan that there is; or eight plans of 100 000 terms, as many as there are turns for
/// questions, and their texts. An eighth is for others than the one who has most.
const LARGE_ROOM_LEN: u64 = 1 << 30;

/// Bytes of moderate ones: a hundred of those that clients get who ask for windows of much fragmented files.
const MODERATE_ROOM_LEN: u64 = 128 << 20;

/// Bytes of what deduplication says of chunks, 0.8 MB at most: whoever is refused there uploads what is there already, and takes
/// nothing from those who read.
const DEDUP_ROOM_LEN: u64 = 128 << 20;

/// Bytes of a moderate answer, at most: a plan of 4096 terms.
const MAX_MODERATE_LEN: usize = 4 << 20;

/// Bytes of an answer that takes no room: as much as a connection may have anyway, a piece of a download.
const MAX_SMALL_LEN: usize = 256 << 10;

/// Bytes for each term of a plan while it is made, with its text: 0.7 KiB of 780 000 terms in one xorb, by the peak memory of a
/// server; up to 1.5 by count where each has a xorb of its own.
const PLANNED_TERM_LEN: usize = 1 << 10;

/// Terms of a plan that takes no room: there are as many such plans at once as turns for questions.
const MAX_SMALL_TERM_COUNT: usize = 1024;

/// Room for an answer, until this is dropped. The default is none, which is right for what is small.
#[derive(Debug, Default)]
#[must_use = "the budget is released when this is dropped"]
pub struct AnswerRoom {
    admitted: Option<Admitted>,
}

/// The room that there is.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    large: Arc<Admission>,
    moderate: Arc<Admission>,
    dedup: Arc<Admission>,
}

impl Default for Answers {
    fn default() -> Self {
        let room = |len| Admission::new(Limits { count: usize::MAX, len });
        Self { large: room(LARGE_ROOM_LEN), moderate: room(MODERATE_ROOM_LEN), dedup: room(DEDUP_ROOM_LEN) }
    }
}

impl AnswerRoom {
    /// The progress of the answer that has it, for what sends it; none where the answer is small.
    #[must_use]
    pub fn transfer(&self) -> Option<Arc<Transfer>> {
        self.admitted.as_ref().map(|admitted| Arc::clone(admitted.transfer()))
    }
}

impl Cas {
    /// Room for an answer of so many bytes to the [current](Tenant::current) tenant, to be held until it is sent. Where there is
    /// none, the slowest answers of those who have more than their share are cut.
    ///
    /// # Errors
    ///
    /// There is none now.
    pub async fn answer_room(&self, len: usize) -> Result<AnswerRoom, StoreError> {
        if len <= MAX_SMALL_LEN {
            return Ok(AnswerRoom::default());
        }
        enter(if len <= MAX_MODERATE_LEN { &self.answers.moderate } else { &self.answers.large }, len)
    }

    /// The same for what deduplication says of a chunk, in so many bytes.
    ///
    /// # Errors
    ///
    /// There is none now.
    pub async fn dedup_room(&self, len: usize) -> Result<AnswerRoom, StoreError> {
        if len <= MAX_SMALL_LEN { Ok(AnswerRoom::default()) } else { enter(&self.answers.dedup, len) }
    }

    /// Room for a text of so many bytes in place of that in which it was made.
    ///
    /// # Errors
    ///
    /// It is longer, and there is no more now.
    pub async fn text_room(&self, made_in: AnswerRoom, len: usize) -> Result<AnswerRoom, StoreError> {
        match made_in.admitted {
            Some(admitted) if len > MAX_SMALL_LEN && len as u64 <= admitted.declared_len() => {
                admitted.shrink(len as u64);
                Ok(AnswerRoom { admitted: Some(admitted) })
            }
            _ => self.answer_room(len).await,
        }
    }

    /// Bytes of room that long answers have.
    #[must_use]
    pub fn answers_len(&self) -> u64 {
        let Answers { large, moderate, dedup } = &self.answers;
        [large, moderate, dedup].map(|room| room.len()).iter().sum()
    }

    /// Room for a plan from so many terms, until its text is made.
    ///
    /// # Errors
    ///
    /// There is none now.
    pub(super) async fn plan_room(&self, term_count: usize) -> Result<AnswerRoom, StoreError> {
        let is_small = term_count <= MAX_SMALL_TERM_COUNT;
        self.answer_room(if is_small { 0 } else { term_count.saturating_mul(PLANNED_TERM_LEN) }).await
    }
}

fn enter(room: &Arc<Admission>, len: usize) -> Result<AnswerRoom, StoreError> {
    let admitted = room.admit(Tenant::current(), len as u64);
    let admitted = admitted.map_err(|refusal| Busy { is_above_share: refusal == Refusal::AboveShare })?;
    Ok(AnswerRoom { admitted: Some(admitted) })
}
