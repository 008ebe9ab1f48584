//! The metadata of a repository, from the YAML at the beginning of its README.md.
//!
//! Its author writes them, so they are hostile input: the text is short, aliases are refused, which
//! could make a short text long, and the nesting is limited.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::service::{MAX_METADATA_LEN, RepoKind};

/// Maximum number of values, lists and maps. The largest results of evaluations have some thousand,
/// and each may take half a KiB in memory.
const MAX_NODE_COUNT: usize = 20_000;

/// Maximum depth of lists and maps. Results of evaluations are six deep. The parser is recursive:
/// in a debug build a level takes up to 32 KiB of the 2 MiB of a thread's stack.
const MAX_DEPTH: usize = 32;

/// Metadata that have values for the list of tags, with their prefix there: as the Hugging Face Hub
/// has them for a model.
const MODEL_TAGS: &[(&str, &str)] = &[
    ("library_name", ""),
    ("tags", ""),
    ("pipeline_tag", ""),
    ("language", ""),
    ("datasets", "dataset:"),
    ("base_model", "base_model:"),
    ("license", "license:"),
];

/// The same for a dataset or space.
const OTHER_TAGS: &[(&str, &str)] = &[
    ("task_categories", "task_categories:"),
    ("task_ids", "task_ids:"),
    ("annotations_creators", "annotations_creators:"),
    ("language_creators", "language_creators:"),
    ("multilinguality", "multilinguality:"),
    ("source_datasets", "source_datasets:"),
    ("language", "language:"),
    ("size_categories", "size_categories:"),
    ("license", "license:"),
    ("sdk", ""),
    ("tags", ""),
];

/// The metadata of this YAML. An error says what is wrong with them.
pub(super) fn parse_metadata(yaml: &str) -> Result<Map<String, Value>, String> {
    if yaml.trim().is_empty() {
        return Ok(Map::new());
    }
    if yaml.len() > MAX_METADATA_LEN {
        return Err(format!("the metadata are longer than {MAX_METADATA_LEN} bytes"));
    }
    let options = serde_saphyr::options! {
        // `no` is a language.
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_NODE_COUNT, max_aliases: 0, max_merge_keys: 0 },
    };
    match serde_saphyr::from_str_with_options(yaml, options) {
        Ok(Value::Object(metadata)) => Ok(metadata),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err("the metadata are not a map of names and values".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Adds what clients read of the metadata of a card to the description of a repository. Nothing of
/// metadata that are not valid.
pub(super) fn describe(description: &mut Map<String, Value>, kind: RepoKind, yaml: &str) {
    let Ok(metadata) = parse_metadata(yaml) else { return };
    let prefixes = if kind == RepoKind::Model { MODEL_TAGS } else { OTHER_TAGS };
    let (mut tags, mut known): (Vec<Value>, HashSet<String>) = (Vec::new(), HashSet::new());
    for (name, prefix) in prefixes {
        let values = match metadata.get(*name) {
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
            None => &[],
        };
        for value in values.iter().filter_map(Value::as_str) {
            let tag = format!("{prefix}{value}");
            if known.insert(tag.clone()) {
                tags.push(Value::String(tag));
            }
        }
    }
    for name in ["pipeline_tag", "library_name", "sdk"] {
        description.extend(metadata.get(name).filter(|value| value.is_string()).map(|v| (name.to_owned(), v.clone())));
    }
    description.insert("tags".to_owned(), Value::Array(tags));
    description.insert("cardData".to_owned(), Value::Object(metadata));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::service::metadata_of;

    fn described(kind: RepoKind, card: &str) -> Value {
        let mut description = Map::new();
        describe(&mut description, kind, metadata_of(card).unwrap_or_default());
        Value::Object(description)
    }

    #[test]
    fn card_has_the_fields_and_tags_that_clients_read() {
        let card = "\u{feff}\n---\r\nlicense: mit\r\nlanguage: [en, no]\r\ntags:\r\n- a\r\n- mit\r\n- a\r\n\
                    pipeline_tag: text-generation\r\nlibrary_name: transformers\r\nbase_model: me/base\r\n---\r\n# Title\r\n";
        let model = described(RepoKind::Model, card);
        assert_eq!(model["pipeline_tag"], "text-generation");
        assert_eq!(model["cardData"]["language"], json!(["en", "no"]));
        let expected = ["transformers", "a", "mit", "text-generation", "en", "no", "base_model:me/base", "license:mit"];
        assert_eq!(model["tags"], json!(expected));
        let dataset = described(RepoKind::Dataset, "---\nlanguage: en\ntask_categories: [x]\nlicense: 3\n---");
        assert_eq!(dataset["tags"], json!(["task_categories:x", "language:en"]));
        assert_eq!(dataset["cardData"]["license"], 3);
    }

    #[test]
    fn card_without_metadata_or_with_an_empty_block_has_none() {
        for card in ["", "# Title", "---", "---\n", "---\nlicense: mit", "--- x\na: b\n---\n", "text\n---\na: b\n---\n"]
        {
            assert_eq!(metadata_of(card), None, "{card:?}");
        }
        for card in ["---\n---\n", "---\n\n---\n", "---\n# comment\n---"] {
            assert_eq!(metadata_of(card).map(parse_metadata), Some(Ok(Map::new())), "{card:?}");
        }
    }

    #[test]
    fn every_prefix_of_a_card_is_parsed_without_a_panic() {
        let card = "---\na: &x [1, {b: \"c\\n\"}]\nd: |\n  text\n  more\ne: !!str 1\n'f': *x\n---\n";
        for len in 0..=card.len() {
            let _ = metadata_of(&card[..len]).map(parse_metadata);
            let _ = parse_metadata(card[..len].strip_prefix("---").unwrap_or_default());
        }
    }

    /// Maps take more of the stack than lists.
    #[test]
    fn metadata_of_the_maximum_depth_fit_on_the_stack() {
        let maps = |count: usize| parse_metadata(&format!("a: {}1{}", "{a: ".repeat(count), "}".repeat(count)));
        let lists = |count: usize| parse_metadata(&format!("a: {}{}", "[".repeat(count), "]".repeat(count)));
        let last = MAX_DEPTH - 1;
        assert!(maps(last).is_ok() && lists(last).is_ok(), "the outermost map is a level, too");
        for count in [last + 1, 2 * MAX_DEPTH, 100, 1000, 10_000] {
            assert!(maps(count).is_err() && lists(count).is_err(), "{count} in each other");
        }
    }

    #[test]
    fn hostile_metadata_are_refused() {
        let long = format!("a: {}", "x".repeat(MAX_METADATA_LEN));
        let deep = format!("a: {}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        let bomb = "a: &a [x, x]\nb: [*a, *a]";
        let many = format!("a: [{}]", "{b},".repeat(MAX_NODE_COUNT / 2 + 1));
        for yaml in
            [&long, &deep, &many, bomb, "a: b\na: c", "- a\n- b", "text", "a: [", "a:\n\tb: c", "a: 1\n...\nb: 2"]
        {
            assert!(parse_metadata(yaml).is_err(), "{}", &yaml[..yaml.len().min(40)]);
            assert_eq!(described(RepoKind::Model, &format!("---\n{yaml}\n---\n")), json!({}));
        }
    }
}
