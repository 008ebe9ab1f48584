//! Reading the bytes of a file, also while compaction moves its chunks or a client removes it.

use std::sync::Arc;

use futures_util::TryStreamExt;

use super::Setup;
use super::compact::{DAY, bytes_of, collect_all, compact, file_across, numbers};
use super::records::{register, remove, upload_as, xorb_of};
use crate::format::{ByteRange, FileHash};
use crate::service::access::Claims;
use crate::service::gc::MIN_GRACE;
use crate::service::{ReadError, Server};

async fn read(server: &Arc<Server>, file: FileHash, range: Option<(u64, u64)>) -> Result<Vec<u8>, ReadError> {
    let found = server.find_file(&Claims::UNRESTRICTED, file).await?.unwrap();
    let (start, end) = range.unwrap_or((0, found.len));
    let stream = server.read_file(found, ByteRange::new(start, end).unwrap()).await?;
    Ok(stream.try_collect::<Vec<_>>().await?.concat())
}

#[tokio::test]
async fn ranges_of_a_file_of_many_windows_are_its_bytes() {
    let setup = Setup::new().await;
    let server = setup.process();
    let xorbs: Vec<_> = (0..40).map(|index| xorb_of(&numbers(10 * index, 10 * index + 10))).collect();
    for xorb in &xorbs {
        upload_as(&server, "org/a", xorb).await;
    }
    // More terms than the index returns at once. Some continue the term before in the same xorb,
    // and others jump to another place or xorb.
    let mut parts = Vec::new();
    for round in 0..400_u32 {
        let xorb = round * 7 % 40;
        let start = round % 6;
        parts.extend([(xorb, start, start + 2), (xorb, start + 2, start + 4), (xorb, start, start + 1)]);
    }
    let of_xorbs: Vec<_> = parts.iter().map(|(xorb, start, end)| (&xorbs[*xorb as usize], *start, *end)).collect();
    let file = file_across(&of_xorbs);
    register(&server, "org/a", vec![file.clone()], &xorbs.iter().collect::<Vec<_>>()).await;
    let chunks = parts.iter().flat_map(|(xorb, start, end)| numbers(10 * xorb + start, 10 * xorb + end));
    let expected = bytes_of(chunks).into_bytes();

    assert!(read(&server, file.hash, None).await.unwrap() == expected);
    let len = expected.len();
    for start in (0..len).step_by(len / 13) {
        for end in [start + 1, start + 999, start + len / 3, len] {
            let end = end.min(len);
            let part = read(&server, file.hash, Some((start as u64, end as u64))).await.unwrap();
            assert!(part == expected[start..end], "{start}-{end}");
        }
    }
}

#[tokio::test]
async fn file_whose_chunks_move_is_read_on_at_their_new_places() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (retained, old) = (xorb_of(&numbers(20, 22)), xorb_of(&numbers(0, 10)));
    for xorb in [&retained, &old] {
        upload_as(&server, "org/a", xorb).await;
    }
    let file = file_across(&[(&retained, 0, 2), (&old, 3, 5)]);
    register(&server, "org/a", vec![file.clone()], &[&retained, &old]).await;
    setup.clock.advance(MIN_GRACE);

    let found = server.find_file(&Claims::UNRESTRICTED, file.hash).await.unwrap().unwrap();
    let whole = ByteRange::new(0, found.len).unwrap();
    let mut stream = server.read_file(found, whole).await.unwrap();
    let mut bytes = stream.try_next().await.unwrap().unwrap().to_vec();
    compact(&server).await;
    setup.clock.advance(DAY);
    collect_all(&setup, &server).await;
    assert!(server.store.find(old.xorb().hash()).await.unwrap().is_none(), "the xorb that the plan names is deleted");
    while let Some(piece) = stream.try_next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), bytes_of([20, 21, 3, 4]));
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_read_ends_in_an_error() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (first, last) = (xorb_of(&numbers(0, 2)), xorb_of(&numbers(2, 4)));
    for xorb in [&first, &last] {
        upload_as(&server, "org/a", xorb).await;
    }
    let file = file_across(&[(&first, 0, 2), (&last, 0, 2)]);
    register(&server, "org/a", vec![file.clone()], &[&first, &last]).await;
    let found = server.find_file(&Claims::UNRESTRICTED, file.hash).await.unwrap().unwrap();
    let whole = ByteRange::new(0, found.len).unwrap();
    let mut stream = server.read_file(found, whole).await.unwrap();
    assert!(stream.try_next().await.unwrap().is_some());
    remove(&server, file.hash, Some("org/a")).await;
    setup.clock.advance(MIN_GRACE);
    collect_all(&setup, &server).await;
    let rest: Result<Vec<_>, _> = stream.try_collect().await;
    assert!(matches!(rest, Err(ReadError::Removed { .. })), "{rest:?}");
}
