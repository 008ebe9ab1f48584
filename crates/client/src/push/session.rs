//! One attempt to push: reads, compresses and sends concurrently, then registers.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use xet_format::XorbHash;
use xet_format::shard::CasInfo;

use super::ask::{ask, chunks_to_query};
use super::assemble::{Assembled, Assembler, RawXorb};
use super::known::Known;
use super::quota::admit;
use super::register::{Shards, register};
use super::scan::{Block, Event, ScanError, Scanner};
use super::send::{Sent, send};
use super::{Push, PushError, PushWatch, Pushed, PushedFile, Unread};
use crate::machine::{Running, Workers};
use crate::server::Server;

/// What an attempt relies on to know which xorbs the server has, besides its own uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sources {
    /// Resume state of interrupted pushes.
    earlier: bool,
    /// Resume state of earlier attempts of this push.
    own: bool,
    /// Responses to chunk queries.
    server: bool,
}

impl Sources {
    /// Everything.
    pub(super) const ALL: Self = Self { earlier: true, own: true, server: true };
    /// For the second attempt: everything except the resume state of earlier pushes, because the
    /// server may have lost their xorbs.
    pub(super) const OWN: Self = Self { earlier: false, own: true, server: true };
    /// For the last attempt: only its own uploads. The responses to chunk queries may name xorbs
    /// that the server lacks, and the server may have lost xorbs of earlier attempts, too. This
    /// attempt sends all chunks, so it cannot fail for either reason.
    pub(super) const NONE: Self = Self { earlier: false, own: false, server: false };
}

/// What all attempts of a push have sent.
#[derive(Debug, Default)]
pub(super) struct Totals {
    xorb_count: u64,
    sent_len: u64,
    /// The xorbs that were acknowledged.
    xorbs: HashSet<XorbHash>,
}

/// The state of one attempt.
struct Session<'a> {
    server: &'a Server,
    push: &'a Push,
    /// Workers for disk reads, and for writes of the resume state, separate from those that
    /// `sending` uses. With shared workers a deadlock is possible: a future of `sending` that is
    /// not polled could hold a permit, and this task would wait for this permit instead of polling
    /// the future.
    disk: Workers,
    /// Workers that compress xorbs.
    compressing: &'a Workers,
    watch: &'a Arc<dyn PushWatch>,
    totals: &'a mut Totals,
    /// The xorbs that this attempt has begun to send. The same chunks in the same order form the
    /// same xorb again, for instance the zeros of a file that has too many terms to reuse them.
    begun: HashSet<XorbHash>,
    /// The xorbs that are being compressed or sent.
    sending: FuturesUnordered<BoxFuture<'static, Result<Sent, PushError>>>,
    /// The xorbs that this attempt has sent and the server has acknowledged.
    sent: Vec<CasInfo>,
    /// The xorbs that an earlier push or attempt has sent, by its resume state.
    resumed: HashSet<XorbHash>,
    assembler: Assembler,
    /// For each file that has ended, why it could not be read, or `None`.
    unread: Vec<Option<Unread>>,
    /// Whether the quotas were checked.
    is_admitted: bool,
}

/// Makes one attempt. After `Ok` every readable file is registered.
pub(super) async fn attempt(
    server: &Server,
    push: &Push,
    workers: &Workers,
    watch: &Arc<dyn PushWatch>,
    sources: Sources,
    totals: &mut Totals,
) -> Result<Pushed, PushError> {
    let mut session = Session {
        server,
        push,
        // Two: one reads the next block. The other checks quotas or writes resume state meanwhile,
        // without waiting for the read.
        disk: Workers::new(2),
        compressing: workers,
        watch,
        totals,
        begun: HashSet::new(),
        sending: FuturesUnordered::new(),
        sent: Vec::new(),
        resumed: HashSet::new(),
        assembler: Assembler::default(),
        unread: Vec::new(),
        is_admitted: false,
    };
    session.resume(sources).await;
    session.take_files(sources).await?;
    session.finish().await
}

impl Session<'_> {
    /// Reads the resume state: which chunks earlier pushes and attempts have sent. Removes the
    /// entries of the resume state that `sources` excludes.
    async fn resume(&mut self, sources: Sources) {
        let Some(cache) = self.push.resume.clone() else { return };
        let own = self.totals.xorbs.clone();
        let found = self
            .disk
            .run(move || {
                let (usable, excluded): (Vec<CasInfo>, Vec<CasInfo>) = cache
                    .load()
                    .into_iter()
                    .partition(|xorb| sources.earlier || (sources.own && own.contains(&xorb.hash)));
                cache.forget(excluded.iter().map(|xorb| xorb.hash));
                usable
            })
            .await;
        for xorb in found {
            self.assembler.known.insert_xorb(&xorb);
            self.resumed.insert(xorb.hash);
        }
    }

    /// Reads all files and sends the unknown chunks. Returns when the server has acknowledged all
    /// xorbs.
    async fn take_files(&mut self, sources: Sources) -> Result<(), PushError> {
        let mut reading = read(&self.disk, Scanner::new(self.push.paths.clone())).await;
        loop {
            let (scanner, block) = self.alongside(reading).await?;
            if block.events.is_empty() {
                break;
            }
            reading = read(&self.disk, scanner).await;
            if sources.server {
                let known = mem::take(&mut self.assembler.known);
                let asking = ask(self.server.clone(), chunks_to_query(&block), known, Arc::clone(self.watch));
                self.assembler.known = self.alongside(Box::pin(asking)).await??;
            }
            for event in block.events {
                self.take(event).await?;
            }
        }
        if let Some(last) = self.assembler.cut() {
            self.send(last).await?;
        }
        while let Some(sent) = self.sending.next().await {
            self.acknowledged(sent?).await;
        }
        Ok(())
    }

    /// Adds a chunk to its file, or ends the file. Sends the xorb that the chunk did not fit into.
    async fn take(&mut self, event: Event) -> Result<(), PushError> {
        match event {
            Event::Chunk { hash, raw, .. } => {
                self.watch.read(raw.len() as u64);
                if let Some(full) = self.assembler.add(hash, raw) {
                    self.send(full).await?;
                }
            }
            Event::End(result) => {
                self.watch.file_read();
                let path = self.push.paths.get(self.unread.len()).cloned().unwrap_or_default();
                let (sha256, unread) = match result {
                    Ok(sha256) => (Some(sha256), None),
                    Err(ScanError::Changed) => (None, Some(Unread::Changed { path })),
                    Err(ScanError::Read(source)) => (None, Some(Unread::Read { path, source })),
                };
                self.unread.push(unread);
                self.assembler.end_file(sha256);
            }
        }
        Ok(())
    }

    /// Starts to compress and send a xorb, as soon as fewer xorbs than the limit are being sent.
    /// Before the first xorb, checks the quotas.
    async fn send(&mut self, xorb: RawXorb) -> Result<(), PushError> {
        if !self.begun.insert(xorb.info.hash) {
            return Ok(());
        }
        if !mem::replace(&mut self.is_admitted, true) {
            admit(self.server, self.push, &self.disk, self.watch).await?;
        }
        while self.sending.len() >= self.push.job_count.max(1) {
            let Some(sent) = self.sending.next().await else { break };
            self.acknowledged(sent?).await;
        }
        let (server, workers, watch) = (self.server.clone(), self.compressing.clone(), Arc::clone(self.watch));
        self.sending.push(Box::pin(send(server, workers, xorb, self.push.policy, watch)));
        Ok(())
    }

    /// Waits for `work`, and continues to send xorbs meanwhile.
    async fn alongside<T>(&mut self, mut work: impl Future<Output = T> + Unpin) -> Result<T, PushError> {
        loop {
            tokio::select! {
                output = &mut work => return Ok(output),
                Some(sent) = self.sending.next() => self.acknowledged(sent?).await,
            }
        }
    }

    /// Takes a xorb that the server has stored: records it in the resume state, so that the next
    /// push does not send it again if this one is interrupted.
    async fn acknowledged(&mut self, sent: Sent) {
        let Sent { info, serialized_len } = sent;
        self.totals.xorb_count += 1;
        self.totals.sent_len += serialized_len;
        self.totals.xorbs.insert(info.hash);
        let Some(cache) = self.push.resume.clone() else {
            self.sent.push(info);
            return;
        };
        let (info, recorded) = self
            .disk
            .run(move || {
                let recorded = cache.add(&info);
                (info, recorded)
            })
            .await;
        if let Err(error) = recorded {
            self.watch.not_resumable(&error);
        }
        self.sent.push(info);
    }

    /// Registers the files, and removes the resume state of their xorbs.
    async fn finish(self) -> Result<Pushed, PushError> {
        let (files, known) = self.assembler.finish();
        let resumed = used(&files, &known, &self.resumed);
        let mut shards = Shards::default();
        if let Some(cache) = self.push.resume.clone() {
            // The entries are read again, because `resume` retains only the places of the chunks.
            // An entry may be missing, for example if another push has removed it. This is
            // harmless: the server has the xorb. Without the entry, chunk queries find fewer of its
            // chunks.
            let find = move || resumed.iter().filter_map(|xorb| cache.find(xorb)).collect::<Vec<CasInfo>>();
            self.disk.run(find).await.into_iter().for_each(|xorb| shards.add_xorb(xorb));
        }
        self.sent.into_iter().for_each(|xorb| shards.add_xorb(xorb));
        let mut seen = HashSet::new();
        for file in files.iter().flatten().filter(|file| seen.insert(file.hash())) {
            shards.add_file(file.info(&known));
        }
        let shards = shards.finish();
        for shard in &shards {
            register(self.server, shard, Arc::clone(self.watch)).await?;
        }
        if let Some(cache) = self.push.resume.clone() {
            let xorbs: Vec<XorbHash> = shards.iter().flat_map(|shard| &shard.xorbs).map(|xorb| xorb.hash).collect();
            self.disk.run(move || cache.forget(xorbs)).await;
        }
        let outcome = |(file, unread): (Option<Assembled>, Option<Unread>)| match (file, unread) {
            (Some(file), _) => {
                let (hash, sha256, len, new_len) = (file.hash(), file.sha256(), file.len(), file.new_len());
                Some(Ok(PushedFile { hash, sha256, len, new_len }))
            }
            (None, unread) => unread.map(Err),
        };
        Ok(Pushed {
            files: files.into_iter().zip(self.unread).filter_map(outcome).collect(),
            xorb_count: self.totals.xorb_count,
            sent_len: self.totals.sent_len,
        })
    }
}

/// Starts to read the next block.
async fn read(disk: &Workers, mut scanner: Scanner) -> Running<(Scanner, Block)> {
    disk.start(move || {
        let block = scanner.next_block();
        (scanner, block)
    })
    .await
}

/// The xorbs of `xorbs` that the files need.
fn used(files: &[Option<Assembled>], known: &Known, xorbs: &HashSet<XorbHash>) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    let named = files.iter().flatten().flat_map(Assembled::xorbs).filter(|number| seen.insert(*number));
    named.filter_map(|number| known.xorb(number)).filter(|hash| xorbs.contains(hash)).collect()
}
