//! Compares the reader and the writer of this crate with all recorded results of the reference.

use std::io::{Cursor, Read, Seek, SeekFrom, Write};

use serde_json::Value;

use super::reference::{blobs, list, load, manifest, number, text, unhex};
use super::sha256::{Sha256, sha256};
use super::support::{Blob, Seen, append, blob, read};
use crate::{Chunker, Dialect, Layout, Unchunker, WriteOptions};

const LATER: (&str, &[u8]) = ("after-reopen", b"appended by a reopened Writer");

fn later() -> Blob {
    blob(LATER.0, LATER.1)
}

/// Whether a file is in the README's dialect: the reference refuses such files, this crate reads
/// them.
fn is_readme_dialect(file: &str) -> bool {
    file.starts_with("corrupt/readme_")
}

#[test]
fn every_file_reads_as_recorded_or_as_the_readme_says() {
    let manifest = manifest();
    let vectors = list(&manifest["vectors"]);
    assert!(!vectors.is_empty());
    for vector in vectors {
        let file = text(&vector["file"]);
        let seen = read(load(file).as_slice());
        let truth = blobs(&vector["blobs"]);
        if is_readme_dialect(file) {
            assert!(seen.error.is_none(), "{file}: {:?}", seen.error);
            assert_eq!(seen.end.unwrap().dialect, Dialect::Readme, "{file}");
            assert_eq!(seen.exact(&truth), truth.len(), "{file}");
            assert_eq!(seen.verified, seen.blobs.len(), "{file}");
            continue;
        }
        assert_eq!(seen.blobs, truth, "{file}");
        assert_eq!(seen.code(), vector["error"]["code"].as_str(), "{file}");
        assert_eq!(seen.garbage(), vector["trailing_garbage"].as_bool(), "{file}");
        assert!(seen.end.is_none_or(|end| end.dialect == Dialect::Reference), "{file}");
    }
}

#[test]
fn a_blob_with_one_byte_changed_is_never_called_verified() {
    let seen = read(load("corrupt/flip_first_session.rca").as_slice());
    assert_eq!((seen.blobs.len(), seen.verified), (2, 0));
}

#[test]
fn every_truncation_and_every_flip_reads_as_recorded() {
    let manifest = manifest();
    let mut rows = 0;
    for table in list(&manifest["truncations"]) {
        let (data, truth) = (load(text(&table["file"])), blobs(&table["blobs"]));
        for row in list(&table["table"]) {
            check_row(read(&data[..number(&row[0])]), &truth, &list(row)[1..], row);
            rows += 1;
        }
    }
    for table in list(&manifest["flips"]) {
        let (data, truth) = (load(text(&table["file"])), blobs(&table["blobs"]));
        for row in list(&table["table"]) {
            let mut data = data.clone();
            data[number(&row[0])] ^= u8::try_from(number(&row[1])).unwrap();
            check_row(read(data.as_slice()), &truth, &list(row)[2..], row);
            rows += 1;
        }
    }
    assert!(rows > 100, "{rows} rows");
}

#[track_caller]
fn check_row(seen: Seen, truth: &[Blob], want: &[Value], what: &Value) {
    assert_eq!(seen.blobs.len(), number(&want[0]), "{what}");
    assert_eq!(seen.exact(truth), number(&want[1]), "{what}");
    assert_eq!(seen.code(), want[2].as_str(), "{what}");
    assert_eq!(seen.garbage(), want[3].as_bool(), "{what}");
    assert!(seen.verified <= seen.exact(truth), "{what}: a wrong blob was called verified");
}

/// A damaged file it may refuse or repair.
#[test]
fn reopened_writer_appends_to_sound_files_refuses_or_repairs() {
    let manifest = manifest();
    for vector in list(&manifest["vectors"]) {
        let file = text(&vector["file"]);
        let (data, truth) = (load(file), blobs(&vector["blobs"]));
        let crashed = file.starts_with("crash/") && vector["error"].is_null();
        let must = vector["reopen"]["good"] == true || crashed || vector["error"].is_null();
        match append(data, &[LATER], WriteOptions::default()) {
            Err(e) => assert!(!must, "{file}: {e:?}"),
            Ok(after) => {
                // The recorded blobs, and the new one after them.
                let all = [truth, vec![later()]].concat();
                let seen = read(after.as_slice());
                if must {
                    seen.assert_clean(&all, file);
                }
                // Otherwise the damage is in an earlier session, whose hash a writer does not
                // check.
                assert!(must || seen.exact(&all) == seen.blobs.len(), "{file}");
            }
        }
    }
}

#[test]
fn reopened_writer_follows_the_safe_rule_of_the_notes() {
    // Bugs B1, B2 and B3 of the reference: the committed blobs stay, and appends continue.
    for (file, n) in [("corrupt/size_0.rca", 0), ("crash/E_full_same_session_op1.rca", 2)] {
        let seen = read(append(load(file), &[LATER], WriteOptions::default()).unwrap().as_slice());
        assert_eq!((seen.blobs.len(), seen.verified, seen.code()), (n + 1, n + 1, None), "{file}");
    }
    // Bug B5 and damage: the writer refuses with the error of a reader.
    for (file, code) in [
        ("corrupt/size_plus1.rca", "truncated_chunk"),
        ("corrupt/size_minus1.rca", "truncated_block"),
        ("corrupt/size_8000.rca", "truncated_chunk"),
        ("corrupt/size_1.rca", "bad_chunk_size"),
        ("corrupt/full_chunk_then_size_11.rca", "bad_chunk_size"),
        ("corrupt/blob_truncated.rca", "truncated_block"),
        ("corrupt/flip_metadata.rca", "final_hash_mismatch"),
        ("corrupt/readme_hash_excluded_final.rca", "readme_dialect"),
    ] {
        let before = load(file);
        let refused = append(before, &[LATER], WriteOptions::default()).err();
        assert_eq!(refused.map(|e| e.code()), Some(code), "{file}");
    }
}

#[test]
fn reference_crash_states_read_as_recorded_and_take_appends() {
    let manifest = manifest();
    let mut states = 0;
    for replay in list(&manifest["crash_replays"]) {
        let before = replay["before"].as_str().map_or_else(Vec::new, load);
        let (after, truth) = (load(text(&replay["after"])), blobs(&replay["blobs"]));
        for state in list(&replay["states"]) {
            let data = rebuild(&before, &after, replay, state);
            let what = format!("{} {state}", replay["name"]);
            assert_eq!(sha256(&data), text(&state["file_sha256"]), "{what}");
            let want = ["n_blobs", "n_exact", "error", "trailing_garbage"].map(|key| state[key].clone());
            check_row(read(data.as_slice()), &truth, &want, state);

            let again = append(data, &[LATER], WriteOptions::default()).unwrap_or_else(|e| panic!("{what}: {e:?}"));
            let seen = read(again.as_slice());
            assert!(seen.error.is_none(), "{what}: {:?}", seen.error);
            let (last, earlier) = seen.blobs.split_last().unwrap();
            assert_eq!(*last, later(), "{what}");
            assert!(earlier.len() >= number(&replay["n_before"]) && truth.starts_with(earlier), "{what}");
            states += 1;
        }
    }
    assert!(states > 50, "{states} states");
}

/// The file of a recorded crash state: `before`, with the writes that were done before the crash.
fn rebuild(before: &[u8], after: &[u8], replay: &Value, state: &Value) -> Vec<u8> {
    let (mut data, ops, done) = (before.to_vec(), list(&replay["ops"]), number(&state["ops_done"]));
    let mut put = |op: &Value, torn: usize| {
        let at = number(&op["offset"]);
        let bytes = match op["hex"].as_str() {
            Some(hex) => unhex(hex),
            None => after[at..at + number(&op["length"])].to_vec(),
        };
        let bytes = &bytes[..bytes.len().min(torn)];
        data.resize(data.len().max(at + bytes.len()), 0);
        data[at..at + bytes.len()].copy_from_slice(bytes);
    };
    ops[..done].iter().filter(|op| op["op"] == "write").for_each(|op| put(op, usize::MAX));
    if let Some(torn) = state["torn_bytes"].as_u64() {
        put(&ops[done], usize::try_from(torn).unwrap());
    }
    data
}

#[test]
fn every_chunk_file_of_other_widths_reads_as_recorded_and_grows() {
    let manifest = manifest();
    for vector in list(&manifest["outer_vectors"]) {
        let file = text(&vector["file"]);
        let bits = u32::try_from(number(&vector["first_size_bits"])).unwrap();
        let layout = Layout::new(bits, number(&vector["meta_len"])).unwrap();
        let data = load(file);
        let (payload, meta, garbage, error) = unchunk(&data, layout);
        assert_eq!(payload.len(), number(&vector["payload_length"]), "{file}");
        assert_eq!(sha256(&payload), text(&vector["payload_sha256"]), "{file}");
        assert_eq!(meta, vector["meta"].as_str().map(unhex), "{file}");
        assert_eq!(garbage, vector["trailing_garbage"].as_bool(), "{file}");
        assert_eq!(error, vector["error"]["code"].as_str().or(vector["error"].as_str()), "{file}");
        if error.is_some() {
            continue;
        }
        let mut chunker = Chunker::open(Cursor::new(data), layout).unwrap();
        chunker.append(&[0x5a; 3000], &vec![0x5a; number(&vector["meta_len"])]).unwrap();
        let (longer, meta, garbage, error) = unchunk(chunker.into_storage().get_ref(), layout);
        assert_eq!(longer, [payload, vec![0x5a; 3000]].concat(), "{file}");
        assert_eq!(meta, Some(vec![0x5a; number(&vector["meta_len"])]), "{file}");
        assert_eq!((garbage, error), (Some(false), None), "{file}");
    }
}

type Unchunked = (Vec<u8>, Option<Vec<u8>>, Option<bool>, Option<&'static str>);

fn unchunk(data: &[u8], layout: Layout) -> Unchunked {
    let (mut unchunker, mut payload) = (Unchunker::new(data, layout), Vec::new());
    let error = unchunker.read_to_end(&mut payload).err().map(|e| crate::Error::from_io(e).unwrap().code());
    (payload, unchunker.metadata().map(<[u8]>::to_vec), unchunker.trailing_garbage(), error)
}

#[test]
fn every_sparse_recipe_reads_as_recorded() {
    let manifest = manifest();
    for recipe in list(&manifest["sparse_recipes"]) {
        let mut file = tempfile::tempfile().unwrap();
        for segment in list(&recipe["segments"]) {
            match segment["hex"].as_str() {
                Some(hex) => file.write_all(&unhex(hex)).unwrap(),
                None => drop(file.seek(SeekFrom::Current(segment["zeros"].as_i64().unwrap())).unwrap()),
            }
        }
        file.set_len(recipe["file_size"].as_u64().unwrap()).unwrap();
        file.rewind().unwrap();
        let seen = read(&file);
        assert_eq!(seen.blobs, blobs(&recipe["blobs"]), "{}", recipe["name"]);
        assert_eq!(seen.code(), recipe["error"]["code"].as_str(), "{}", recipe["name"]);
        assert_eq!(seen.garbage(), recipe["trailing_garbage"].as_bool(), "{}", recipe["name"]);
    }
}

#[test]
fn recorded_files_have_their_recorded_sha256() {
    for vector in list(&manifest()["vectors"]) {
        let (file, mut sha) = (text(&vector["file"]), Sha256::new());
        load(file).chunks(1000).for_each(|piece| sha.update(piece));
        assert_eq!(sha.hex(), text(&vector["file_sha256"]), "{file}");
    }
}
