//! The target of a plan: the bytes that it was requested for. With it the plan can be requested
//! again when its URLs have expired.

use std::sync::Arc;

use xet_format::{ByteRange, FileHash};

use super::PullError;
use super::batch_plan::batch_plan;
use super::plan::{Plan, plan};
use crate::error::RequestError;
use crate::server::Server;
use crate::watch::Watch;

/// The bytes that a plan is requested for.
#[derive(Clone, Debug)]
pub(super) enum PlanTarget {
    /// A range of a file.
    Range(FileHash, ByteRange),
    /// Whole files, with their lengths.
    Files(Arc<[(FileHash, u64)]>),
}

impl PlanTarget {
    /// Requests the plan, with retries. `None`: the range is past the end of the file.
    pub(super) async fn plan(&self, server: &Server, watch: &Arc<dyn Watch>) -> Result<Option<Plan>, PullError> {
        match self {
            Self::Range(file, range) => plan(server, *file, *range, watch).await,
            Self::Files(files) => Ok(Some(batch_plan(server, files, watch).await?.0)),
        }
    }

    /// The error of a failed request for these bytes.
    pub(super) fn error(&self, source: RequestError) -> PullError {
        match self {
            Self::Range(file, _) => PullError::request(*file, source),
            Self::Files(files) => PullError::Batch { count: files.len(), source: Box::new(source) },
        }
    }
}
