//! The objects of the server, and the faults that are to happen.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use crate::Account;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `GET` of an object.
    Get,
    /// `GET` of an object with a signed URL.
    Signed,
    /// `HEAD` of an object.
    Head,
    /// `PUT` of an object.
    Put,
    /// `DELETE` of an object.
    Delete,
    /// One page of a list.
    List,
    /// The begin of an upload in parts.
    Begin,
    /// A part.
    Part,
    /// The end of an upload in parts.
    Complete,
    /// The abandonment of an upload in parts.
    Abort,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has no effect, and its response has this status.
    Refused(u16),
    /// It has its effect, and its response has this status all the same.
    DoneBut(u16),
    /// The connection is cut after so many bytes of the response's body.
    CutAfter(usize),
    /// A range is ignored: the response is the whole object.
    Whole,
}

/// A stored object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    /// The value of its metadata `zorb-put`.
    pub(crate) tag: Option<String>,
}

/// An upload in parts that is under way.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) bucket: String,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
    pub(crate) parts: BTreeMap<u32, Bytes>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) account: Account,
    pub(crate) buckets: BTreeMap<String, BTreeMap<String, Object>>,
    pub(crate) uploads: BTreeMap<String, Upload>,
    pub(crate) faults: VecDeque<(Op, Fault)>,
    pub(crate) counts: HashMap<Op, usize>,
    pub(crate) last_upload: u64,
    /// Whether a range is ignored if the condition `If-Range` fails, which every one does here.
    pub(crate) obeys_if_range: bool,
    /// Whether the signature of a URL does not matter.
    pub(crate) ignores_signatures: bool,
}

impl State {
    /// Counts a request, and takes the first fault for its kind.
    pub(crate) fn meet(&mut self, op: Op) -> Option<Fault> {
        *self.counts.entry(op).or_default() += 1;
        let at = self.faults.iter().position(|(of, _)| *of == op)?;
        self.faults.remove(at).map(|(_, fault)| fault)
    }
}
