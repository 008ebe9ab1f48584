//! The revisions of random histories, compared with those that `git fast-import` makes of the same
//! changes.
//!
//! The id of a commit depends on its directories, files, message, author and time, and on its whole
//! history. So equal heads mean that all of these are equal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sha2::{Digest, Sha256 as Hasher};

use super::Setup;
use super::hub::{create, head_of, open};
use super::hub_sweep::{put_large, upload};
use crate::git::ObjectId;
use crate::index::HubCommit;
use crate::service::hub::attributes;
use crate::service::{Change, CommitRequest, OpenRepo, Server};

/// Histories in a full run, and in a short one.
const HISTORY_COUNT: u64 = if cfg!(feature = "full-tests") { 1000 } else { 60 };

/// Names that git sorts in another order than their bytes, if some are directories.
const NAMES: [&str; 7] = ["a", "a.b", "a0", "dir", "dir-x", "ü c", ".gitattributes"];

/// Texts of large files. They are uploaded once, before the histories.
const LARGE: [&str; 3] = ["one large file", "another large file", "a third large file"];

/// The files of a revision: what git has as the contents of each path.
type Files = BTreeMap<String, Vec<u8>>;

/// A history in one branch, and the files of its head.
struct History {
    branch: String,
    files: Files,
    head: HubCommit,
}

/// The contents of a large file in git.
fn pointer(text: &str) -> Vec<u8> {
    let digest: String = Hasher::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {}\n", text.len()).into_bytes()
}

fn random_path(rng: &mut StdRng) -> String {
    let depth = rng.random_range(0..4);
    // No file has the name of a directory.
    let directories = (0..depth).map(|_| format!("d{}", NAMES[rng.random_range(0..NAMES.len())]));
    let mut parts: Vec<String> = directories.collect();
    parts.push(NAMES[rng.random_range(0..NAMES.len())].to_owned());
    parts.join("/")
}

/// One to eight random changes, and the files after them. No path is changed twice.
fn random_changes(rng: &mut StdRng, before: &Files) -> (Vec<Change>, Files) {
    let (mut changes, mut files, mut changed) = (Vec::new(), before.clone(), BTreeSet::new());
    for _ in 0..rng.random_range(1..9) {
        let path = random_path(rng);
        let old: Vec<&String> = before.keys().filter(|path| files.contains_key(*path)).collect();
        let known = old.choose(rng).map(|&path| path.clone());
        let is_clear = |path: &String| !changed.contains(path);
        match (rng.random_range(0..10), known) {
            (0..3, Some(known)) if is_clear(&known) => {
                files.remove(&known);
                changes.push(Change::Delete { path: known.parse().unwrap() });
                changed.insert(known);
            }
            (3, Some(known)) if known.contains('/') => {
                let top = known.split('/').next().unwrap().to_owned();
                let prefix = format!("{top}/");
                if changed.iter().all(|path: &String| !path.starts_with(&prefix)) {
                    changed.extend(files.keys().filter(|path| path.starts_with(&prefix)).cloned());
                    files.retain(|path, _| !path.starts_with(&prefix));
                    changes.push(Change::DeleteDirectory { path: top.parse().unwrap() });
                }
            }
            (4, Some(known)) if is_clear(&path) => {
                files.insert(path.clone(), before[&known].clone());
                let (to, from) = (path.parse().unwrap(), known.parse().unwrap());
                changes.push(Change::Copy { path: to, from, revision: None });
                changed.insert(path);
            }
            (5, _) if is_clear(&path) => {
                let text = LARGE.choose(rng).unwrap();
                files.insert(path.clone(), pointer(text));
                changes.push(put_large(&path, text));
                changed.insert(path);
            }
            _ if is_clear(&path) => {
                let contents: Vec<u8> = (0..rng.random_range(0..60)).map(|_| rng.random()).collect();
                files.insert(path.clone(), contents.clone());
                changes.push(Change::Put { path: path.parse().unwrap(), contents });
                changed.insert(path);
            }
            _ => {}
        }
    }
    (changes, files)
}

/// Commands of `git fast-import`.
#[derive(Default)]
struct Commands {
    text: Vec<u8>,
    /// The number under which a later command names a commit.
    marks: HashMap<ObjectId, usize>,
}

impl Commands {
    fn commit(&mut self, branch: &str, commit: &HubCommit, (before, after): (&Files, &Files)) {
        let HubCommit { author, at, message, .. } = commit;
        let mark = self.marks.len() + 1;
        let who = format!("{author} <{author}@users.noreply.zorb> {} +0000", at.as_secs());
        writeln!(self.text, "commit refs/heads/{branch}\nmark :{mark}\nauthor {who}\ncommitter {who}").unwrap();
        writeln!(self.text, "data {}\n{message}", message.len()).unwrap();
        if let Some(parent) = &commit.parent {
            writeln!(self.text, "from :{}", self.marks[parent]).unwrap();
        }
        for path in before.keys().filter(|path| !after.contains_key(*path)) {
            writeln!(self.text, "D {path}").unwrap();
        }
        for (path, contents) in after.iter().filter(|(path, contents)| before.get(*path) != Some(contents)) {
            writeln!(self.text, "M 100644 inline {path}\ndata {}", contents.len()).unwrap();
            self.text.extend_from_slice(contents);
            self.text.push(b'\n');
        }
        self.marks.insert(commit.id, mark);
    }

    fn branch(&mut self, branch: &str, at: &ObjectId) {
        writeln!(self.text, "reset refs/heads/{branch}\nfrom :{}\n", self.marks[at]).unwrap();
    }
}

async fn commit(
    server: &Arc<Server>,
    open: &OpenRepo,
    history: &mut History,
    rng: &mut StdRng,
    commands: &mut Commands,
) {
    let (changes, files) = random_changes(rng, &history.files);
    if changes.is_empty() {
        return;
    }
    let message = ["one line", "two\n\nparts", "ends with a line\n", "ü"].choose(rng).unwrap();
    let request = CommitRequest {
        branch: history.branch.clone(),
        message: (*message).to_owned(),
        parent: None,
        changes: changes.clone(),
    };
    let done = server.commit(open, request).await.unwrap_or_else(|error| panic!("{changes:?}: {error:?}"));
    assert_eq!(done.is_new, files != history.files, "{changes:?}");
    if done.is_new {
        history.head = server.find_revision(open, &done.id.to_string()).await.unwrap();
        commands.commit(&history.branch, &history.head, (&history.files, &files));
        history.files = files;
    }
}

fn git(directory: &Path, arguments: &[&str], input: &[u8]) -> String {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", directory);
    let mut running = git.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(input).unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "git {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `ZORB_SEED` sets the seed.
#[tokio::test]
async fn random_histories_have_the_ids_that_git_gives_them() {
    let seed = std::env::var("ZORB_SEED").map_or_else(|_| rand::random(), |seed| seed.parse::<u64>().unwrap());
    println!("ZORB_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    for text in LARGE {
        upload(&server, "repo", text).await;
    }
    let open = open(&server, "repo").await.unwrap();
    let first = head_of(&server, "repo").await;
    let files = BTreeMap::from([(".gitattributes".to_owned(), attributes().into_bytes())]);
    let mut commands = Commands::default();
    commands.commit("main", &first, (&Files::new(), &files));
    let mut heads = BTreeMap::from([("main".to_owned(), first.clone())]);
    for number in 0..HISTORY_COUNT {
        let branch = format!("history-{number}");
        server.create_hub_ref(&open, format!("refs/heads/{branch}"), first.id).await.unwrap();
        commands.branch(&branch, &first.id);
        let mut history = History { branch: branch.clone(), files: files.clone(), head: first.clone() };
        for _ in 0..rng.random_range(1..6) {
            setup.clock.advance(Duration::from_secs(rng.random_range(0..100_000)));
            commit(&server, &open, &mut history, &mut rng, &mut commands).await;
        }
        heads.insert(branch, history.head);
    }
    let directory = tempfile::tempdir().unwrap();
    git(directory.path(), &["init", "--quiet", "--bare"], b"");
    git(directory.path(), &["fast-import", "--quiet"], &commands.text);
    let listed = git(directory.path(), &["for-each-ref", "--format=%(refname:short) %(objectname) %(tree)"], b"");
    let expected: BTreeSet<String> =
        heads.iter().map(|(branch, head)| format!("{branch} {} {}", head.id, head.tree)).collect();
    assert_eq!(listed.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
    git(directory.path(), &["fsck", "--strict", "--no-dangling"], b"");
}
