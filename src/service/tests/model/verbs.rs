//! Verbs: the actions of clients and commands on a store, and their outcomes.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};

use super::palette::{PALETTE, Xorb};
use super::record::Url;
use super::scene::{LOCKED, LOCKED_IN_CHECK, LOCKED_IN_REMOVAL};
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::shard::parse_dedup_response;
use crate::format::{ByteRange, Crc64, FileHash, XorbHash};
use crate::runtime::clock::Clock;
use crate::runtime::incarnation::Incarnation;
use crate::service::access::{Claims, Grant, GrantRequest, KeyRing, check_grant};
use crate::service::fsck::Presence;
use crate::service::gc::compact::{Compacted, CompactionPlan, MinLive};
use crate::service::gc::{Collected, CollectionPlan, GcAbort, Pace, Policy};
use crate::service::reconstruct::XorbPlan;
use crate::service::scrub::Checked;
use crate::service::tests::claims::writer;
use crate::service::{
    BodyError, Detail, Form, GrantedUpload, ReconstructError, RegisterError, RemoveError, Server, Upload, UploadError,
    verify,
};

/// Repositories of two owners. `ADMIN` stands for the operator of all repositories.
pub(super) const REPOS: [&str; 3] = ["a/x", "a/y", "b/x"];
pub(super) const ADMIN: usize = REPOS.len();

/// An action on the store. Xorbs, files, recipes and chunks are indexes into the palette.
#[derive(Clone, Debug)]
pub(super) enum Verb {
    Upload { who: usize, xorb: usize, form: usize },
    Grant { who: usize, xorb: usize, form: usize },
    Renew { who: usize, xorb: usize },
    Register { who: usize, file: usize, recipe: usize, listed: Vec<usize> },
    Read { who: usize, file: usize, range: Option<ByteRange> },
    Fetch(Url),
    Ask { who: usize, chunk: usize },
    Remove { who: usize, file: usize },
    Check { xorb: usize },
    Plan,
    Execute(CollectionPlan),
    Collect,
    PlanCompaction(MinLive),
    Compact(CompactionPlan),
    Recover,
}

/// A byte range that a URL can be made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) xorb: XorbHash,
    pub(super) bytes: ByteRange,
    /// The checksum of the whole blob.
    pub(super) checksum: u64,
    /// The blob.
    pub(super) incarnation: Incarnation,
    /// Whether a URL of this second is refused, because the blob is described anew in this second.
    pub(super) has_moved: bool,
}

/// The outcome of a verb.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The xorb is stored; true if the blob of this upload is stored now.
    Stored(bool),
    /// The xorb is being deleted.
    Busy,
    /// The verb was refused, because a xorb that it names is marked as damaged.
    Damaged,
    Renewed(bool),
    Registered,
    Missing(XorbHash),
    /// The bytes, if they were found, and the ranges of blobs from which they were read.
    Bytes(Option<Vec<u8>>, Vec<Place>),
    /// A dedup response: these xorbs were promised until this time.
    Told(Vec<XorbHash>, u64),
    /// A dedup query found nothing.
    Untold,
    Removed,
    NotThere,
    Planned(CollectionPlan),
    Collected(Collected),
    CompactionPlanned(CompactionPlan),
    Compacted(Compacted),
    /// The clock was set back.
    Behind,
    Recovered,
    /// A check found that the blob is the xorb, or that it is not.
    Sound(bool),
    /// Nothing was checked, because the xorb was changed or deleted meanwhile.
    Passed,
    Failed(String),
}

impl Verb {
    /// The number of the lock that it takes. Locks of files are numbered after those of xorbs.
    pub(super) fn lock(&self) -> Option<usize> {
        match self {
            Self::Upload { xorb, .. } | Self::Grant { xorb, .. } | Self::Check { xorb } => Some(*xorb),
            Self::Register { file, .. } | Self::Remove { file, .. } => {
                Some(PALETTE.xorbs.len() + usize::from(PALETTE.files[*file].hash.as_bytes()[0]))
            }
            _ => None,
        }
    }

    /// Its operations under its lock.
    pub(super) const fn locked(&self) -> &'static [&'static str] {
        match self {
            Self::Check { .. } => LOCKED_IN_CHECK,
            Self::Remove { .. } => LOCKED_IN_REMOVAL,
            _ => LOCKED,
        }
    }

    /// Whether it may heal this xorb.
    pub(super) const fn may_heal(&self, healed: usize) -> bool {
        match self {
            Self::Upload { xorb, .. } | Self::Grant { xorb, .. } | Self::Check { xorb } => *xorb == healed,
            // A compaction checks sources that it cannot copy, and its new xorb may exist and be
            // damaged.
            Self::Compact(_) => true,
            _ => false,
        }
    }

    /// Whether only one process at a time may perform it, mostly because it deletes blobs.
    pub(super) const fn deletes(&self) -> bool {
        matches!(self, Self::Collect | Self::Execute(_) | Self::Compact(_) | Self::Recover)
    }

    /// The repository and the file of a removal.
    pub(super) const fn removes(&self) -> Option<(usize, usize)> {
        if let Self::Remove { who, file } = self { Some((*who, *file)) } else { None }
    }

    /// The repository and the file of a registration.
    pub(super) const fn claims(&self) -> Option<(usize, usize)> {
        if let Self::Register { who, file, .. } = self { Some((*who, *file)) } else { None }
    }
}

pub(super) fn claims(who: usize) -> Claims {
    REPOS.get(who).map_or(Claims::UNRESTRICTED, |repo| writer(repo))
}

fn failed(error: impl std::fmt::Debug) -> Outcome {
    Outcome::Failed(format!("{error:?}"))
}

/// Performs a verb. `presence` says whether another process may be running, as far as the actor
/// knows. If `lacks_name`, a URL reads the current blob of its xorb, even if it was made for
/// another one.
pub(super) async fn perform(
    server: Arc<Server>,
    policy: Policy,
    (presence, lacks_name): (Presence, bool),
    verb: Verb,
) -> Outcome {
    match verb {
        Verb::Upload { who, xorb, form } => stored(upload(&server, who, xorb, form).await),
        Verb::Grant { who, xorb, form } => stored(upload_granted(&server, who, xorb, form).await),
        Verb::Renew { who, xorb } => {
            server.renew(&claims(who), PALETTE.xorbs[xorb].hash).await.map_or_else(failed, Outcome::Renewed)
        }
        Verb::Register { who, file, recipe, listed } => {
            match server.register(&claims(who), PALETTE.shard(file, recipe, &listed).into()).await {
                Ok(_) => Outcome::Registered,
                Err(RegisterError::MissingXorb { xorb }) => Outcome::Missing(xorb),
                Err(RegisterError::DamagedXorb { .. }) => Outcome::Damaged,
                Err(error) => failed(error),
            }
        }
        Verb::Read { who, file, range } => read_file(&server, &claims(who), PALETTE.files[file].hash, range).await,
        Verb::Fetch(url) => fetch(&server, &url, lacks_name).await,
        Verb::Ask { who, chunk } => match server.dedup_response(&claims(who), PALETTE.chunks[chunk]).await {
            Ok(None) => Outcome::Untold,
            Ok(Some(response)) => parse_dedup_response(&response).map_or_else(failed, |shard| {
                let xorbs = shard.xorbs.iter().map(|xorb| xorb.hash).collect();
                Outcome::Told(xorbs, shard.key_expires_unix_secs * 1000)
            }),
            Err(error) => failed(error),
        },
        Verb::Remove { who, file } => match server.remove_file(&claims(who), PALETTE.files[file].hash, None).await {
            Ok(_) => Outcome::Removed,
            Err(RemoveError::NotFound) => Outcome::NotThere,
            Err(error) => failed(error),
        },
        Verb::Check { xorb } => {
            match server.store.check_xorb(PALETTE.xorbs[xorb].hash, &mut verify::Pace::new(None)).await {
                Ok(Checked::Sound) => Outcome::Sound(true),
                Ok(Checked::Damaged(_)) => Outcome::Sound(false),
                Ok(Checked::Skipped) => Outcome::Passed,
                Err(error) => failed(error),
            }
        }
        Verb::Plan => or_abort(server.store.plan_collection(policy).await, Outcome::Planned),
        Verb::Execute(plan) => Outcome::Collected(server.store.collect(plan, &Pace::default()).await),
        Verb::Collect => or_abort(server.store.collect_garbage(policy, &Pace::default()).await, Outcome::Collected),
        Verb::PlanCompaction(min_live) => {
            or_abort(server.store.plan_compaction(policy, min_live).await, Outcome::CompactionPlanned)
        }
        Verb::Compact(plan) => Outcome::Compacted(server.store.compact(plan, presence, &Pace::default()).await),
        Verb::Recover => server.store.recover().await.map_or_else(failed, |_| Outcome::Recovered),
    }
}

fn or_abort<T>(result: Result<T, GcAbort>, done: impl FnOnce(T) -> Outcome) -> Outcome {
    match result {
        Ok(result) => done(result),
        Err(GcAbort::Clock { .. }) => Outcome::Behind,
        Err(abort) => failed(abort),
    }
}

fn stored(result: Result<bool, UploadError>) -> Outcome {
    match result {
        Ok(was_inserted) => Outcome::Stored(was_inserted),
        Err(UploadError::BeingDeleted { .. }) => Outcome::Busy,
        Err(UploadError::FoundDamaged { .. }) => Outcome::Damaged,
        Err(error) => failed(error),
    }
}

fn body(xorb: &Xorb, form: usize) -> impl futures_util::Stream<Item = Result<Bytes, BodyError>> + Send + Unpin {
    let pieces = xorb.forms[form].bytes().chunks(700).map(|piece| Ok(Bytes::copy_from_slice(piece)));
    stream::iter(pieces.collect::<Vec<_>>())
}

async fn upload(server: &Arc<Server>, who: usize, xorb: usize, form: usize) -> Result<bool, UploadError> {
    let xorb = &PALETTE.xorbs[xorb];
    let declared_len = Some(xorb.forms[form].bytes().len() as u64);
    let body = body(xorb, form);
    let (claims, claimed, max_len) = (&claims(who), xorb.hash, MAX_XORB_SERIALIZED_LEN);
    let uploaded = server.upload(Upload { claims, claimed, max_len, declared_len, body }).await?;
    Ok(uploaded.was_inserted)
}

async fn upload_granted(server: &Arc<Server>, who: usize, xorb: usize, form: usize) -> Result<bool, UploadError> {
    let xorb = &PALETTE.xorbs[xorb];
    let grant = grant(who, xorb, form, server.store.clock.as_ref());
    let declared_len = Some(grant.body_len);
    let body = body(xorb, form);
    server.upload_granted(GrantedUpload { grant, xorb: xorb.hash, declared_len, body }).await?;
    server.commit_granted(&claims(who), xorb.hash, grant).await?;
    Ok(false)
}

fn grant(who: usize, xorb: &Xorb, form: usize, clock: &dyn Clock) -> Grant {
    let (ring, now) = (KeyRing::new([7; 32]), clock.now().as_secs());
    let bytes = xorb.forms[form].bytes();
    let request = GrantRequest {
        claims: &claims(who),
        xorb: xorb.hash,
        body_len: bytes.len() as u64,
        crc64nvme: Crc64::of(bytes),
        expires_unix_secs: now + 3600,
        nonce: rand::random(),
    };
    check_grant(&ring, request.issue(&ring).id.expose(), &xorb.hash, now).unwrap()
}

/// Reads a range as a client does: requests a plan, and downloads it.
pub(super) async fn read_file(
    server: &Arc<Server>,
    claims: &Claims,
    file: FileHash,
    range: Option<ByteRange>,
) -> Outcome {
    let issued = server.store.clock.now().as_secs();
    let plan = match server.reconstruct(claims, file, range, Detail::Terms).await {
        Ok(plan) => plan,
        Err(ReconstructError::NotFound) => return Outcome::Bytes(None, Vec::new()),
        Err(error) => return failed(error),
    };
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    for term in &plan.plan.file.terms {
        let xorb = match server.store.find(term.xorb).await {
            Ok(Some(xorb)) => xorb,
            other => return failed(other),
        };
        let Some(raw) = xorb.layout().raw_range(term.chunks) else { return failed(term) };
        let pieces = match server.store.read(&xorb, Form::Raw, raw).await {
            Ok(pieces) => pieces.try_collect::<Vec<Bytes>>().await,
            Err(error) => return failed(error),
        };
        match pieces {
            Ok(pieces) => bytes.extend(pieces.concat()),
            Err(error) => return failed(error),
        }
        // No place is recorded if the blob was replaced between the plan and the read.
        let (checksum, incarnation, has_moved) = (xorb.crc64(), xorb.incarnation(), xorb.has_moved_since(issued));
        let is_same = |plan: &&XorbPlan| plan.xorb == term.xorb && plan.incarnation == incarnation;
        let fetched = plan.plan.xorbs.iter().filter(is_same);
        let place = |bytes| Place { xorb: term.xorb, bytes, checksum, incarnation, has_moved };
        places.extend(fetched.flat_map(|plan| &plan.descriptors).map(|found| place(found.bytes)));
    }
    let start = usize::try_from(plan.plan.file.offset_into_first_range).unwrap();
    let len = range.map_or(plan.file_len, |range| range.end().min(plan.file_len) - range.start());
    let bytes = bytes.get(start..start + usize::try_from(len).unwrap()).map(<[u8]>::to_vec);
    bytes.map_or_else(|| failed("too few bytes"), |bytes| Outcome::Bytes(Some(bytes), places))
}

/// Downloads the bytes of a URL that a client got earlier.
async fn fetch(server: &Arc<Server>, url: &Url, lacks_name: bool) -> Outcome {
    let xorb = match server.store.find(PALETTE.xorbs[url.xorb].hash).await {
        Ok(Some(xorb)) => xorb,
        Ok(None) => return Outcome::Bytes(None, Vec::new()),
        Err(error) => return failed(error),
    };
    // Find the blob of the URL as the HTTP route does.
    let xorb = if xorb.incarnation() == url.incarnation || lacks_name {
        xorb
    } else {
        match server.store.find_other_blob(xorb.hash(), url.incarnation).await {
            Ok(Some(xorb)) => xorb,
            Ok(None) => return Outcome::Bytes(None, Vec::new()),
            Err(error) => return failed(error),
        }
    };
    if xorb.has_moved_since(url.issued / 1000) || url.bytes.end() > xorb.layout().serialized_len() {
        return Outcome::Bytes(None, Vec::new());
    }
    match server.store.read(&xorb, Form::Serialized, url.bytes).await {
        Ok(pieces) => {
            let pieces = pieces.try_collect::<Vec<Bytes>>().await;
            pieces.map_or_else(failed, |pieces| Outcome::Bytes(Some(pieces.concat()), Vec::new()))
        }
        Err(error) => failed(error),
    }
}

/// The bytes of a xorb in the form that has this checksum.
pub(super) fn form_of(xorb: usize, checksum: u64) -> Option<&'static [u8]> {
    let forms = PALETTE.xorbs[xorb].forms.iter().map(|form| form.bytes());
    forms.into_iter().find(|bytes| Crc64::of(bytes) == checksum)
}
