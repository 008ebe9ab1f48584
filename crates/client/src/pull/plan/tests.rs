use serde_json::{Value, json};

use super::*;

/// A valid plan: two terms whose chunks are in the same part, and between them a term of another
/// xorb.
fn good() -> Value {
    let (a, b) = ("a".repeat(64), "b".repeat(64));
    json!({
        "offset_into_first_range": 10,
        "terms": [
            {"hash": a, "unpacked_length": 3000, "range": {"start": 2, "end": 5}},
            {"hash": b, "unpacked_length": 70_000, "range": {"start": 0, "end": 1}},
            {"hash": a, "unpacked_length": 1000, "range": {"start": 4, "end": 5}},
        ],
        "xorbs": {
            a.clone(): [
                {"url": "http://h/x", "ranges": [
                    {"chunks": {"start": 2, "end": 5}, "bytes": {"start": 100, "end": 999}},
                    {"chunks": {"start": 7, "end": 8}, "bytes": {"start": 2000, "end": 2999}},
                ]},
            ],
            b.clone(): [{"url": "http://h/y", "ranges": [{"chunks": {"start": 0, "end": 1}, "bytes": {"start": 0, "end": 7}}]}],
        },
    })
}

fn parse_value(value: &Value) -> Result<Plan, &'static str> {
    parse(&serde_json::from_value(value.clone()).unwrap(), ByteRange::new(0, 73_990).unwrap())
}

/// Checks that a plan is refused after this change.
fn check_refused(change: impl FnOnce(&mut Value), expected: &str) {
    let mut plan = good();
    change(&mut plan);
    assert_eq!(parse_value(&plan).unwrap_err(), expected, "{plan}");
}

#[test]
fn each_term_finds_the_part_that_has_all_of_its_chunks() {
    let plan = parse_value(&good()).unwrap();
    assert_eq!((plan.skipped_len, plan.raw_len(), plan.parts.len()), (10, 74_000, 3));
    let urls: Vec<&str> = plan.terms.iter().map(|term| &*plan.parts[term.part].url).collect();
    assert_eq!(urls, ["http://h/x", "http://h/y", "http://h/x"]);
    assert_eq!(plan.parts[plan.terms[0].part].bytes, ByteRange::new(100, 1000).unwrap());
    assert_eq!(plan.terms[0].part, plan.terms[2].part);
}

#[test]
fn impossible_plan_is_refused_before_anything_is_fetched() {
    let a = "a".repeat(64);
    check_refused(|plan| plan["terms"][0]["hash"] = "x".into(), "the xorb hash of a term is malformed");
    check_refused(|plan| plan["terms"][0]["range"]["end"] = 2.into(), "a term has impossible chunks");
    check_refused(|plan| plan["terms"][0]["range"]["end"] = 8193.into(), "a term has impossible chunks");
    check_refused(|plan| plan["terms"][0]["unpacked_length"] = 2.into(), "a term has an impossible length");
    check_refused(
        |plan| plan["terms"][0]["unpacked_length"] = (3 * 131_072 + 1).into(),
        "a term has an impossible length",
    );
    check_refused(|plan| plan["terms"][0]["range"]["end"] = 6.into(), "no URL covers the chunks of a term");
    check_refused(|plan| plan["terms"][0]["range"]["start"] = 1.into(), "no URL covers the chunks of a term");
    check_refused(|plan| plan["xorbs"] = json!({}), "no URL covers the chunks of a term");
    check_refused(|plan| plan["terms"] = json!([]), "it has no terms for a non-empty range");
    check_refused(|plan| plan["offset_into_first_range"] = 3000.into(), "its first term is outside the range");
    check_refused(
        |plan| plan["terms"][1]["range"] = json!({"start": 1, "end": 2}),
        "no URL covers the chunks of a term",
    );
    let bytes = |plan: &mut Value, bytes: Value| plan["xorbs"][&a][0]["ranges"][0]["bytes"] = bytes;
    check_refused(|plan| bytes(plan, json!({"start": 1000, "end": 998})), "a URL has impossible bytes");
    check_refused(|plan| bytes(plan, json!({"start": 0, "end": u64::MAX})), "a URL has impossible bytes");
    check_refused(|plan| bytes(plan, json!({"start": 0, "end": MAX_XORB_BODY_LEN})), "a URL has impossible bytes");
    // More than three chunks can have: what is fetched would be held.
    let most = 3 * (8 + 262_144);
    check_refused(|plan| bytes(plan, json!({"start": 100, "end": 100 + most})), "a URL has impossible bytes");
    let mut longest = good();
    bytes(&mut longest, json!({"start": 100, "end": 99 + most}));
    parse_value(&longest).unwrap();
    let endless = |plan: &mut Value| {
        let term = plan["terms"][1].clone();
        plan["terms"].as_array_mut().unwrap().extend(vec![term; 3]);
    };
    check_refused(endless, "it has more than requested");
}

#[test]
fn a_new_url_is_that_of_the_same_part_and_of_no_other() {
    let (plan, mut renewed) = (parse_value(&good()).unwrap(), parse_value(&good()).unwrap());
    let part = &plan.parts[plan.terms[0].part];
    renewed.parts.iter_mut().for_each(|part| part.url = format!("{}2", part.url).into());
    assert_eq!(renewed.url_of(part).map(|url| &**url), Some("http://h/x2"));
    renewed.parts.iter_mut().for_each(|part| part.bytes = ByteRange::new(1, 2).unwrap());
    assert_eq!(renewed.url_of(part), None);
}
