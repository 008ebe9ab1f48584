//! Uploads by grant: the order of effects, and the expiry of grants and waiting uploads.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;

use super::faults::Moment;
use super::{BodyError, Claims, Recovered, Server, Setup, UploadError, read, upload, xorb};
use crate::blob::BlobStore;
use crate::format::Crc64;
use crate::format::compression::Policy;
use crate::format::xorb::BuiltXorb;
use crate::index::{GrantIndex, XorbIndex};
use crate::runtime::clock::Clock;
use crate::service::GrantedUpload;
use crate::service::access::{GRACE_SECS, Grant, GrantRequest, KeyRing, check_grant};

/// A grant for a xorb, valid for an hour.
fn grant(setup: &Setup, xorb: &BuiltXorb, nonce: u8) -> Grant {
    grant_to(&Claims::UNRESTRICTED, setup, xorb, nonce)
}

fn grant_to(claims: &Claims, setup: &Setup, xorb: &BuiltXorb, nonce: u8) -> Grant {
    let (ring, now) = (KeyRing::new([7; 32]), setup.clock.now().as_secs());
    let request = GrantRequest {
        claims,
        xorb: xorb.xorb().hash(),
        body_len: xorb.bytes().len() as u64,
        crc64nvme: Crc64::of(xorb.bytes()),
        expires_unix_secs: now + 3600,
        nonce: [nonce; 16],
    };
    check_grant(&ring, request.issue(&ring).id.expose(), &xorb.xorb().hash(), now).unwrap()
}

async fn send(server: &Arc<Server>, xorb: &BuiltXorb, grant: Grant) -> Result<(), UploadError> {
    let pieces: Vec<Result<Bytes, BodyError>> =
        xorb.bytes().chunks(3000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let declared_len = Some(xorb.bytes().len() as u64);
    let upload = GrantedUpload { grant, xorb: xorb.xorb().hash(), declared_len, body: stream::iter(pieces) };
    server.upload_granted(upload).await
}

async fn commit(server: &Arc<Server>, xorb: &BuiltXorb, grant: Grant) -> Result<(), UploadError> {
    server.commit_granted(&Claims::UNRESTRICTED, xorb.xorb().hash(), grant).await
}

/// Checks the invariants after an upload by grant with a fault in the `n`-th operation, at once and
/// after a restart. If `is_there`, another client uploads the xorb between the bytes and the
/// commit. Returns false if there is no `n`-th operation.
async fn check_grant_with_fault(n: usize, moment: Moment, is_there: bool) -> bool {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let (server, first) = (setup.process(), grant(&setup, &xorb, 1));
    let result = if is_there {
        send(&server, &xorb, first).await.unwrap();
        upload(&server, &xorb).await.unwrap();
        setup.faults.arm(n, moment);
        commit(&server, &xorb, first).await
    } else {
        setup.faults.arm(n, moment);
        let sent = send(&server, &xorb, first).await;
        assert_eq!(setup.index.find_xorb(xorb.xorb().hash()).await.unwrap(), None, "operation {n} {moment:?}");
        match sent {
            Ok(()) => commit(&server, &xorb, first).await,
            refused => refused,
        }
    };
    let Some(failed) = setup.faults.disarm() else {
        result.unwrap();
        return false;
    };
    let case = format!("operation {n} ({failed}) failed {moment:?}: {result:?}");

    let seen = read(&server, &xorb).await.unwrap();
    let spent = setup.index.is_grant_spent(first.nonce).await.unwrap();
    match &result {
        Ok(()) => assert_eq!((seen.as_deref(), spent), (Some(xorb.bytes()), true), "{case}"),
        Err(_) if is_there => assert_eq!(seen.as_deref(), Some(xorb.bytes()), "{case}"),
        Err(_) => assert!(seen.is_none() || moment == Moment::After, "{case}"),
    }
    // Only the commit makes the xorb visible and spends the grant, both in one transaction.
    assert!(is_there || spent == seen.is_some(), "{case}");
    // The client commits again. The commit succeeds, or the client has to send the bytes again.
    match commit(&server, &xorb, first).await {
        Ok(()) => assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{case}"),
        Err(error) => assert!(matches!(error, UploadError::NothingSent), "{case}: {error}"),
    }
    let seen = read(&server, &xorb).await.unwrap();
    // A restart removes everything that is not visible, and nothing else.
    let server = setup.process();
    server.store.recover().await.unwrap();
    assert_eq!(read(&server, &xorb).await.unwrap(), seen, "{case}");
    assert_eq!(setup.blobs.list().await.unwrap().len(), usize::from(seen.is_some()), "{case}");
    assert_eq!(setup.index.unfinished_xorbs().await.unwrap(), [], "{case}");
    assert_eq!(server.store.recover().await.unwrap(), Recovered::default(), "{case}");
    // The upload succeeds with a new grant.
    let second = grant(&setup, &xorb, 2);
    send(&server, &xorb, second).await.unwrap();
    commit(&server, &xorb, second).await.unwrap();
    assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()), "{case}");
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
    let (server, grant) = (setup.process(), grant(&setup, &xorb, 1));
    send(&server, &xorb, grant).await.unwrap();
    setup.faults.arm_at("stage_xorb", Moment::Before);
    assert!(matches!(commit(&server, &xorb, grant).await, Err(UploadError::Store(_))));
    setup.faults.disarm();
    commit(&server, &xorb, grant).await.unwrap();
    assert_eq!(read(&server, &xorb).await.unwrap().as_deref(), Some(xorb.bytes()));
}

/// A spent grant is forgotten ten minutes after the grace.
#[tokio::test]
async fn uncommitted_upload_expires_with_its_grant() {
    let (setup, first, second) = (Setup::new().await, xorb("one", Policy::Lz4), xorb("two", Policy::Lz4));
    let server = setup.process();
    let (committed, left) = (grant(&setup, &first, 1), grant(&setup, &second, 2));
    send(&server, &first, committed).await.unwrap();
    commit(&server, &first, committed).await.unwrap();
    send(&server, &second, left).await.unwrap();
    setup.clock.advance(Duration::from_secs(3600 + GRACE_SECS));
    server.sweep_grants().await.unwrap();
    assert!(
        matches!(send(&server, &second, left).await, Err(UploadError::GrantSpent)),
        "the upload waits until the end of the grace"
    );
    setup.clock.advance(Duration::from_secs(1));
    server.sweep_grants().await.unwrap();
    assert!(matches!(commit(&server, &second, left).await, Err(UploadError::NothingSent)));
    assert!(setup.index.is_grant_spent(committed.nonce).await.unwrap());
    setup.clock.advance(Duration::from_secs(600));
    server.sweep_grants().await.unwrap();
    assert!(!setup.index.is_grant_spent(committed.nonce).await.unwrap());
    assert_eq!(read(&server, &first).await.unwrap().as_deref(), Some(first.bytes()));
}

#[tokio::test]
async fn oldest_waiting_uploads_are_discarded_above_the_limit() {
    // Four uploads may wait in this setup.
    let setup = Setup::new().await;
    let server = setup.process();
    let xorbs: Vec<_> = (0..6).map(|number| xorb(&format!("number {number}"), Policy::Lz4)).collect();
    let grants: Vec<_> = xorbs.iter().zip(1..).map(|(xorb, nonce)| grant(&setup, xorb, nonce)).collect();
    for (xorb, grant) in xorbs.iter().zip(&grants) {
        send(&server, xorb, *grant).await.unwrap();
    }
    for (index, (xorb, grant)) in xorbs.iter().zip(&grants).enumerate() {
        let result = commit(&server, xorb, *grant).await;
        match index {
            0 | 1 => assert!(matches!(result, Err(UploadError::NothingSent)), "{index}: {result:?}"),
            _ => result.unwrap(),
        }
    }
    assert_eq!(setup.blobs.list().await.unwrap().len(), 4);
    // A discarded upload can be sent again under the same grant.
    send(&server, &xorbs[0], grants[0]).await.unwrap();
    commit(&server, &xorbs[0], grants[0]).await.unwrap();
    assert!(setup.blobs.list().await.unwrap().contains(&setup.blobs.key_of(xorbs[0].xorb().hash())));
}

#[tokio::test]
async fn many_uploads_of_one_tenant_discard_none_of_another() {
    // Four uploads may wait in this setup.
    let setup = Setup::new().await;
    let server = setup.process();
    let other = Claims { subject: "other".parse().ok(), ..Claims::UNRESTRICTED };
    assert_ne!(other.tenant(), Claims::UNRESTRICTED.tenant());
    let first = xorb("first", Policy::Lz4);
    let waiting = grant_to(&other, &setup, &first, 100);
    send(&server, &first, waiting).await.unwrap();
    for number in 0..8 {
        let xorb = xorb(&format!("number {number}"), Policy::Lz4);
        send(&server, &xorb, grant(&setup, &xorb, number)).await.unwrap();
    }
    server.commit_granted(&other, first.xorb().hash(), waiting).await.unwrap();
}

#[tokio::test]
async fn commit_of_spent_grant_without_xorb_reports_nothing_sent() {
    let (setup, xorb) = (Setup::new().await, xorb("bytes", Policy::Lz4));
    let (server, grant) = (setup.process(), grant(&setup, &xorb, 1));
    setup.index.spend_grant(crate::index::SpentGrant { nonce: grant.nonce, expires: setup.clock.now() }).await.unwrap();
    assert!(matches!(commit(&server, &xorb, grant).await, Err(UploadError::NothingSent)));
    assert!(matches!(send(&server, &xorb, grant).await, Err(UploadError::GrantSpent)));
}
