//! Checks the tables of `docs/xorb-errors.md`: damages a xorb in every way that they name, and
//! compares the result with the row.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use twox_hash::XxHash32;

use super::{BuiltXorb, Version, build, with_footer};
use crate::XorbHash;
use crate::chunk::ChunkHeader;
use crate::compression::{Policy, Scheme};
use crate::limits::MAX_XORB_BODY_LEN;
use crate::tests::{Kind, Noise};
use crate::xorb::Verifier;

/// A text that is also in the tables.
type Words = &'static str;

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    code: &'a str,
    offset: &'a str,
}

/// One damaged body.
struct Case {
    /// The name of its row.
    name: Words,
    /// The offset of the error, in words and as a number; `None` if the body is a valid xorb or the
    /// error has no offset.
    blame: Option<(Words, u64)>,
    body: Vec<u8>,
    max_len: u64,
}

impl Case {
    fn new(name: Words, blame: Option<(Words, usize)>, body: Vec<u8>) -> Self {
        let blame = blame.map(|(words, offset)| (words, offset as u64));
        Self { name, blame, body, max_len: MAX_XORB_BODY_LEN }
    }

    /// The response to an upload of this body to the path of `claimed`, and the offset in it.
    fn response(&self, claimed: XorbHash) -> (&'static str, Option<u64>) {
        let mut verifier = Verifier::for_upload(self.max_len);
        let mut rest = self.body.as_slice();
        let result = loop {
            match verifier.next_frame(&mut rest) {
                Ok(Some(_)) => {}
                Ok(None) => break verifier.finish(),
                Err(error) => break Err(error),
            }
        };
        match result {
            Ok(xorb) if xorb.hash() == claimed => ("*taken*", None),
            Ok(_) => ("hash_mismatch", None),
            Err(error) => (error.class().code(), Some(error.offset)),
        }
    }
}

/// The rows of the tables with four columns, by name.
fn rows(page: &str) -> BTreeMap<&str, Row<'_>> {
    let mut rows = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, code, offset] = cells.as_slice() else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else { continue };
        let row = Row { code: code.trim_matches('`'), offset };
        assert_eq!(rows.insert(name, row), None, "{name} is listed twice");
    }
    rows
}

#[test]
fn every_row_of_the_broken_xorbs_page_matches_the_verifier() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/xorb-errors.md");
    let page = std::fs::read_to_string(page).expect("the page is in the repository");
    let rows = rows(&page);
    let sample = Sample::new();
    let mut unseen: Vec<_> = rows.keys().collect();
    for (case, claimed) in sample.cases().into_iter().chain(frame_cases()).chain(limit_cases()) {
        let name = case.name;
        unseen.retain(|other| **other != name);
        let row = rows.get(name).unwrap_or_else(|| panic!("the page has no row {name}"));
        let (code, offset) = case.response(claimed);
        assert_eq!((code, offset), (row.code, case.blame.map(|(_, offset)| offset)), "{name}");
        assert_eq!(case.blame.map_or("–", |(words, _)| words), row.offset, "{name}");
        assert!(page.contains(&format!("| `{code}` | ")) || code == "*taken*", "{code} is not explained");
    }
    assert_eq!(unseen, Vec::<&&str>::new(), "rows that no case stands behind");
}

/// A xorb of three chunks, stored, LZ4 and byte-grouped. Cases damage each of them.
struct Sample {
    xorb: BuiltXorb,
    /// The records of the chunks.
    stored: Range<usize>,
    lz4: Range<usize>,
    grouped: Range<usize>,
}

impl Sample {
    fn new() -> Self {
        let mut noise = Noise::new(17);
        let chunks = [noise.sample(Kind::Random, 40), noise.sample(Kind::Text, 300), noise.sample(Kind::Floats, 400)];
        let xorb = build(Policy::BruteForce, &chunks);
        assert_eq!(xorb.xorb().schemes(), [Scheme::None, Scheme::Lz4, Scheme::ByteGroupedLz4]);
        let places = xorb.xorb().layout().chunks();
        let [stored, lz4, grouped] = places
            .map(|place| place.serialized.start() as usize..place.serialized.end() as usize)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        Self { xorb, stored, lz4, grouped }
    }

    fn cases(&self) -> Vec<(Case, XorbHash)> {
        let cases = [self.cut_cases(), self.header_cases(), self.footer_cases()].into_iter().flatten();
        cases.map(|case| (case, self.xorb.xorb().hash())).collect()
    }

    fn records(&self) -> [&Range<usize>; 3] {
        [&self.stored, &self.lz4, &self.grouped]
    }

    /// The body with other bytes at an offset.
    fn patched(&self, offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut body = self.xorb.bytes().to_vec();
        body[offset..offset + bytes.len()].copy_from_slice(bytes);
        body
    }

    /// The body with another header for this record.
    fn with_header(&self, record: &Range<usize>, change: impl Fn(&mut ChunkHeader)) -> Vec<u8> {
        let mut header = ChunkHeader::parse(self.xorb.bytes()[record.start..].first_chunk().unwrap()).unwrap();
        change(&mut header);
        self.patched(record.start, &header.to_bytes())
    }

    fn cut_cases(&self) -> Vec<Case> {
        let body = self.xorb.bytes();
        let mut cases = Vec::new();
        for len in 0..body.len() {
            let record = self.records().into_iter().find(|record| record.contains(&len)).unwrap();
            let end = Some(("end of the body", len));
            let (name, blame) = match len - record.start {
                0 if len == 0 => ("cut-empty", end),
                0 => ("cut-between", None),
                1..=7 => ("cut-header", end),
                _ => ("cut-payload", end),
            };
            cases.push(Case::new(name, blame, body[..len].to_vec()));
        }
        cases.push(Case::new("cut-before-footer", None, body.to_vec()));
        for version in [Version::V0, Version::V1] {
            let footed = with_footer(&self.xorb, version);
            for len in body.len() + 1..footed.len() {
                cases.push(Case::new("cut-footer", Some(("end of the body", len)), footed[..len].to_vec()));
            }
        }
        cases
    }

    fn header_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for record in self.records() {
            let mut field = |name, offset: usize, body| {
                cases.push(Case::new(name, Some(("field", record.start + offset)), body));
            };
            for version in 1..=255 {
                field("header-version", 0, self.patched(record.start, &[version]));
            }
            field("header-payload-zero", 1, self.with_header(record, |header| header.payload_len = 0));
            for len in [262_145, 1 << 23, (1 << 24) - 1] {
                field("header-payload-limit", 1, self.with_header(record, |header| header.payload_len = len));
            }
            for scheme in 3..=255 {
                field("header-scheme-unknown", 4, self.patched(record.start + 4, &[scheme]));
            }
            field("header-raw-zero", 5, self.with_header(record, |header| header.raw_len = 0));
            for len in [131_073, 1 << 23, (1 << 24) - 1] {
                field("header-raw-limit", 5, self.with_header(record, |header| header.raw_len = len));
            }
        }
        self.push_stored_header_cases(&mut cases);
        for record in [&self.lz4, &self.grouped] {
            self.push_lz4_header_cases(record, &mut cases);
        }
        let past_end = self.with_header(&self.grouped, |header| header.payload_len += 1);
        cases.push(Case::new("header-payload-past-end", Some(("end of the body", past_end.len())), past_end));
        let byte = self.stored.start + 8 + 17;
        cases.push(Case::new("stored-byte", None, self.patched(byte, &[self.xorb.bytes()[byte] ^ 1])));
        cases
    }

    fn push_stored_header_cases(&self, cases: &mut Vec<Case>) {
        let raw_len = self.stored.start + 5;
        for len in [1, 39, 41, 131_072] {
            let body = self.with_header(&self.stored, |header| header.payload_len = len);
            cases.push(Case::new("header-payload-stored", Some(("raw length", raw_len)), body));
            let body = self.with_header(&self.stored, |header| header.raw_len = len);
            cases.push(Case::new("header-raw-stored", Some(("field", raw_len)), body));
        }
        for scheme in [Scheme::Lz4, Scheme::ByteGroupedLz4] {
            let body = self.with_header(&self.stored, |header| header.scheme = scheme);
            cases.push(Case::new("header-scheme-to-lz4", Some(("payload", self.stored.start + 8)), body));
        }
    }

    fn push_lz4_header_cases(&self, record: &Range<usize>, cases: &mut Vec<Case>) {
        let mut push = |name, words, offset, change: &dyn Fn(&mut ChunkHeader)| {
            let blame = (words != "–").then_some((words, offset));
            cases.push(Case::new(name, blame, self.with_header(record, change)));
        };
        let header = ChunkHeader::parse(self.xorb.bytes()[record.start..].first_chunk().unwrap()).unwrap();
        let other = if header.scheme == Scheme::Lz4 { Scheme::ByteGroupedLz4 } else { Scheme::Lz4 };
        // The end mark is the last word of the frame. If its last byte is missing, the error is at
        // the first byte of the word.
        push("header-payload-less", "part that is cut off", record.end - 4, &|header| header.payload_len -= 1);
        if record.end < self.xorb.bytes().len() {
            push("header-payload-more", "end of the frame", record.end, &|header| header.payload_len += 1);
        }
        let expanded = |header: &mut ChunkHeader| header.payload_len = header.raw_len + 1;
        push("header-payload-expanded", "field", record.start + 1, &expanded);
        push("header-scheme-to-stored", "raw length", record.start + 5, &|header| header.scheme = Scheme::None);
        push("header-scheme-regrouped", "–", 0, &|header| header.scheme = other);
        let block = record.start + 8 + 7;
        push("header-raw-less", "LZ4 block", block, &|header| header.raw_len -= 1);
        push("header-raw-more", "end of the blocks", record.end, &|header| header.raw_len += 1);
    }

    fn footer_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let start = self.xorb.bytes().len();
        for version in [Version::V0, Version::V1] {
            let footed = with_footer(&self.xorb, version);
            let alone = footed[start..].to_vec();
            cases.push(Case::new("footer-alone", Some(("start of the body", 0)), alone));
            let mut trailing = footed.clone();
            trailing.push(0);
            cases.push(Case::new("footer-trailing", Some(("end of the footer", footed.len())), trailing));
            let mut next_chunk = footed.clone();
            next_chunk.extend_from_slice(&self.xorb.bytes()[self.stored.clone()]);
            cases.push(Case::new("footer-trailing", Some(("end of the footer", footed.len())), next_chunk));
            let mut swapped = footed.clone();
            swapped[start + 7] ^= 1;
            cases.push(Case::new("footer-version-swapped", Some(("first field that differs", start + 40)), swapped));
            for (name, words, range) in footer_fields(version) {
                for offset in range.clone() {
                    let mut body = footed.clone();
                    body[start + offset] ^= 0x80;
                    let blame = (words != "–").then_some((words, start + range.start));
                    cases.push(Case::new(name, blame, body));
                }
            }
        }
        cases
    }
}

/// Where the fields of the sample's footers are: it has three chunks.
fn footer_fields(version: Version) -> Vec<(Words, Words, Range<usize>)> {
    // An error in any of the seven bytes of the mark has the offset of the first.
    let mut fields =
        vec![("footer-mark", "footer", 0..7), ("footer-version", "field", 7..8), ("footer-xorb-hash", "field", 8..40)];
    let mut each = |name, start: usize, len: usize| {
        fields.extend((0..3).map(|index| (name, "field", start + len * index..start + len * (index + 1))));
    };
    match version {
        Version::V0 => {
            each("footer-serialized-end", 44, 4);
            each("footer-chunk-hash", 56, 32);
            fields.extend([
                ("footer-count", "field", 40..44),
                ("footer-nonce", "–", 152..168),
                ("footer-length", "field", 168..172),
            ]);
        }
        Version::V1 => {
            each("footer-chunk-hash", 52, 32);
            each("footer-serialized-end", 160, 4);
            each("footer-raw-end", 172, 4);
            fields.extend([
                ("footer-section-mark", "field", 40..47),
                ("footer-section-version", "field", 47..48),
                ("footer-count", "field", 48..52),
                ("footer-section-mark", "field", 148..155),
                ("footer-section-version", "field", 155..156),
                ("footer-count", "field", 156..160),
                ("footer-count", "field", 184..188),
                ("footer-section-offset", "field", 188..192),
                ("footer-section-offset", "field", 192..196),
                ("footer-nonce", "–", 196..212),
                ("footer-length", "field", 212..216),
            ]);
        }
    }
    fields
}

/// A frame with all options: content size, block checksums, content checksum.
fn full_frame(raw: &[u8]) -> Vec<u8> {
    let info = FrameInfo::new()
        .block_mode(BlockMode::Linked)
        .block_size(BlockSize::Max64KB)
        .block_checksums(true)
        .content_checksum(true)
        .content_size(Some(raw.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    std::io::Write::write_all(&mut encoder, raw).unwrap();
    encoder.finish().unwrap()
}

/// The body of a xorb with one LZ4 chunk.
fn body_of(payload: &[u8], raw_len: usize) -> Vec<u8> {
    let header = ChunkHeader { payload_len: payload.len() as u32, scheme: Scheme::Lz4, raw_len: raw_len as u32 };
    [header.to_bytes().as_slice(), payload].concat()
}

/// Ways in which an LZ4 frame can be wrong, each the only chunk of a xorb.
fn frame_cases() -> Vec<(Case, XorbHash)> {
    let raw = b"abcdefgh_abcdefgh_abcdefgh_abcdefgh_abcdefgh_abcdefgh_abcdefgh_abcdefgh";
    let claimed = build(Policy::None, &[raw.to_vec()]).xorb().hash();
    let mut cases = Vec::new();
    let mut push = |name, words, offset: usize, payload: &[u8]| {
        let blame = (words != "–").then_some((words, 8 + offset));
        cases.push((Case::new(name, blame, body_of(payload, raw.len())), claimed));
    };
    let plain = {
        let mut encoder = FrameEncoder::new(Vec::new());
        std::io::Write::write_all(&mut encoder, raw).unwrap();
        encoder.finish().unwrap()
    };
    let patched = |frame: &[u8], offset: usize, bytes: &[u8]| {
        let mut frame = frame.to_vec();
        frame[offset..offset + bytes.len()].copy_from_slice(bytes);
        frame
    };
    // The bytes of `plain`: magic number (4), flags, block size, checksum, block length (4), token,
    // literals.
    push("lz4-literal", "–", 0, &patched(&plain, 12, b"X"));
    push("lz4-block", "LZ4 block", 7, &patched(&plain, 11, &[0xFF]));
    push("lz4-magic", "payload", 0, &patched(&plain, 0, &[5]));
    push("lz4-legacy", "payload", 0, &patched(&plain, 0, &[0x02, 0x21, 0x4C, 0x18]));
    push("lz4-skippable", "payload", 0, &patched(&plain, 0, &[0x50, 0x2A, 0x4D, 0x18]));
    push("lz4-version", "field", 4, &patched(&plain, 4, &[0xA0]));
    push("lz4-dictionary", "field", 4, &patched(&plain, 4, &[0x61]));
    push("lz4-reserved", "field", 4, &patched(&plain, 4, &[0x62]));
    push("lz4-reserved", "field", 5, &patched(&plain, 5, &[0xC0]));
    push("lz4-block-size", "field", 5, &patched(&plain, 5, &[0x30]));
    push("lz4-header-checksum", "field", 6, &patched(&plain, 6, &[plain[6] ^ 1]));
    push("lz4-block-too-long", "LZ4 block", 7, &patched(&plain, 7, &65_537_u32.to_le_bytes()));
    let empty_block = [&plain[..7], &[0, 0, 0, 0x80], &plain[7..]].concat();
    push("lz4-block-empty", "LZ4 block", 7, &empty_block);
    let without_end = &plain[..plain.len() - 4];
    push("lz4-no-end", "end of the payload", without_end.len(), without_end);
    push("lz4-raw-block", "payload", 0, &plain[11..plain.len() - 4]);

    let full = full_frame(raw);
    push("lz4-content-size", "field", 6, &patched(&full, 6, &[raw.len() as u8 + 1]));
    let block_sum = full.len() - 12;
    push("lz4-block-checksum", "field", block_sum, &patched(&full, block_sum, &[full[block_sum] ^ 1]));
    let content_sum = full.len() - 4;
    push("lz4-content-checksum", "field", content_sum, &patched(&full, content_sum, &[full[content_sum] ^ 1]));
    assert_eq!(XxHash32::oneshot(0, raw).to_le_bytes(), full[content_sum..]);
    cases
}

fn limit_cases() -> Vec<(Case, XorbHash)> {
    let never = XorbHash::from_bytes([0; 32]);
    let small = build(Policy::None, &[vec![1; 100], vec![2; 100]]);
    let limited = |name, words, offset: usize, body: Vec<u8>, max_len: usize| {
        let case = Case { max_len: max_len as u64, ..Case::new(name, Some((words, offset)), body) };
        (case, never)
    };
    let footed = with_footer(&small, Version::V1);
    let too_many = b"\0\x01\0\0\0\x01\0\0x".repeat(8_193);
    let zeros = build(Policy::Lz4, &[vec![0; 131_072]]);
    let full = zeros.bytes().repeat(512);
    let too_long = [full.as_slice(), b"\0\x01\0\0\0\x01\0\0x"].concat();
    vec![
        (Case::new("limit-chunks", Some(("its header", 8_192 * 9)), too_many), never),
        (Case::new("limit-raw", Some(("its header", full.len())), too_long), never),
        limited("limit-body", "its header", 108, small.bytes().to_vec(), 215),
        limited("limit-footer", "footer", 216, footed.clone(), footed.len() - 1),
    ]
}
