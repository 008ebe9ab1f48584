//! Makes summaries of the nodes and level sizes that another program has sent.

use std::str::FromStr;

use thiserror::Error;

use super::{NodeHash, Rest, Subtree, SubtreeNode};
use crate::ParseHashError;
use crate::hash::parse_words;
use crate::merkle::Node;

/// Levels of one summary, at most. Each level has at most half of the nodes of the level below it,
/// so 64 levels are enough for 2⁶⁴ chunks.
const MAX_LEVEL_COUNT: usize = 64;

/// Why nodes and level sizes do not form a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PartsError {
    /// There are more or fewer nodes than the level sizes say.
    #[error("the number of nodes in the levels is wrong")]
    NodeCount,
    /// There are more levels than any file has.
    #[error("there are more than {MAX_LEVEL_COUNT} levels")]
    LevelCount,
    /// There is no level, or the last level is empty or has nodes on the right.
    #[error("the last level is empty or has nodes on the right")]
    Top,
    /// A level below the last has nodes on a side that is an end of the file: on the left of a run
    /// that starts the file, or on the right of a run that ends it.
    #[error("a level leaves nodes at an end of the file")]
    End,
}

impl Subtree {
    /// The summary with these untrusted nodes: the inverse of [`Subtree::nodes`] and
    /// [`Subtree::levels`].
    ///
    /// Whether the summary is *true* shows only when it is joined with others to a whole file: with
    /// a false summary the result is not the hash of any file. The checks here ensure that every
    /// node is part of the result.
    ///
    /// # Errors
    ///
    /// No summary has these nodes on these levels.
    pub fn from_parts(
        nodes: &[SubtreeNode],
        levels: &[(usize, usize)],
        at_start: bool,
        at_end: bool,
    ) -> Result<Self, PartsError> {
        if levels.len() > MAX_LEVEL_COUNT {
            return Err(PartsError::LevelCount);
        }
        let mut rest = nodes;
        let mut rests: Vec<Rest> = Vec::new();
        let mut take = |count: usize| {
            let (taken, after) = rest.split_at_checked(count).ok_or(PartsError::NodeCount)?;
            rest = after;
            Ok(taken.iter().map(|node| Node { hash: node.hash.0, len: node.raw_len }).collect::<Vec<Node>>())
        };
        for (left, _) in levels {
            rests.push(Rest { left: take(*left)?, right: Vec::new() });
        }
        for (level, (_, right)) in rests.iter_mut().zip(levels).rev() {
            level.right = take(*right)?;
        }
        if !rest.is_empty() {
            return Err(PartsError::NodeCount);
        }
        match rests.split_last() {
            Some((top, below)) if !top.left.is_empty() && top.right.is_empty() => {
                let has_rest_at_end =
                    |level: &Rest| (at_start && !level.left.is_empty()) || (at_end && !level.right.is_empty());
                if below.iter().any(has_rest_at_end) {
                    return Err(PartsError::End);
                }
            }
            _ => return Err(PartsError::Top),
        }
        Ok(Self { rests, at_start, at_end })
    }
}

impl FromStr for NodeHash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        parse_words(text).map(Self)
    }
}
