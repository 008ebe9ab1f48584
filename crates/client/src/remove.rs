//! Removing files from a server.

use std::sync::Arc;

use xet_format::FileHash;

use super::activity::Activity;
use super::error::RequestError;
use super::retry::Retries;
use super::server::Server;
use super::text::is_shown;
use super::watch::Watch;
use super::wire::RemovedFile;

impl Server {
    /// Removes a claim to a file: that of this repository, or without one, the claims that the
    /// token may remove.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not have the file. The latter is also the error after a removal
    /// whose response was lost.
    pub async fn remove_file(
        &self,
        file: FileHash,
        repo: Option<&str>,
        watch: &Arc<dyn Watch>,
    ) -> Result<RemovedFile, RequestError> {
        let mut retries = Retries::new(self.retry, Arc::clone(watch));
        loop {
            let request = self.delete_request(&format!("v1/files/{file}"));
            let request = match repo {
                Some(repo) => request.query(&[("repo", repo)]),
                None => request,
            };
            let removed = match self.send(request, &Activity::new()).await {
                Ok(response) => self.json::<RemovedFile>(response).await,
                Err(error) => Err(error),
            };
            match removed {
                // All of it goes to a terminal.
                Ok(removed) if removed.file.parse() != Ok(file) => {
                    return Err(self.strange("it removed another file than requested"));
                }
                Ok(removed) if !removed.claims_removed.iter().flat_map(|repo| repo.chars()).all(is_shown) => {
                    return Err(self.strange("a repository has an invalid name"));
                }
                Ok(removed) => return Ok(removed),
                Err(error) => retries.after(error).await?,
            }
        }
    }
}
