//! Summaries from untrusted parts.

use std::str::FromStr;

use thiserror::Error;

use super::{NodeHash, Rest, Subtree, SubtreeNode};
use crate::ParseHashError;
use crate::hash::parse_words;
use crate::merkle::Node;

/// Nodes and numbers that are no summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PartsError {
    /// There are other nodes than the levels say.
    #[error("the number of nodes in the levels is wrong")]
    NodeCount,
    /// There is no level, or the last one has not all of its nodes on the left.
    #[error("the last level is empty or has nodes on the right")]
    Top,
    /// A run that starts the file leaves nothing on the left below its last level, and one that
    /// ends it nothing on the right.
    #[error("a level leaves nodes at an end of the file")]
    End,
}

impl Subtree {
    /// The summary with these untrusted nodes: the inverse of [`Subtree::nodes`] and
    /// [`Subtree::levels`].
    ///
    /// Whether it is *true* shows when it is joined with others to a whole file: with a false
    /// summary the hash is that of no file. The checks here ensure that every node takes part in
    /// that hash.
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
        let mut rest: Vec<Node> = nodes.iter().map(|node| Node { hash: node.hash.0, len: node.raw_len }).collect();
        let mut rests: Vec<Rest> = Vec::new();
        let mut take = |count: usize| {
            let after = rest.split_off(count.min(rest.len()));
            let taken = std::mem::replace(&mut rest, after);
            if taken.len() == count { Ok(taken) } else { Err(PartsError::NodeCount) }
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
                let leaves = |level: &Rest| (at_start && !level.left.is_empty()) || (at_end && !level.right.is_empty());
                if below.iter().any(leaves) {
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
