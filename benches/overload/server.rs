//! The real server, with tokens, on a directory of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use tempfile::TempDir;

use crate::quiet::{open, put};
use crate::xorbs::Xorbs;

/// Settings that are not the defaults: as many as 1000 slow connections and 200 clients take, with their slow bodies.
const MAX_CONNECTIONS: u64 = 2048;
const MAX_UPLOADS: u64 = 512;
const MAX_UPLOAD_LEN: u64 = MAX_UPLOADS * (64 << 20);

/// Chunks of the xorb that everybody reads.
const CHUNK_COUNT: u32 = 1023;

pub(crate) struct Server {
    binary: String,
    child: Child,
    pub(crate) address: String,
    directory: TempDir,
    pub(crate) quiet_token: String,
    pub(crate) flood_token: String,
    slow_token: String,
}

/// What there is to be read.
pub(crate) struct Stored {
    pub(crate) hash: String,
    pub(crate) chunk_count: u32,
}

impl Server {
    pub(crate) fn start(binary: &str) -> Self {
        Self::start_with(binary, &[])
    }

    /// With these settings as well, by their names in the environment.
    pub(crate) fn start_with(binary: &str, settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut child = Command::new(binary)
            .args(["serve", "--auth", "token", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path())
            .env("ZORB_LOG", "error")
            .env("ZORB_MAX_CONNECTIONS", MAX_CONNECTIONS.to_string())
            .env("ZORB_MAX_UPLOADS", MAX_UPLOADS.to_string())
            .env("ZORB_UPLOAD_BUDGET", MAX_UPLOAD_LEN.to_string())
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("zorb listening on http://").expect("it listens").to_owned();
        let binary = binary.to_owned();
        let mut server = Self {
            binary,
            child,
            address,
            directory,
            quiet_token: String::new(),
            flood_token: String::new(),
            slow_token: String::new(),
        };
        server.quiet_token = server.token("*", "quiet");
        server.flood_token = server.token("*", "flood");
        server.slow_token = server.token("*", "slow");
        server
    }

    /// A token to write, for this repository.
    pub(crate) fn token(&self, repo: &str, subject: &str) -> String {
        let issued = Command::new(&self.binary)
            .args(["token", "issue", "--scope", "write", "--repo", repo, "--subject", subject, "--data-dir"])
            .arg(self.directory.path())
            .output()
            .unwrap();
        assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
        String::from_utf8(issued.stdout).unwrap().trim().to_owned()
    }

    /// Seconds of CPU that the process has used.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: f64 = [11, 12].iter().map(|field: &usize| fields[*field].parse::<f64>().unwrap()).sum();
        ticks / 100.0
    }

    /// Stores a full xorb.
    pub(crate) fn fill(&self) -> Stored {
        let mut rng = StdRng::seed_from_u64(1);
        let xorbs = Xorbs::new(&mut rng, CHUNK_COUNT as usize);
        let variant = xorbs.variant(&mut rng);
        let body = [&variant.first[..], &xorbs.shared].concat();
        assert_eq!(put(&mut open(&self.address), &self.quiet_token, &variant.hash, &body), 201);
        Stored { hash: variant.hash, chunk_count: CHUNK_COUNT }
    }

    /// Starts the load, and returns when all of its connections are there.
    pub(crate) fn flood(&self, stored: &Stored) -> Flood {
        // Not `nice`, which still gives it whole slices of 4 ms in which nobody else runs.
        let mut child = Command::new("chrt")
            .args(["--idle", "0"])
            .arg(std::env::current_exe().unwrap())
            .args(["--flood", &self.address, &self.flood_token, &self.slow_token, &stored.hash])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "flooding");
        // Until every buffer is full that can be.
        std::thread::sleep(Duration::from_secs(3));
        Flood { child, stdout }
    }

    /// A line of the kernel's account of the process, in bytes.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Waits until the connections of the load are gone.
    pub(crate) fn wait_until_idle(&self) {
        let begin = Instant::now();
        while self.descriptors() > 100 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} descriptors are open still", self.descriptors());
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_secs(1));
    }

    /// The table of docs/capacity.md for these settings. Without the budget for large responses: this
    /// bench requests none.
    #[expect(clippy::unused_self, reason = "it is the server's")]
    pub(crate) fn memory_bound(&self) -> u64 {
        MAX_CONNECTIONS * (717 << 10) + MAX_UPLOADS * (1 << 20) + (1076 << 20)
    }

    #[expect(clippy::unused_self, reason = "it is the server's")]
    pub(crate) fn descriptor_bound(&self) -> u64 {
        2 * MAX_CONNECTIONS + MAX_UPLOADS + 32 + 84
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.directory.path();
    }
}

/// The process that makes the load.
pub(crate) struct Flood {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Flood {
    /// Ends it; returns what it says that it did.
    pub(crate) fn stop(&mut self) -> String {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        text.trim().to_owned()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
