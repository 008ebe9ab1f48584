//! The states that a crash of this crate's writer can leave, whatever subset of its writes is on
//! the disk.

use std::collections::HashSet;

use rand::RngExt;

use super::storage::{Op, Recorder, apply};
use super::support::{Blob, append, archive, blob, filling, noise, read, rng};
use crate::{WriteOptions, Writer};

type Session<'a> = Vec<(&'a str, Vec<u8>)>;

/// One session that a writer appends to an archive.
struct Scenario<'a> {
    name: &'a str,
    /// The archive before the session.
    before: Vec<u8>,
    /// The blobs that are committed in `before`.
    truth: Vec<Blob>,
    session: Session<'a>,
    options: WriteOptions,
}

/// A state in which a crash may leave the disk.
#[derive(Debug)]
struct State {
    data: Vec<u8>,
    /// How many blobs were committed before the crash.
    committed: usize,
    /// Whether the header write that commits was torn: only then may a reader return an error.
    torn_header: bool,
}

const AFTER: (&str, &[u8]) = ("after", b"appended behind the crash");

#[test]
fn crash_states_keep_committed_blobs_and_can_be_appended_to() {
    let mut states = 0;
    for scenario in scenarios() {
        let all = [scenario.truth.clone(), blobs(&scenario.session)].concat();
        for state in crash_states(&scenario.before, scenario.truth.len(), &scenario.session, scenario.options) {
            check(scenario.name, &state, &all);
            states += 1;
        }
    }
    println!("{states} states");
    assert!(states > 500, "{states} states");
}

#[test]
fn second_crash_during_repair_loses_no_committed_blob() {
    let (mut states, mut torn) = (0, 0);
    for scenario in scenarios() {
        let all = [scenario.truth.clone(), blobs(&scenario.session)].concat();
        let first = crash_states(&scenario.before, scenario.truth.len(), &scenario.session, scenario.options);
        // All states with a torn header, and a sample of the others.
        for (i, state) in first.into_iter().enumerate().filter(|(i, state)| state.torn_header || i % 7 == 0) {
            let there = committed_in(&state, &all);
            let session = vec![("later", b"the session that is interrupted again".to_vec())];
            let all = [&all[..there], &blobs(&session)].concat();
            for mut again in crash_states(&state.data, there, &session, WriteOptions::default()) {
                // Until it is repaired, the header is as torn as before.
                again.torn_header |= state.torn_header && again.committed == there;
                check(&format!("{} {i}", scenario.name), &again, &all);
                states += 1;
                torn += usize::from(state.torn_header);
            }
        }
    }
    println!("{states} states, {torn} of them on top of a torn header");
    assert!(states > 500 && torn > 100, "{states} {torn}");
}

#[test]
fn cut_archive_behind_a_full_chunk_is_refused() {
    let (base, _) = archive(&[&[("one", b"first")]]);
    let full = append(base.clone(), &[("fill", &filling(&base, &[], 0x8000))], WriteOptions::default()).unwrap();
    let one = append(full, &[("x", &noise(9, 205))], WriteOptions::default()).unwrap();
    let two = append(one.clone(), &[("y", &noise(10, 190))], WriteOptions::default()).unwrap();
    for len in one.len()..two.len() {
        let error = append(two[..len].to_vec(), &[AFTER], WriteOptions::default()).unwrap_err();
        assert!(error.is_damage(), "{len}: {error:?}");
    }
}

/// The number of committed blobs that a writer finds when it reopens the state.
fn committed_in(state: &State, all: &[Blob]) -> usize {
    let again = append(state.data.clone(), &[AFTER], WriteOptions::default()).unwrap();
    let seen = read(again.as_slice());
    assert!(seen.blobs.len() - 1 <= all.len());
    seen.blobs.len() - 1
}

/// Checks that the committed blobs of a state can be read, and that a writer can append to it.
/// `all` are the blobs that the writer had committed or was appending.
#[track_caller]
fn check(name: &str, state: &State, all: &[Blob]) {
    let seen = read(state.data.as_slice());
    let exact = seen.exact(all);
    assert!(exact >= state.committed, "{name}: {exact} of {} blobs are left", state.committed);
    if !state.torn_header {
        assert!(seen.error.is_none(), "{name}: {:?}", seen.error);
        assert_eq!(seen.blobs.len(), exact, "{name}");
        assert_eq!(seen.verified, exact, "{name}");
    }
    assert!(seen.verified <= exact, "{name}: a wrong blob was called verified");

    let again = append(state.data.clone(), &[AFTER], WriteOptions::default());
    let again = again.unwrap_or_else(|e| panic!("{name}: cannot append after {} blobs: {e:?}", state.committed));
    let seen = read(again.as_slice());
    assert!(seen.error.is_none(), "{name}: {:?}", seen.error);
    let (last, earlier) = seen.blobs.split_last().unwrap();
    assert_eq!(*last, blob(AFTER.0, AFTER.1), "{name}");
    assert!(earlier.len() >= state.committed && all.starts_with(earlier), "{name}: {} blobs", earlier.len());
    assert_eq!(seen.verified, seen.blobs.len(), "{name}");
    assert!(!seen.end.unwrap().trailing_garbage, "{name}");
}

/// Runs the session and collects every state in which a crash may leave the disk.
fn crash_states(before: &[u8], n_before: usize, session: &Session<'_>, options: WriteOptions) -> Vec<State> {
    let mut storage = Recorder::new(before.to_vec());
    let mut marks = Vec::new();
    let mut writer = Writer::with_options(&mut storage, options).unwrap();
    for (name, content) in session {
        writer.append(name, content.as_slice()).unwrap();
        marks.push(writer.committed_end());
    }
    drop(writer);
    let (ops, ends) = (storage.ops, marks);
    let marks = commit_marks(before, session, options, ends.len());
    let committed = |done: usize| n_before + marks.iter().filter(|mark| **mark <= done).count();
    let is_commit = |op: usize| marks.contains(&(op + 2)) || is_patch(&ops, op);

    let (mut states, mut seen) = (Vec::new(), HashSet::new());
    let mut add = |data: Vec<u8>, committed: usize, torn_header: bool| {
        if seen.insert((data.clone(), committed)) {
            states.push(State { data, committed, torn_header });
        }
    };
    let mut data = before.to_vec();
    for (done, op) in ops.iter().enumerate() {
        add(data.clone(), committed(done), done > 0 && is_patch(&ops, done - 1));
        if let Op::Write { bytes, .. } = op {
            for torn in tears(bytes.len()) {
                let mut data = data.clone();
                apply(&mut data, op, torn);
                add(data, committed(done), is_commit(done));
            }
        }
        apply(&mut data, op, usize::MAX);
    }
    add(data, committed(ops.len()), false);
    for (data, done) in power_losses(before, &ops) {
        add(data, committed(done), (0..done).any(|op| is_patch(&ops, op)));
    }
    states
}

/// For each append, the number of storage calls after which it has returned. To count them, runs
/// the session again up to each append.
fn commit_marks(before: &[u8], session: &Session<'_>, options: WriteOptions, appends: usize) -> Vec<usize> {
    let mark = |n: usize| {
        let mut storage = Recorder::new(before.to_vec());
        let mut writer = Writer::with_options(&mut storage, options).unwrap();
        for (name, content) in &session[..n] {
            writer.append(name, content.as_slice()).unwrap();
        }
        drop(writer);
        storage.ops.len()
    };
    (1..=appends).map(mark).collect()
}

/// Whether a call is part of the repair of a torn header: such calls are before the truncation and
/// the first payload.
fn is_patch(ops: &[Op], op: usize) -> bool {
    let header = |op: &Op| match op {
        Op::Write { at, bytes } => at % 0x8000 < 16 && bytes.len() <= 16,
        Op::SetLen(_) => false,
        Op::Sync => true,
    };
    let patches = ops.iter().take_while(|op| header(op)).count();
    matches!(ops.get(1), Some(Op::Sync)) && op < patches
}

/// The lengths after which a write of `len` bytes may be torn: all of them if it may be a header,
/// some if it is longer.
fn tears(len: usize) -> Vec<usize> {
    if len <= 16 { (1..len).collect() } else { vec![1, 2, 3, 9, 11, len / 2, len - 7, len - 1] }
}

/// The states that a power cut after each call may leave: all calls before the last sync, and any
/// subset of the calls since. Each with the number of calls made.
fn power_losses(before: &[u8], ops: &[Op]) -> Vec<(Vec<u8>, usize)> {
    let mut states = Vec::new();
    for done in 0..=ops.len() {
        let synced = ops[..done].iter().rposition(|op| matches!(op, Op::Sync)).map_or(0, |at| at + 1);
        let mut durable = before.to_vec();
        ops[..synced].iter().for_each(|op| apply(&mut durable, op, usize::MAX));
        let open = &ops[synced..done];
        for mask in subsets(open.len()) {
            let mut data = durable.clone();
            for (i, op) in open.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
                apply(&mut data, op, usize::MAX);
                // The file system may also have stored the length and not the bytes.
                if let (Op::Write { bytes, .. }, true) = (op, i % 3 == 2) {
                    let end = data.len();
                    data[end.saturating_sub(bytes.len() / 2)..].fill(0);
                }
            }
            states.push((data, done));
        }
    }
    states
}

/// Subsets of `n` calls as bit masks: all of them, or if there are many, a random sample.
fn subsets(n: usize) -> Vec<u64> {
    if n <= 7 {
        return (0..1 << n).collect();
    }
    let mut rng = rng(n as u64);
    (0..128).map(|_| rng.random_range(0..1_u64 << n)).collect()
}

fn blobs(session: &Session<'_>) -> Vec<Blob> {
    session.iter().map(|(name, content)| blob(name, content)).collect()
}

fn scenarios<'a>() -> Vec<Scenario<'a>> {
    let small = |n: u8| vec![b'a' + n; 30 + usize::from(n)];
    let defaults = WriteOptions::default();
    let spilling = WriteOptions { buffer_len: 1000, ..defaults };
    let (base, base_truth) = archive(&[&[("one", b"first"), ("two", b"second")], &[("three", b"third")]]);
    let fill = filling(&base, &[], 0x8000);
    let full = append(base.clone(), &[("fill", &fill)], defaults).unwrap();
    let full_truth = [base_truth.clone(), vec![blob("fill", &fill)]].concat();
    let almost_fill = filling(&base, &[], 0x8000 - 3);
    let almost = append(base.clone(), &[("fill", &almost_fill)], defaults).unwrap();
    let almost_truth = [base_truth.clone(), vec![blob("fill", &almost_fill)]].concat();
    let beyond = append(full.clone(), &[("x", b"in the second chunk")], defaults).unwrap();
    let beyond_truth = [full_truth.clone(), vec![blob("x", b"in the second chunk")]].concat();
    // Its second chunk has some bytes less than 256, so that a torn size may run past the end.
    let nearly_256 = append(full.clone(), &[("x", &noise(9, 205))], defaults).unwrap();
    assert!((230..256).contains(&(nearly_256.len() - 0x8000)), "{}", nearly_256.len());
    let nearly_256_truth = [full_truth.clone(), vec![blob("x", &noise(9, 205))]].concat();
    // Garbage up to 0x8000, and after it bytes that look like a complete chunk (bug B3).
    let mut stale = base.clone();
    stale.resize(0x8000, 0x77);
    stale.extend_from_slice(b"\0\0\x01\0hashhash");
    stale.resize(0x8000 + 700, 0x77);

    let scenario = |name, before: &[u8], truth: &[Blob], session| Scenario {
        name,
        before: before.to_vec(),
        truth: truth.to_vec(),
        session,
        options: defaults,
    };
    vec![
        scenario("new, small", &[], &[], vec![("a", small(0)), ("b", small(1))]),
        scenario("new, crossing at once", &[], &[], vec![("big", noise(1, 40_000)), ("b", small(1))]),
        scenario(
            "new, crossing in the third",
            &[],
            &[],
            vec![("a", small(0)), ("b", noise(2, 20_000)), ("c", noise(3, 20_000)), ("d", small(2))],
        ),
        scenario("resumed", &base, &base_truth, vec![("a", small(0)), ("b", small(1))]),
        scenario("resumed to 256 and more", &base, &base_truth, vec![("a", noise(4, 300)), ("b", noise(5, 1000))]),
        scenario("filling exactly, then on", &base, &base_truth, vec![("fill", fill.clone()), ("b", small(1))]),
        scenario("resumed behind a full chunk", &full, &full_truth, vec![("a", small(0)), ("b", small(1))]),
        scenario("resumed in the second chunk", &beyond, &beyond_truth, vec![("a", small(0)), ("b", small(1))]),
        scenario(
            "resumed in the second chunk, to 256 and more",
            &nearly_256,
            &nearly_256_truth,
            vec![("a", small(0)), ("b", small(1))],
        ),
        scenario("resumed three bytes below", &almost, &almost_truth, vec![("a", small(0)), ("b", small(1))]),
        scenario(
            "filling exactly before a stale chunk",
            &stale,
            &base_truth,
            vec![("fill", fill.clone()), ("b", small(1))],
        ),
        Scenario {
            options: spilling,
            ..scenario("spilling", &base, &base_truth, vec![("a", noise(6, 5000)), ("b", noise(7, 40_000))])
        },
        Scenario {
            options: spilling,
            ..scenario("spilling with its length across", &almost, &almost_truth, vec![("a", noise(8, 5000))])
        },
    ]
}
