//! Every verb with a fault in each operation of the stores, before and after it was carried out.
//!
//! | verb | its loop |
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
//! What must hold after each is [`check_invariants`].

use std::collections::HashSet;

use futures_util::TryStreamExt;
use sha2::Digest;

use super::claims::{File, writer};
use super::{Cas, Form, Moment, Setup, upload};
use crate::blob::{BlobKey, BlobStore};
use crate::format::ByteRange;
use crate::format::shard::Sha256;
use crate::format::xorb::verify;
use crate::index::Index;
use crate::service::access::Claims;
use crate::service::{Detail, Recovered};

/// A store in use: one file that was acknowledged, and one whose xorb was.
struct World {
    setup: Setup,
    retained: File,
    fresh: File,
}

impl World {
    async fn new() -> Self {
        let setup = Setup::new().await;
        let cas = setup.process();
        let (retained, fresh) = (File::new("retained"), File::new("fresh"));
        for file in [&retained, &fresh] {
            upload(&cas, &file.xorb).await.unwrap();
        }
        retained.register(&cas, "org/a", retained.sha256).await.unwrap();
        Self { setup, retained, fresh }
    }
}

/// A live row has a blob that is what it says; what was acknowledged is served.
async fn check_invariants(cas: &Cas, setup: &Setup, acknowledged: &[&File], case: &str) {
    for hash in setup.index.list_xorbs().await.unwrap() {
        let stored = cas.find(hash).await.unwrap().unwrap_or_else(|| panic!("{case}: {hash} is listed, not there"));
        let len = stored.layout().serialized_len();
        assert_eq!(
            setup.blobs.head(BlobKey::new(hash, stored.incarnation())).await.unwrap(),
            Some(len),
            "{case}: {hash}"
        );
        let bytes = read(cas, &stored, Form::Serialized, len).await;
        assert_eq!(verify(&bytes).unwrap().hash(), hash, "{case}");
    }
    for file in acknowledged {
        let found = cas.reconstruct(&writer("org/a"), file.hash, None, Detail::Terms).await;
        let mut contents = sha2::Sha256::new();
        for term in found.unwrap_or_else(|error| panic!("{case}: {error}")).plan.file.terms {
            let xorb = cas.find(term.xorb).await.unwrap().unwrap();
            assert_eq!(term.chunks, xorb.layout().whole(), "these files are a whole xorb each");
            contents.update(read(cas, &xorb, Form::Raw, xorb.layout().raw_len()).await);
        }
        assert_eq!(Sha256::from_digest(contents.finalize().into()), file.sha256, "{case}");
    }
}

async fn read(cas: &Cas, xorb: &crate::service::StoredXorb, form: Form, len: u64) -> Vec<u8> {
    let stream = cas.read(xorb, form, ByteRange::new(0, len).unwrap()).await.unwrap();
    stream.try_collect::<Vec<bytes::Bytes>>().await.unwrap().concat()
}

/// Runs this with a fault in every operation; returns how many there are.
async fn with_each_fault(verb: impl AsyncFn(&Cas, &World) -> Result<(), String>) -> usize {
    let mut count = 0;
    for moment in [Moment::Before, Moment::After] {
        for n in 0.. {
            let world = World::new().await;
            let (setup, retained, fresh) = (&world.setup, &world.retained, &world.fresh);
            let cas = setup.process();
            setup.faults.arm(n, moment);
            let result = verb(&cas, &world).await;
            let Some(failed) = setup.faults.disarm() else {
                result.unwrap();
                break;
            };
            count += 1;
            let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");
            check_invariants(&cas, setup, &[retained], &case).await;

            // The same after a restart, which finds nothing stray and leaves nothing.
            let cas = setup.process();
            cas.recover().await.unwrap();
            assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{case}");
            let rows: HashSet<_> = setup.index.list_xorbs().await.unwrap().into_iter().collect();
            let blobs = setup.blobs.list().await.unwrap();
            assert_eq!(blobs.iter().map(BlobKey::xorb_hash).collect::<HashSet<_>>(), rows, "{case}");
            assert_eq!(cas.recover().await.unwrap(), Recovered::default(), "{case}");
            check_invariants(&cas, setup, &[retained], &case).await;

            // And everything works when nothing fails any more.
            verb(&cas, &world).await.unwrap_or_else(|error| panic!("{case}; then: {error}"));
            fresh.register(&cas, "org/a", fresh.sha256).await.unwrap();
            check_invariants(&cas, setup, &[retained, fresh], &case).await;
        }
    }
    count
}

#[tokio::test]
async fn duplicate_upload_with_nth_failure_takes_nothing_away() {
    let count = with_each_fault(async |cas, world| {
        let uploaded = upload(cas, &world.retained.xorb).await.map_err(|error| error.to_string())?;
        assert!(!uploaded.was_inserted);
        Ok(())
    });
    assert!(count.await >= 4);
}

/// It can be repeated.
#[tokio::test]
async fn registration_with_nth_failure_is_all_or_nothing() {
    let count = with_each_fault(async |cas, world| {
        let registered = world.fresh.register(cas, "org/a", world.fresh.sha256).await;
        registered.map(drop).map_err(|error| error.to_string())
    });
    assert!(count.await >= 4);
}

#[tokio::test]
async fn known_registration_with_nth_failure_takes_nothing_away() {
    let count = with_each_fault(async |cas, world| {
        let registered = world.retained.register(cas, "org/b", world.retained.sha256).await;
        registered.map(drop).map_err(|error| error.to_string())
    });
    assert!(count.await >= 4);
}

#[tokio::test]
async fn dedup_query_with_nth_failure_takes_nothing_away() {
    let count = with_each_fault(async |cas, world| {
        let [first, ..] = world.retained.xorb.xorb().chunk_hashes() else { panic!("a xorb has chunks") };
        let response = cas.dedup_response(&Claims::UNRESTRICTED, *first).await.map_err(|error| error.to_string())?;
        assert!(response.is_some(), "the first chunk of a file can be found");
        Ok(())
    });
    assert!(count.await >= 4);
}
