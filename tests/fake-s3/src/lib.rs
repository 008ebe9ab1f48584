//! An S3 store in the process of a test: one thread, objects in memory, requests over loopback.
//!
//! It has what zorb uses: objects, ranges, lists by page, and uploads in parts. It checks signed URLs
//! as S3 does. Of other requests it checks the id of the key and the hash of signed bodies, and not
//! the signature itself: for that there is a real S3 store (`tests/garage.sh`). [`FakeS3::fail`] makes it fail in ways in which a real one does
//! not on demand.

mod presigned;
mod requests;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

pub use self::state::{Fault, Op};
use self::state::{Object, State};

/// The region of a server on loopback.
pub const REGION: &str = "test";

/// The id of its key.
pub const ACCESS_KEY: &str = "test-key";

/// The secret part of its key.
pub const SECRET_KEY: &str = "test-secret";

/// The only key of a server, and its region.
#[derive(Clone, Debug)]
pub struct Account {
    /// The region of all buckets.
    pub region: String,
    /// The id of the key.
    pub access_key: String,
    /// The secret part of the key.
    pub secret_key: String,
}

impl Default for Account {
    fn default() -> Self {
        Self { region: REGION.into(), access_key: ACCESS_KEY.into(), secret_key: SECRET_KEY.into() }
    }
}

/// The running server. Dropping it closes its connections and forgets all objects.
#[derive(Debug)]
pub struct FakeS3 {
    url: String,
    state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeS3 {
    /// Starts a server without buckets on a free port of loopback.
    ///
    /// # Panics
    ///
    /// No port is free.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), Account::default()).expect("a port is free")
    }

    /// Starts a server without buckets.
    ///
    /// # Errors
    ///
    /// It cannot listen on the address.
    #[expect(clippy::disallowed_methods, reason = "a thread of its own, so that it outlives the runtime of a test")]
    pub fn start_at(address: SocketAddr, account: Account) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(Mutex::new(State { account, ..State::default() }));
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&state);
        let thread = std::thread::spawn(move || requests::serve(listener, served, stopped));
        Ok(Self { url, state, stop: Some(stop), thread: Some(thread) })
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Creates an empty bucket.
    pub fn create_bucket(&self, name: &str) {
        self.lock().buckets.insert(name.to_owned(), BTreeMap::new());
    }

    /// Removes a bucket and all of its objects.
    pub fn remove_bucket(&self, name: &str) {
        self.lock().buckets.remove(name);
    }

    /// Gives a bucket another name.
    pub fn rename_bucket(&self, from: &str, to: &str) {
        let mut state = self.lock();
        let objects = state.buckets.remove(from).unwrap_or_default();
        state.buckets.insert(to.to_owned(), objects);
    }

    /// The names of all objects of a bucket, ascending.
    #[must_use]
    pub fn names(&self, bucket: &str) -> Vec<String> {
        self.lock().buckets.get(bucket).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// The bytes of an object.
    #[must_use]
    pub fn object(&self, bucket: &str, name: &str) -> Option<Vec<u8>> {
        Some(self.lock().buckets.get(bucket)?.get(name)?.bytes.to_vec())
    }

    /// Replaces the bytes of an object, or creates it, as a failing S3 store could.
    pub fn put_object(&self, bucket: &str, name: &str, bytes: Vec<u8>) {
        let object = Object { bytes: bytes.into(), tag: None };
        self.lock().buckets.entry(bucket.to_owned()).or_default().insert(name.to_owned(), object);
    }

    /// Removes an object.
    pub fn remove_object(&self, bucket: &str, name: &str) {
        self.lock().buckets.get_mut(bucket).and_then(|objects| objects.remove(name));
    }

    /// The next `count` requests of this kind fail in this way.
    pub fn fail(&self, op: Op, fault: Fault, count: usize) {
        self.lock().faults.extend(std::iter::repeat_n((op, fault), count));
    }

    /// A range is ignored if the request has a condition `If-Range`, whatever was signed.
    pub fn obey_if_range(&self, obeys: bool) {
        self.lock().obeys_if_range = obeys;
    }

    /// Signed URLs open any range of their bucket, whatever was signed.
    pub fn ignore_signatures(&self, ignores: bool) {
        self.lock().ignores_signatures = ignores;
    }

    /// The faults that no request has met yet are not to happen any more. Returns their number.
    #[must_use]
    pub fn forgive(&self) -> usize {
        std::mem::take(&mut self.lock().faults).len()
    }

    /// The number of requests of this kind so far.
    #[must_use]
    pub fn count(&self, op: Op) -> usize {
        self.lock().counts.get(&op).copied().unwrap_or(0)
    }

    /// The number of uploads in parts that were neither completed nor aborted.
    #[must_use]
    pub fn unfinished_uploads(&self) -> usize {
        self.lock().uploads.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FakeS3 {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
