//! The contract on spent grants, and on the renewal of xorbs.

use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::index::{NewXorb, SpentGrant, Staging, Ticket, XorbState};
use crate::runtime::clock::Timestamp;

suite! {
    grant_is_spent_with_its_publication_and_not_if_that_fails
    grant_can_be_spent_twice_and_stays_spent_until_it_expires
    xorb_is_renewed_only_where_visible_and_of_its_owner
}

const LATER: Timestamp = Timestamp::from_millis(NOW.as_millis() + 5000);

fn grant(byte: u8, expires: Timestamp) -> SpentGrant {
    SpentGrant { nonce: [byte; 16], expires }
}

async fn grant_is_spent_with_its_publication_and_not_if_that_fails(db: Db) {
    let (ticket, granted) = (Ticket::random(), NewXorb { grant: Some(grant(1, LATER)), ..xorb(1, 3) });
    db.publish_xorb(granted.clone(), ticket, NOW).await.unwrap_err();
    assert!(!db.is_grant_spent([1; 16]).await.unwrap());
    db.stage_xorb(hash(1), ticket, NOW).await.unwrap();
    db.publish_xorb(granted, ticket, NOW).await.unwrap();
    assert!(db.is_grant_spent([1; 16]).await.unwrap());
    assert!(!db.is_grant_spent([2; 16]).await.unwrap());
}

async fn grant_can_be_spent_twice_and_stays_spent_until_it_expires(db: Db) {
    for _ in 0..2 {
        db.spend_grant(grant(1, NOW)).await.unwrap();
    }
    db.spend_grant(grant(2, LATER)).await.unwrap();
    let spent = async || (db.is_grant_spent([1; 16]).await.unwrap(), db.is_grant_spent([2; 16]).await.unwrap());
    assert_eq!(db.forget_grants(NOW).await.unwrap(), 0);
    assert_eq!(spent().await, (true, true));
    assert_eq!(db.forget_grants(LATER).await.unwrap(), 1);
    assert_eq!(spent().await, (false, true));
    // A grant that is spent already can be recorded again, here with the publication of a xorb.
    put(&db, NewXorb { grant: Some(grant(2, LATER)), ..xorb(1, 3) }).await;
}

async fn xorb_is_renewed_only_where_visible_and_of_its_owner(db: Db) {
    let org = || Some("org".to_owned());
    assert!(!db.renew_xorb(hash(1), org(), NOW).await.unwrap());
    assert_eq!(db.stage_xorb(hash(1), Ticket::random(), NOW).await.unwrap(), Staging::Staged);
    assert!(!db.renew_xorb(hash(1), org(), NOW).await.unwrap());
    assert!(!db.renew_xorb(hash(1), None, NOW).await.unwrap());
    assert_eq!(db.unfinished_xorbs().await.unwrap(), [(hash(1), XorbState::Staged)]);
    put(&db, xorb(1, 3)).await;
    let before = db.find_xorb(hash(1)).await.unwrap();
    assert!(db.renew_xorb(hash(1), org(), LATER).await.unwrap());
    assert!(!db.renew_xorb(hash(1), Some("other".to_owned()), LATER).await.unwrap());
    assert!(db.renew_xorb(hash(1), None, LATER).await.unwrap());
    assert!(db.share_xorb(hash(1), "other".to_owned()).await.unwrap());
    assert!(db.renew_xorb(hash(1), Some("other".to_owned()), LATER).await.unwrap());
    assert_eq!(db.find_xorb(hash(1)).await.unwrap(), before);
}
