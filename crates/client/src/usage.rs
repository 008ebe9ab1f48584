//! What repositories of a server have, and may have.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::error::RequestError;
use super::retry::Retries;
use super::server::{Server, Watch};
use super::text::is_shown;

/// What a repository has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RepoUsage {
    /// Its name; `*` is what tokens of all repositories have registered.
    pub repo: String,
    /// What it has, and may have.
    #[serde(flatten)]
    pub usage: Usage,
    /// All repositories of its owner together, where they have limits.
    pub owner: Option<OwnerUsage>,
}

/// What all repositories of an owner have together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OwnerUsage {
    /// The owner's name.
    pub owner: String,
    /// What there is, and may be.
    #[serde(flatten)]
    pub usage: Usage,
}

/// What there is, and may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Usage {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub logical_bytes: u64,
    /// Bytes stored for them.
    pub physical_bytes: u64,
    /// How much there may be.
    pub limits: UsageLimits,
}

/// How much there may be; `None` for any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct UsageLimits {
    /// Files.
    pub files: Option<u64>,
    /// Their bytes.
    pub logical_bytes: Option<u64>,
    /// Bytes stored for them.
    pub physical_bytes: Option<u64>,
}

/// What some repositories have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UsagePage {
    /// The repositories, by their names.
    pub repos: Vec<RepoUsage>,
    /// Behind what the next page begins; `None` for the last one.
    pub next: Option<String>,
}

impl Server {
    /// What this repository has, or what the token stands for by itself: for one that administers
    /// all repositories those are all, a page at a time, from behind `after` on.
    ///
    /// # Errors
    ///
    /// The server does not say.
    pub async fn usage(
        &self,
        repo: Option<&str>,
        after: Option<&str>,
        watch: &Arc<dyn Watch>,
    ) -> Result<UsagePage, RequestError> {
        let query: Vec<_> =
            [("repo", repo), ("after", after)].into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let mut retries = Retries::new(self.retry, Arc::clone(watch));
        let page = loop {
            let request = self.get_request("v1/usage").query(&query);
            let sent = match self.send(request, &Activity::new()).await {
                Ok(response) => self.json::<UsagePage>(response).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(page) => break page,
                Err(error) => retries.after(error).await?,
            }
        };
        // A list that goes back would never end, and all of it goes to a terminal.
        let mut last = after;
        for RepoUsage { repo, owner, .. } in &page.repos {
            let names = [Some(repo), owner.as_ref().map(|owner| &owner.owner)];
            let is_garbled = names.into_iter().flatten().any(|name| !name.chars().all(is_shown));
            if is_garbled || last.is_some_and(|last| repo.as_str() <= last) {
                return Err(self.strange("its list is damaged or unordered"));
            }
            last = Some(repo);
        }
        if page.next.is_some() && (page.repos.is_empty() || page.next.as_deref() != last) {
            return Err(self.strange("its list continues elsewhere than it ends"));
        }
        Ok(page)
    }
}
