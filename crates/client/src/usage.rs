//! Usage and quotas of the repositories of a server.

use std::sync::Arc;

use super::activity::Activity;
use super::error::RequestError;
use super::retry::Retries;
use super::server::Server;
use super::text::is_shown;
use super::watch::Watch;
use super::wire::{RepoUsage, UsagePage};

impl Server {
    /// Usage and quotas of the repository `repo`, or without it, of the repository of the token. A
    /// token that administers all repositories gets a page of all repositories, which begins after
    /// the name `after`.
    ///
    /// # Errors
    ///
    /// The request fails, or the page is invalid.
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
        // Names must ascend, because a list whose pages go back would never end. They must be
        // printable, because callers print them to a terminal.
        let mut last = after;
        for RepoUsage { repo, owner, .. } in &page.repos {
            let names = [Some(repo), owner.as_ref().map(|owner| &owner.owner)];
            let is_garbled = names.into_iter().flatten().any(|name| !name.chars().all(is_shown));
            if is_garbled || last.is_some_and(|last| repo.as_str() <= last) {
                return Err(self.invalid_response("its list is damaged or unordered"));
            }
            last = Some(repo);
        }
        if page.next.is_some() && (page.repos.is_empty() || page.next.as_deref() != last) {
            return Err(self.invalid_response("its list continues elsewhere than it ends"));
        }
        Ok(page)
    }
}
