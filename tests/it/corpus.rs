//! Every input that a fuzzer has found interesting, given to its target again.

use std::panic::catch_unwind;

use zorb_fuzz::TARGETS;

use crate::support::root;

#[test]
fn every_file_of_the_fuzz_corpus_is_handled() {
    let corpus = root().join("fuzz/corpus");
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        let mut count = 0;
        for entry in std::fs::read_dir(corpus.join(name)).expect("every target has a corpus") {
            let path = entry.unwrap().path();
            let input = std::fs::read(&path).unwrap();
            count += 1;
            if catch_unwind(|| target(&input)).is_err() {
                broken.push(path.display().to_string());
            }
        }
        assert!(count > 50, "the corpus of {name} has only {count} files");
    }
    assert!(broken.is_empty(), "cargo run --bin TARGET -- FILE in fuzz/ repeats these:\n  {}", broken.join("\n  "));
}
