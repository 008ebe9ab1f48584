//! The S3 store of the tests as a process.
//!
//! Without an argument it has an empty bucket on a free port of loopback, prints its address in the
//! form of `ZORB_TEST_S3`, and ends with its standard input. With an address to listen on it has the
//! region `garage` and the bucket and the key that the environment gives to a Garage, in whose place it
//! is in a container; it runs until it is killed.

use std::env;
use std::io::{self, Read, Write};

use zorb_fake_s3::{ACCESS_KEY, Account, FakeS3, REGION, SECRET_KEY};

/// The name of the bucket on loopback.
const BUCKET: &str = "bench";

fn main() -> io::Result<()> {
    match env::args().nth(1) {
        Some(address) => serve_at(&address),
        None => serve_on_loopback(),
    }
}

fn serve_at(address: &str) -> io::Result<()> {
    let variable = |name: &str| env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")));
    let account = Account {
        region: "garage".to_owned(),
        access_key: variable("GARAGE_DEFAULT_ACCESS_KEY")?,
        secret_key: variable("GARAGE_DEFAULT_SECRET_KEY")?,
    };
    let address = address.parse().map_err(|error| io::Error::other(format!("{address}: {error}")))?;
    let server = FakeS3::start_at(address, account)?;
    server.create_bucket(&variable("GARAGE_DEFAULT_BUCKET")?);
    loop {
        std::thread::park();
    }
}

fn serve_on_loopback() -> io::Result<()> {
    let server = FakeS3::start();
    server.create_bucket(BUCKET);
    let mut stdout = io::stdout();
    writeln!(stdout, "{} {REGION} {BUCKET} {ACCESS_KEY} {SECRET_KEY}", server.url())?;
    stdout.flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
