//! Fetches parts of xorbs before they are needed, in the order in which they are needed, within a
//! bound on memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use reqwest::StatusCode;
use reqwest::header::RANGE;
use tokio::sync::Mutex;

use super::PullError;
use super::plan::{Part, Plan};
use super::target::PlanTarget;
use crate::activity::Activity;
use crate::error::RequestError;
use crate::retry::Retries;
use crate::server::Server;
use crate::watch::Watch;

/// Bytes of parts that are fetched or held before they are needed, at most. A part that is needed
/// now is fetched regardless of its length.
const AHEAD_LEN: u64 = 256 << 20;

/// How often a new URL is requested for one part because the URL before was refused.
const MAX_RENEWAL_COUNT: u32 = 5;

/// Fetches the parts of a plan.
pub(super) struct Fetcher {
    source: Arc<Source>,
    job_count: usize,
    /// The parts in the order in which they are first needed.
    order: Vec<usize>,
    /// The position in `order` of the part to fetch ahead next.
    next: usize,
    /// For each part, the indexes of the terms that still need it, in order.
    uses: Vec<VecDeque<usize>>,
    fetching: FuturesUnordered<BoxFuture<'static, Result<(usize, Bytes), PullError>>>,
    /// The parts of `fetching`.
    pending: HashSet<usize>,
    /// The parts that are fetched, and still needed.
    ready: HashMap<usize, Bytes>,
    /// Bytes of the parts in `pending` and `ready`.
    held_len: u64,
}

/// Where the parts come from.
struct Source {
    server: Server,
    target: PlanTarget,
    watch: Arc<dyn Watch>,
    parts: Vec<Part>,
    renewed: Mutex<Renewed>,
}

/// The latest plan that was requested again because URLs had expired. The jobs share it, so that
/// one request gives all of them new URLs.
struct Renewed {
    /// The number of this plan; 0 before the first renewal.
    count: u32,
    plan: Option<Plan>,
}

impl Fetcher {
    pub(super) fn new(
        server: &Server,
        target: PlanTarget,
        plan: &Plan,
        job_count: usize,
        watch: &Arc<dyn Watch>,
    ) -> Self {
        let mut uses = vec![VecDeque::new(); plan.parts.len()];
        let mut order = Vec::new();
        for (index, term) in plan.terms.iter().enumerate() {
            if let Some(uses) = uses.get_mut(term.part) {
                if uses.is_empty() {
                    order.push(term.part);
                }
                uses.push_back(index);
            }
        }
        let source = Source {
            server: server.clone(),
            target,
            watch: Arc::clone(watch),
            parts: plan.parts.clone(),
            renewed: Mutex::new(Renewed { count: 0, plan: None }),
        };
        Self {
            source: Arc::new(source),
            job_count: job_count.max(1),
            order,
            next: 0,
            uses,
            fetching: FuturesUnordered::new(),
            pending: HashSet::new(),
            ready: HashMap::new(),
            held_len: 0,
        }
    }

    /// Returns a part that is needed now; waits until it is fetched.
    pub(super) async fn part(&mut self, part: usize) -> Result<Bytes, PullError> {
        loop {
            self.fetch_ahead();
            if let Some(bytes) = self.ready.get(&part) {
                return Ok(bytes.clone());
            }
            if !self.pending.contains(&part) {
                self.evict_for(part);
                self.fetch(part);
            }
            match self.fetching.next().await {
                Some(fetched) => self.add_fetched(fetched?),
                None => unreachable!("pending parts are being fetched"),
            }
        }
    }

    /// Whether a part is fetched.
    pub(super) fn has(&self, part: usize) -> bool {
        self.ready.contains_key(&part)
    }

    /// Called when a term no longer needs its part.
    pub(super) fn release(&mut self, part: usize) {
        let uses = self.uses.get_mut(part).map_or(0, |uses| {
            uses.pop_front();
            uses.len()
        });
        if uses == 0 {
            self.drop_part(part);
        }
    }

    /// Waits for `work`, and fetches parts meanwhile.
    pub(super) async fn alongside<T>(&mut self, mut work: impl Future<Output = T> + Unpin) -> Result<T, PullError> {
        loop {
            self.fetch_ahead();
            tokio::select! {
                output = &mut work => return Ok(output),
                Some(fetched) = self.fetching.next() => self.add_fetched(fetched?),
            }
        }
    }

    /// Starts to fetch the next parts, up to the number of jobs and the bound on memory.
    fn fetch_ahead(&mut self) {
        while self.fetching.len() < self.job_count
            && let Some(part) = self.order.get(self.next).copied()
        {
            let is_done = self.ready.contains_key(&part) || self.pending.contains(&part) || self.is_done(part);
            if !is_done {
                if self.held_len + self.len(part) > AHEAD_LEN {
                    return;
                }
                self.fetch(part);
            }
            self.next += 1;
        }
    }

    /// Drops the fetched parts that are needed last, until this part fits. A dropped part is
    /// fetched again when it is needed. Without this, a part that is needed again late in the file
    /// would hold memory until then.
    fn evict_for(&mut self, part: usize) {
        while self.held_len + self.len(part) > AHEAD_LEN {
            let next_use = |part: &usize| self.uses.get(*part).and_then(VecDeque::front).copied();
            let Some(last) = self.ready.keys().copied().max_by_key(next_use) else { return };
            self.drop_part(last);
        }
    }

    /// Starts to fetch a part.
    fn fetch(&mut self, part: usize) {
        self.held_len += self.len(part);
        self.pending.insert(part);
        let source = Arc::clone(&self.source);
        self.fetching.push(Box::pin(async move { Ok((part, source.fetch(part).await?)) }));
    }

    /// Takes a part that was fetched. It is dropped at once if no term needs it any more.
    fn add_fetched(&mut self, (part, bytes): (usize, Bytes)) {
        self.pending.remove(&part);
        self.ready.insert(part, bytes);
        if self.is_done(part) {
            self.drop_part(part);
        }
    }

    fn drop_part(&mut self, part: usize) {
        if self.ready.remove(&part).is_some() {
            self.held_len -= self.len(part);
        }
    }

    /// Whether no further term needs the part.
    fn is_done(&self, part: usize) -> bool {
        self.uses.get(part).is_none_or(VecDeque::is_empty)
    }

    fn len(&self, part: usize) -> u64 {
        self.source.parts.get(part).map_or(0, |part| part.bytes.byte_len())
    }
}

impl Source {
    /// Fetches one part, with retries. A 403 means that the URL has expired, so the plan is
    /// requested again for a new URL (spec 5.10).
    async fn fetch(&self, index: usize) -> Result<Bytes, PullError> {
        let part = self.parts.get(index).expect("terms name parts of their plan");
        let mut retries = Retries::new(self.server.retry, Arc::clone(&self.watch));
        let (mut url, mut seen, mut renewal_count) = (Arc::clone(&part.url), 0, 0);
        loop {
            match self.fetch_once(part, &url).await {
                Ok(bytes) => return Ok(bytes),
                Err(RequestError::Refused { refusal, .. })
                    if refusal.status == 403 && renewal_count < MAX_RENEWAL_COUNT =>
                {
                    renewal_count += 1;
                    (url, seen) = self.renew(part, seen).await?;
                }
                Err(error) => {
                    retries.after(error).await.map_err(|error| self.target.error(error))?;
                }
            }
        }
    }

    async fn fetch_once(&self, part: &Part, url: &str) -> Result<Bytes, RequestError> {
        let range = format!("bytes={}-{}", part.bytes.start(), part.bytes.last());
        let (server, request) = self.server.data_request(url)?;
        let mut response = server.send(request.header(RANGE, range), &Activity::new()).await?;
        let len = usize::try_from(part.bytes.byte_len()).expect("a part is shorter than a xorb");
        if !matches!(response.status(), StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Err(
                server.invalid_response("it responded to a data request with a success status other than 200 and 206")
            );
        }
        // This may allocate `len`, because `parse_parts` has checked that it is within a xorb.
        let mut bytes = BytesMut::with_capacity(len);
        while let Some(piece) = server.next_piece(&mut response).await? {
            if bytes.len() + piece.len() > len {
                return Err(server.invalid_response("it sent more of a xorb than requested"));
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() < len {
            return Err(server.invalid_response("it sent less of a xorb than requested"));
        }
        Ok(bytes.freeze())
    }

    /// The URL of the part in a plan later than number `seen`, and the number of this plan.
    /// Requests a new plan unless another job has done so since.
    async fn renew(&self, part: &Part, seen: u32) -> Result<(Arc<str>, u32), PullError> {
        let mut renewed = self.renewed.lock().await;
        if renewed.count == seen {
            renewed.plan = self.target.plan(&self.server, &self.watch).await?;
            renewed.count += 1;
        }
        let url = renewed.plan.as_ref().and_then(|plan| plan.url_of(part)).cloned();
        let changed = || self.target.error(self.server.invalid_response("its second plan differs from the first"));
        Ok((url.ok_or_else(changed)?, renewed.count))
    }
}
