//! Uploads by grant: the order of effects, and what is forgotten when.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;

use super::faults::Moment;
use super::{BodyError, Cas, Claims, Recovered, Setup, UploadError, read, upload, xorb};
use crate::blob::BlobStore;
use crate::format::Crc64;
use crate::format::compression::Policy;
use crate::format::xorb::BuiltXorb;
use crate::index::Index;
use crate::runtime::clock::Clock;
use crate::service::GrantedUpload;
use crate::service::access::{GRACE_SECS, Grant, GrantRequest, KeyRing, check_grant};

/// A grant for a xorb, good for an hour.
fn grant(setup: &Setup, xorb: &BuiltXorb, nonce: u8) -> Grant {
    let (ring, now) = (KeyRing::new([7; 32]), setup.clock.now().as_secs());
    let request = GrantRequest {
        claims: &Claims::UNRESTRICTED,
        xorb: xorb.xorb().hash(),
        body_len: xorb.bytes().len() as u64,
        crc64nvme: Crc64::of(xorb.bytes()),
        expires_unix_secs: now + 3600,
        nonce: [nonce; 16],
    };
    check_grant(&ring, request.issue(&ring).id.expose(), &xorb.xorb().hash(), now).unwrap()
}

async fn send(cas: &Cas, xorb: &BuiltXorb, grant: Grant) -> Result<(), UploadError> {
    let pieces: Vec<Result<Bytes, BodyError>> =
        xorb.bytes().chunks(3000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let declared_len = Some(xorb.bytes().len() as u64);
    let upload = GrantedUpload { grant, xorb: xorb.xorb().hash(), declared_len, body: stream::iter(pieces) };
    cas.upload_granted(upload).await
}

async fn commit(cas: &Cas, xorb: &BuiltXorb, grant: Grant) -> Result<(), UploadError> {
    cas.commit_granted(&Claims::UNRESTRICTED, xorb.xorb().hash(), grant).await
}

/// The invariants after a grant with a fault in the `n`-th operation, at once and after a restart.
/// `is_there` means that another client has uploaded the xorb between the bytes and the commit.
async fn check_grant_with_fault(n: usize, moment: Moment, is_there: bool) -> bool {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let (cas, first) = (setup.process(), grant(&setup, &xorb, 1));
    let result = if is_there {
        send(&cas, &xorb, first).await.unwrap();
        upload(&cas, &xorb).await.unwrap();
        setup.faults.arm(n, moment);
        commit(&cas, &xorb, first).await
    } else {
        setup.faults.arm(n, moment);
        let sent = send(&cas, &xorb, first).await;
        assert_eq!(setup.index.find_xorb(xorb.xorb().hash()).await.unwrap(), None, "operation {n} {moment:?}");
        match sent {
            Ok(()) => commit(&cas, &xorb, first).await,
            refused => refused,
        }
    };
    let Some(failed) = setup.faults.disarm() else {
        result.unwrap();
        return false;
    };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");

    let seen = read(&cas, &xorb).await.unwrap();
    let spent = setup.index.is_grant_spent(first.nonce).await.unwrap();
    match &result {
        Ok(()) => assert_eq!((seen.as_deref(), spent), (Some(xorb.bytes()), true), "{case}"),
        Err(_) if is_there => assert_eq!(seen.as_deref(), Some(xorb.bytes()), "{case}"),
        Err(_) => assert!(seen.is_none() || moment == Moment::After, "{case}"),
    }
    // A xorb that is visible by the grant alone has spent it, and the reverse.
    assert!(is_there || spent == seen.is_some(), "{case}");
    // A client tries again; it is told that all is well, or that it has to begin anew.
    match commit(&cas, &xorb, first).await {
        Ok(()) => assert_eq!(read(&cas, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{case}"),
        Err(error) => assert!(matches!(error, UploadError::NothingSent), "{case}: {error}"),
    }
    let seen = read(&cas, &xorb).await.unwrap();
    // A restart clears up what is not visible, and only that.
    let cas = setup.process();
    cas.recover().await.unwrap();
    assert_eq!(read(&cas, &xorb).await.unwrap(), seen, "{case}");
    assert_eq!(setup.blobs.list().await.unwrap().len(), usize::from(seen.is_some()), "{case}");
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{case}");
    assert_eq!(cas.recover().await.unwrap(), Recovered::default(), "{case}");
    // And a new grant does.
    let second = grant(&setup, &xorb, 2);
    send(&cas, &xorb, second).await.unwrap();
    commit(&cas, &xorb, second).await.unwrap();
    assert_eq!(read(&cas, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{case}");
    true
}

#[tokio::test]
async fn granted_upload_with_nth_failure_is_invisible_and_repeats() {
    for is_there in [false, true] {
        for moment in [Moment::Before, Moment::After] {
            let mut n = 0;
            while check_grant_with_fault(n, moment, is_there).await {
                n += 1;
            }
            assert!(n >= 3, "it has more than {n} operations that can fail");
        }
    }
}

#[tokio::test]
async fn failed_commit_is_repeated_without_the_bytes() {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let (cas, grant) = (setup.process(), grant(&setup, &xorb, 1));
    send(&cas, &xorb, grant).await.unwrap();
    setup.faults.arm_at("stage_xorb", Moment::Before);
    assert!(matches!(commit(&cas, &xorb, grant).await, Err(UploadError::Store(_))));
    setup.faults.disarm();
    commit(&cas, &xorb, grant).await.unwrap();
    assert_eq!(read(&cas, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()));
}

/// A spent grant is forgotten some time later.
#[tokio::test]
async fn uncommitted_upload_expires_with_its_grant() {
    let (setup, first, second) = (Setup::new().await, xorb("one", Policy::Lz4), xorb("two", Policy::Lz4));
    let cas = setup.process();
    let (committed, left) = (grant(&setup, &first, 1), grant(&setup, &second, 2));
    send(&cas, &first, committed).await.unwrap();
    commit(&cas, &first, committed).await.unwrap();
    send(&cas, &second, left).await.unwrap();
    setup.clock.advance(Duration::from_secs(3600 + GRACE_SECS));
    cas.sweep_grants().await.unwrap();
    assert!(
        matches!(send(&cas, &second, left).await, Err(UploadError::GrantSpent)),
        "it waits to the end of the grace"
    );
    setup.clock.advance(Duration::from_secs(1));
    cas.sweep_grants().await.unwrap();
    assert!(matches!(commit(&cas, &second, left).await, Err(UploadError::NothingSent)));
    assert!(setup.index.is_grant_spent(committed.nonce).await.unwrap());
    setup.clock.advance(Duration::from_secs(600));
    cas.sweep_grants().await.unwrap();
    assert!(!setup.index.is_grant_spent(committed.nonce).await.unwrap());
    assert_eq!(read(&cas, &first).await.unwrap().as_deref(), Some(first.bytes()));
}

#[tokio::test]
async fn of_more_uploads_than_may_wait_the_oldest_are_forgotten() {
    // Four may wait here.
    let setup = Setup::new().await;
    let cas = setup.process();
    let xorbs: Vec<_> = (0..6).map(|number| xorb(&format!("number {number}"), Policy::Lz4)).collect();
    let grants: Vec<_> = xorbs.iter().zip(1..).map(|(xorb, nonce)| grant(&setup, xorb, nonce)).collect();
    for (xorb, grant) in xorbs.iter().zip(&grants) {
        send(&cas, xorb, *grant).await.unwrap();
    }
    for (index, (xorb, grant)) in xorbs.iter().zip(&grants).enumerate() {
        let result = commit(&cas, xorb, *grant).await;
        match index {
            0 | 1 => assert!(matches!(result, Err(UploadError::NothingSent)), "{index}: {result:?}"),
            _ => result.unwrap(),
        }
    }
    assert_eq!(setup.blobs.list().await.unwrap().len(), 4);
    // A discarded upload can be sent again under the same grant.
    send(&cas, &xorbs[0], grants[0]).await.unwrap();
    commit(&cas, &xorbs[0], grants[0]).await.unwrap();
    assert!(setup.blobs.list().await.unwrap().contains(&setup.blobs.key_of(xorbs[0].xorb().hash())));
}

#[tokio::test]
async fn a_spent_grant_whose_xorb_was_deleted_since_finds_nothing() {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let (cas, grant) = (setup.process(), grant(&setup, &xorb, 1));
    setup.index.spend_grant(crate::index::SpentGrant { nonce: grant.nonce, expires: setup.clock.now() }).await.unwrap();
    assert!(matches!(commit(&cas, &xorb, grant).await, Err(UploadError::NothingSent)));
    assert!(matches!(send(&cas, &xorb, grant).await, Err(UploadError::GrantSpent)));
}
