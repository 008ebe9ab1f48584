//! The S3 store of the tests as a process, for benchmarks: prints the address of an empty bucket, in
//! the form of `ZORB_TEST_S3`, and ends with its standard input.

use std::io::{self, Read, Write};

use zorb_fake_s3::{ACCESS_KEY, FakeS3, REGION, SECRET_KEY};

/// The name of the bucket.
const BUCKET: &str = "bench";

fn main() -> io::Result<()> {
    let server = FakeS3::start();
    server.create_bucket(BUCKET);
    let mut stdout = io::stdout();
    writeln!(stdout, "{} {REGION} {BUCKET} {ACCESS_KEY} {SECRET_KEY}", server.url())?;
    stdout.flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
