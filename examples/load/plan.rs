//! What is read, in which order.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::set::{Set, Xorb};
use crate::target::Part;

/// What the order follows from, so that every server is asked for the same.
const SEED: u64 = 7;

pub(crate) enum Plan {
    /// Runs of so many chunks, or whole xorbs, at random and without end.
    Random { chunks: Option<usize> },
    /// Every chunk once: runs that touch each other, shuffled.
    Once { parts: Vec<Part>, next: AtomicUsize },
}

/// The parts that one thread asks for.
pub(crate) struct Parts<'a> {
    plan: &'a Plan,
    set: &'a Set,
    rng: StdRng,
}

impl Plan {
    pub(crate) fn random(set: &Set, chunks: Option<usize>) -> Self {
        // No run is longer than the shortest xorb.
        let shortest = set.xorbs.iter().map(|xorb| xorb.ends.len() - 1).min().unwrap_or(1);
        Self::Random { chunks: chunks.map(|count| count.min(shortest)) }
    }

    pub(crate) fn once(set: &Set, chunks: Option<usize>) -> Self {
        let mut parts = Vec::new();
        for (number, xorb) in set.xorbs.iter().enumerate() {
            let count = xorb.ends.len() - 1;
            let step = chunks.unwrap_or(count);
            let starts = (0..count).step_by(step);
            parts.extend(starts.map(|start| part(number, xorb, start, (start + step).min(count))));
        }
        parts.shuffle(&mut StdRng::seed_from_u64(SEED));
        Self::Once { parts, next: AtomicUsize::new(0) }
    }

    /// The parts for the thread with this number.
    pub(crate) fn parts<'a>(&'a self, set: &'a Set, thread: u64) -> Parts<'a> {
        Parts { plan: self, set, rng: StdRng::seed_from_u64(SEED + thread) }
    }
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        match self.plan {
            Plan::Random { chunks } => {
                let number = self.rng.random_range(0..self.set.xorbs.len());
                let xorb = &self.set.xorbs[number];
                let count = xorb.ends.len() - 1;
                let run = chunks.unwrap_or(count);
                let start = self.rng.random_range(0..=count - run);
                Some(part(number, xorb, start, start + run))
            }
            Plan::Once { parts, next } => parts.get(next.fetch_add(1, Ordering::Relaxed)).cloned(),
        }
    }
}

fn part(number: usize, xorb: &Xorb, start: usize, end: usize) -> Part {
    Part { xorb: number, chunks: start..end, bytes: xorb.ends[start]..xorb.ends[end] }
}
