//! Records of changes that were not made, because a server or the S3 store failed: they are never applied after another
//! server has acknowledged something else.

use reqwest::{Method, RequestBuilder};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use zorb_fake_s3::{Fault, Op};

use super::{Fleet, commit, hold_changes};
use crate::support::backend::BUCKET;
use crate::support::{Client, Response, TestServer, Xorb, eventually, read_file, register, rng, upload_shard};

/// The last server of a fleet is killed between the record of this change and its transaction. Returns the name of the
/// record.
async fn die_with_record(fleet: &mut Fleet, change: impl FnOnce(&Client) -> RequestBuilder) -> String {
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let before = fleet.backend.names("shards/");
    let victim = fleet.servers.pop().unwrap();
    fleet.servers.drain(..).for_each(TestServer::kill);
    let locking = hold_changes(&mut connection).await;
    let response = tokio::spawn(Response::try_of(change(&victim.client())));
    let new = || fleet.backend.names("shards/").into_iter().find(|name| !before.contains(name));
    eventually("the record is there", async || new().is_some()).await;
    victim.kill();
    assert!(response.await.unwrap().is_err());
    locking.rollback().await.unwrap();
    new().unwrap()
}

/// The transaction of a removal fails although its server lives: its record must not stay, or a rebuild would remove the file.
#[tokio::test]
async fn record_of_a_failed_removal_is_removed_by_its_server() {
    let fleet = Fleet::start().await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let (client, xorb) = (fleet.client(0), Xorb::mixed(&mut rng(), 9));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let file = upload_shard(&xorb, 0, 9);
    assert_eq!(register(&client, file.bytes()).await, 1);
    let before = fleet.backend.names("shards/");
    let locking = hold_changes(&mut connection).await;
    // PostgreSQL lets the statement wait for five seconds.
    let removal = client.request(Method::DELETE, &format!("/v1/files/{}", file.file_hash()));
    assert_eq!(Response::of(removal).await.status, 503);
    locking.rollback().await.unwrap();
    eventually("the record is removed", async || fleet.backend.names("shards/") == before).await;
    assert_eq!(read_file(&fleet.client(1), "v1", &file.file_hash(), None).await.unwrap(), xorb.raw(0, 9));
    let removal = client.request(Method::DELETE, &format!("/v1/files/{}", file.file_hash()));
    assert_eq!(Response::of(removal).await.status, 200);
    assert_eq!(fleet.backend.names("shards/").len(), before.len() + 1);
}

/// The S3 store stores the record of a removal and says that it has failed. The file is registered again, which changes
/// nothing and has no record. The next start must not apply the removal.
#[tokio::test]
async fn record_that_is_stored_despite_an_error_is_removed_soon() {
    let mut fleet = Fleet::start().await;
    let (client, xorb) = (fleet.client(0), Xorb::mixed(&mut rng(), 9));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let file = upload_shard(&xorb, 0, 9);
    assert_eq!(register(&client, file.bytes()).await, 1);
    let before = fleet.backend.names("shards/");
    fleet.backend.s3().fail(Op::Put, Fault::DoneBut(500), 20);
    fleet.backend.s3().fail(Op::Head, Fault::Refused(500), 20);
    let removal = client.request(Method::DELETE, &format!("/v1/files/{}", file.file_hash()));
    assert_eq!(Response::of(removal).await.status, 503);
    assert!(fleet.backend.s3().forgive() > 0);
    eventually("the record is removed", async || fleet.backend.names("shards/") == before).await;
    assert_eq!(register(&fleet.client(1), file.bytes()).await, 0);
    fleet.servers.clear();
    let server = fleet.server(2);
    assert_eq!(read_file(&server.client(), "v1", &file.file_hash(), None).await.unwrap(), xorb.raw(0, 9));
}

/// The server that leads dies between the record of a removal and its transaction. The file is registered again, which
/// changes nothing and has no record, and then all servers end. The first start must not apply the removal.
#[tokio::test]
async fn removal_that_was_not_made_is_not_applied_by_the_first_start() {
    let mut fleet = Fleet::start().await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let file = upload_shard(&xorb, 0, 9);
    assert_eq!(register(&fleet.client(0), file.bytes()).await, 1);
    let leads = |server: &TestServer| server.log().contains("this server does the work in the background");
    eventually("one of them leads", async || fleet.servers.iter().any(leads)).await;
    let victim = fleet.servers.remove(fleet.servers.iter().position(leads).unwrap());
    let locking = hold_changes(&mut connection).await;
    let request = victim.client().request(Method::DELETE, &format!("/v1/files/{}", file.file_hash()));
    let removal = tokio::spawn(Response::try_of(request));
    eventually("the record is there", async || fleet.backend.names("shards/").len() == 2).await;
    victim.kill();
    assert!(removal.await.unwrap().is_err());
    // No server leads that could remove it.
    let others = std::mem::take(&mut fleet.servers);
    let (client, body) = (others[0].client(), file.bytes());
    let registering = tokio::spawn(async move { register(&client, body).await });
    locking.rollback().await.unwrap();
    assert_eq!(registering.await.unwrap(), 0);
    others.into_iter().for_each(TestServer::kill);
    let server = fleet.server(0);
    assert_eq!(read_file(&server.client(), "v1", &file.file_hash(), None).await.unwrap(), xorb.raw(0, 9));
    assert_eq!(fleet.backend.names("shards/").len(), 1);
}

/// A server dies between the record of a registration and its transaction. A later removal or registration of the file
/// must not meet that record in a rebuild.
#[tokio::test]
async fn record_of_a_killed_server_is_removed_by_another_one() {
    let mut fleet = Fleet::start().await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let (victim, shard) = (fleet.servers.pop().unwrap(), upload_shard(&xorb, 0, 9));
    assert_eq!(fleet.backend.names("shards/"), [] as [String; 0]);
    let locking = hold_changes(&mut connection).await;
    let (client, body) = (victim.client(), shard.bytes());
    let registration =
        tokio::spawn(async move { Response::try_of(client.request(Method::POST, "/v1/shards").body(body)).await });
    eventually("the record is there", async || fleet.backend.names("shards/").len() == 1).await;
    victim.kill();
    assert!(registration.await.unwrap().is_err());
    locking.rollback().await.unwrap();
    eventually("the record is removed", async || fleet.backend.names("shards/").is_empty()).await;
    let hash = shard.file_hash();
    assert_eq!(read_file(&fleet.client(1), "v1", &hash, None).await.unwrap_err().status, 404);
    assert_eq!(register(&fleet.client(1), shard.bytes()).await, 1);
    assert_eq!(read_file(&fleet.client(0), "v1", &hash, None).await.unwrap(), xorb.raw(0, 9));
    assert_eq!(fleet.backend.names("shards/").len(), 1);
}

/// No client was told that the repository is public.
#[tokio::test]
async fn first_start_makes_no_repository_public() {
    let mut fleet = Fleet::start().await;
    let body = json!({ "name": "model", "organization": "me", "type": "model", "private": true }).to_string();
    assert_eq!(fleet.client(0).post("/api/repos/create", body).await.status, 200);
    assert_eq!(commit(&fleet.client(0), "me/model", "a").await, 200);
    let before = fleet.backend.names("shards/");
    let change = json!({ "private": false }).to_string();
    die_with_record(&mut fleet, |client| client.request(Method::PUT, "/api/models/me/model/settings").body(change))
        .await;
    let server = fleet.server(0);
    let repo = server.client().get("/api/models/me/model").await.json();
    assert_eq!(repo["private"], true, "{repo}");
    assert_eq!(fleet.backend.names("shards/"), before);
}

/// A client that got no response registers again.
#[tokio::test]
async fn registration_that_was_not_made_is_not_applied_either() {
    let mut fleet = Fleet::start().await;
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let shard = upload_shard(&xorb, 0, 9);
    let body = shard.bytes();
    let record = die_with_record(&mut fleet, |client| client.request(Method::POST, "/v1/shards").body(body)).await;
    let bytes = fleet.backend.s3().object(BUCKET, &fleet.backend.name(&record)).unwrap();
    for number in 0..2 {
        let server = fleet.server(number);
        assert_eq!(read_file(&server.client(), "v1", &shard.file_hash(), None).await.unwrap_err().status, 404);
        assert_eq!(fleet.backend.names("shards/"), [] as [&str; 0]);
        server.kill();
        // The request of the first server that stores it arrives late.
        fleet.backend.s3().put_object(BUCKET, &fleet.backend.name(&record), bytes.clone());
    }
    let server = fleet.server(0);
    assert_eq!(register(&server.client(), shard.bytes()).await, 1);
    assert_eq!(read_file(&server.client(), "v1", &shard.file_hash(), None).await.unwrap(), xorb.raw(0, 9));
}

/// A standby was promoted, and the last changes were not replicated. Each of these was acknowledged, as far as the
/// database knows.
#[tokio::test]
async fn open_records_are_applied_if_the_database_was_set_back() {
    let mut fleet = Fleet::start().await;
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let shard = upload_shard(&xorb, 0, 9);
    let body = shard.bytes();
    die_with_record(&mut fleet, |client| client.request(Method::POST, "/v1/shards").body(body)).await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let history = async |connection: &mut PgConnection| {
        sqlx::query_scalar::<_, String>("SELECT history FROM store").fetch_one(connection).await.unwrap()
    };
    let noted = history(&mut connection).await;
    let [_, timeline, _] = noted.split('/').collect::<Vec<_>>()[..] else { panic!("{noted}") };
    assert_eq!(timeline, "00000001");
    let promoted = sqlx::query("UPDATE store SET history = replace(history, '/00000001/', '/00000000/')");
    promoted.execute(&mut connection).await.unwrap();
    for number in 0..2 {
        let server = fleet.server(number);
        assert_eq!(read_file(&server.client(), "v1", &shard.file_hash(), None).await.unwrap(), xorb.raw(0, 9));
        assert_eq!(history(&mut connection).await, noted);
        server.kill();
    }
}

/// Only the zorb that has written it knows whether it is a part of a change that was made.
#[tokio::test]
async fn record_of_a_newer_version_is_not_removed() {
    let fleet = Fleet::start().await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    for end in 1..=3 {
        assert_eq!(register(&fleet.client(0), upload_shard(&xorb, 0, end).bytes()).await, 1);
    }
    // The second record is unknown, and the first one is that of a change that was not made.
    let names = fleet.backend.names("shards/");
    fleet.backend.s3().put_object(BUCKET, &fleet.backend.name(&names[1]), b"of a newer version".to_vec());
    for name in &names[..2] {
        let number = i64::from_str_radix(name.rsplit('/').next().unwrap(), 16).unwrap();
        let open = sqlx::query("INSERT INTO open_records (seq, own_lock) VALUES ($1, $2)").bind(number).bind(i64::MIN);
        open.execute(&mut connection).await.unwrap();
    }
    let is_left = |server: &TestServer| server.log().contains("left the record of a change that was not made");
    eventually("one of them leaves it", async || fleet.servers.iter().any(is_left)).await;
    eventually("the other one is removed", async || fleet.backend.names("shards/") == names[1..]).await;
}
