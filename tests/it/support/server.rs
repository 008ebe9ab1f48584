//! The real binary as a child process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Client, eventually};

/// How a server is to be started.
#[derive(Debug, Default)]
pub struct Start {
    data_dir: Option<PathBuf>,
    settings: Vec<(String, String)>,
    disk_mib: Option<u32>,
    descriptors: Option<String>,
}

impl Start {
    /// With this data directory instead of a fresh one.
    pub fn data_dir(mut self, path: &Path) -> Self {
        self.data_dir = Some(path.to_owned());
        self
    }

    /// With a setting, by its key in the configuration file.
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.settings.push((format!("ZORB_{}", key.to_uppercase()), value.to_string()));
        self
    }

    /// With these limits of open files, in the words of the shell's `ulimit`, like `-S -n 64`.
    pub fn descriptors(mut self, limits: &str) -> Self {
        self.descriptors = Some(limits.to_owned());
        self
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.settings.push((name.to_owned(), value.as_ref().to_str().expect("the test's values are text").to_owned()));
        self
    }

    /// With its data on a file system of so many MiB, which only this server sees and which ends with it.
    ///
    /// Takes root, or a system that lets everybody have user namespaces.
    pub fn on_small_disk(mut self, mib: u32) -> Self {
        self.disk_mib = Some(mib);
        self
    }

    /// Starts it and waits until it listens. If `ZORB_TEST_SERVERS` asks for several, and the store is in a bucket, the
    /// others have a data directory of their own, as on another machine.
    pub fn start(self) -> TestServer {
        let directory = tempfile::tempdir().expect("the test can make a temporary directory");
        let data_dir = self.data_dir.clone().unwrap_or_else(|| directory.path().join("data"));
        let variables = variables_of(&data_dir);
        let begin = Instant::now();
        let first = self.process(&data_dir, &directory.path().join("log"), &variables);
        let startup = begin.elapsed();
        let count = if variables.is_empty() { 1 } else { server_count() };
        let other = |number| {
            let path = |name| directory.path().join(format!("{name}-{number}"));
            self.process(&path("data"), &path("log"), &variables)
        };
        let others = (1..count).map(other).collect();
        let request_count = Arc::new(AtomicUsize::new(rand::random_range(0..count)));
        TestServer { first, others, request_count, data_dir, startup, directories: vec![Arc::new(directory)] }
    }

    fn process(&self, data_dir: &Path, log: &Path, variables: &[(String, String)]) -> Process {
        let mut child = command(self.disk_mib, self.descriptors.as_deref(), data_dir)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .env("ZORB_LOG", "debug")
            // What a small disk has is not to be kept free, unless a test says so.
            .env("ZORB_MIN_FREE_SPACE", "0")
            .envs(variables.iter().cloned())
            .envs(self.settings.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(log).expect("the test can write a log"))
            .spawn()
            .expect("the binary was built for this test, and a small disk needs the program unshare");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        stdout.read_line(&mut line).expect("the server writes text");
        let Some(url) = line.trim_end().strip_prefix("zorb listening on ") else {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let _ = child.wait();
            panic!("the first line is {line:?}, the log:\n{log}");
        };
        Process { child, url: url.to_owned(), log: log.to_owned() }
    }
}

/// Where the store of this data directory is, if that is not in the directory.
#[cfg(all(feature = "postgres-tests", feature = "s3"))]
fn variables_of(data_dir: &Path) -> Vec<(String, String)> {
    super::backend::variables_of(data_dir)
}

#[cfg(not(all(feature = "postgres-tests", feature = "s3")))]
const fn variables_of(_: &Path) -> Vec<(String, String)> {
    Vec::new()
}

/// How many servers a store in a bucket has.
fn server_count() -> usize {
    std::env::var("ZORB_TEST_SERVERS").map_or(1, |count| count.parse().expect("ZORB_TEST_SERVERS is a number"))
}

/// The binary, behind what it takes to give it a small disk.
fn command(disk_mib: Option<u32>, descriptors: Option<&str>, data_dir: &Path) -> Command {
    let binary = env!("CARGO_BIN_EXE_zorb");
    if let Some(limits) = descriptors {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limits} && exec \"$0\" \"$@\""), binary]);
        return command;
    }
    let Some(mib) = disk_mib else { return Command::new(binary) };
    std::fs::create_dir_all(data_dir).expect("the test can make a directory");
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let mount = format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\" && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &mount]).arg(data_dir).arg(binary);
    command
}

/// A server process; killed when dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    url: String,
    log: PathBuf,
}

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive");
        kill_process(pid, signal).expect("the server is a child of this process");
    }

    fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the server is a child of this process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server of a store, or all of them.
#[derive(Debug)]
pub struct TestServer {
    /// What has its data in `data_dir`.
    first: Process,
    others: Vec<Process>,
    /// Requests of all clients. It begins at random, so that a test meets each server in time.
    request_count: Arc<AtomicUsize>,
    data_dir: PathBuf,
    startup: Duration,
    /// What must outlive the server: its own directory, and that of the one before it.
    directories: Vec<Arc<TempDir>>,
}

impl TestServer {
    /// A server on a fresh directory with the defaults.
    pub fn start() -> Self {
        Start::default().start()
    }

    /// A client for it, which sends its requests to all servers in turn.
    pub fn client(&self) -> Client {
        let urls = self.processes().map(|process| process.url.clone()).collect();
        Client::in_turn(urls, Arc::clone(&self.request_count))
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// `http://ADDR:PORT`, or with `https`.
    pub fn url(&self) -> &str {
        &self.first.url
    }

    /// `ADDR:PORT`.
    pub fn address(&self) -> &str {
        self.url().split_once("://").expect("the server says where it is").1
    }

    /// Where it keeps everything.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What keeps its data when it is gone.
    pub fn directory(&self) -> Vec<Arc<TempDir>> {
        self.directories.clone()
    }

    /// Keeps the data of the one before it for as long as this one.
    pub fn keep(&mut self, directories: Vec<Arc<TempDir>>) {
        self.directories.extend(directories);
    }

    /// The binary, for a command on the store.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
        command.envs(variables_of(self.data_dir()));
        command
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.first.child.id()
    }

    /// Time from its start until it listened.
    pub fn startup(&self) -> Duration {
        self.startup
    }

    /// What it logged so far, one server after another.
    pub fn log(&self) -> String {
        self.processes().map(|process| std::fs::read_to_string(&process.log).expect("the log is text")).collect()
    }

    /// A path as this process sees it: a small disk is mounted for the server only.
    pub fn seen_from_inside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        root.join(path.strip_prefix("/").expect("the data directory is absolute"))
    }

    /// Files that are neither blobs nor the index: what a crash may leave until the next start.
    pub fn drafts(&self) -> usize {
        std::fs::read_dir(self.data_dir.join("tmp")).expect("the directory is there").count()
    }

    /// Hashes of the blobs on disk, or in the bucket, sorted.
    pub fn blobs(&self) -> Vec<String> {
        #[cfg(all(feature = "postgres-tests", feature = "s3"))]
        let in_bucket = super::backend::blob_names_of(&self.data_dir);
        #[cfg(not(all(feature = "postgres-tests", feature = "s3")))]
        let in_bucket: Option<Vec<String>> = None;
        let names = in_bucket.unwrap_or_else(|| {
            let groups = std::fs::read_dir(self.data_dir.join("xorbs")).expect("the directory is there");
            let files = groups.flat_map(|group| std::fs::read_dir(group.unwrap().path()).unwrap());
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
        });
        let mut hashes: Vec<_> = names.iter().map(|name| name.split('.').next().unwrap().to_owned()).collect();
        hashes.sort();
        hashes
    }

    /// The file of a xorb's blob.
    pub fn blob(&self, hash: &str) -> PathBuf {
        blob_path(self.data_dir(), hash)
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGSTOP.
    #[cfg(any(feature = "full-tests", all(feature = "postgres-tests", feature = "s3")))]
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    #[cfg(all(feature = "postgres-tests", feature = "s3"))]
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Waits for its end, and hands out its log as well.
    pub async fn exit(mut self) -> (ExitStatus, String) {
        let mut status = None;
        eventually("the server ends", async || {
            status = self.first.child.try_wait().expect("the server is a child of this process");
            status.is_some()
        })
        .await;
        (status.expect("it has ended"), self.log())
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        let others = self.others.iter_mut().map(Process::wait);
        others.for_each(|status| assert!(status.success(), "{status}"));
        self.first.wait()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(self) {
        self.signal(Signal::KILL);
    }

    /// Ends it and starts another one on the same data.
    pub fn restart(self) -> Self {
        self.restart_with(|start| start)
    }

    /// The same with other settings.
    pub fn restart_with(self, settings: impl FnOnce(Start) -> Start) -> Self {
        let (directories, data_dir) = (self.directories.clone(), self.data_dir.clone());
        self.terminate();
        assert!(self.wait().success());
        let mut server = settings(Start::default().data_dir(&data_dir)).start();
        server.directories.extend(directories);
        server
    }

    fn signal(&self, signal: Signal) {
        self.processes().for_each(|process| process.signal(signal));
    }
}

/// The files of a xorb's blobs, sorted by name.
pub fn blob_paths(data_dir: &Path, hash: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(data_dir.join("xorbs").join(&hash[..2])).expect("the directory is there");
    let paths = files.map(|file| file.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(hash)).collect();
    paths.sort();
    paths
}

/// The file of a xorb's only blob.
pub fn blob_path(data_dir: &Path, hash: &str) -> PathBuf {
    let paths = blob_paths(data_dir, hash);
    assert_eq!(paths.len(), 1, "{hash}: {paths:?}");
    paths[0].clone()
}
