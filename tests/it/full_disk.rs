//! A store that is full, at every page of the way: what does not fit is refused as that, and nothing else suffers.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use crate::support::{Start, TestServer, Xorb, eventually, random_bytes, rng};

const PAGE_LEN: u64 = 4096;

/// Takes all the room that a server's small disk has left.
struct Filler {
    path: PathBuf,
}

impl Filler {
    fn new(server: &TestServer) -> Self {
        let path = server.seen_from_inside(&server.data_dir().join("filler"));
        File::create(&path).expect("the test sees the server's disk");
        Self { path }
    }

    /// Leaves so many pages, at most.
    fn leave(&self, page_count: u64) {
        let mut file = OpenOptions::new().append(true).open(&self.path).expect("the file is there");
        while file.write_all(&[1; 512]).is_ok() {}
        let len = file.metadata().expect("the file is there").len();
        file.set_len((len / PAGE_LEN).saturating_sub(page_count) * PAGE_LEN).expect("a file can be cut");
    }
}

#[tokio::test]
async fn an_upload_is_refused_as_out_of_space_or_stored_whatever_room_there_is() {
    let (server, mut rng) = (Start::default().on_small_disk(4).start(), rng());
    let (client, filler) = (server.client(), Filler::new(&server));
    let kept = Xorb::mixed(&mut rng, 2);
    assert_eq!(client.post(&kept.path(), kept.bytes.clone()).await.status, 201);
    let (mut stored, mut refused) = (vec![kept], Vec::new());
    // From nothing at all to what the draft takes, and then what the index takes.
    for page_count in 0..40 {
        filler.leave(page_count);
        let len = usize::try_from(page_count % 5).expect("small") * 4096 + 100;
        let xorb = Xorb::stored(random_bytes(&mut rng, len).chunks(5000));
        let answer = client.post(&xorb.path(), xorb.bytes.clone()).await;

        match answer.status {
            201 => stored.push(xorb),
            _ => {
                answer.problem(507, "out_of_space");
                refused.push(xorb);
            }
        }
    }
    assert!(stored.len() > 1 && !refused.is_empty());
    filler.leave(0);
    client.get("/readyz").await.problem(503, "not_ready");
    let check = async |server: &TestServer| {
        for xorb in &stored {
            let answer = server.client().get(&xorb.path()).await;
            assert!(answer.status == 200 && answer.body == xorb.bytes, "{}: {}", xorb.hash(), answer.status);
        }
        for xorb in &refused {
            server.client().get(&xorb.path()).await.problem(404, "not_found");
        }
    };
    check(&server).await;
    filler.leave(200);
    assert_eq!(client.get("/readyz").await.status, 200);
    let tmp = server.seen_from_inside(&server.data_dir().join("tmp"));
    eventually("every draft is gone", async || tmp.read_dir().expect("the folder is there").count() == 0).await;
    // What was refused is welcome now.
    for xorb in &refused {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
}
