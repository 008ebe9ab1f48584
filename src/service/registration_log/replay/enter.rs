//! Enters proven files into the index.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{CONFLICT_WAIT, Replay};
use crate::format::XorbHash;
use crate::index::{Claim, ClaimState, NewFile, Registered, Registration};
use crate::runtime::fair::Tenant;
use crate::service::error::RegisterError;
use crate::service::registration_log::rebuilt::RebuildError;

impl Replay<'_> {
    /// Registers proven files, after the waiting registrations of the same files.
    pub(super) fn enter(&mut self, registration: Registration) -> BoxFuture<'_, Result<(), RebuildError>> {
        async move {
            for file in &registration.files {
                for waiting in self.waiting.remove(&file.hash).into_iter().flatten() {
                    self.enter(waiting.with_terms_of(file)).await?;
                }
            }
            let mut registration = Arc::new(registration);
            loop {
                // Write it like a registration of a client. If this process is killed, hidden rows
                // are left, which the next start discards.
                let registered =
                    self.store.write_registration(&self.write_steps, Tenant::SERVER, &registration, None).await?;
                match registered {
                    Registered::New | Registered::Added | Registered::Known => return Ok(()),
                    Registered::OverQuota(_) => unreachable!("this registration has no limits"),
                    Registered::MissingXorb(xorb) | Registered::DamagedXorb(xorb) => {
                        self.take_out(Arc::make_mut(&mut registration), xorb);
                    }
                    Registered::OtherSha256 { file, unverified } => {
                        let deadline = Instant::now() + CONFLICT_WAIT;
                        let settled = match unverified {
                            Some(sha256) => self.store.settle_before(Claim { file, sha256 }, deadline).await,
                            None => None,
                        };
                        if !matches!(settled, Some(ClaimState::False { .. })) {
                            tracing::warn!(%file, repo = registration.repo, "left out a sha256: the file has \
                                another one");
                            let files = &mut Arc::make_mut(&mut registration).files;
                            let same = files.iter_mut().filter(|other| other.hash == file);
                            same.for_each(|other| other.sha256 = None);
                        }
                    }
                }
            }
        }
        .boxed()
    }

    /// Removes the files that need this xorb from a registration, and reports them as left out.
    fn take_out(&mut self, registration: &mut Registration, xorb: XorbHash) {
        registration.xorbs.retain(|other| *other != xorb);
        registration.dedup.retain(|(_, other)| *other != xorb);
        let needs = |file: &NewFile| file.terms.iter().any(|term| term.xorb == xorb);
        let (out, files): (Vec<NewFile>, _) = std::mem::take(&mut registration.files).into_iter().partition(needs);
        registration.files = files;
        for file in out {
            self.leave_out(file.hash, registration.repo.clone(), RegisterError::MissingXorb { xorb });
        }
    }
}
