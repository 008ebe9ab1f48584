//! Memory for long answers: a plan while it is made, and a text until its client has taken it.
//!
//! A whole file of 800 000 terms is about a gigabyte while it is planned and a fifth of that as text, and clients that take a
//! kilobyte in a second keep that for hours. So a plan has room before it is begun and a text before it is sent, all of them
//! together as much as the constants here say, or there is none: who asks is refused at once, since it would wait for such
//! clients in a turn that others need for short answers. What is moderate has room of its own, which those do not take. What is
//! small, like a window of a common file, takes none.
//!
//! What it does not bound: a plan with a xorb for each of its terms takes half as much again as it has room for; what the index says
//! of a file, 100 bytes for each term while it is read, is there before the plan's room; so is the text of an answer that is no
//! plan, of a chunk's xorbs or of an edit, while it is made within its turn.

use std::time::Duration;

use super::Cas;
use super::error::StoreError;
use crate::runtime::fair::{FairGate, Limits, Tenant, Turn};

/// KiB of large answers: about the largest plan that there is; or eight plans of 100 000 terms, as many as there are turns for
/// questions, and their texts. A quarter is for others than the one who has most.
const LARGE_ROOM_KIB: u32 = 1 << 20;

/// KiB of moderate ones: a hundred of those that clients get who ask for windows of much fragmented files.
const MODERATE_ROOM_KIB: u32 = 128 << 10;

/// KiB of what deduplication says of chunks, 0.8 MB at most: whoever is refused there uploads what is there already, and takes
/// nothing from those who read.
const DEDUP_ROOM_KIB: u32 = 128 << 10;

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
#[must_use = "the room is given back when this is dropped"]
pub struct AnswerRoom {
    turn: Option<Turn>,
}

/// The room that there is.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    large: FairGate,
    moderate: FairGate,
    dedup: FairGate,
}

impl Default for Answers {
    fn default() -> Self {
        // Nobody waits.
        let (waiting_count, patience) = (0, Duration::ZERO);
        let gate =
            |kib: u32| FairGate::new(Limits { capacity: kib, per_tenant: kib - kib / 4, waiting_count, patience });
        Self { large: gate(LARGE_ROOM_KIB), moderate: gate(MODERATE_ROOM_KIB), dedup: gate(DEDUP_ROOM_KIB) }
    }
}

impl Cas {
    /// Room for an answer of so many bytes to the [current](Tenant::current) tenant, to be held until it is sent.
    ///
    /// # Errors
    ///
    /// There is none now.
    pub async fn answer_room(&self, len: usize) -> Result<AnswerRoom, StoreError> {
        if len <= MAX_SMALL_LEN {
            return Ok(AnswerRoom::default());
        }
        enter(if len <= MAX_MODERATE_LEN { &self.answers.moderate } else { &self.answers.large }, len).await
    }

    /// The same for what deduplication says of a chunk, in so many bytes.
    ///
    /// # Errors
    ///
    /// There is none now.
    pub async fn dedup_room(&self, len: usize) -> Result<AnswerRoom, StoreError> {
        if len <= MAX_SMALL_LEN { Ok(AnswerRoom::default()) } else { enter(&self.answers.dedup, len).await }
    }

    /// Room for a text of so many bytes in place of that in which it was made.
    ///
    /// # Errors
    ///
    /// It is longer, and there is no more now.
    pub async fn text_room(&self, made_in: AnswerRoom, len: usize) -> Result<AnswerRoom, StoreError> {
        match made_in.turn {
            Some(mut turn) if len > MAX_SMALL_LEN && kib(len) <= turn.weight() => {
                turn.shrink(kib(len));
                Ok(AnswerRoom { turn: Some(turn) })
            }
            _ => self.answer_room(len).await,
        }
    }

    /// Bytes of room that long answers have.
    #[must_use]
    pub fn answers_len(&self) -> u64 {
        let Answers { large, moderate, dedup } = &self.answers;
        [large, moderate, dedup].map(|gate| u64::from(gate.load().0) << 10).iter().sum()
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

async fn enter(gate: &FairGate, len: usize) -> Result<AnswerRoom, StoreError> {
    Ok(AnswerRoom { turn: Some(gate.enter(Tenant::current(), kib(len)).await?) })
}

fn kib(len: usize) -> u32 {
    u32::try_from(len.div_ceil(1024)).unwrap_or(u32::MAX)
}
