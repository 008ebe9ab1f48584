//! The ancestors of a commit, in order.

use std::collections::VecDeque;

use super::{HubError, OpenRepo};
use crate::git::ObjectId;
use crate::index::HubCommit;
use crate::service::{Server, Store};

/// Commits that are read at once. One by one, most of the time of a long walk went into waking
/// threads. A message has up to 64 KiB, so a page has up to 2 MiB.
const PAGE_COUNT: u32 = if cfg!(test) { 3 } else { 32 };

/// After so many bytes of messages a list of commits ends. The response has each message twice, and
/// six times as long if its characters are escaped.
const MAX_HISTORY_LEN: usize = 1 << 20;

/// The ancestors of a commit that were not taken yet, each before its parent.
pub(super) struct Ancestors<'a> {
    store: &'a Store,
    open: &'a OpenRepo,
    page: VecDeque<HubCommit>,
    /// The commit after those of the page.
    next: Option<ObjectId>,
}

impl<'a> Ancestors<'a> {
    pub(super) fn of(commit: &HubCommit, store: &'a Store, open: &'a OpenRepo) -> Self {
        Self { store, open, page: VecDeque::new(), next: commit.parent }
    }

    /// The next one; `None` after the commit without a parent.
    ///
    /// # Errors
    ///
    /// The index does not respond, or the commit is missing.
    pub(super) async fn next(&mut self) -> Result<Option<HubCommit>, HubError> {
        if let Some(id) = self.next.filter(|_| self.page.is_empty()) {
            self.page = self.store.index.list_hub_history(self.open.repo.id, id, PAGE_COUNT).await?.into();
            let last = self.page.back().ok_or_else(|| self.open.inconsistent(format!("commit {id}")))?;
            self.next = last.parent;
        }
        Ok(self.page.pop_front())
    }
}

impl Server {
    /// This commit and its ancestors, each before its parent, at most `limit` but at least one, and
    /// fewer if their messages are long; and the id of the commit after them.
    ///
    /// # Errors
    ///
    /// The index does not respond, or a commit is missing.
    pub async fn hub_history(
        &self,
        open: &OpenRepo,
        from: HubCommit,
        limit: usize,
    ) -> Result<(Vec<HubCommit>, Option<ObjectId>), HubError> {
        let mut ancestors = Ancestors::of(&from, &self.store, open);
        let (mut commits, mut message_len, mut next) = (Vec::new(), 0, Some(from));
        while let Some(commit) = next.take() {
            let parent = commit.parent;
            message_len += commit.message.len();
            commits.push(commit);
            if commits.len() >= limit || message_len >= MAX_HISTORY_LEN {
                return Ok((commits, parent));
            }
            next = ancestors.next().await?;
        }
        Ok((commits, None))
    }
}
