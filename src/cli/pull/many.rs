//! Pulls many files into a directory. Small files are pulled in batches, and a large file by
//! itself. Up to `UNIT_COUNT` batches and large files are pulled at once.
//!
//! Each file appears under its name when it is complete and verified. A failure of one file does
//! not end the pull of the others.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{StreamExt, iter};
use serde::Serialize;

use super::shown::{FileProgress, ManyProgress};
use super::tree::Tree;
use crate::cli::output::{Output, Plain};
use crate::cli::partial::Partial;
use crate::cli::units::{Count, Size};
use crate::client::{FileSink, MAX_BATCH_COUNT, Pull, PullError, Server, Watch, Workers};
use crate::format::FileHash;
use crate::runtime::telemetry::chain;

/// Maximum length of a file that is pulled in a batch.
const MAX_SMALL_LEN: u64 = 4 << 20;

/// A batch is complete when its files have this length in total.
const BATCH_LEN: u64 = 64 << 20;

/// Batches and large files that are pulled at once. The number is small, because a large file may
/// hold 256 MiB of fetched data in memory.
const UNIT_COUNT: usize = 3;

/// Number of threads that write and hash files. It does not depend on the number of CPUs, because
/// the threads mostly wait for the disk.
const WRITER_COUNT: usize = 8;

/// A file to be pulled.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Relative to the directory; not checked yet.
    pub(super) path: String,
    pub(super) hash: FileHash,
    /// Length of the file; `None` without a manifest.
    pub(super) len: Option<u64>,
    /// Permission bits, from which the umask is removed.
    pub(super) mode: u32,
}

/// The records with `--json`: each file in the order given, then the total.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record<'a> {
    File { hash: String, path: &'a str, state: &'a str },
    Failed { hash: String, path: &'a str, error: &'a str },
    Total { files: u64, len: u64, present: u64, failed: u64 },
}

/// The result of one file.
#[derive(Clone, Debug)]
enum Outcome {
    /// The file existed already with the right contents.
    Present,
    Written,
    /// The text of the error.
    Failed(String),
}

/// A pull of many files.
struct Job {
    wanted: Vec<Wanted>,
    /// For each hash, the indexes of its files in `wanted`.
    places: HashMap<FileHash, Vec<usize>>,
    tree: Tree,
    /// For each file in `wanted`, its result; `None` until it is known.
    outcomes: Mutex<Vec<Option<Outcome>>>,
    shown: Arc<ManyProgress>,
}

/// Pulls these files into a directory. Fails if one of them could not be pulled.
pub(super) async fn pull_all(
    server: &Server,
    (directory, umask): (&Path, u32),
    wanted: Vec<Wanted>,
    job_count: usize,
    output: &Output,
) -> anyhow::Result<()> {
    let existed = directory.exists();
    let tree = Tree::open(directory, umask)?;
    let mut places: HashMap<FileHash, Vec<usize>> = HashMap::new();
    for (index, file) in wanted.iter().enumerate() {
        places.entry(file.hash).or_default().push(index);
    }
    let len = wanted.iter().map(|file| file.len.unwrap_or(0)).sum();
    let shown = ManyProgress::new(output, len, wanted.len() as u64);
    let outcomes = Mutex::new(vec![None; wanted.len()]);
    let job = Arc::new(Job { wanted, places, tree, outcomes, shown });
    let workers = Workers::new(WRITER_COUNT);
    if existed {
        job.find_present(&workers).await;
    }
    let watch: Arc<dyn Watch> = Arc::clone(&job.shown) as Arc<dyn Watch>;
    let (batches, large) = job.units();
    // Large files start first, because a large file that started last would run alone at the end.
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
    let synced = Arc::clone(&job);
    workers.run(move || synced.tree.sync()).await.context("cannot write the directory")?;
    report(output, directory, &job)
}

/// Files that are pulled in one operation.
enum Unit {
    Batch(Vec<(FileHash, u64)>),
    Large(FileHash),
}

impl Job {
    /// Records which files exist already with the right contents.
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

    /// The files to be fetched: batches of small files, and large files. Each hash occurs once, in
    /// the order of `wanted`.
    fn units(&self) -> (Vec<Vec<(FileHash, u64)>>, Vec<FileHash>) {
        let (mut batches, mut large) = (Vec::new(), Vec::new());
        let (mut batch, mut batch_len) = (Vec::new(), 0);
        for (index, file) in self.wanted.iter().enumerate() {
            let is_first = self.places.get(&file.hash).and_then(|places| places.first()) == Some(&index);
            if !is_first || self.unfinished(file.hash).is_empty() {
                continue;
            }
            match file.len {
                // The hash says that the file is empty, so there is nothing to fetch. The length in
                // a manifest may be wrong.
                _ if file.hash == FileHash::EMPTY => self.take(file.hash, Ok(Vec::new())),
                // Another file in the directory has the same contents. `pull_large` copies it.
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

    /// Pulls small files together. A file for which this fails is then pulled by itself, like a
    /// large one. If the server is unavailable, the files fail at once.
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
                // The server refuses a batch if a single file is missing. Halving the batch finds
                // the missing one.
                Err(error) if error.is_file_missing() && files.len() > 1 => {
                    let (first, second) = files.split_at(files.len() / 2);
                    batches.extend([second.to_vec(), first.to_vec()]);
                }
                Err(_) => left.extend(files.into_iter().map(|(file, _)| file)),
            }
        }
        left.retain(|file| !self.unfinished(*file).is_empty());
        let pull = |file| self.pull_large(server, file, job_count, workers);
        iter(left).map(pull).buffer_unordered(WRITER_COUNT).collect::<()>().await;
    }

    /// Pulls one file, unless its contents are present at one of its paths. Then copies it to its
    /// other paths.
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

    /// Pulls a file to its first path. Continues with the partial file of an earlier run, if there
    /// is one.
    async fn pull_one(
        self: &Arc<Self>,
        server: &Server,
        file: FileHash,
        job_count: usize,
        workers: &Workers,
    ) -> anyhow::Result<()> {
        let Some(index) = self.unfinished(file).first().copied() else { return Ok(()) };
        let job = Arc::clone(self);
        let Some(partial) = workers.run(move || job.begin(index)).await? else {
            bail!(
                "another process is pulling it to the same path, or its partial file is not a file of this user \
                 alone; if no other pull runs, delete .zorb-*.part in its directory"
            );
        };
        let pull = Pull { file, range: None, job_count };
        let watch = FileProgress::new(&self.shown);
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
                if !error.is_resumable() {
                    // The partial file may have wrong data, so the next run must not continue with
                    // it.
                    workers.run(move || job.begin(index).ok().flatten().map(Partial::discard)).await;
                }
                Err(error.into())
            }
        }
    }

    /// Begins or continues the partial file of a file in `wanted`; `None` if another process is
    /// writing it.
    fn begin(&self, index: usize) -> anyhow::Result<Option<Partial>> {
        let file = self.wanted.get(index).context("file not found")?;
        self.tree.begin(&file.path, file.hash)
    }

    /// Publishes the complete partial file of a file in `wanted`.
    fn finish(&self, index: usize, partial: Partial) -> anyhow::Result<()> {
        let file = self.wanted.get(index).context("file not found")?;
        self.tree.finish(&file.path, file.mode, partial)
    }

    /// Copies a file that is present or written to the other paths with the same hash.
    fn copy_to_rest(&self, file: FileHash) {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let places = self.places.get(&file).map(Vec::as_slice).unwrap_or_default();
        let is_there =
            |index: &&usize| matches!(outcomes.get(**index), Some(Some(Outcome::Present | Outcome::Written)));
        let Some(source) = places.iter().find(is_there).and_then(|index| self.wanted.get(*index)) else { return };
        for index in self.unfinished(file) {
            let Some(target) = self.wanted.get(index) else { continue };
            let copied = self.tree.copy(&source.path, &target.path, target.mode);
            self.done(index, outcome(copied));
        }
    }

    /// The indexes of the files with this hash that have no result yet.
    fn unfinished(&self, file: FileHash) -> Vec<usize> {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let places = self.places.get(&file).map(Vec::as_slice).unwrap_or_default();
        places.iter().copied().filter(|index| matches!(outcomes.get(*index), Some(None))).collect()
    }

    /// Whether a file with this hash existed before the pull.
    fn is_present(&self, file: FileHash) -> bool {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let places = self.places.get(&file).map(Vec::as_slice).unwrap_or_default();
        places.iter().any(|index| matches!(outcomes.get(*index), Some(Some(Outcome::Present))))
    }

    /// Records that the files with this hash have failed, except those that have a result.
    fn fail(&self, file: FileHash, error: &str) {
        self.unfinished(file).into_iter().for_each(|index| self.done(index, Outcome::Failed(error.to_owned())));
    }

    /// Records the result of one file, and counts it as completed in the progress bar.
    fn done(&self, index: usize, outcome: Outcome) {
        let len = self.wanted.get(index).and_then(|file| file.len).unwrap_or(0);
        if let Some(place) = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *place = Some(outcome);
        }
        self.shown.done(len);
    }
}

impl FileSink for Job {
    /// Writes a file of a batch to all its paths, or records why it has failed.
    fn take(&self, file: FileHash, bytes: Result<Vec<u8>, PullError>) {
        match bytes {
            Ok(bytes) => {
                for index in self.unfinished(file) {
                    let Some(target) = self.wanted.get(index) else { continue };
                    self.done(index, outcome(self.tree.write(&target.path, target.mode, &bytes)));
                }
            }
            Err(error) => self.fail(file, &chain(&error)),
        }
    }
}

/// The result of a file that was to be written.
fn outcome(written: anyhow::Result<()>) -> Outcome {
    match written {
        Ok(()) => Outcome::Written,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Prints the result of each file, then the total. Fails if a file has failed.
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
