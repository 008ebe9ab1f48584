//! Stores of servers that are not in the data directory: a PostgreSQL database, and a bucket.
//!
//! With `ZORB_TEST_STORE=s3` every server that a test starts has its index in a database and its
//! blobs in a bucket. With `ZORB_TEST_SERVERS=3` each such store has three servers, and a client sends its requests to
//! them in turn. Tests that look at the files of the data directory fail then, so name those that do not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use zorb_fake_s3::{ACCESS_KEY, FakeS3, REGION, SECRET_KEY};

use super::postgres::migrated;

/// The name of the bucket of all tests. Each store has a prefix of its own.
pub const BUCKET: &str = "stores";

/// A database and a part of a bucket, for one store.
#[derive(Debug)]
pub struct Backend {
    /// The S3 store of this test; `None` with the one in the variable `ZORB_TEST_S3`, or with the
    /// one of all tests.
    s3: Option<FakeS3>,
    settings: BTreeMap<&'static str, String>,
}

/// The S3 store of tests that do not make it fail.
static SHARED: LazyLock<FakeS3> = LazyLock::new(|| {
    let s3 = FakeS3::start();
    s3.create_bucket(BUCKET);
    s3
});

/// The settings of the stores of this process, by data directory.
static STORES: LazyLock<Mutex<BTreeMap<PathBuf, BTreeMap<&'static str, String>>>> = LazyLock::new(Mutex::default);

impl Backend {
    /// A new database, and an S3 store of its own with an empty bucket.
    pub async fn fake() -> Self {
        let s3 = FakeS3::start();
        s3.create_bucket(BUCKET);
        let settings = settings(migrated().await, s3.url(), "store");
        Self { s3: Some(s3), settings }
    }

    /// A new database, and an S3 store of its own, or an unused prefix of the bucket in
    /// `ZORB_TEST_S3`.
    pub async fn own() -> Self {
        if std::env::var_os("ZORB_TEST_S3").is_some() { Self::any().await } else { Self::fake().await }
    }

    /// A new database, and an unused prefix of the bucket in `ZORB_TEST_S3`, or of the shared one.
    pub async fn any() -> Self {
        Self { s3: None, settings: any_settings(migrated().await) }
    }

    /// The S3 store of this test.
    pub fn s3(&self) -> &FakeS3 {
        self.s3.as_ref().expect("made by Backend::fake")
    }

    /// The setting of this name.
    pub fn get(&self, key: &str) -> &str {
        &self.settings[key]
    }

    /// The same with another value.
    pub fn with(&self, key: &'static str, value: &str) -> Self {
        let mut settings = self.settings.clone();
        settings.insert(key, value.to_owned());
        Self { s3: None, settings }
    }

    /// This store with another setting.
    pub fn set(mut self, key: &'static str, value: &str) -> Self {
        self.change(key, value.to_owned());
        self
    }

    /// Changes a setting.
    pub fn change(&mut self, key: &'static str, value: String) {
        self.settings.insert(key, value);
    }

    /// Variables for the environment of a process.
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(&self.settings)
    }

    /// The name in the bucket of an object of the store.
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.get("s3_prefix"))
    }

    /// The names of the store's objects whose names begin so.
    pub fn names(&self, begin: &str) -> Vec<String> {
        let prefix = self.name("");
        let names = self.s3().names(BUCKET);
        let names = names.iter().filter_map(|name| name.strip_prefix(&prefix));
        names.filter(|name| name.starts_with(begin)).map(str::to_owned).collect()
    }
}

/// The variables of the store in this directory, if `ZORB_TEST_STORE` asks for a bucket. A new
/// directory gets a new database.
pub fn variables_of(data_dir: &Path) -> Vec<(String, String)> {
    match std::env::var("ZORB_TEST_STORE").as_deref() {
        Err(_) | Ok("directory") => return Vec::new(),
        Ok("s3") => {}
        Ok(other) => panic!("ZORB_TEST_STORE={other}"),
    }
    let mut stores = STORES.lock().unwrap();
    let settings = stores.entry(data_dir.to_owned()).or_insert_with(|| {
        // The caller may be in a runtime, which cannot wait here for another future.
        let create = || tokio::runtime::Runtime::new().unwrap().block_on(migrated());
        any_settings(std::thread::spawn(create).join().unwrap())
    });
    variables(settings)
}

/// The names of the blobs of the store in this directory, if they are in a bucket.
///
/// # Panics
///
/// The bucket is in a real S3 store.
pub fn blob_names_of(data_dir: &Path) -> Option<Vec<String>> {
    let stores = STORES.lock().unwrap();
    let settings = stores.get(data_dir)?;
    assert_eq!(settings["s3_endpoint"], SHARED.url(), "the test looks at objects, and cannot in a real S3 store");
    let prefix = format!("{}/xorbs/", settings["s3_prefix"]);
    let names = SHARED.names(BUCKET);
    let names = names.iter().filter_map(|name| name.strip_prefix(&prefix)?.split_once('/'));
    Some(names.map(|(_, name)| name.to_owned()).collect())
}

fn any_settings(database: String) -> BTreeMap<&'static str, String> {
    let prefix = format!("tests/{:016x}", rand::random::<u64>());
    let Ok(real) = std::env::var("ZORB_TEST_S3") else { return settings(database, SHARED.url(), &prefix) };
    let words: Vec<&str> = real.split(' ').collect();
    let [endpoint, region, bucket, access_key, secret_key] = words[..] else { panic!("ZORB_TEST_S3 has five words") };
    let mut settings = settings(database, endpoint, &prefix);
    for (key, value) in
        [("s3_region", region), ("s3_bucket", bucket), ("s3_access_key", access_key), ("s3_secret_key", secret_key)]
    {
        settings.insert(key, value.to_owned());
    }
    settings
}

fn settings(database: String, endpoint: &str, prefix: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("database_url", database),
        ("s3_endpoint", endpoint.to_owned()),
        ("s3_region", REGION.to_owned()),
        ("s3_bucket", BUCKET.to_owned()),
        ("s3_prefix", prefix.to_owned()),
        ("s3_access_key", ACCESS_KEY.to_owned()),
        ("s3_secret_key", SECRET_KEY.to_owned()),
        ("master_key", "5a".repeat(32)),
    ])
}

fn variables(settings: &BTreeMap<&'static str, String>) -> Vec<(String, String)> {
    settings.iter().map(|(key, value)| (format!("ZORB_{}", key.to_uppercase()), value.clone())).collect()
}
