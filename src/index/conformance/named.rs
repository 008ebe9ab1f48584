//! The contract on the xorbs that a registration names: GC must not delete them
//! before their grace period is over.

use super::collect::{after, condemned, life, sweep};
use super::files::{file, file_hash, registration, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::index::{Registered, Registration, XorbState};

suite! {
    registration_touches_xorbs_that_no_file_references
    xorb_that_loses_its_file_has_the_latest_registration_time
}

/// A registration touches those of its xorbs that no file references, even if its file is known and
/// its terms are ignored.
async fn registration_touches_xorbs_that_no_file_references(db: Db) {
    for byte in 1..=4 {
        put(&db, xorb(byte, 3)).await;
    }
    condemned(&db, 5).await;
    let at = |millis, named| Registration { now: after(millis), ..named };
    let sinces = async || {
        let lives =
            [life(&db, 1).await, life(&db, 2).await, life(&db, 3).await, life(&db, 4).await, life(&db, 5).await];
        lives.map(|life| life.since)
    };
    // Xorb 1 gets a reference, so it is not touched. Xorb 5 gets one, too, but was condemned: its
    // change to live sets `since`. Xorb 2 is only named.
    let terms = [term(1, 0, 1), term(5, 0, 1)];
    db.register(&at(20, registration("r", vec![file(9, &terms)], &[1, 2, 5]))).await.unwrap();
    assert_eq!(sinces().await, [NOW, after(20), NOW, NOW, after(20)]);
    assert_eq!((life(&db, 1).await.state, life(&db, 5).await.state), (XorbState::Live, XorbState::Live));
    assert_eq!(db.condemn_xorbs(vec![hash(1), hash(5)], after(1000), after(1000)).await.unwrap(), []);
    // The known file keeps its terms, so xorb 3 has no reference.
    let known = registration("r", vec![file(9, &[term(3, 0, 1)])], &[3, 1]);
    assert_eq!(db.register(&at(30, known)).await.unwrap(), Registered::Known);
    assert_eq!(sinces().await, [NOW, after(20), after(30), NOW, after(20)]);
    // A refused registration touches nothing.
    let refused = registration("r", vec![file(8, &[term(4, 0, 1)])], &[4, 77]);
    assert_eq!(db.register(&at(40, refused)).await.unwrap(), Registered::MissingXorb(hash(77)));
    assert_eq!(sinces().await, [NOW, after(20), after(30), NOW, after(20)]);
    // A xorb is touched when its last reference is deleted.
    db.remove_claims(file_hash(9), None, after(50)).await.unwrap();
    sweep(&db, after(60)).await;
    assert_eq!(sinces().await, [after(60), after(20), after(30), NOW, after(60)]);
}

/// The first registration has the latest time: the clock was set back before the second one and the
/// removal.
async fn xorb_that_loses_its_file_has_the_latest_registration_time(db: Db) {
    put(&db, xorb(1, 3)).await;
    let file = file(9, &[term(1, 0, 1)]);
    for millis in [30, 10] {
        let named = registration("r", vec![file.clone()], &[1]);
        db.register(&Registration { now: after(millis), ..named }).await.unwrap();
    }
    db.remove_claims(file_hash(9), None, after(20)).await.unwrap();
    sweep(&db, after(20)).await;
    assert_eq!(life(&db, 1).await.since, after(30));
}
