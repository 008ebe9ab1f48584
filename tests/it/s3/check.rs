//! `zorb check`: what it finds out about a database and a bucket.

use zorb_fake_s3::{Fault, Op};

use super::direct::public;
use super::zorb;
use crate::cli::Directory;
use crate::support::backend::Backend;
use crate::support::postgres::migrated;

/// What the command says about each check, and its exit code.
fn check(backend: &Backend) -> (Vec<String>, Option<i32>, String) {
    let ran = zorb(backend, &["check"]);
    let told = String::from_utf8(ran.stdout).unwrap();
    assert!(!told.contains(backend.get("s3_secret_key")) && !ran.stderr.contains(backend.get("s3_secret_key")));
    (told.lines().map(str::to_owned).collect(), ran.code, ran.stderr)
}

#[tokio::test]
async fn check_tries_everything_out_and_leaves_nothing() {
    let backend = public(Backend::fake().await);
    let (lines, code, stderr) = check(&backend);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{lines:?}");
    for line in [
        "ok     database: the schema of",
        "ok     write and read an object in parts: 9437184 bytes",
        "ok     read a range: 10 bytes",
        "ok     list objects: sorted, and complete after a write",
        "ok     signed URLs open their range only: other ranges are refused",
        "ok     clients reach the S3 store: http://127.0.0.1",
        "ok     signed URLs expire: 403: clients request new ones",
        "ok     delete objects: gone",
    ] {
        assert!(lines.iter().any(|told| told.starts_with(line)), "{line} in {lines:?}");
    }
    assert_eq!((backend.names(""), backend.s3().unfinished_uploads()), (Vec::new(), 0));
    let ran = zorb(&backend, &["check", "--json"]);
    let records: Vec<serde_json::Value> =
        String::from_utf8(ran.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(records.len() == lines.len() && records.iter().all(|record| record["ok"] == true), "{records:?}");
}

#[tokio::test]
async fn check_names_what_does_not_work_and_leaves_nothing() {
    let backend = public(Backend::fake().await);
    for (op, fault, words) in [
        (Op::Put, Fault::Refused(403), "failed write and read an object: "),
        (Op::Part, Fault::Refused(400), "failed write and read an object in parts: "),
        (Op::Get, Fault::Whole, "failed write and read an object: "),
        (Op::List, Fault::Refused(403), "failed list objects: "),
        (Op::Signed, Fault::Refused(403), "failed clients reach the S3 store: "),
        (Op::Delete, Fault::DoneBut(403), "failed delete objects: "),
    ] {
        backend.s3().fail(op, fault, 1);
        let (lines, code, stderr) = check(&backend);
        assert_eq!(backend.s3().forgive(), 0, "{op:?}");
        let last = lines.last().unwrap();
        assert!(code == Some(1) && last.starts_with(words) && stderr.contains("1 check failed"), "{op:?}: {lines:?}");
        assert_eq!((backend.names(""), backend.s3().unfinished_uploads()), (Vec::new(), 0), "{op:?}");
    }
    backend.s3().ignore_signatures(true);
    let (lines, code, _) = check(&backend);
    assert!(code == Some(1) && lines.last().unwrap().contains("opens another one"), "{lines:?}");
    backend.s3().ignore_signatures(false);
    let wrong =
        backend.with("s3_access_key", "other").with("database_url", &migrated().await.replace("zorb", "absent"));
    let (lines, code, stderr) = check(&wrong);
    assert!(code == Some(1) && stderr.contains("2 checks failed"), "{lines:?} {stderr}");
    assert!(lines[0].starts_with("failed database: ") && lines[1].contains("InvalidAccessKeyId"), "{lines:?}");
    let ran = Directory::new().zorb(&["check"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("nothing to check"), "{}", ran.stderr);
}
