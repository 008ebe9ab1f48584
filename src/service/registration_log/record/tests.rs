//! Records read back, and damage and unknown versions are told apart.

use super::*;

const AT: Timestamp = Timestamp::from_millis(1_700_000_000_123);

fn all() -> Vec<Record> {
    let shard = Bytes::from_static(b"not a shard, \n but bytes\n");
    let file = FileHash::from_bytes([7; 32]);
    let owners = BTreeMap::from([("org".to_owned(), vec![0, 2])]);
    let from_index =
        FromIndex { since_ms: vec![1, 2], later: vec![Later::new(1, 0, AT)], up_to: Some(file.to_string()) };
    let repos = vec!["org/a".to_owned(), "*".to_owned()];
    let registered = Registered { at: AT, repos, owners, origin: None, shard: shard.clone() };
    let main = ("refs/heads/main".to_owned(), Some(ObjectId::from_bytes([3; 20])));
    let hub = HubRecord {
        at: AT,
        storage_name: "models/a/b".to_owned(),
        is_partial: false,
        earlier: vec![7, 8],
        refs: BTreeMap::from([main, ("refs/tags/v1".to_owned(), None)]),
        is_creation: false,
        is_deletion: false,
        is_end: false,
        is_state: false,
        parts: shard.clone(),
    };
    vec![
        Record::Register(registered.clone()),
        Record::Register(Registered { origin: Some(from_index), owners: BTreeMap::new(), ..registered.clone() }),
        Record::Remove { at: AT, file, repo: None },
        Record::Remove { at: AT, file, repo: Some("org/\n\"a".to_owned()) },
        Record::Terms { at: AT, owners: registered.owners, shard: shard.clone() },
        Record::Terms { at: AT, owners: BTreeMap::new(), shard },
        Record::Hub(HubRecord { is_partial: true, is_creation: true, is_end: true, ..hub.clone() }),
        Record::Hub(HubRecord { is_deletion: true, is_state: true, parts: Bytes::new(), ..hub.clone() }),
        Record::Hub(hub),
    ]
}

#[test]
fn a_record_reads_back_equal_and_its_shard_is_its_end() {
    for record in all() {
        let bytes = record.clone().encode();
        assert_eq!(parse(&bytes).unwrap(), record);
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        serde_json::from_slice::<serde_json::Value>(&bytes[..end]).unwrap();
    }
}

#[test]
fn every_proper_prefix_and_every_altered_byte_is_damage() {
    for record in all() {
        let bytes = record.encode();
        for len in 0..bytes.len() {
            assert!(matches!(parse(&bytes.slice(..len)), Err(RecordError::Damaged)), "{len} bytes");
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x20, 0x80, 0xff] {
                let mut altered = bytes.to_vec();
                altered[at] ^= flip;
                assert!(matches!(parse(&altered.into()), Err(RecordError::Damaged)), "byte {at} ^ {flip:#x}");
            }
        }
        let longer = [&bytes[..], b"\n"].concat();
        assert!(matches!(parse(&longer.into()), Err(RecordError::Damaged)));
    }
}

/// A record with a correct hash, followed by this text.
fn sealed(rest: &str) -> Bytes {
    let hash = blake3::hash(rest.as_bytes()).to_hex();
    format!("{{\"blake3\":\"{hash}{rest}").into()
}

#[test]
fn unknown_version_and_bad_form_are_not_reported_as_damage() {
    let newer = sealed("\",\"version\":4,\"kind\":\"rename\"}\n");
    assert!(matches!(parse(&newer), Err(RecordError::Version { found: 4 })));
    for invalid in [
        "",
        "\",",
        "\",\"version\":1,\"kind\":\"terms\",\"at_ms\":1}",
        "\",\"version\":1,\"kind\":\"rename\",\"at_ms\":1}\n",
        "\",\"version\":1,\"kind\":\"register\",\"at_ms\":1}\n",
        "\",\"version\":1,\"kind\":\"remove\",\"at_ms\":1,\"file\":\"x\"}\n",
        "\",\"kind\":\"terms\",\"at_ms\":1}\n",
        "\",\"version\":2,\"kind\":\"hub\",\"at_ms\":1}\n",
        "\",\"version\":2,\"kind\":\"hub\",\"at_ms\":1,\"storage_name\":\"a\",\"refs\":{\"b\":\"c\"}}\n",
    ] {
        assert!(matches!(parse(&sealed(invalid)), Err(RecordError::Malformed(_))), "{invalid}");
    }
}

#[test]
fn owners_too_long_for_a_line_are_left_out_of_the_record() {
    let owners = (0..60).map(|owner| (format!("{owner}{}", "x".repeat(1_000_000)), vec![0])).collect();
    let record = Registered { at: AT, repos: Vec::new(), owners, origin: None, shard: Bytes::new() };
    let Record::Register(read) = parse(&Record::Register(record).encode()).unwrap() else { panic!("another kind") };
    assert_eq!(read.owners, BTreeMap::new());
}
