//! The process dies while garbage is collected: what was acknowledged stays, and what nobody needs goes all the same.
//!
//! Between two rounds three weeks and a day pass for everything that is known of xorbs, so what no file needs is
//! condemned in one round and deleted in the next, while clients register, remove, and come for what is about to go. A
//! round ends for the server, for the command that collects beside it, or for both, without a warning.

mod clients;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zorb::format::XorbHash;

use self::clients::{Acknowledged, Errand, Known, run};
use crate::cli::Directory;
use crate::support::{Promise, Start, TestServer, Xorb, check_promise, eventually, kill_rounds, rng};

/// How often something is killed, by default.
const ROUND_COUNT: usize = 40;

/// In every so many rounds it is the server that collects, which takes it a second to begin with.
const SERVER_ROUNDS: usize = 12;

/// Clients that come and go at once.
const CLIENT_COUNT: usize = 4;

/// Responses after which the process is killed, at most: some for each client.
const MAX_RESPONSE_COUNT: u32 = 48;

/// Files that stay from one round to the next, at most; the others are there to be removed.
const KEPT_COUNT: usize = 16;

/// Xorbs of earlier rounds that clients remember.
const REMEMBERED_COUNT: usize = 60;

/// What passes between two rounds: more than the grace, and more than the day after it.
const AGE: Duration = Duration::from_secs(22 * 24 * 3600);

/// What clients were told, over all rounds.
#[derive(Default)]
struct Told {
    files: HashMap<String, Known>,
    /// Acknowledged in the last round.
    fresh: Vec<Xorb>,
    /// The latest of all.
    remembered: Vec<Xorb>,
}

/// How often things have happened.
#[derive(Debug, Default)]
struct Counts {
    rounds_with_deleting: usize,
    rounds_with_condemned: usize,
    blobs_of_deleting: usize,
    rows_without_blob: usize,
    killed_commands: usize,
    removed: usize,
    unheard: usize,
    refused: usize,
    registered: usize,
}

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Both,
    /// The command goes on, and the next server starts beside it.
    Server,
    /// Another command has to finish what it leaves, beside the same server.
    Command,
}

/// It loses all garbage.
#[tokio::test]
async fn store_killed_in_gc_keeps_acknowledged_data() {
    let round_count = kill_rounds(ROUND_COUNT);
    let mut rng = rng();
    let directory = Directory::new();
    let data_dir = directory.path("data");
    let (mut told, mut counts) = (Told::default(), Counts::default());
    let mut running: Option<Child> = None;

    for round in 0..round_count {
        let is_servers = round % SERVER_ROUNDS == SERVER_ROUNDS - 1;
        let server =
            Start::default().data_dir(&data_dir).with("gc_interval", if is_servers { "1s" } else { "0" }).start();
        let begin = Instant::now();
        settle(&server, &mut told, &mut counts).await;
        if let Some(command) = running.take() {
            assert!(ends_well(command).await, "the command goes on without a server");
        }
        age(&data_dir).await;

        let responses = Arc::new(Semaphore::new(0));
        let (mut clients, kept) = (JoinSet::new(), keep(&told));
        let mut errands = errands(&mut rng, &told, &kept);
        if is_servers {
            // It looks for garbage once a second.
            sleep(Duration::from_millis(970).saturating_sub(begin.elapsed())).await;
        }
        let mut command = (!is_servers).then(|| collect(&directory, &data_dir));
        for errand in errands.drain(..) {
            let client = Acknowledged { client: server.client(), count: Arc::clone(&responses) };
            clients.spawn(run(client, StdRng::from_rng(&mut rng), errand));
        }
        // The moment of death is counted in responses, so that a busy machine shows as much as an idle one; and then some
        // time, which is not a wait for anything. Without responses a client has failed, and says so when it is joined.
        let _ =
            timeout(Duration::from_secs(60), responses.acquire_many(rng.random_range(0..=MAX_RESPONSE_COUNT))).await;
        sleep(Duration::from_micros(rng.random_range(0..10_000))).await;
        let victim = [Victim::Both, Victim::Both, Victim::Server, Victim::Command][rng.random_range(0..4)];
        match (command.take(), victim) {
            (Some(command), Victim::Server) => {
                server.kill();
                running = Some(command);
            }
            (Some(mut command), Victim::Command) => {
                counts.killed_commands += usize::from(kill(&mut command));
                look(&data_dir, &mut counts).await;
                assert!(
                    ends_well(collect(&directory, &data_dir)).await,
                    "the next one finishes what a killed one leaves"
                );
                server.kill();
            }
            (command, _) => {
                server.kill();
                if let Some(mut command) = command {
                    counts.killed_commands += usize::from(kill(&mut command));
                }
                look(&data_dir, &mut counts).await;
            }
        }
        told.fresh.clear();
        while let Some(errand) = clients.join_next().await {
            told.take(errand.unwrap(), &mut counts);
        }
    }
    if let Some(command) = running {
        assert!(ends_well(command).await);
    }
    check_end(&directory, &data_dir, told, &mut counts, round_count).await;
}

/// Nobody dies any more: files read as they were, and nothing else is left.
async fn check_end(directory: &Directory, data_dir: &Path, mut told: Told, counts: &mut Counts, round_count: usize) {
    let server = Start::default().data_dir(data_dir).with("gc_interval", "0s").start();
    settle(&server, &mut told, counts).await;
    for _ in 0..3 {
        age(data_dir).await;
        assert!(ends_well(collect(directory, data_dir)).await);
    }
    for (hash, known) in &told.files {
        check_promise(&server.client(), hash, &known.contents, known.promise).await;
    }
    let mut needed: Vec<String> = told.files.values().flat_map(|known| &known.xorbs).cloned().collect();
    needed.sort();
    needed.dedup();
    let left: Vec<String> = server.blobs().into_iter().filter(|blob| !needed.contains(blob)).collect();
    let known = known_of(data_dir, &left).await;
    assert_eq!(left, [""; 0], "blobs that no file needs; the index has {known:#?}");
    assert_eq!(server.blobs(), needed, "the blobs that files need, and no others");
    server.terminate();
    assert!(server.wait().success());
    let fsck = ["fsck", "--deep", "--json", "--data-dir", data_dir.to_str().unwrap()];
    assert_eq!(directory.zorb(&fsck).ok().record()["xorbs"], needed.len());

    println!("{round_count} rounds, {} files and {} xorbs in the end: {counts:?}", told.files.len(), needed.len());
    // A run in which the kills always came too early or too late would show nothing.
    let Counts { rounds_with_deleting, rounds_with_condemned, blobs_of_deleting, rows_without_blob, .. } = counts;
    assert!(*rounds_with_deleting > round_count / 20, "deletions were hardly ever cut off: {counts:?}");
    assert!(*rounds_with_condemned > round_count / 20, "hardly anything was condemned: {counts:?}");
    assert!(*blobs_of_deleting > 0 && *rows_without_blob > 0, "{counts:?}");
    assert!(counts.killed_commands > round_count / 10 && counts.refused > 0, "{counts:?}");
    assert!(counts.registered > round_count && counts.removed > round_count / 5, "{counts:?}");
    assert!(counts.unheard > round_count / 20, "{counts:?}");
}

/// What the index has of these xorbs and of their blobs.
async fn known_of(data_dir: &Path, xorbs: &[String]) -> Vec<String> {
    let mut connection = open(data_dir).await;
    let rows = "SELECT hash, format('row in state %d since %d, leased until %d', state, since, lease_until) FROM xorbs \
         UNION ALL SELECT hash, format('blob in state %d since %d', state, since) FROM objects";
    let rows = sqlx::query(rows).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let named = |row| -> String { format!("{}: {}", hash_of(row), Row::get::<String, _>(row, 1)) };
    rows.iter().filter(|row| xorbs.contains(&hash_of(row))).map(named).collect()
}

/// The hash in the first column.
fn hash_of(row: &SqliteRow) -> String {
    XorbHash::from_bytes(row.get::<Vec<u8>, _>(0).try_into().unwrap()).to_string()
}

/// Everything that is known of xorbs and of their blobs is so much older, beside whatever runs. No
/// upload does: it would lose its blob.
async fn age(data_dir: &Path) {
    let mut connection = open(data_dir).await;
    for statement in [
        "UPDATE xorbs SET since = since - ?1, lease_until = max(lease_until - ?1, 0)",
        // A kill leaves blobs that were not published, or lost to another one of their xorb.
        "UPDATE objects SET since = since - ?1",
    ] {
        let aged = sqlx::query(statement).bind(i64::try_from(AGE.as_millis()).unwrap());
        aged.execute(&mut connection).await.unwrap();
    }
    connection.close().await.unwrap();
}

async fn open(data_dir: &Path) -> SqliteConnection {
    let path = data_dir.join("index.sqlite");
    SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap()
}

/// What a kill has left.
async fn look(data_dir: &Path, counts: &mut Counts) {
    let mut connection = open(data_dir).await;
    let rows = sqlx::query("SELECT hash, state, incarnation FROM xorbs WHERE state IN (2, 3)");
    let rows = rows.fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let (deleting, condemned): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get::<i64, _>(1) == 3);
    counts.rounds_with_deleting += usize::from(!deleting.is_empty());
    counts.rounds_with_condemned += usize::from(!condemned.is_empty());
    for row in deleting {
        let hash = hash_of(row);
        let name = format!("{hash}.{:016x}", row.get::<i64, _>(2));
        let is_there = data_dir.join("xorbs").join(&hash[..2]).join(name).exists();
        counts.blobs_of_deleting += usize::from(is_there);
        counts.rows_without_blob += usize::from(!is_there);
    }
}

fn collect(directory: &Directory, data_dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_zorb"))
        .args(["gc", "--json", "--data-dir"])
        .arg(data_dir)
        .current_dir(directory.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the binary was built for this test")
}

/// Waits for its end, while clients go on.
async fn ends_well(mut command: Child) -> bool {
    let mut status = None;
    eventually("the command ends", async || {
        status = command.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.is_some_and(|status| status.success())
}

/// Returns whether it came in time.
fn kill(command: &mut Child) -> bool {
    command.kill().unwrap();
    !command.wait().unwrap().success()
}

/// Compares what clients were told in the round before with what there is.
async fn settle(server: &TestServer, told: &mut Told, counts: &mut Counts) {
    for (hash, known) in &mut told.files {
        let is_there = check_promise(&server.client(), hash, &known.contents, known.promise).await;
        counts.unheard += usize::from(known.promise == Promise::Either);
        counts.removed += usize::from(known.promise == Promise::Removed);
        // What has been seen once must stay.
        known.promise = if is_there { Promise::There } else { Promise::Removed };
    }
    told.files.retain(|_, known| known.promise == Promise::There);
    for xorb in told.fresh.drain(..) {
        let response = server.client().get(&xorb.path()).await;
        let is_same = response.status == 200 && response.body == xorb.bytes;
        assert!(is_same, "{} was acknowledged in this round: {}", xorb.hash(), response.status);
    }
}

/// Files that nobody removes in this round.
fn keep(told: &Told) -> Vec<String> {
    told.files.keys().take(KEPT_COUNT).cloned().collect()
}

fn errands(rng: &mut StdRng, told: &Told, kept: &[String]) -> Vec<Errand> {
    let kept_files: Vec<Known> = kept.iter().map(|hash| told.files[hash].clone()).collect();
    let needed: HashSet<&String> = kept_files.iter().flat_map(|known| &known.xorbs).collect();
    let (firm, mut stale): (Vec<Xorb>, Vec<Xorb>) =
        told.remembered.iter().cloned().partition(|xorb| needed.contains(&xorb.hash()));
    stale.shuffle(rng);
    let mut errands: Vec<Errand> = (0..CLIENT_COUNT)
        .map(|_| Errand { kept: kept_files.clone(), firm: firm.clone(), stale: stale.clone(), ..Errand::default() })
        .collect();
    let surplus = told.files.keys().filter(|hash| !kept.contains(hash));
    for (index, hash) in surplus.enumerate() {
        errands[index % CLIENT_COUNT].surplus.push(hash.clone());
    }
    errands
}

impl Told {
    fn take(&mut self, errand: Errand, counts: &mut Counts) {
        let Errand { fresh, files, refused, .. } = errand;
        counts.refused += refused;
        for (hash, known) in files {
            counts.registered += usize::from(known.promise == Promise::There);
            let promise = known.promise;
            self.files.entry(hash).or_insert(known).promise = promise;
        }
        self.fresh.extend(fresh.iter().cloned());
        for xorb in fresh {
            self.remembered.retain(|known| known.hash() != xorb.hash());
            self.remembered.push(xorb);
        }
        let needed: HashSet<String> = self.files.values().flat_map(|known| &known.xorbs).cloned().collect();
        let mut spare = self.remembered.len().saturating_sub(REMEMBERED_COUNT);
        self.remembered.retain(|xorb| {
            let is_kept = spare == 0 || needed.contains(&xorb.hash());
            spare -= usize::from(!is_kept);
            is_kept
        });
    }
}
