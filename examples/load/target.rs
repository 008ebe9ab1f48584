//! How each server spells an upload and a read.

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::ValueEnum;

use crate::set::Xorb;

/// What is at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// zorb, by Range headers like the other ones
    Zorb,
    /// zorb, by `?range=` of chunks
    ZorbChunks,
    /// nginx above the files of a zorb, /xorbs/ab/abcd...; takes no uploads
    Nginx,
    /// The test server of the official client
    Official,
}

pub(crate) struct Target {
    kind: Kind,
    address: String,
}

/// Chunks of a xorb and their bytes; both half-open.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) xorb: usize,
    pub(crate) chunks: Range<usize>,
    pub(crate) bytes: Range<usize>,
}

impl Target {
    pub(crate) fn new(kind: Kind, address: &str) -> Self {
        Self { kind, address: address.to_owned() }
    }

    pub(crate) fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Appends the head of a request for the part.
    pub(crate) fn get(&self, xorb: &Xorb, part: &Part, head: &mut Vec<u8>) {
        let hash = &xorb.hash;
        let is_whole = part.bytes.len() == xorb.bytes.len();
        let path = match self.kind {
            Kind::Zorb => format!("/v1/xorbs/default/{hash}"),
            Kind::ZorbChunks if is_whole => format!("/xorbs/{hash}"),
            Kind::ZorbChunks => format!("/xorbs/{hash}?range={}-{}", part.chunks.start, part.chunks.end),
            Kind::Nginx => format!("/xorbs/{}/{hash}", &hash[..2]),
            Kind::Official => format!("/v1/fetch_term?term={}", URL_SAFE_NO_PAD.encode(hash)),
        };
        let range = match self.kind {
            Kind::ZorbChunks => None,
            // Its files have a footer behind the chunks.
            Kind::Official => Some(&part.bytes),
            Kind::Zorb | Kind::Nginx => Some(&part.bytes).filter(|_| !is_whole),
        };
        let written = match range {
            Some(Range { start, end }) => {
                let last = end - 1;
                write!(head, "GET {path} HTTP/1.1\r\nHost: {}\r\nRange: bytes={start}-{last}\r\n\r\n", self.address)
            }
            None => write!(head, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address),
        };
        written.expect("memory takes everything");
    }

    /// The head of a request that uploads the xorb; both servers that take any have the same.
    pub(crate) fn put(&self, xorb: &Xorb) -> String {
        let (hash, len) = (&xorb.hash, xorb.bytes.len());
        format!("POST /v1/xorbs/default/{hash} HTTP/1.1\r\nHost: {}\r\nContent-Length: {len}\r\n\r\n", self.address)
    }
}
