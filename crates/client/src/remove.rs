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
    /// Removes the claim of the repository `repo` to a file. Without `repo`, removes all claims to
    /// the file that the token may remove.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not have the file. If the response to a successful removal was
    /// lost, the retry finds no file, so this is also the error then.
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
                // Callers print the response to a terminal, so it must be printable.
                Ok(removed) if removed.file.parse() != Ok(file) => {
                    return Err(self.invalid_response("it removed another file than requested"));
                }
                Ok(removed) if !removed.claims_removed.iter().flat_map(|repo| repo.chars()).all(is_shown) => {
                    return Err(self.invalid_response("a repository has an invalid name"));
                }
                Ok(removed) => return Ok(removed),
                Err(error) => retries.after(error).await?,
            }
        }
    }
}
