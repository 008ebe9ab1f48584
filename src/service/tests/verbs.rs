//! Every operation (verb) of the service with a fault in each operation of the stores. The store
//! operation fails before or after it was carried out.
//!
//! | verb | module with the test |
//! |---|---|
//! | upload, and upload in another serialization | `tests` |
//! | duplicate upload | here |
//! | upload by grant, and its commit | `granted` |
//! | registration, also of known files | here |
//! | dedup query | here |
//! | verification of a sha256 | `claims` |
//! | backup and restore | `backup` |
//! | recovery | `tests`, and after every fault here |
//!
//! [`check_invariants`] says what must hold after each fault.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use sha2::Digest;

use super::claims::{File, writer};
use super::{Form, Moment, Server, Setup, upload};
use crate::blob::{BlobKey, BlobStore};
use crate::format::ByteRange;
use crate::format::shard::Sha256;
use crate::format::xorb::verify;
use crate::index::XorbIndex;
use crate::service::access::Claims;
use crate::service::{Detail, Recovered};

/// A store with one acknowledged file, and a xorb that was uploaded for another file.
struct World {
    setup: Setup,
    retained: File,
    fresh: File,
}

impl World {
    async fn new() -> Self {
        let setup = Setup::new().await;
        let server = setup.process();
        let (retained, fresh) = (File::new("retained"), File::new("fresh"));
        for file in [&retained, &fresh] {
            upload(&server, &file.xorb).await.unwrap();
        }
        retained.register(&server, "org/a", retained.sha256).await.unwrap();
        Self { setup, retained, fresh }
    }
}

/// Checks that every live row has the blob that it describes, and that acknowledged files are
/// served.
async fn check_invariants(server: &Arc<Server>, setup: &Setup, acknowledged: &[&File], case: &str) {
    for hash in setup.index.list_xorbs().await.unwrap() {
        let stored =
            server.store.find(hash).await.unwrap().unwrap_or_else(|| panic!("{case}: {hash} is listed, not there"));
        let len = stored.layout().serialized_len();
        assert_eq!(
            setup.blobs.head(BlobKey::new(hash, stored.incarnation())).await.unwrap(),
            Some(len),
            "{case}: {hash}"
        );
        let bytes = read(server, &stored, Form::Serialized, len).await;
        assert_eq!(verify(&bytes).unwrap().hash(), hash, "{case}");
    }
    for file in acknowledged {
        let found = server.reconstruct(&writer("org/a"), file.hash, None, Detail::Terms).await;
        let mut contents = sha2::Sha256::new();
        for term in found.unwrap_or_else(|error| panic!("{case}: {error}")).plan.file.terms {
            let xorb = server.store.find(term.xorb).await.unwrap().unwrap();
            assert_eq!(term.chunks, xorb.layout().whole(), "these files are a whole xorb each");
            contents.update(read(server, &xorb, Form::Raw, xorb.layout().raw_len()).await);
        }
        assert_eq!(Sha256::from_digest(contents.finalize().into()), file.sha256, "{case}");
    }
}

async fn read(server: &Arc<Server>, xorb: &crate::service::StoredXorb, form: Form, len: u64) -> Vec<u8> {
    let stream = server.store.read(xorb, form, ByteRange::new(0, len).unwrap()).await.unwrap();
    stream.try_collect::<Vec<bytes::Bytes>>().await.unwrap().concat()
}

/// Runs `verb` once for each of its store operations, which fails. Checks the invariants at once,
/// after a restart, and after `verb` was repeated. Returns the number of faults.
async fn with_each_fault(verb: impl AsyncFn(&Arc<Server>, &World) -> Result<(), String>) -> usize {
    let mut count = 0;
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let world = World::new().await;
            let (setup, retained, fresh) = (&world.setup, &world.retained, &world.fresh);
            let server = setup.process();
            setup.faults.arm(n, moment);
            let result = verb(&server, &world).await;
            let Some(failed) = setup.faults.disarm() else {
                result.unwrap();
                break;
            };
            count += 1;
            let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
            check_invariants(&server, setup, &[retained], &case).await;

            // The invariants hold after a restart, too, and the restart leaves nothing unfinished.
            let server = setup.process();
            server.store.recover().await.unwrap();
            assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{case}");
            let rows: HashSet<_> = setup.index.list_xorbs().await.unwrap().into_iter().collect();
            let blobs = setup.blobs.list().await.unwrap();
            assert_eq!(blobs.iter().map(BlobKey::xorb_hash).collect::<HashSet<_>>(), rows, "{case}");
            assert_eq!(server.store.recover().await.unwrap(), Recovered::default(), "{case}");
            check_invariants(&server, setup, &[retained], &case).await;

            // Without a fault the operation succeeds.
            verb(&server, &world).await.unwrap_or_else(|error| panic!("{case}; then: {error}"));
            fresh.register(&server, "org/a", fresh.sha256).await.unwrap();
            check_invariants(&server, setup, &[retained, fresh], &case).await;
        }
    }
    count
}

#[tokio::test]
async fn duplicate_upload_with_nth_failure_takes_nothing_away() {
    let count = with_each_fault(async |server, world| {
        let uploaded = upload(server, &world.retained.xorb).await.map_err(|error| error.to_string())?;
        assert!(!uploaded.was_inserted);
        Ok(())
    });
    assert!(count.await >= 4);
}

/// The registration can also be repeated.
#[tokio::test]
async fn registration_with_nth_failure_is_all_or_nothing() {
    let count = with_each_fault(async |server, world| {
        let registered = world.fresh.register(server, "org/a", world.fresh.sha256).await;
        registered.map(drop).map_err(|error| error.to_string())
    });
    assert!(count.await >= 4);
}

#[tokio::test]
async fn known_registration_with_nth_failure_takes_nothing_away() {
    let count = with_each_fault(async |server, world| {
        let registered = world.retained.register(server, "org/b", world.retained.sha256).await;
        registered.map(drop).map_err(|error| error.to_string())
    });
    assert!(count.await >= 4);
}

#[tokio::test]
async fn dedup_query_with_nth_failure_takes_nothing_away() {
    let count = with_each_fault(async |server, world| {
        let [first, ..] = world.retained.xorb.xorb().chunk_hashes() else { panic!("a xorb has chunks") };
        let response = server.dedup_response(&Claims::UNRESTRICTED, *first).await.map_err(|error| error.to_string())?;
        assert!(response.is_some(), "the first chunk of a file can be found");
        Ok(())
    });
    assert!(count.await >= 4);
}
