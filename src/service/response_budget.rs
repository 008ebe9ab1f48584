//! Memory budgets for long responses: for a plan while it is computed, and for a text until the
//! client has read it.
//!
//! A whole file of 800 000 terms takes about a gigabyte while it is planned, and a fifth of that as
//! text. A client that reads a kilobyte per second holds that memory for hours. So a budget is
//! taken before a plan is begun, and before a text is sent. The budget bounds the memory of all
//! plans and texts together. A request beyond the budget is refused at once, because a request that
//! waits for slow clients would hold a permit that short responses need. A tenant below its share
//! is not refused while slow clients of other tenants can be cut. Moderate responses have a
//! separate budget, which large ones cannot use up. Small ones, such as the plan of a window of a
//! common file, need none.
//!
//! Not bounded here:
//!
//! * A plan in which each term has another xorb takes 1.5 times its budget.
//! * The index returns 100 bytes for each term of a file before the plan's budget is taken.
//! * Other texts (dedup responses, windows of an edit) are written within their permit, before the
//!   budget is taken.

use std::sync::Arc;

use super::Server;
use super::admission::{Admission, Admitted, Limits, Refusal, Transfer};
use super::error::StoreError;
use crate::runtime::fair::{Busy, Tenant};

/// Bytes of large responses. They are enough for about the largest possible plan, or for eight
/// plans of 100 000 terms, one for each lookup permit, and their texts. A single tenant gets at
/// most seven eighths.
const LARGE_BUDGET_LEN: u64 = 1 << 30;

/// Bytes of moderate responses: a hundred of them, for clients that request windows of heavily
/// fragmented files.
const MODERATE_BUDGET_LEN: u64 = 128 << 20;

/// Bytes of dedup responses, each of which has 0.8 MB at most. The budget is separate, because a
/// client whose query is refused needlessly uploads chunks that are stored already.
const DEDUP_BUDGET_LEN: u64 = 128 << 20;

/// Maximum length of a moderate response: a plan of 4096 terms.
const MAX_MODERATE_LEN: usize = 4 << 20;

/// Maximum length of a response that needs no budget: as much as a connection may buffer anyway.
const MAX_SMALL_LEN: usize = 256 << 10;

/// Budget for each term of a plan, with its text. A term takes 0.7 KiB where all terms are in one
/// xorb, and up to 1.5 KiB where each has another xorb.
const PLANNED_TERM_LEN: usize = 1 << 10;

/// Terms of a plan that needs no budget: the lookup permits bound the number of such plans.
const MAX_SMALL_TERM_COUNT: usize = 1024;

/// Budget of a response, released when this is dropped. The default is none, for small responses.
#[derive(Debug, Default)]
#[must_use = "the budget is released when this is dropped"]
pub struct ResponseBudget {
    admitted: Option<Admitted>,
}

/// The budgets of long responses.
#[derive(Clone, Debug)]
pub(super) struct ResponseBudgets {
    large: Arc<Admission>,
    moderate: Arc<Admission>,
    dedup: Arc<Admission>,
}

impl Default for ResponseBudgets {
    fn default() -> Self {
        let budget = |len| Admission::new(Limits { count: usize::MAX, len });
        Self { large: budget(LARGE_BUDGET_LEN), moderate: budget(MODERATE_BUDGET_LEN), dedup: budget(DEDUP_BUDGET_LEN) }
    }
}

impl ResponseBudget {
    /// The progress of the response, for the code that sends it; `None` where the response is
    /// small.
    #[must_use]
    pub fn transfer(&self) -> Option<Arc<Transfer>> {
        self.admitted.as_ref().map(|admitted| Arc::clone(admitted.transfer()))
    }
}

impl Server {
    /// Budget for a response of so many bytes to the [current](Tenant::current) tenant, to be held
    /// until it is sent. When the budget is exhausted, the slowest responses of tenants above their
    /// share are cut.
    ///
    /// # Errors
    ///
    /// The budget is exhausted.
    pub async fn response_budget(&self, len: usize) -> Result<ResponseBudget, StoreError> {
        if len <= MAX_SMALL_LEN {
            return Ok(ResponseBudget::default());
        }
        enter(if len <= MAX_MODERATE_LEN { &self.permits.budgets.moderate } else { &self.permits.budgets.large }, len)
    }

    /// Budget for a dedup response of `len` bytes.
    ///
    /// # Errors
    ///
    /// The budget is exhausted.
    pub async fn dedup_budget(&self, len: usize) -> Result<ResponseBudget, StoreError> {
        if len <= MAX_SMALL_LEN { Ok(ResponseBudget::default()) } else { enter(&self.permits.budgets.dedup, len) }
    }

    /// Exchanges the budget of a plan for that of its text.
    ///
    /// # Errors
    ///
    /// The text needs more than the budget of its plan, and the budget is exhausted.
    pub async fn text_budget(&self, made_in: ResponseBudget, len: usize) -> Result<ResponseBudget, StoreError> {
        match made_in.admitted {
            Some(admitted) if len > MAX_SMALL_LEN && len as u64 <= admitted.declared_len() => {
                admitted.shrink(len as u64);
                Ok(ResponseBudget { admitted: Some(admitted) })
            }
            _ => self.response_budget(len).await,
        }
    }

    /// Total budget that long responses hold, in bytes.
    #[must_use]
    pub fn budgeted_len(&self) -> u64 {
        let ResponseBudgets { large, moderate, dedup } = &self.permits.budgets;
        [large, moderate, dedup].map(|budget| budget.len()).iter().sum()
    }

    /// Budget for a plan of `term_count` terms, to be held until its text exists.
    ///
    /// # Errors
    ///
    /// The budget is exhausted.
    pub(super) async fn plan_budget(&self, term_count: usize) -> Result<ResponseBudget, StoreError> {
        let is_small = term_count <= MAX_SMALL_TERM_COUNT;
        self.response_budget(if is_small { 0 } else { term_count.saturating_mul(PLANNED_TERM_LEN) }).await
    }
}

/// Takes budget for the current tenant.
fn enter(budget: &Arc<Admission>, len: usize) -> Result<ResponseBudget, StoreError> {
    let admitted = budget.admit(Tenant::current(), len as u64);
    let admitted = admitted.map_err(|refusal| Busy { is_above_share: refusal == Refusal::AboveShare })?;
    Ok(ResponseBudget { admitted: Some(admitted) })
}
