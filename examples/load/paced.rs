//! Reads at a steady rate that leaves the server idle in between: what one who is in no hurry sees.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::plan::Plan;
use crate::report::Tally;
use crate::response::Response;
use crate::set::Set;
use crate::target::{Part, Target};

pub(crate) struct Pace {
    pub(crate) connections: u32,
    /// Requests per second of all connections.
    pub(crate) rate: u32,
    pub(crate) time: Duration,
}

/// Reads for a time. Every request has its moment: one that has to wait for the response before it is late from then on.
pub(crate) fn run(set: &Set, target: &Target, plan: &Plan, pace: &Pace) -> anyhow::Result<Tally> {
    let mut tally = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..pace.connections).map(|lane| scope.spawn(move || read(set, target, plan, pace, lane))).collect();
        let mut tally = Tally::default();
        for thread in threads {
            tally.merge(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        anyhow::Ok(tally)
    })?;
    tally.time = Some(pace.time);
    Ok(tally)
}

fn read(set: &Set, target: &Target, plan: &Plan, pace: &Pace, lane: u32) -> anyhow::Result<Tally> {
    let (mut tally, mut stream) = (Tally::default(), target.connect()?);
    let mut parts = plan.parts(set, u64::from(lane));
    let mut buffer = vec![0; 256 << 10];
    let period = Duration::from_secs(1) * pace.connections / pace.rate;
    let begin = Instant::now();
    // The connections take turns.
    let mut due = begin + period * lane / pace.connections;
    while due.duration_since(begin) < pace.time {
        let early = due.saturating_duration_since(Instant::now());
        // Waking up takes a while, which is not the server's fault.
        let asked = if early.is_zero() { due } else { pause(early) };
        let Some(part) = parts.next() else { break };
        match ask(set, target, &mut stream, &part, &mut buffer) {
            Ok(()) => {
                tally.latencies.add(asked.elapsed());
                tally.len += part.bytes.len() as u64;
            }
            Err(error) => {
                tally.fail(&error);
                ensure!(tally.errors < 100, "too many failures; the first: {}", tally.first_error);
                stream = target.connect()?;
            }
        }
        due += period;
    }
    Ok(tally)
}

fn pause(time: Duration) -> Instant {
    std::thread::sleep(time);
    Instant::now()
}

fn ask(set: &Set, target: &Target, stream: &mut TcpStream, part: &Part, buffer: &mut [u8]) -> anyhow::Result<()> {
    let (mut response, mut request) = (Response::default(), Vec::new());
    let xorb = &set.xorbs[part.xorb];
    target.get(xorb, part, &mut request);
    stream.write_all(&request)?;
    loop {
        let len = stream.read(buffer)?;
        ensure!(len > 0, "the server has closed the connection");
        if response.take(&buffer[..len], part.bytes.len(), xorb.bytes.get(part.bytes.clone()))? {
            return Ok(());
        }
    }
}
