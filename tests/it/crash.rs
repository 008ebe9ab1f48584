//! The process dies at any moment: what was acknowledged is served, what was not is invisible or whole.
//!
//! "Invisible or whole", because a client cannot know how far the server got between the last byte of a body and the
//! response: a xorb whose body had arrived may have gone live without anyone having been told. One whose body had not
//! arrived must not be there at all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::{Body, Method};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::{Client, Response, Start, TestServer, Xorb, kill_rounds, rng};

/// How often the process is killed, by default.
const ROUND_COUNT: usize = 40;

/// How long six clients may take until the first of their uploads has ended: some milliseconds on an idle machine.
const ACKNOWLEDGEMENT_DEADLINE: Duration = Duration::from_secs(60);

/// Clients that upload at once.
const CLIENT_COUNT: usize = 6;

/// What became of an upload, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Acknowledged,
    /// The last byte was handed to the connection, and no response came.
    SentWhole,
    /// The connection broke before.
    SentPartly,
}

struct Attempt {
    xorb: Xorb,
    outcome: Outcome,
}

/// Under load; it leaves nothing stray.
#[tokio::test]
async fn server_killed_at_any_moment_serves_what_it_acknowledged() {
    let round_count = kill_rounds(ROUND_COUNT);
    let mut rng = rng();
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let mut stored: HashMap<String, Xorb> = HashMap::new();
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut startups = Vec::new();
    let (mut acknowledged, mut unheard, mut broken) = (0, 0, 0);

    for round in 0..round_count {
        let server = Start::default().data_dir(&data_dir).start();
        startups.push(server.startup());
        for attempt in attempts.drain(..) {
            match attempt.outcome {
                Outcome::Acknowledged => acknowledged += 1,
                Outcome::SentWhole => unheard += 1,
                Outcome::SentPartly => broken += 1,
            }
            settle(&server, attempt, &mut stored).await;
        }
        check_nothing_stray(&server, &stored);

        let known: Vec<Xorb> = stored.values().take(20).cloned().collect();
        let (tell, mut told) = watch::channel(());
        let mut clients = JoinSet::new();
        for _ in 0..CLIENT_COUNT {
            let rng = StdRng::from_rng(&mut rng);
            clients.spawn(upload_until_it_breaks(server.client(), rng, known.clone(), tell.clone()));
        }
        // Every second server dies after it has acknowledged something, however slow the machine is.
        if round % 2 == 1 {
            timeout(ACKNOWLEDGEMENT_DEADLINE, told.changed()).await.expect("an upload ends").unwrap();
        }
        // Not a wait for anything: the moment of death, which is the one thing that is random here.
        sleep(Duration::from_micros(rng.random_range(500..120_000))).await;
        server.kill();
        while let Some(result) = clients.join_next().await {
            attempts.extend(result.unwrap());
        }
    }

    let server = Start::default().data_dir(&data_dir).start();
    for attempt in attempts.drain(..) {
        settle(&server, attempt, &mut stored).await;
    }
    check_nothing_stray(&server, &stored);
    for xorb in stored.values() {
        check_served(&server.client(), xorb).await;
    }
    println!(
        "{round_count} kills: {acknowledged} uploads acknowledged, {unheard} whole without a response, {broken} broken; \
         {} xorbs stored; slowest start {:?}",
        stored.len(),
        startups.iter().max().unwrap()
    );
    startups.sort();
    // The median: what one start takes on a busy machine says little.
    assert!(startups[startups.len() / 2] < Duration::from_secs(2), "{startups:?}");
    // A run in which the kill always came too early or too late would show nothing.
    assert!(acknowledged >= round_count / 2 && broken > round_count / 10, "{acknowledged} {broken}");
}

/// Compares what a client knows of an upload with what the server says after the crash.
async fn settle(server: &TestServer, attempt: Attempt, stored: &mut HashMap<String, Xorb>) {
    let client = server.client();
    let hash = attempt.xorb.hash();
    let status = client.head(&attempt.xorb.path()).await.status;
    match attempt.outcome {
        _ if stored.contains_key(&hash) => assert_eq!(status, 200, "{hash} was acknowledged before"),
        Outcome::Acknowledged => assert_eq!(status, 200, "{hash} was acknowledged"),
        Outcome::SentWhole => assert!(status == 200 || status == 404, "{hash}: {status}"),
        Outcome::SentPartly => assert_eq!(status, 404, "{hash} never arrived whole"),
    }
    if status == 200 {
        check_served(&client, &attempt.xorb).await;
        stored.entry(hash).or_insert(attempt.xorb);
    }
}

async fn check_served(client: &Client, xorb: &Xorb) {
    let response = client.get(&xorb.path()).await;
    assert!(response.status == 200 && response.body == xorb.bytes, "{} is damaged: {}", xorb.hash(), response.status);
}

/// After a start there are no drafts, and the blobs are those of the xorbs that are served.
fn check_nothing_stray(server: &TestServer, stored: &HashMap<String, Xorb>) {
    assert_eq!(server.drafts(), 0);
    let blobs: HashSet<String> = server.blobs().into_iter().collect();
    let expected: HashSet<String> = stored.keys().cloned().collect();
    let stray: Vec<_> = blobs.symmetric_difference(&expected).collect();
    assert!(stray.is_empty(), "{stray:?}");
}

/// Uploads one xorb after the other, in portions, until the connection breaks.
async fn upload_until_it_breaks(
    client: Client,
    mut rng: StdRng,
    known: Vec<Xorb>,
    acknowledged: watch::Sender<()>,
) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    loop {
        let xorb = match (rng.random_range(0..10), known.choose(&mut rng)) {
            (0, Some(known)) => known.clone(),
            (1..=2, _) => Xorb::incompressible(&mut rng, 4_000_000),
            _ => {
                let len = rng.random_range(1..200_000);
                Xorb::incompressible(&mut rng, len)
            }
        };
        let outcome = upload(&client, &xorb).await;
        attempts.push(Attempt { xorb, outcome });
        if outcome != Outcome::Acknowledged {
            return attempts;
        }
        acknowledged.send_replace(());
    }
}

async fn upload(client: &Client, xorb: &Xorb) -> Outcome {
    let sent_whole = Arc::new(AtomicBool::new(false));
    let portions: Vec<Bytes> = xorb.bytes.chunks(40_000).map(|portion| xorb.bytes.slice_ref(portion)).collect();
    let (count, flag) = (portions.len(), Arc::clone(&sent_whole));
    let body = stream::iter(portions.into_iter().enumerate().map(move |(index, portion)| {
        if index + 1 == count {
            flag.store(true, Ordering::SeqCst);
        }
        Ok::<_, std::io::Error>(portion)
    }));
    let request = client.request(Method::POST, &xorb.path()).body(Body::wrap_stream(body));
    match Response::try_of(request).await {
        Ok(response) => {
            assert!(matches!(response.status, 200 | 201), "{}: {:?}", response.status, response.body);
            Outcome::Acknowledged
        }
        Err(_) if sent_whole.load(Ordering::SeqCst) => Outcome::SentWhole,
        Err(_) => Outcome::SentPartly,
    }
}
