//! Shards from nowhere: parsing never panics, and what it takes is written and parsed as the same value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zorb_fuzz::format::shard::{parse, write_upload};

fuzz_target!(|bytes: &[u8]| {
    let Ok(shard) = parse(bytes) else { return };
    let written = write_upload(&shard).expect("what was parsed can be written");
    // Tables, footer and a file that comes again are dropped, nothing is ever added.
    assert!(written.len() <= bytes.len());
    assert_eq!(parse(&written).as_ref(), Ok(&shard));
});
