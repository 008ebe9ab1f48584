//! Which xorbs of one chunk a registration may name that its owner has not uploaded.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;

use super::Setup;
use super::claims::writer;
use crate::format::XorbHash;
use crate::format::compression::Policy;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::xorb::XorbBuilder;
use crate::service::access::{Account, Accounts};
use crate::service::{BodyError, Server, Upload};

/// Uploads a xorb of one chunk for a repository.
async fn upload(server: &Arc<Server>, repo: &str, text: &str) -> XorbHash {
    let mut builder = XorbBuilder::new(Policy::None);
    builder.push(text.as_bytes()).unwrap();
    let xorb = builder.finish().unwrap();
    let body = stream::iter([Ok::<_, BodyError>(Bytes::copy_from_slice(xorb.bytes()))]);
    let (claims, claimed) = (writer(repo), xorb.xorb().hash());
    let upload = Upload { claims: &claims, claimed, max_len: MAX_XORB_SERIALIZED_LEN, declared_len: None, body };
    server.upload(upload).await.unwrap();
    claimed
}

#[tokio::test]
async fn few_short_xorbs_of_other_owners_of_a_user_are_shared() {
    let setup = Setup::new().await;
    let server = setup.process();
    let mut accounts = Accounts::default();
    accounts.add_user("alice".parse().unwrap()).unwrap();
    let alice = accounts.user(&"alice".parse().unwrap()).unwrap().account().clone();
    let mut xorbs = Vec::new();
    for number in 0..5 {
        xorbs.push(upload(&server, "models/alice/m", &format!("short {number}")).await);
    }
    let of_bob = upload(&server, "models/bob/m", "short, too").await;
    let set = |xorbs: &[XorbHash]| xorbs.iter().copied().collect::<HashSet<XorbHash>>();
    let unproven = async |xorbs: &[XorbHash], user: Option<&Account>| {
        server.store.unproven_xorbs(set(xorbs), "datasets/alice", user).await.unwrap()
    };
    assert_eq!(unproven(&xorbs[..1], None).await, set(&xorbs[..1]));
    assert_eq!(unproven(&xorbs, Some(&alice)).await, set(&xorbs), "too many, so none is shared");
    assert_eq!(unproven(&[xorbs[0], of_bob], Some(&alice)).await, set(&[of_bob]));
    assert_eq!(unproven(&xorbs[..1], None).await, set(&[]), "it is shared");
    assert_eq!(unproven(&xorbs[1..], Some(&alice)).await, set(&[]));
}
