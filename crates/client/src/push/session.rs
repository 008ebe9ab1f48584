//! One attempt to push: everything that is under way at once.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use xet_format::XorbHash;
use xet_format::shard::CasInfo;

use super::ask::{ask, questions};
use super::assemble::{Assembled, Assembler, RawXorb};
use super::known::Known;
use super::quota::admit;
use super::register::{Shards, register};
use super::scan::{Block, Event, ScanError, Scanner};
use super::send::{Sent, send};
use super::{Push, PushError, PushWatch, Pushed, PushedFile, Unread};
use crate::machine::{Running, Workers};
use crate::server::Server;

/// What an attempt relies on beside what it sends itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sources {
    /// Use the resume state of interrupted pushes, not only of this one.
    earlier: bool,
    /// Resume state of an earlier attempt of this push.
    own: bool,
    /// What the server says.
    server: bool,
}

impl Sources {
    /// Everything.
    pub(super) const ALL: Self = Self { earlier: true, own: true, server: true };
    /// The server has lost what an earlier push has sent, or so it seems.
    pub(super) const OWN: Self = Self { earlier: false, own: true, server: true };
    /// Nothing that the server says is true.
    pub(super) const NONE: Self = Self { earlier: false, own: false, server: false };
}

/// What all attempts have sent.
#[derive(Debug, Default)]
pub(super) struct Totals {
    xorb_count: u64,
    sent_len: u64,
    /// The xorbs that were acknowledged.
    xorbs: HashSet<XorbHash>,
}

struct Session<'a> {
    server: &'a Server,
    push: &'a Push,
    /// The workers that this task waits for, never those of `sending`: a waiter that is queued and
    /// not polled holds its permit and blocks the queue behind it.
    disk: Workers,
    compressing: &'a Workers,
    watch: &'a Arc<dyn PushWatch>,
    totals: &'a mut Totals,
    sending: FuturesUnordered<BoxFuture<'static, Result<Sent, PushError>>>,
    sent: Vec<CasInfo>,
    /// Xorbs that an earlier push has sent.
    resumed: HashSet<XorbHash>,
    assembler: Assembler,
    unread: Vec<Option<Unread>>,
    /// Whether the quotas were compared with what is pushed.
    is_admitted: bool,
}

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
        disk: Workers::new(2),
        compressing: workers,
        watch,
        totals,
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
    /// Learns which chunks earlier pushes have sent.
    async fn resume(&mut self, sources: Sources) {
        let Some(cache) = self.push.resume.clone() else { return };
        let own = self.totals.xorbs.clone();
        let found = self
            .disk
            .run(move || {
                let (kept, dropped): (Vec<CasInfo>, Vec<CasInfo>) = cache
                    .load()
                    .into_iter()
                    .partition(|xorb| sources.earlier || (sources.own && own.contains(&xorb.hash)));
                cache.forget(dropped.iter().map(|xorb| xorb.hash));
                kept
            })
            .await;
        for xorb in found {
            self.assembler.known.insert_xorb(&xorb);
            self.resumed.insert(xorb.hash);
        }
    }

    /// Reads all files and sends what is not known, until the server has all of it.
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
                let asking = ask(self.server.clone(), questions(&block), known, Arc::clone(self.watch));
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

    /// Starts sending a xorb, as soon as the limit allows it.
    async fn send(&mut self, xorb: RawXorb) -> Result<(), PushError> {
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

    /// Waits for something while xorbs are being sent.
    async fn alongside<T>(&mut self, mut work: impl Future<Output = T> + Unpin) -> Result<T, PushError> {
        loop {
            tokio::select! {
                output = &mut work => return Ok(output),
                Some(sent) = self.sending.next() => self.acknowledged(sent?).await,
            }
        }
    }

    /// The server has a xorb: notes it for the next push, should this one not get to its end.
    async fn acknowledged(&mut self, sent: Sent) {
        let Sent { info, serialized_len } = sent;
        self.totals.xorb_count += 1;
        self.totals.sent_len += serialized_len;
        self.totals.xorbs.insert(info.hash);
        let Some(cache) = self.push.resume.clone() else {
            self.sent.push(info);
            return;
        };
        let (info, noted) = self
            .disk
            .run(move || {
                let noted = cache.add(&info);
                (info, noted)
            })
            .await;
        if let Err(error) = noted {
            self.watch.not_resumable(&error);
        }
        self.sent.push(info);
    }

    /// Registers everything.
    async fn finish(self) -> Result<Pushed, PushError> {
        let (files, known) = self.assembler.finish();
        let resumed = used(&files, &known, &self.resumed);
        let mut shards = Shards::default();
        if let Some(cache) = self.push.resume.clone() {
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
        let told = |(file, unread): (Option<Assembled>, Option<Unread>)| match (file, unread) {
            (Some(file), _) => {
                let (hash, sha256, len, new_len) = (file.hash(), file.sha256(), file.len(), file.new_len());
                Some(Ok(PushedFile { hash, sha256, len, new_len }))
            }
            (None, unread) => unread.map(Err),
        };
        Ok(Pushed {
            files: files.into_iter().zip(self.unread).filter_map(told).collect(),
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

/// Those of these xorbs that the files need.
fn used(files: &[Option<Assembled>], known: &Known, xorbs: &HashSet<XorbHash>) -> Vec<XorbHash> {
    let mut seen = HashSet::new();
    let named = files.iter().flatten().flat_map(Assembled::xorbs).filter(|number| seen.insert(*number));
    named.filter_map(|number| known.xorb(number)).filter(|hash| xorbs.contains(hash)).collect()
}
