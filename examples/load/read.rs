//! Reads as fast as the server responds: one loop per thread over its connections.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::plan::{Parts, Plan};
use crate::report::Tally;
use crate::response::Response;
use crate::set::Set;
use crate::target::{Part, Target};

/// Bytes read at once: large enough for few calls, small enough to stay in the processor's cache.
const BUFFER_LEN: usize = 256 << 10;

/// Reads of one connection before the others have their turn.
const READS_PER_TURN: u32 = 4;

/// After so many failures there is nothing to be measured.
const MAX_ERRORS: u64 = 100;

/// How long to wait for anything to happen before it is looked whether the time is over.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

pub(crate) struct Load<'a> {
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    /// The bytes of every so-manieth response are compared.
    pub(crate) verify: u64,
    /// `None`: until the plan is at its end.
    pub(crate) time: Option<Duration>,
    /// Ends it, too.
    pub(crate) stop: Option<&'a AtomicBool>,
}

/// One connection and what it waits for.
struct Lane {
    stream: TcpStream,
    response: Response,
    part: Option<Part>,
    begin: Instant,
    is_compared: bool,
}

/// One thread's work.
struct Worker<'a> {
    set: &'a Set,
    target: &'a Target,
    load: &'a Load<'a>,
    parts: Parts<'a>,
    tally: Tally,
    request: Vec<u8>,
    asked: u64,
}

/// Reads until the time is over or the plan is done.
pub(crate) fn run(set: &Set, target: &Target, plan: &Plan, load: &Load<'_>) -> anyhow::Result<Tally> {
    let begin = Instant::now();
    let mut tally = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let count = load.connections / load.threads + usize::from(thread < load.connections % load.threads);
                scope.spawn(move || {
                    let parts = plan.parts(set, thread as u64);
                    let (tally, request) = (Tally::default(), Vec::new());
                    Worker { set, target, load, parts, tally, request, asked: 0 }.run(count)
                })
            })
            .collect();
        let mut tally = Tally::default();
        for thread in threads {
            tally.merge(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        anyhow::Ok(tally)
    })?;
    tally.time = Some(begin.elapsed());
    Ok(tally)
}

impl Worker<'_> {
    fn run(mut self, count: usize) -> anyhow::Result<Tally> {
        let begin = Instant::now();
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut lanes = Vec::new();
        for number in 0..count as u64 {
            let lane = Lane::connect(self.target)?;
            epoll::add(&poll, &lane.stream, EventData::new_u64(number), EventFlags::IN)?;
            lanes.push(lane);
        }
        let mut waiting = 0_usize;
        for lane in &mut lanes {
            waiting += usize::from(self.ask(lane)?);
        }
        let mut buffer = vec![0; BUFFER_LEN];
        let mut events = Vec::with_capacity(count);
        while waiting > 0 && !self.is_over(begin) {
            events.clear();
            epoll::wait(&poll, spare_capacity(&mut events), Some(&WAIT))?;
            for event in &events {
                let number = event.data.u64();
                let lane = &mut lanes[usize::try_from(number)?];
                if lane.part.is_none() {
                    continue;
                }
                if let Err(error) = self.turn(lane, &mut buffer) {
                    self.tally.fail(&error);
                    ensure!(self.tally.errors < MAX_ERRORS, "too many failures; the first: {}", self.tally.first_error);
                    *lane = Lane::connect(self.target)?;
                    epoll::add(&poll, &lane.stream, EventData::new_u64(number), EventFlags::IN)?;
                    self.ask(lane)?;
                }
                waiting -= usize::from(lane.part.is_none());
            }
        }
        // What has come of responses that are cut short counts, too: they may be long.
        self.tally.len += lanes.iter().map(|lane| lane.response.received() as u64).sum::<u64>();
        Ok(self.tally)
    }

    fn is_over(&self, begin: Instant) -> bool {
        self.load.time.is_some_and(|time| begin.elapsed() >= time)
            || self.load.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Sends the next request, if there is any left.
    fn ask(&mut self, lane: &mut Lane) -> anyhow::Result<bool> {
        lane.response.reset();
        lane.part = self.parts.next();
        let Some(part) = &lane.part else { return Ok(false) };
        self.request.clear();
        self.target.get(&self.set.xorbs[part.xorb], part, &mut self.request);
        lane.is_compared = self.asked.is_multiple_of(self.load.verify);
        self.asked += 1;
        lane.begin = Instant::now();
        // It is short and nothing is before it, so the socket takes all of it.
        ensure!(lane.stream.write(&self.request)? == self.request.len(), "a request was not taken whole");
        Ok(true)
    }

    /// Takes what has arrived.
    fn turn(&mut self, lane: &mut Lane, buffer: &mut [u8]) -> anyhow::Result<()> {
        for _ in 0..READS_PER_TURN {
            let Some(part) = &lane.part else { bail!("a response to no request") };
            let len = match lane.stream.read(buffer) {
                Ok(0) => bail!("the server has closed the connection"),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let expected = self.set.xorbs[part.xorb].bytes.get(part.bytes.clone()).filter(|_| lane.is_compared);
            if lane.response.take(&buffer[..len], part.bytes.len(), expected)? {
                self.tally.latencies.add(lane.begin.elapsed());
                self.tally.len += part.bytes.len() as u64;
                self.ask(lane)?;
                return Ok(());
            }
            if len < buffer.len() {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Lane {
    fn connect(target: &Target) -> anyhow::Result<Self> {
        let stream = target.connect()?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, response: Response::default(), part: None, begin: Instant::now(), is_compared: false })
    }
}
