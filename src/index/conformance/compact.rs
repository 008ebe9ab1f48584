//! The contract on compaction: the conditions of a switch, and the owners and deduplication entries
//! of a new xorb.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::backends::{Backend, TestIndex};
use super::files::{file, file_hash, reader, registration, term};
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::shard::Term;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash};
use crate::index::{FileSwitch, NewXorb, Reader, RunSwitch, Staging, Switched, Ticket, XorbState};
use crate::runtime::clock::Timestamp;

suite_in_steps! {
    all_terms_are_listed_in_pages_by_row_and_by_file
    files_of_a_xorb_are_listed_in_pages_and_without_removed_ones
    switched_file_has_new_terms_and_references_only
    file_that_still_names_an_old_xorb_keeps_its_reference
    every_condition_of_a_switch_is_checked
    switch_makes_the_new_xorb_live_and_touches_the_old_one
    of_two_switches_of_one_file_one_is_done
    dedup_response_names_the_new_xorb_after_the_last_switch
    owners_and_dedup_are_added_only_if_visible_and_sound
    new_xorb_is_staged_only_if_it_has_no_row
}

suite_with_hooks! {
    usage_is_what_there_is_after_any_switch
}

const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

fn after(millis: u64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + millis)
}

/// A term of another xorb, with as many chunks and bytes as `old`.
fn moved(xorb: u8, start: u32, old: Term) -> Term {
    let chunks = ChunkRange::new(start, start + old.chunks.count()).unwrap();
    Term { xorb: hash(xorb), chunks, raw_len: old.raw_len }
}

/// A switch that replaces each present term of a file for which `change` returns a new one.
async fn switch(db: &Db, byte: u8, change: impl Fn(&Term) -> Option<Term>) -> FileSwitch {
    let mut runs = Vec::new();
    for row in db.terms_of(file_hash(byte)).await.unwrap() {
        let after: Vec<Term> = row.terms.iter().map(|term| change(term).unwrap_or(*term)).collect();
        if after != row.terms {
            runs.push(RunSwitch { row: row.row, before: row.terms, after });
        }
    }
    FileSwitch { file: file_hash(byte), runs }
}

/// Maps the terms of xorb `from` to xorb `to`, beginning at chunk 0.
fn all_of(from: u8, to: u8) -> impl Fn(&Term) -> Option<Term> {
    move |term| (term.xorb == hash(from)).then(|| moved(to, 0, *term))
}

async fn terms(db: &Db, byte: u8) -> Vec<Term> {
    db.find_file(file_hash(byte), Reader::All, WHOLE).await.unwrap().map_or(Vec::new(), |file| file.terms)
}

async fn is_referenced(db: &Db, byte: u8) -> bool {
    db.find_life(hash(byte)).await.unwrap().unwrap().is_referenced
}

/// Everything that a switch may change.
async fn state(db: &Db) -> String {
    let lives = db.xorb_lives(None, 100).await.unwrap();
    let rows = db.term_rows(0, 100).await.unwrap();
    let usage = db.repo_usage("r".to_owned()).await.unwrap();
    format!("{lives:?} {rows:?} {usage:?}")
}

async fn stocked(db: &Db, xorbs: u8) {
    for byte in 1..=xorbs {
        put(db, xorb(byte, 6)).await;
    }
}

async fn all_terms_are_listed_in_pages_by_row_and_by_file(db: Db) {
    stocked(&db, 2).await;
    let many: Vec<Term> =
        (0..1100).map(|number| term(1 + u8::from(number % 2 == 0), number % 5, number % 5 + 1)).collect();
    db.register(&registration("r", vec![file(9, &many), file(8, &[term(1, 0, 1)])], &[1, 2])).await.unwrap();
    db.register(&registration("r", vec![file(7, &[term(2, 0, 1)])], &[2])).await.unwrap();
    db.remove_claims(file_hash(7), None, NOW).await.unwrap();
    let all = db.term_rows(0, 1000).await.unwrap();
    assert_eq!((all.rows.len(), all.next), (4, None));
    let of_many: Vec<_> = all.rows.iter().filter(|row| row.file == file_hash(9)).cloned().collect();
    assert_eq!(of_many, db.terms_of(file_hash(9)).await.unwrap());
    assert_eq!(of_many.iter().flat_map(|row| row.terms.clone()).collect::<Vec<_>>(), many);
    assert_eq!(db.terms_of(file_hash(7)).await.unwrap(), []);
    let (mut paged, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = db.term_rows(after, 1).await.unwrap();
        paged.extend(page.rows);
        next = page.next;
    }
    assert_eq!(paged, all.rows);
}

/// All files that reference a xorb.
async fn files_of(db: &Db, byte: u8) -> Vec<FileHash> {
    let mut files = db.files_of(hash(byte), 0, 9).await.unwrap().files;
    files.sort_by_key(|file| *file.as_bytes());
    files
}

async fn files_of_a_xorb_are_listed_in_pages_and_without_removed_ones(db: Db) {
    stocked(&db, 2).await;
    let files = (1..=5).map(|byte| file(byte, &[term(1, 0, u32::from(byte))])).collect();
    db.register(&registration("r", files, &[1])).await.unwrap();
    db.register(&registration("r", vec![file(6, &[term(2, 0, 1)])], &[2])).await.unwrap();
    db.remove_claims(file_hash(3), None, NOW).await.unwrap();
    // A removed file counts for the limit of a page, but is not in it.
    let (mut pages, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = db.files_of(hash(1), after, 2).await.unwrap();
        pages.push(page.files);
        next = page.next;
    }
    assert_eq!(pages, [vec![1, 2], vec![4], vec![5]].map(|page| page.into_iter().map(file_hash).collect::<Vec<_>>()));
    assert_eq!(files_of(&db, 3).await, []);
}

async fn switched_file_has_new_terms_and_references_only(db: Db) {
    stocked(&db, 4).await;
    let old = [term(1, 0, 2), term(2, 1, 3), term(1, 3, 4), term(1, 0, 2)];
    db.register(&registration("r", vec![file(9, &old), file(8, &[term(1, 0, 1)])], &[1, 2])).await.unwrap();
    let before = db.find_file(file_hash(9), Reader::All, WHOLE).await.unwrap().unwrap();
    let places = |term: &Term| match (term.xorb == hash(1), term.chunks.start()) {
        (true, 0) => Some(moved(3, 1, *term)),
        (true, 3) => Some(moved(3, 0, *term)),
        _ => None,
    };
    let files = [switch(&db, 9, places).await];
    assert_eq!(db.switch_terms(&files, after(5)).await.unwrap(), Switched::All);
    let expected = [term(3, 1, 3), term(2, 1, 3), term(3, 0, 1), term(3, 1, 3)];
    let found = db.find_file(file_hash(9), reader("r"), WHOLE).await.unwrap().unwrap();
    assert_eq!(found.terms, expected);
    assert_eq!((found.raw_len, found.terms_start), (before.raw_len, before.terms_start));
    assert_eq!(files_of(&db, 3).await, [file_hash(9)]);
    // File 8 still needs xorb 1.
    assert_eq!(files_of(&db, 1).await, [file_hash(8)]);
    assert_eq!(files_of(&db, 2).await, [file_hash(9)]);
    assert_eq!(db.faulty_files(None).await.unwrap().faults, []);
    let usage = db.repo_usage("r".to_owned()).await.unwrap();
    let len: u64 = (1..=3).map(|byte| xorb(byte, 6).layout.serialized_len()).sum();
    assert_eq!((usage.file_count, usage.physical_len), (2, len));
    // Switch several files at once. File 9 references its new xorb already.
    let files = [switch(&db, 8, all_of(1, 4)).await, switch(&db, 9, all_of(2, 3)).await];
    assert_eq!(db.switch_terms(&files, after(6)).await.unwrap(), Switched::All);
    let referenced: BTreeSet<u8> = {
        let mut found = BTreeSet::new();
        for byte in 1..=4 {
            found.extend(is_referenced(&db, byte).await.then_some(byte));
        }
        found
    };
    assert_eq!(referenced, BTreeSet::from([3, 4]));
    assert_eq!(db.faulty_files(None).await.unwrap().faults, []);
}

async fn file_that_still_names_an_old_xorb_keeps_its_reference(db: Db) {
    stocked(&db, 2).await;
    // Xorb 1 is in the run that changes, and in another run of the same file.
    let far: Vec<Term> = (0..1030).map(|number| if number == 1029 { term(1, 5, 6) } else { term(2, 0, 1) }).collect();
    let mut near = far.clone();
    near[1] = term(1, 0, 1);
    near[2] = term(1, 2, 3);
    db.register(&registration("r", vec![file(9, &near), file(8, &[term(1, 0, 1), term(1, 4, 5)])], &[1, 2]))
        .await
        .unwrap();
    put(&db, xorb(3, 6)).await;
    let first_chunk = |term: &Term| (*term == super::files::term(1, 0, 1)).then(|| moved(3, 0, *term));
    for byte in [9, 8] {
        let files = [switch(&db, byte, first_chunk).await];
        assert_eq!(files[0].runs.len(), 1);
        assert_eq!(db.switch_terms(&files, after(5)).await.unwrap(), Switched::All);
    }
    assert_eq!(files_of(&db, 1).await, [file_hash(8), file_hash(9)]);
    assert_eq!(db.faulty_files(None).await.unwrap().faults, []);
    // Now only the last run names xorb 1, so the reference stays.
    let rest = |term: &Term| (*term == super::files::term(1, 2, 3)).then(|| moved(3, 1, *term));
    assert_eq!(db.switch_terms(&[switch(&db, 9, rest).await], after(5)).await.unwrap(), Switched::All);
    assert_eq!(files_of(&db, 1).await, [file_hash(8), file_hash(9)]);
    assert_eq!(db.switch_terms(&[switch(&db, 9, all_of(1, 3)).await], after(5)).await.unwrap(), Switched::All);
    assert_eq!(files_of(&db, 1).await, [file_hash(8)]);
    assert_eq!(db.faulty_files(None).await.unwrap().faults, []);
}

/// A switch that violates one condition is refused and changes nothing.
async fn every_condition_of_a_switch_is_checked(db: Db) {
    stocked(&db, 4).await;
    let files = vec![file(9, &[term(1, 0, 2), term(2, 1, 3)]), file(8, &[term(1, 2, 3)])];
    db.register(&registration("r", files, &[1, 2])).await.unwrap();
    let (good, other) = (switch(&db, 8, all_of(1, 3)).await, switch(&db, 9, all_of(1, 3)).await);
    let seen = db.find_health(hash(4)).await.unwrap().unwrap();
    assert!(db.mark_damaged(seen, NOW).await.unwrap());
    db.stage_xorb(hash(5), Ticket::random(), NOW).await.unwrap();
    db.stage_xorb(hash(6), Ticket::random(), NOW).await.unwrap();
    db.abandon_xorb(hash(6), NOW).await.unwrap();
    let before = state(&db).await;
    let with = |change: &dyn Fn(&mut RunSwitch)| {
        let mut switch = other.clone();
        change(&mut switch.runs[0]);
        switch
    };
    let to = |xorb: u8| with(&|run| run.after[0] = moved(xorb, 0, run.before[0]));
    for (refused, switch) in [
        // Refused: an unknown row, a row of another file, other old terms, an unknown file, and new
        // terms of another length or number.
        (Switched::Other(file_hash(9)), with(&|run| run.row += 1000)),
        (Switched::Other(file_hash(9)), with(&|run| run.row = good.runs[0].row)),
        (Switched::Other(file_hash(9)), with(&|run| run.before[1] = term(2, 0, 2))),
        (Switched::Other(file_hash(7)), FileSwitch { file: file_hash(7), ..other.clone() }),
        (Switched::Other(file_hash(9)), with(&|run| run.after[0].raw_len += 1)),
        (Switched::Other(file_hash(9)), with(&|run| run.after[0] = Term { raw_len: 2000, ..term(3, 0, 1) })),
        (Switched::Other(file_hash(9)), with(&|run| run.after.truncate(1))),
        // Refused: new xorbs that are damaged, staged, being deleted, or missing.
        (Switched::Unusable(hash(4)), to(4)),
        (Switched::Unusable(hash(5)), to(5)),
        (Switched::Unusable(hash(6)), to(6)),
        (Switched::Unusable(hash(7)), to(7)),
    ] {
        for files in [vec![switch.clone()], vec![good.clone(), switch.clone()], vec![switch.clone(), good.clone()]] {
            assert_eq!(db.switch_terms(&files, after(5)).await.unwrap(), refused, "{switch:?}");
            assert_eq!(state(&db).await, before, "{switch:?}");
        }
    }
    // Refused: a removed file, before and after its sweep, and then a file that was registered
    // again with other terms.
    db.remove_claims(file_hash(9), None, after(1)).await.unwrap();
    let files = [good.clone(), other.clone()];
    assert_eq!(db.switch_terms(&files, after(5)).await.unwrap(), Switched::Other(file_hash(9)));
    while db.sweep_removed(after(1)).await.unwrap() {}
    assert_eq!(db.switch_terms(&files, after(5)).await.unwrap(), Switched::Other(file_hash(9)));
    db.register(&registration("r", vec![file(9, &[term(1, 0, 2), term(2, 0, 2)])], &[1, 2])).await.unwrap();
    assert_eq!(db.switch_terms(&files, after(5)).await.unwrap(), Switched::Other(file_hash(9)));
    assert_eq!(terms(&db, 9).await, [term(1, 0, 2), term(2, 0, 2)]);
    assert_eq!(db.switch_terms(&[good], after(5)).await.unwrap(), Switched::All);
    assert_eq!(db.switch_terms(&[], after(5)).await.unwrap(), Switched::All);
}

async fn switch_makes_the_new_xorb_live_and_touches_the_old_one(db: Db) {
    stocked(&db, 3).await;
    let files = vec![file(9, &[term(1, 0, 2), term(2, 1, 3)]), file(8, &[term(2, 2, 3)])];
    db.register(&registration("r", files, &[1, 2])).await.unwrap();
    assert_eq!(db.condemn_xorbs(vec![hash(3)], NOW, after(1)).await.unwrap(), [hash(3)]);
    let both = |term: &Term| Some(moved(3, 0, *term));
    assert_eq!(db.switch_terms(&[switch(&db, 9, both).await], after(50)).await.unwrap(), Switched::All);
    let life = async |byte| db.find_life(hash(byte)).await.unwrap().unwrap();
    assert_eq!((life(3).await.state, life(3).await.since), (XorbState::Live, after(50)));
    assert_eq!((life(1).await.is_referenced, life(1).await.since), (false, after(50)));
    assert_eq!((life(2).await.is_referenced, life(2).await.since), (true, NOW), "another file has it");
    assert_eq!(db.condemn_xorbs(vec![hash(1), hash(2), hash(3)], after(49), after(60)).await.unwrap(), []);
    assert_eq!(db.condemn_xorbs(vec![hash(1), hash(2), hash(3)], after(50), after(60)).await.unwrap(), [hash(1)]);
    // The clock was set back here, but the time of last use does not decrease.
    assert_eq!(db.switch_terms(&[switch(&db, 8, all_of(2, 3)).await], NOW).await.unwrap(), Switched::All);
    assert_eq!(life(3).await.since, after(50));
}

async fn of_two_switches_of_one_file_one_is_done(db: Db) {
    stocked(&db, 3).await;
    db.register(&registration("r", vec![file(9, &[term(1, 0, 2)])], &[1])).await.unwrap();
    let (first, second) = (switch(&db, 9, all_of(1, 2)).await, switch(&db, 9, all_of(1, 3)).await);
    let twice = [first.clone(), first.clone()];
    assert_eq!(db.switch_terms(&twice, NOW).await.unwrap(), Switched::Other(file_hash(9)));
    let (a, b) = futures_util::future::join(
        db.switch_terms(std::slice::from_ref(&first), NOW),
        db.switch_terms(std::slice::from_ref(&second), NOW),
    )
    .await;
    let outcomes = [a.unwrap(), b.unwrap()];
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Switched::All).count(), 1, "{outcomes:?}");
    assert_eq!(db.faulty_files(None).await.unwrap().faults, []);
}

async fn dedup_response_names_the_new_xorb_after_the_last_switch(db: Db) {
    // The old xorb has more chunks, so deduplication would prefer it as long as it has an entry.
    put(&db, xorb(1, 6)).await;
    put(&db, NewXorb { owner: None, ..xorb(2, 3) }).await;
    let chunk = |byte| ChunkHash::from_bytes([byte; 32]);
    let mut new = registration("org/a", vec![file(9, &[term(1, 0, 2)]), file(8, &[term(1, 0, 1)])], &[1]);
    new.dedup = vec![(chunk(1), hash(1)), (chunk(5), hash(1))];
    db.register(&new).await.unwrap();
    let named = async |byte, owner: &str| {
        let hit = db.find_dedup(chunk(byte), Some(owner.to_owned()), NOW..=NOW).await.unwrap();
        hit.map(|hit| hit.xorb)
    };
    assert!(db.add_owners_and_dedup(hash(2), vec!["org".to_owned()], vec![chunk(1)], NOW).await.unwrap());
    assert_eq!(db.switch_terms(&[switch(&db, 9, all_of(1, 2)).await], NOW).await.unwrap(), Switched::All);
    assert_eq!(named(1, "org").await, Some(hash(1)), "file 8 references the old xorb");
    assert_eq!(db.switch_terms(&[switch(&db, 8, all_of(1, 2)).await], NOW).await.unwrap(), Switched::All);
    assert_eq!((named(1, "org").await, named(1, "other").await), (Some(hash(2)), None));
    // Chunks that the new xorb has no entry for are still found in the old one.
    assert_eq!((named(5, "org").await, named(5, "other").await), (Some(hash(1)), None));
}

async fn owners_and_dedup_are_added_only_if_visible_and_sound(db: Db) {
    put(&db, NewXorb { owner: None, ..xorb(1, 3) }).await;
    put(&db, xorb(2, 3)).await;
    let chunk = |byte| ChunkHash::from_bytes([byte; 32]);
    let owners = || vec!["b".to_owned(), "a".to_owned()];
    assert_eq!(
        (db.owners_of(vec![hash(1)]).await.unwrap(), db.dedup_chunks_of(hash(1)).await.unwrap()),
        (vec![], vec![])
    );
    for _ in 0..2 {
        assert!(db.add_owners_and_dedup(hash(1), owners(), vec![chunk(1), chunk(3)], after(7)).await.unwrap());
    }
    let expected = [(hash(1), "a"), (hash(1), "b"), (hash(2), "org")].map(|(xorb, owner)| (xorb, owner.to_owned()));
    assert_eq!(db.owners_of(vec![hash(2), hash(3), hash(1)]).await.unwrap(), expected);
    let asked: BTreeSet<[u8; 32]> =
        db.dedup_chunks_of(hash(1)).await.unwrap().iter().map(|chunk| *chunk.as_bytes()).collect();
    assert_eq!(asked, BTreeSet::from([[1; 32], [3; 32]]));
    assert_eq!(db.find_life(hash(1)).await.unwrap().unwrap().since, after(7));
    // A condemned xorb is visible, and becomes live.
    assert_eq!(db.condemn_xorbs(vec![hash(1)], after(7), after(9)).await.unwrap(), [hash(1)]);
    assert!(db.add_owners_and_dedup(hash(1), Vec::new(), Vec::new(), after(9)).await.unwrap());
    assert_eq!(db.find_life(hash(1)).await.unwrap().unwrap().state, XorbState::Live);
    let seen = db.find_health(hash(2)).await.unwrap().unwrap();
    assert!(db.mark_damaged(seen, NOW).await.unwrap());
    db.stage_xorb(hash(3), Ticket::random(), NOW).await.unwrap();
    for unusable in [2, 3, 4] {
        assert!(
            !db.add_owners_and_dedup(hash(unusable), owners(), vec![chunk(1)], after(9)).await.unwrap(),
            "{unusable}"
        );
    }
    assert_eq!(db.owners_of(vec![hash(2), hash(3)]).await.unwrap(), [(hash(2), "org".to_owned())]);
    assert_eq!(db.dedup_chunks_of(hash(2)).await.unwrap(), []);
}

async fn new_xorb_is_staged_only_if_it_has_no_row(db: Db) {
    let ticket = Ticket::random();
    assert!(db.stage_new_xorb(hash(1), ticket, NOW).await.unwrap());
    assert!(!db.stage_new_xorb(hash(1), Ticket::random(), NOW).await.unwrap(), "another writer has staged it");
    db.publish_xorb(xorb(1, 3), ticket, NOW).await.unwrap();
    let before = state(&db).await;
    assert!(!db.stage_new_xorb(hash(1), Ticket::random(), after(5)).await.unwrap(), "live");
    assert_eq!(state(&db).await, before, "not even touched");
    // An upload takes over a row that `stage_new_xorb` has staged. Then the first ticket cannot
    // publish it.
    assert!(db.stage_new_xorb(hash(2), ticket, NOW).await.unwrap());
    let of_upload = Ticket::random();
    assert_eq!(db.stage_xorb(hash(2), of_upload, NOW).await.unwrap(), Staging::Staged);
    assert!(db.publish_xorb(xorb(2, 3), ticket, NOW).await.is_err());
    db.publish_xorb(xorb(2, 3), of_upload, NOW).await.unwrap();
    db.stage_xorb(hash(3), ticket, NOW).await.unwrap();
    db.abandon_xorb(hash(3), NOW).await.unwrap();
    assert!(!db.stage_new_xorb(hash(3), Ticket::random(), NOW).await.unwrap(), "being deleted");
}

async fn usage_is_what_there_is_after_any_switch<B: Backend>() {
    let seed = std::env::var("ZORB_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("ZORB_TEST_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (_place, index) = B::fresh().await;
    let db: Db = Arc::new(index.clone());
    for byte in 1..=8 {
        put(&db, xorb(byte, 5 + byte)).await;
    }
    let mut switched_count = 0;
    for _ in 0..500 {
        let number = rng.random_range(20..30);
        if rng.random_bool(0.3) {
            let xorbs: Vec<u8> = (0..rng.random_range(1..4)).map(|_| rng.random_range(1..=8)).collect();
            let terms: Vec<Term> = xorbs.iter().map(|xorb| term(*xorb, 0, rng.random_range(1..4))).collect();
            let repo = ["org/a", "org/b", "other/c"][rng.random_range(0..3)];
            let named: BTreeSet<u8> = xorbs.into_iter().collect();
            let named: Vec<u8> = named.into_iter().collect();
            db.register(&registration(repo, vec![file(number, &terms)], &named)).await.unwrap();
        } else if rng.random_bool(0.2) {
            db.remove_claims(file_hash(number), None, NOW).await.unwrap();
            db.sweep_removed(NOW).await.unwrap();
        } else {
            let (from, to) = (rng.random_range(1..=8), rng.random_range(1..=8));
            let files = [switch(&db, number, all_of(from, to)).await];
            let expected =
                if terms(&db, number).await.is_empty() { Switched::Other(file_hash(number)) } else { Switched::All };
            assert_eq!(db.switch_terms(&files, NOW).await.unwrap(), expected);
            switched_count += files[0].runs.len();
        }
        let [stored, counted] = index.recounted().await;
        assert_eq!(stored, counted);
        assert_eq!(db.faulty_files(None).await.unwrap().faults, []);
    }
    assert!(switched_count > 3, "{switched_count}");
}
