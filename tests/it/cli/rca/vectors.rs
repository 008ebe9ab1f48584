//! Everything that was recorded from the reference, as `zorb rca ls --json` reads it.

use serde_json::{Value, json};

use super::{Directory, Ran, listing, recorded};

fn load(file: &str) -> Vec<u8> {
    let path = recorded().join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest() -> Value {
    serde_json::from_slice(&load("vectors.json")).unwrap()
}

fn list<'a>(value: &'a Value) -> std::slice::Iter<'a, Value> {
    value.as_array().map_or([].iter(), |list| list.iter())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// Checks what was printed against blobs, of which there are so many and so many are right, an error and garbage.
fn check(ran: &Ran, truth: &Value, [count, exact, error, garbage]: [&Value; 4], what: &str) {
    let (blobs, last) = listing(ran);
    assert_eq!(blobs.len(), number(count), "{what}");
    let right = blobs.iter().zip(list(truth)).take_while(|(seen, truth)| seen == truth);
    assert_eq!(right.count(), number(exact), "{what}");
    assert_eq!(last["error"]["code"], *error, "{what}");
    assert_eq!(last["error"].is_null(), error.is_null(), "{what}: {last}");
    assert!(last["error"].is_null() || last["error"]["offset"].is_u64(), "{what}: {last}");
    assert_eq!(last["trailing_garbage"], *garbage, "{what}");
}

#[test]
fn recorded_files_are_listed_as_recorded_or_per_readme() {
    let (directory, manifest) = (Directory::new(), manifest());
    for vector in list(&manifest["vectors"]) {
        let file = text(&vector["file"]);
        let ran = directory.zorb(&["rca", "ls", "--json", recorded().join(file).to_str().unwrap()]);
        let count = json!(list(&vector["blobs"]).count());
        let garbage = &vector["trailing_garbage"];
        // The reference refuses what follows its own README; the notes say what that means.
        if file.starts_with("corrupt/readme_") {
            let (blobs, last) = listing(&ran);
            let right = list(&vector["blobs"]).zip(&blobs).all(|(truth, seen)| truth == seen);
            assert!(right && blobs.len() >= number(&count), "{file}: {blobs:?}");
            assert_eq!((&last["dialect"], &last["error"]), (&json!("readme"), &Value::Null), "{file}");
            continue;
        }
        check(&ran, &vector["blobs"], [&count, &count, &vector["error"]["code"], garbage], file);
        assert_eq!(listing(&ran).1["dialect"], "reference", "{file}");
        let verified = directory.zorb(&["rca", "verify", "--json", recorded().join(file).to_str().unwrap()]).record();
        assert_eq!((&verified["blobs"], &verified["ok"]), (&count, &json!(vector["error"].is_null())), "{file}");
    }
}

#[test]
fn every_recorded_truncation_and_flip_is_listed_as_recorded() {
    let (directory, manifest) = (Directory::new(), manifest());
    let mut count = 0;
    for table in list(&manifest["truncations"]) {
        let data = load(text(&table["file"]));
        for row in list(&table["table"]) {
            let ran = directory.zorb_with_stdin(&["rca", "ls", "--json", "-"], &data[..number(&row[0])]);
            check(&ran, &table["blobs"], [&row[1], &row[2], &row[3], &row[4]], &row.to_string());
            count += 1;
        }
    }
    for table in list(&manifest["flips"]) {
        let data = load(text(&table["file"]));
        for row in list(&table["table"]) {
            let mut data = data.clone();
            data[number(&row[0])] ^= u8::try_from(number(&row[1])).unwrap();
            let ran = directory.zorb_with_stdin(&["rca", "ls", "--json", "-"], &data);
            check(&ran, &table["blobs"], [&row[2], &row[3], &row[4], &row[5]], &row.to_string());
            count += 1;
        }
    }
    assert!(count > 100, "{count} rows");
}

/// Without `--force`.
#[test]
fn recorded_crash_states_are_listed_and_take_appends() {
    let (directory, manifest) = (Directory::new(), manifest());
    let mut count = 0;
    for replay in list(&manifest["crash_replays"]) {
        let before = replay["before"].as_str().map_or_else(Vec::new, load);
        let after = load(text(&replay["after"]));
        for state in list(&replay["states"]) {
            let what = format!("{} {state}", replay["name"]);
            directory.write("a", &rebuild(&before, &after, replay, state));
            let ran = directory.zorb(&["rca", "ls", "--json", "a"]);
            let want = ["n_blobs", "n_exact", "error", "trailing_garbage"].map(|key| &state[key]);
            check(&ran, &replay["blobs"], want, &what);

            directory.zorb_with_stdin(&["rca", "append", "a", "-", "--name", "later"], b"later").ok_with_remarks();
            let names = super::names(&directory, "a");
            let (last, earlier) = names.split_last().unwrap();
            assert_eq!(last, "later", "{what}");
            assert!(earlier.len() >= number(&replay["n_before"]), "{what}");
            count += 1;
        }
    }
    assert!(count > 50, "{count} states");
}

fn rebuild(before: &[u8], after: &[u8], replay: &Value, state: &Value) -> Vec<u8> {
    let mut data = before.to_vec();
    let mut put = |op: &Value, torn: usize| {
        let offset = number(&op["offset"]);
        let bytes = match op["hex"].as_str() {
            Some(hex) => {
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
            }
            None => after[offset..offset + number(&op["length"])].to_vec(),
        };
        let bytes = &bytes[..bytes.len().min(torn)];
        data.resize(data.len().max(offset + bytes.len()), 0);
        data[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    let ops: Vec<&Value> = list(&replay["ops"]).collect();
    let done = number(&state["ops_done"]);
    ops[..done].iter().filter(|op| op["op"] == "write").for_each(|op| put(op, usize::MAX));
    if let Some(torn) = state["torn_bytes"].as_u64() {
        put(ops[done], usize::try_from(torn).unwrap());
    }
    data
}
