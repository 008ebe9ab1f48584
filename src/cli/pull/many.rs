//! Many files into a directory: small ones together, large ones each by itself, several at once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{StreamExt, iter};
use serde::Serialize;

use super::shown::{FileShown, ManyShown};
use super::tree::Tree;
use crate::cli::output::{Output, Plain};
use crate::cli::partial::Partial;
use crate::cli::units::{Count, Size};
use crate::client::{FileSink, MAX_BATCH_COUNT, Pull, PullError, Server, Watch, Workers};
use crate::format::FileHash;
use crate::runtime::telemetry::chain;

/// Bytes of a file up to which it is pulled together with others.
const MAX_SMALL_LEN: u64 = 4 << 20;

/// Bytes of files that are pulled together, about.
const BATCH_LEN: u64 = 64 << 20;

/// Batches and large files that are pulled at once. Each may hold 256 MiB of what was fetched
/// ahead, which only a large file does.
const UNIT_COUNT: usize = 3;

/// Files that are written or hashed at once: most of the time they wait for a disk.
const WRITER_COUNT: usize = 8;

/// A file that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) hash: FileHash,
    /// Its length, if known.
    pub(super) len: Option<u64>,
    pub(super) mode: u32,
}

/// What `--json` prints: a line per file in the order given, then the total.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record<'a> {
    File { hash: String, path: &'a str, state: &'a str },
    Failed { hash: String, path: &'a str, error: &'a str },
    Total { files: u64, len: u64, present: u64, failed: u64 },
}

/// How it went with one file.
#[derive(Clone, Debug)]
enum Outcome {
    Present,
    Written,
    Failed(String),
}

/// A pull of many files.
struct Job {
    wanted: Vec<Wanted>,
    /// The files of each hash, by their places.
    places: HashMap<FileHash, Vec<usize>>,
    tree: Tree,
    outcomes: Mutex<Vec<Option<Outcome>>>,
    shown: Arc<ManyShown>,
}

/// Pulls these files into a directory; fails if one of them is not there in the end.
pub(super) async fn pull_all(
    server: &Server,
    (directory, umask): (&Path, u32),
    wanted: Vec<Wanted>,
    job_count: usize,
    output: &Output,
) -> anyhow::Result<()> {
    let was_there = directory.exists();
    let tree = Tree::open(directory, umask)?;
    let mut places: HashMap<FileHash, Vec<usize>> = HashMap::new();
    for (index, file) in wanted.iter().enumerate() {
        places.entry(file.hash).or_default().push(index);
    }
    let len = wanted.iter().map(|file| file.len.unwrap_or(0)).sum();
    let shown = ManyShown::new(output, len, wanted.len() as u64);
    let outcomes = Mutex::new(vec![None; wanted.len()]);
    let job = Arc::new(Job { wanted, places, tree, outcomes, shown });
    let workers = Workers::new(WRITER_COUNT);
    if was_there {
        job.find_present(&workers).await;
    }
    let watch: Arc<dyn Watch> = Arc::clone(&job.shown) as Arc<dyn Watch>;
    let (batches, large) = job.units();
    // Large files first: small ones fill the gaps, and no large one is left alone at the end.
    let units = large.into_iter().map(Unit::Large).chain(batches.into_iter().map(Unit::Batch));
    let mut running = iter(units)
        .map(|unit| -> BoxFuture<'_, ()> {
            match unit {
                Unit::Batch(files) => job.pull_batch(server, files, job_count, &workers, &watch).boxed(),
                Unit::Large(file) => job.pull_large(server, file, job_count, &workers).boxed(),
            }
        })
        .buffer_unordered(UNIT_COUNT);
    while running.next().await.is_some() {}
    drop(running);
    let its = Arc::clone(&job);
    workers.run(move || its.tree.sync()).await.context("cannot write the directory")?;
    report(output, directory, &job)
}

/// What is pulled as one.
enum Unit {
    Batch(Vec<(FileHash, u64)>),
    Large(FileHash),
}

impl Job {
    /// Notes which files are there already, whole.
    async fn find_present(self: &Arc<Self>, workers: &Workers) {
        let check = |index: usize| {
            let job = Arc::clone(self);
            workers.run(move || {
                let Some(file) = job.wanted.get(index) else { return };
                if job.tree.has(&file.path, file.hash, file.len) {
                    job.done(index, Outcome::Present);
                }
            })
        };
        iter(0..self.wanted.len()).map(check).buffer_unordered(WRITER_COUNT).collect::<()>().await;
    }

    /// What is to be fetched: batches of small files, and large ones. Each file once, in the order
    /// in which they are wanted.
    fn units(&self) -> (Vec<Vec<(FileHash, u64)>>, Vec<FileHash>) {
        let (mut batches, mut large) = (Vec::new(), Vec::new());
        let (mut batch, mut batch_len) = (Vec::new(), 0);
        for (index, file) in self.wanted.iter().enumerate() {
            let is_first = self.places.get(&file.hash).and_then(|places| places.first()) == Some(&index);
            if !is_first || self.missing(file.hash).is_empty() {
                continue;
            }
            match file.len {
                // Its hash says what it is, whatever its length is said to be.
                _ if file.hash == FileHash::EMPTY => self.take(file.hash, Ok(Vec::new())),
                // There is a copy of it here.
                _ if self.is_present(file.hash) => large.push(file.hash),
                Some(len @ 1..=MAX_SMALL_LEN) => {
                    batch.push((file.hash, len));
                    batch_len += len;
                    if batch.len() >= MAX_BATCH_COUNT || batch_len >= BATCH_LEN {
                        batches.push(std::mem::take(&mut batch));
                        batch_len = 0;
                    }
                }
                _ => large.push(file.hash),
            }
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        (batches, large)
    }

    /// Pulls small files together, and those that did not come that way one by one.
    async fn pull_batch(
        self: &Arc<Self>,
        server: &Server,
        files: Vec<(FileHash, u64)>,
        job_count: usize,
        workers: &Workers,
        watch: &Arc<dyn Watch>,
    ) {
        let sink: Arc<dyn FileSink> = Arc::clone(self) as Arc<dyn FileSink>;
        let (mut batches, mut left) = (vec![files], Vec::new());
        while let Some(files) = batches.pop() {
            match Box::pin(server.pull_small(&files, job_count, workers, &sink, watch)).await {
                Ok(()) => {}
                Err(error) if error.is_unavailable() => {
                    files.iter().for_each(|(file, _)| self.fail(*file, &chain(&error)));
                }
                // One file that the server lacks is enough for it to refuse all of them: halves
                // show which one it is.
                Err(error) if error.is_one_missing() && files.len() > 1 => {
                    let (first, second) = files.split_at(files.len() / 2);
                    batches.extend([second.to_vec(), first.to_vec()]);
                }
                Err(_) => left.extend(files.into_iter().map(|(file, _)| file)),
            }
        }
        left.retain(|file| !self.missing(*file).is_empty());
        let pull = |file| self.pull_large(server, file, job_count, workers);
        iter(left).map(pull).buffer_unordered(WRITER_COUNT).collect::<()>().await;
    }

    /// Pulls one file, or goes on with what there is of it.
    async fn pull_large(self: &Arc<Self>, server: &Server, file: FileHash, job_count: usize, workers: &Workers) {
        if !self.is_present(file)
            && let Err(error) = Box::pin(self.pull_one(server, file, job_count, workers)).await
        {
            self.fail(file, &format!("{error:#}"));
            return;
        }
        let job = Arc::clone(self);
        workers.run(move || job.copy_to_rest(file)).await;
    }

    async fn pull_one(
        self: &Arc<Self>,
        server: &Server,
        file: FileHash,
        job_count: usize,
        workers: &Workers,
    ) -> anyhow::Result<()> {
        let Some(index) = self.missing(file).first().copied() else { return Ok(()) };
        let job = Arc::clone(self);
        let Some(partial) = workers.run(move || job.begin(index)).await? else {
            bail!("another process is pulling it to the same path");
        };
        let pull = Pull { file, range: None, job_count };
        let watch = FileShown::new(&self.shown);
        let pulled = Box::pin(server.pull(&pull, partial, workers, Arc::clone(&watch) as Arc<dyn Watch>)).await;
        let job = Arc::clone(self);
        match pulled {
            Ok((_, partial)) => {
                workers.run(move || job.finish(index, partial)).await?;
                watch.hide();
                self.done(index, Outcome::Written);
                Ok(())
            }
            Err(error) => {
                watch.hide();
                if !error.is_about_transfer() {
                    // The partial file is wrong.
                    workers.run(move || job.begin(index).ok().flatten().map(Partial::discard)).await;
                }
                Err(error.into())
            }
        }
    }

    fn begin(&self, index: usize) -> anyhow::Result<Option<Partial>> {
        let file = self.wanted.get(index).context("file not found")?;
        self.tree.begin(&file.path, file.hash)
    }

    fn finish(&self, index: usize, partial: Partial) -> anyhow::Result<()> {
        let file = self.wanted.get(index).context("file not found")?;
        self.tree.finish(&file.path, file.mode, partial)
    }

    /// Writes the other files with the same contents.
    fn copy_to_rest(&self, file: FileHash) {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let places = self.places.get(&file).map(Vec::as_slice).unwrap_or_default();
        let is_there =
            |index: &&usize| matches!(outcomes.get(**index), Some(Some(Outcome::Present | Outcome::Written)));
        let Some(source) = places.iter().find(is_there).and_then(|index| self.wanted.get(*index)) else { return };
        for index in self.missing(file) {
            let Some(target) = self.wanted.get(index) else { continue };
            let copied = self.tree.copy(&source.path, &target.path, target.mode);
            self.done(index, outcome(copied));
        }
    }

    /// The places of a file at which it is not yet, and nothing has failed.
    fn missing(&self, file: FileHash) -> Vec<usize> {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let places = self.places.get(&file).map(Vec::as_slice).unwrap_or_default();
        places.iter().copied().filter(|index| matches!(outcomes.get(*index), Some(None))).collect()
    }

    /// Whether a file was at one of its places before.
    fn is_present(&self, file: FileHash) -> bool {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let places = self.places.get(&file).map(Vec::as_slice).unwrap_or_default();
        places.iter().any(|index| matches!(outcomes.get(*index), Some(Some(Outcome::Present))))
    }

    fn fail(&self, file: FileHash, error: &str) {
        self.missing(file).into_iter().for_each(|index| self.done(index, Outcome::Failed(error.to_owned())));
    }

    fn done(&self, index: usize, outcome: Outcome) {
        let len = self.wanted.get(index).and_then(|file| file.len).unwrap_or(0);
        if let Some(place) = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *place = Some(outcome);
        }
        self.shown.done(len);
    }
}

impl FileSink for Job {
    fn take(&self, file: FileHash, bytes: Result<Vec<u8>, PullError>) {
        match bytes {
            Ok(bytes) => {
                for index in self.missing(file) {
                    let Some(target) = self.wanted.get(index) else { continue };
                    self.done(index, outcome(self.tree.write(&target.path, target.mode, &bytes)));
                }
            }
            Err(error) => self.fail(file, &chain(&error)),
        }
    }
}

fn outcome(written: anyhow::Result<()>) -> Outcome {
    match written {
        Ok(()) => Outcome::Written,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Says how it went with each file.
fn report(output: &Output, directory: &Path, job: &Job) -> anyhow::Result<()> {
    job.shown.finish();
    let (mut files, mut len, mut present, mut failed) = (0, 0, 0, 0);
    let outcomes = job.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
    for (file, outcome) in job.wanted.iter().zip(outcomes.iter()) {
        let (hash, path) = (file.hash.to_string(), file.path.as_str());
        let state = match outcome {
            Some(Outcome::Present) => "present",
            Some(Outcome::Written) => "written",
            Some(Outcome::Failed(error)) => {
                failed += 1;
                output.complain(format_args!("cannot pull {}: {error}", Plain(path)));
                output.record(&Record::Failed { hash, path, error })?;
                continue;
            }
            None => return Err(anyhow!("{} has no result", Plain(path))),
        };
        files += 1;
        len += file.len.unwrap_or(0);
        present += u64::from(state == "present");
        output.line(format_args!("{hash}  {}", Plain(path)))?;
        output.record(&Record::File { hash, path, state })?;
    }
    output.record(&Record::Total { files, len, present, failed })?;
    let there = if present > 0 { format!("; {present} already present") } else { String::new() };
    let size = if len > 0 { format!(", {}", Size(len)) } else { String::new() };
    let directory = directory.display().to_string();
    output.summary(format_args!("{}{size} to {}, verified{there}", Count(files, "file"), Plain(&directory)));
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} not pulled", Count(job.wanted.len() as u64, "file")),
    }
}
