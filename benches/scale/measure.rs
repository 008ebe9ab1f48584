//! The verbs on a filled store: those that read first, then those that write, then the collection of garbage.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;
use zorb::blob::memory::MemoryBlobStore;
use zorb::blob::records::fs::FsRecordStore;
use zorb::format::shard::{FileInfo, Sha256, Shard, write_upload};
use zorb::format::{ByteRange, ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash, merkle};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::{ClaimIndex, Collect, HealthIndex, Reader, Staging, Ticket, UsageIndex, XorbIndex};
use zorb::runtime::blocking::Pool;
use zorb::runtime::clock::{Clock, ManualClock, Timestamp};
use zorb::runtime::metrics::Metrics;
use zorb::service::access::{Claims, RepoScope, Scope};
use zorb::service::gc::{MIN_CONDEMNED, MIN_GRACE, Policy};
use zorb::service::{Detail, Server, Settings};

use super::check::new_xorb;
use super::figures::{Figure, Times};
use super::fill::NOW;
use super::shape::{self, CHUNK_COUNT, CHUNK_LEN, Piece, Shape};

/// What stock clients ask for at once.
const WINDOW_LEN: u64 = 256_000_000;

/// Terms of a large shard, each of another xorb.
const TERM_COUNT: usize = 1000;

/// Chunks of each of these terms: a MiB, so that the file has a GiB.
const TERM_CHUNK_COUNT: u32 = 16;

/// Xorbs of the large file that is made of few: each is named by so many terms that it is used almost whole.
const TERM_XORB_COUNT: usize = 16;

/// Runs of so many chunks that a xorb has.
const RUN_COUNT: usize = (CHUNK_COUNT / TERM_CHUNK_COUNT) as usize;

/// Xorbs of one step of a collection, as the service has them.
const STEP_COUNT: usize = 64;

/// A store, and what asks it.
pub(crate) struct Bench {
    shape: Shape,
    index: SqliteIndex,
    server: Arc<Server>,
    clock: Arc<ManualClock>,
    rng: StdRng,
    whole: Vec<u64>,
}

/// What is measured, in this order.
pub(crate) const KINDS: [&str; 8] =
    ["lookups", "plans", "dedup", "names", "lists", "registrations", "others", "collection"];

/// Folds the log, as the server does.
async fn fold(index: SqliteIndex) -> Infallible {
    loop {
        sleep(SqliteIndex::CHECKPOINT_INTERVAL).await;
        index.checkpoint_wal().await.unwrap();
    }
}

impl Bench {
    /// Opens the index in this directory. Nothing is kept in memory of xorbs: every layout is read.
    pub(crate) async fn open(directory: &Path, shape: Shape, seed: u64) -> Self {
        let index = SqliteIndex::open(&directory.join("index.sqlite")).await.unwrap();
        let clock = Arc::new(ManualClock::new(NOW));
        let settings = Settings::over(
            Arc::new(MemoryBlobStore::new()),
            Arc::new(FsRecordStore::open(directory, Pool::new(2)).unwrap()),
            Arc::new(index.clone()),
            Arc::clone(&clock) as _,
            Arc::new(Metrics::new()),
        );
        let server = Server::new(&Settings { verify_worker_count: 2, ..settings });
        server.store.agree(true).await.unwrap();
        let whole = shape.whole_xorbs();
        Self { shape, index, server, clock, rng: StdRng::seed_from_u64(seed), whole }
    }

    pub(crate) const fn index(&self) -> &SqliteIndex {
        &self.index
    }

    /// All verbs, or those of one kind.
    pub(crate) async fn measure(&mut self, only: Option<&str>) -> Vec<Figure> {
        let folding = fold(self.index.clone());
        let figures = async {
            let mut figures = Vec::new();
            for kind in KINDS.into_iter().filter(|kind| only.is_none_or(|only| only == *kind)) {
                figures.extend(self.measure_kind(kind).await);
            }
            figures
        };
        tokio::select! {
            figures = Box::pin(figures) => figures,
            never = folding => match never {},
        }
    }

    async fn measure_kind(&mut self, kind: &str) -> Vec<Figure> {
        match kind {
            "lookups" => self.lookups().await,
            "plans" => self.plans().await,
            "dedup" => self.dedup().await,
            "names" => self.names().await,
            "lists" => self.lists().await,
            "registrations" => self.registrations().await,
            "others" => self.others().await,
            "collection" => self.collection().await,
            kind => panic!("{kind} is measured by nobody"),
        }
    }

    fn any_xorb(&mut self) -> u64 {
        let nth = self.rng.random_range(0..self.shape.needed_count());
        self.shape.needed(nth)
    }

    /// A file of a common repository, that is not the large one.
    fn any_file(&mut self) -> u64 {
        self.rng.random_range(1..self.shape.file_count() - 3)
    }

    /// A hash behind which there are so many more of all, give or take some.
    fn hash_before(&mut self, page: u64, count: u64) -> [u8; 32] {
        let first: u64 = self.rng.random_range(0..=u64::MAX / count * count.saturating_sub(page));
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&first.to_be_bytes());
        hash
    }

    async fn lookups(&mut self) -> Vec<Figure> {
        let (mut hit, mut miss) = (Times::new("range of a xorb, not in memory"), Times::new("xorb that is not there"));
        let range = ChunkRange::new(100, 200).unwrap();
        for sample in 0..2500_u64 {
            let (hash, unknown) = (shape::xorb_hash(self.any_xorb()), XorbHash::from_bytes(shape::unknown(sample)));
            if sample == 500 {
                (hit, miss) = (Times::new("range of a xorb, not in memory"), Times::new("xorb that is not there"));
            }
            let find = async { self.index.find_xorb(hash).await.unwrap().unwrap().layout.serialized_range(range) };
            assert!(hit.take(find).await.is_some());
            assert!(miss.take(self.index.find_xorb(unknown)).await.unwrap().is_none());
        }
        vec![hit.micros(Some(100.0)), miss.micros(None)]
    }

    async fn plans(&mut self) -> Vec<Figure> {
        let (mut window, mut small) = (Times::new("plan, 256 MB of 100 GiB"), Times::new("plan, a small file"));
        let large_len = self.shape.file(0).raw_len;
        for _ in 0..400 {
            let start = self.rng.random_range(0..large_len - WINDOW_LEN);
            let range = ByteRange::new(start, start + WINDOW_LEN);
            let plan = self.server.reconstruct(&EVERYBODY, shape::file_hash(0), range, Detail::Terms);
            let terms = window.take(plan).await.unwrap().plan.file.terms.len();
            assert!((4..=5).contains(&terms), "{terms} terms");
            let file = self.any_file();
            let claims = sha256_claims_of(&self.shape.repos(file)[0]);
            let plan = self.server.reconstruct(&claims, shape::file_hash(file), None, Detail::Terms);
            assert!(!small.take(plan).await.unwrap().plan.file.terms.is_empty());
        }
        vec![window.millis(Some(5.0)), small.millis(None)]
    }

    async fn dedup(&mut self) -> Vec<Figure> {
        let (mut hit, mut miss) = (Times::new("chunk query, hit"), Times::new("chunk query, miss"));
        for sample in 0..400_u64 {
            let xorb = *self.whole.choose(&mut self.rng).unwrap();
            let claims = sha256_claims_of(&format!("{}/any", shape::domain(xorb)));
            let response = hit.take(self.server.dedup_response(&claims, shape::asked_chunk(xorb))).await.unwrap();
            assert!(response.unwrap().len() > 32 << 10, "the whole xorb is described");
            let unknown = ChunkHash::from_bytes(shape::unknown(sample));
            assert!(miss.take(self.server.dedup_response(&claims, unknown)).await.unwrap().is_none());
        }
        vec![hit.millis(None), miss.micros(None)]
    }

    async fn names(&mut self) -> Vec<Figure> {
        let (mut hit, mut miss) = (Times::new("file by its sha256"), Times::new("sha256 of no file"));
        let mut len = Times::new("length of a file");
        for sample in 0..1000_u64 {
            let file = self.any_file() / 10 * 10 + 1;
            let reader = Reader::Repo(self.shape.repos(file)[0].clone());
            let sha256 = shape::sha256_of(file).unwrap();
            assert!(hit.take(self.index.find_sha256(sha256, reader.clone())).await.unwrap().is_some());
            let unknown = Sha256::from_digest(shape::unknown(sample));
            assert!(miss.take(self.index.find_sha256(unknown, reader)).await.unwrap().is_none());
            let claims = sha256_claims_of(&self.shape.repos(file)[0]);
            assert!(len.take(self.server.file_len(&claims, shape::file_hash(file))).await.unwrap().is_some());
        }
        vec![hit.micros(None), miss.micros(None), len.micros(None)]
    }

    async fn lists(&mut self) -> Vec<Figure> {
        let mut small = Times::new("list of a repository of 3 files");
        let mut common = Times::new("page of 100, repository of 1000 files");
        let mut all = Times::new("page of 1000, all files");
        let mut xorbs = Times::new("page of 1000 xorbs");
        for sample in 0..20_u64 {
            let claims = sha256_claims_of(shape::SMALL_REPO);
            assert_eq!(small.take(self.server.list_files(&claims, None, 1000)).await.unwrap().entries.len(), 3);
            let claims = sha256_claims_of(&self.shape.repos(self.shape.file_count() / 20 * sample)[0]);
            let page = common.take(self.server.list_files(&claims, None, 100)).await.unwrap();
            assert_eq!(page.entries.len(), 100);
            let after = FileHash::from_bytes(self.hash_before(1000, self.shape.file_count()));
            all.take(self.server.list_files(&EVERYBODY, Some(after), 1000)).await.unwrap();
            let after = XorbHash::from_bytes(self.hash_before(1000, self.shape.xorb_count));
            xorbs.take(self.server.list_xorbs(&EVERYBODY, Some(after), 1000)).await.unwrap();
        }
        vec![small.millis(None), common.millis(None), all.millis(None), xorbs.millis(None)]
    }

    async fn registrations(&mut self) -> Vec<Figure> {
        let mut scattered = Times::new("registration of 1000 terms of 1000 xorbs");
        let mut large = Times::new("registration of 1000 terms of 16 xorbs");
        let (mut small, mut removal) = (Times::new("registration of 1 term"), Times::new("removal of a file"));
        let claims = sha256_claims_of("owner0/registered");
        let mut files = Vec::new();
        for sample in 0..120 {
            let (count, xorb_count, times) = match sample % 6 {
                0 => (TERM_COUNT, TERM_COUNT, &mut scattered),
                3 => (TERM_COUNT, TERM_XORB_COUNT, &mut large),
                _ => (1, 1, &mut small),
            };
            let xorbs: Vec<u64> = self.whole.sample(&mut self.rng, xorb_count).copied().collect();
            let first = self.rng.random_range(0..RUN_COUNT);
            let run = |index: usize| run_of(xorbs[index % xorbs.len()], first + index / xorbs.len());
            let (file, shard) = self::shard(&(0..count).map(run).collect::<Vec<_>>());
            // A checkpoint begins every 100 ms. Without a random pause, the checkpoints would meet
            // the same one of these kinds each time.
            sleep(SqliteIndex::CHECKPOINT_INTERVAL.mul_f64(self.rng.random())).await;
            let registered = times.take(self.server.register(&claims, shard.into())).await.unwrap();
            assert!(registered.was_new || count == 1, "a large file that is known measures nothing");
            if count == 1 && registered.was_new {
                files.push(file);
            }
        }
        for file in files {
            let remove = async {
                let removed = self.index.remove_claims(file, None, self.clock.now()).await.unwrap();
                while self.index.sweep_removed(self.clock.now()).await.unwrap() {}
                removed.is_file_removed
            };
            assert!(removal.take(remove).await);
        }
        vec![scattered.millis(Some(50.0)), large.millis(Some(50.0)), small.millis(None), removal.millis(None)]
    }

    async fn others(&mut self) -> Vec<Figure> {
        let mut upload = Times::new("new xorb, its two transactions");
        let mut usage = Times::new("usage of a repository");
        let mut owner = Times::new("usage of an owner");
        let (mut due, mut claims) = (Times::new("next xorbs to verify"), Times::new("next claims to verify"));
        let now = self.clock.now();
        for _ in 0..50 {
            let mut xorb = new_xorb(self.shape, *self.whole.choose(&mut self.rng).unwrap());
            xorb.hash = XorbHash::from_bytes(self.rng.random());
            let ticket = Ticket::random();
            let go_live = async {
                assert_eq!(self.index.stage_xorb(xorb.hash, ticket, now).await.unwrap(), Staging::Staged);
                self.index.publish_xorb(xorb, ticket, now).await.unwrap();
            };
            upload.take(go_live).await;
            let repo = self.shape.repos(self.rng.random_range(1..self.shape.file_count() - 3)).remove(0);
            assert!(usage.take(self.index.repo_usage(repo.clone())).await.unwrap().file_count > 0);
            let name = repo.split('/').next().unwrap().to_owned();
            assert!(owner.take(self.index.owner_usage(name)).await.unwrap().file_count > 0);
            let later = Timestamp::from_millis(NOW.as_millis() + 1);
            assert!(!due.take(self.index.due_xorbs(later, 16)).await.unwrap().is_empty());
            assert!(!claims.take(self.index.unverified_claims(0..u64::MAX, None, 16)).await.unwrap().is_empty());
        }
        vec![upload.millis(None), usage.micros(None), owner.micros(None), due.micros(None), claims.micros(None)]
    }

    async fn collection(&mut self) -> Vec<Figure> {
        let (mut condemn, mut delete) = (Times::new("condemn 64 xorbs"), Times::new("delete the rows of 64 xorbs"));
        let mut plan = Times::new("plan of a collection");
        self.clock.advance(MIN_GRACE);
        // What was leased by a response stays for as long, and one moment more.
        self.clock.advance(MIN_CONDEMNED);
        let policy = Policy::new(MIN_GRACE, MIN_CONDEMNED).unwrap();
        let planned = plan.take(self.server.store.plan_collection(policy)).await.unwrap();
        let garbage: Vec<XorbHash> = planned.xorbs().iter().map(|xorb| xorb.hash).collect();
        // As in the plan, in the order of their hashes: each is a place of its own in the table.
        let steps: Vec<Vec<XorbHash>> = garbage.chunks(STEP_COUNT).take(20).map(<[XorbHash]>::to_vec).collect();
        let now = self.clock.now();
        for step in &steps {
            let condemned = condemn.take(self.index.condemn_xorbs(step.clone(), now, now)).await.unwrap();
            assert!(!condemned.is_empty());
        }
        for step in &steps {
            let remove = async {
                for xorb in self.index.begin_deletions(step.clone(), now, now).await.unwrap() {
                    assert!(self.index.forget_xorb(xorb).await.unwrap());
                }
            };
            delete.take(remove).await;
        }
        vec![plan.per_xorbs(self.shape.xorb_count), condemn.millis(None), delete.millis(None)]
    }
}

static EVERYBODY: Claims = Claims {
    scope: Scope::Admin,
    repo: RepoScope::All,
    subject: None,
    issued_unix_secs: 0,
    expires_unix_secs: u64::MAX,
    user: None,
};

fn sha256_claims_of(repo: &str) -> Claims {
    Claims { repo: repo.parse().unwrap(), ..EVERYBODY.clone() }
}

/// One of the runs of a xorb, counted round.
fn run_of(xorb: u64, index: usize) -> Piece {
    let start = u32::try_from(index % RUN_COUNT).unwrap() * TERM_CHUNK_COUNT;
    Piece { xorb, start, end: start + TERM_CHUNK_COUNT }
}

/// A shard with the file that these chunks make.
fn shard(pieces: &[Piece]) -> (FileHash, Bytes) {
    let hashes = |piece: &Piece| -> Vec<ChunkHash> {
        (piece.start..piece.end).map(|chunk| shape::chunk_hash(piece.xorb, chunk)).collect()
    };
    let mut chunks = Vec::new();
    for piece in pieces {
        let places = shape::layout(piece.xorb);
        let places = places.chunks_in(ChunkRange::new(piece.start, piece.end).unwrap()).unwrap();
        chunks.extend(hashes(piece).into_iter().zip(places.map(|place| place.raw.byte_len())));
    }
    let hash = merkle::file_hash(chunks.iter().map(|(hash, len)| (hash, *len)));
    let range_hashes = pieces.iter().map(|piece| RangeHash::of(&hashes(piece))).collect();
    let terms = pieces.iter().map(|piece| piece.term()).collect();
    let file = FileInfo { hash, terms, range_hashes: Some(range_hashes), sha256: None };
    assert!(u64::from(CHUNK_LEN) * chunks.len() as u64 == file.raw_len());
    (hash, write_upload(&Shard { files: vec![file], xorbs: Vec::new() }).unwrap().into())
}
