//! Backups of a server that goes on taking uploads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{Backups, Stored, check_served, store};
use crate::support::{Start, TestServer, Xorb, rng};

#[tokio::test(flavor = "multi_thread")]
async fn backup_under_load_has_all_registered_before_and_no_halves() {
    let (server, backups, mut rng) = (TestServer::start(), Arc::new(Backups::new()), rng());
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (client, stop, mut rng) = (server.client(), Arc::clone(&stop), StdRng::from_rng(&mut rng));
        clients.spawn(async move {
            let mut stored: Vec<Stored> = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                stored.push(store(&client, Xorb::mixed(&mut rng, 8)).await);
            }
            stored
        });
    }
    let (mut counts, mut before) = (Vec::new(), Vec::new());
    for round in 0..6 {
        // Registered before the run begins, so in the archive when it ends.
        before.push(store(&server.client(), Xorb::mixed(&mut rng, 3)).await);
        let (runner, data_dir) = (Arc::clone(&backups), server.data_dir().to_owned());
        let record = tokio::task::spawn_blocking(move || runner.back_up(&data_dir)).await.unwrap();
        counts.push((record["files"].as_u64().unwrap(), record["waiting"].as_u64().unwrap()));
        assert_eq!(record["problems"], 0, "{record}");
        let (runner, name) = (Arc::clone(&backups), format!("copy-{round}"));
        let (data_dir, _) = tokio::task::spawn_blocking(move || runner.restore(&name)).await.unwrap();
        check_served(&Start::default().data_dir(&data_dir).start(), &before).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut stored = before;
    while let Some(more) = clients.join_next().await {
        stored.extend(more.unwrap());
    }
    println!("{} files; files taken and waiting per run: {counts:?}", stored.len());
    assert!(counts.iter().filter(|(files, _)| *files > 1).count() > 2, "nothing came while backups ran: {counts:?}");
    backups.back_up(server.data_dir());
    assert_eq!(backups.back_up(server.data_dir())["added_len"], 0);
    check_served(&Start::default().data_dir(&backups.restore("last").0).start(), &stored).await;
}
