//! The ancestors of a commit, in order.

use std::collections::HashMap;

use super::{HubError, OpenRepo};
use crate::git::ObjectId;
use crate::index::HubCommit;
use crate::service::{Server, Store};

/// Commits of the first page that is read, as most walks end soon; each further page has twice as
/// many, up to the maximum. One by one, most of the time of a long walk went into waking threads. A
/// message has up to 64 KiB, so a page has up to 2 MiB.
const FIRST_PAGE_COUNT: u32 = if cfg!(test) { 1 } else { 2 };
const MAX_PAGE_COUNT: u32 = if cfg!(test) { 4 } else { 32 };

/// After so many bytes of messages a list of commits ends. The response has each message twice, and
/// six times as long if its characters are escaped.
const MAX_HISTORY_LEN: usize = 1 << 20;

/// The ancestors of a commit that were not taken yet, each before its parent.
pub(super) struct Ancestors<'a> {
    store: &'a Store,
    open: &'a OpenRepo,
    next: Option<ObjectId>,
    /// Those that were read.
    page: HashMap<ObjectId, HubCommit>,
    /// Commits of the next page.
    page_count: u32,
}

impl<'a> Ancestors<'a> {
    pub(super) fn of(commit: &HubCommit, store: &'a Store, open: &'a OpenRepo) -> Self {
        Self { store, open, next: commit.parent, page: HashMap::new(), page_count: FIRST_PAGE_COUNT }
    }

    /// The next one; `None` after the commit without a parent.
    ///
    /// # Errors
    ///
    /// The index does not respond, or the commit is missing.
    pub(super) async fn next(&mut self) -> Result<Option<HubCommit>, HubError> {
        let Some(id) = self.next else { return Ok(None) };
        if !self.page.contains_key(&id) {
            let page = self.store.index.list_hub_history(self.open.repo.id, id, self.page_count).await?;
            self.page = page.into_iter().map(|commit| (commit.id, commit)).collect();
            self.page_count = (2 * self.page_count).min(MAX_PAGE_COUNT);
        }
        let commit = self.page.remove(&id).ok_or_else(|| self.open.inconsistent(format!("commit {id}")))?;
        self.next = commit.parent;
        Ok(Some(commit))
    }
}

impl Server {
    /// This commit and its ancestors, each before its parent, at most `limit` but at least one, and
    /// fewer if their messages are long; and the id of the commit after them.
    ///
    /// # Errors
    ///
    /// The index does not respond, or one of these commits is missing.
    pub async fn hub_history(
        &self,
        open: &OpenRepo,
        from: HubCommit,
        limit: usize,
    ) -> Result<(Vec<HubCommit>, Option<ObjectId>), HubError> {
        let mut ancestors = Ancestors::of(&from, &self.store, open);
        let (mut commits, mut message_len, mut next) = (Vec::new(), 0, Some(from));
        while let Some(commit) = next.take() {
            message_len += commit.message.len();
            commits.push(commit);
            next = ancestors.next().await?;
            if commits.len() >= limit || message_len >= MAX_HISTORY_LEN {
                break;
            }
        }
        Ok((commits, next.map(|commit| commit.id)))
    }
}
