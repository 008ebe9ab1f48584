//! Shards from nowhere: parsing never panics, and what it takes is written and parsed as the same value. A client reads
//! responses to a question for a chunk by the same rules, and finds the same xorbs in them.

use xet_format::shard::{Kind, parse, parse_dedup_response, write_upload};

/// The target.
///
/// # Panics
///
/// A promise is broken.
pub fn check(bytes: &[u8]) {
    let response = parse_dedup_response(bytes);
    let shard = match parse(bytes) {
        Ok(shard) => shard,
        // A client uses the first of several entries of a xorb.
        Err(error) if matches!(error.kind, Kind::DuplicateXorb) => return,
        Err(_) => return assert!(response.is_err()),
    };
    if let Ok(response) = response {
        assert_eq!(response.xorbs, shard.xorbs);
    }
    let written = write_upload(&shard).expect("what was parsed can be written");
    // Tables, footer and a file that comes again are dropped, nothing is ever added.
    assert!(written.len() <= bytes.len());
    assert_eq!(parse(&written).as_ref(), Ok(&shard));
}
