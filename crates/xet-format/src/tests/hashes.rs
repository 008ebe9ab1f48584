use crate::merkle::{self, Aggregator};
use crate::{ChunkHash, FileHash, HmacKey, ParseHashError, RangeHash, XorbHash};

const HELLO_WORLD: &str = "4e39378b9d359f118190557a1f44130219a54e5fcfa07bd96cf50b466fe651b1";

fn counting() -> [u8; 32] {
    std::array::from_fn(|index| index as u8)
}

fn chunk(text: &str) -> ChunkHash {
    text.parse().unwrap()
}

#[test]
fn text_of_a_hash_shows_each_word_backwards() {
    let text = "07060504030201000f0e0d0c0b0a090817161514131211101f1e1d1c1b1a1918";
    assert_eq!(XorbHash::from_bytes(counting()).to_string(), text);
    assert_eq!(text.parse(), Ok(XorbHash::from_bytes(counting())));
    assert_eq!(text.to_uppercase().parse(), Ok(XorbHash::from_bytes(counting())));

    let bytes = [
        22, 175, 58, 132, 4, 75, 131, 214, 190, 153, 138, 66, 226, 3, 153, 242, 204, 86, 80, 234, 249, 153, 80, 99,
        159, 80, 65, 138, 236, 231, 149, 78,
    ];
    let text = "d6834b04843aaf16f29903e2428a99be635099f9ea5056cc4e95e7ec8a41509f";
    assert_eq!(ChunkHash::from_bytes(bytes).to_string(), text);
    assert_eq!(text.parse(), Ok(ChunkHash::from_bytes(bytes)));
}

#[test]
fn text_of_other_lengths_or_with_other_digits_is_no_hash() {
    let parse = |text: &str| text.parse::<XorbHash>();
    assert_eq!(parse(""), Err(ParseHashError::Count { count: 0 }));
    assert_eq!(parse(&HELLO_WORLD[1..]), Err(ParseHashError::Count { count: 63 }));
    assert_eq!(parse(&format!("{HELLO_WORLD}0")), Err(ParseHashError::Count { count: 65 }));
    // 64 bytes, but 62 characters.
    assert_eq!(parse(&format!("ää{}", &HELLO_WORLD[4..])), Err(ParseHashError::Digit { index: 0 }));
    for index in 0..64 {
        let mut text = HELLO_WORLD.as_bytes().to_vec();
        for bad in [b'g', b'+', b' ', b'/', b':', b'@', b'G', b'`'] {
            text[index] = bad;
            let text = String::from_utf8(text.clone()).unwrap();
            assert_eq!(parse(&text), Err(ParseHashError::Digit { index }), "{text}");
        }
    }
}

#[test]
fn single_chunks_have_the_published_chunk_file_and_range_hashes() {
    let check = |raw: &[u8], chunk: &str, file: &str| {
        let hash = ChunkHash::of(raw);
        assert_eq!(hash.to_string(), chunk);
        let pairs = || [(&hash, raw.len() as u64)];
        assert_eq!(merkle::xorb_hash(pairs()).to_string(), chunk, "the xorb of one chunk has the chunk's hash");
        assert_eq!(merkle::file_hash(pairs()).to_string(), file);
    };
    check(b"hello world", HELLO_WORLD, "f15edd43b7e85cfd25e2758ffe13b99fdd09dfa817e8d9f6548722a7a126db7f");
    check(
        b"Hello, World!",
        "45143e5337d3e15599eb0f1370a9ee88e5114a633b3dd960ee673dbc191bf089",
        "2028081f8fc86d0698acffb85c902a410549c3ffcc45a0b6ed666e1032d17157",
    );
    check(
        &[0],
        "df93298cdbf67cd507aed28d6290c0cf7f9aa0aa88dfa629cffcf98680659410",
        "41f5539a8d8bdd7509fd9a319268aca47ea6d40b33394170182e09fa86345c7e",
    );
    let empty = ChunkHash::of(b"");
    assert_eq!(empty.to_string(), "e0f2cf784e7e5f10c34f84af150e9a5ff9664216debad915364d741049870f67");

    let hello = ChunkHash::of(b"hello world");
    let raw: String = hello.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(raw, "119f359d8b37394e0213441f7a559081d97ba0cf5f4ea519b151e66f460bf56c");
    let range = RangeHash::of(&[hello]);
    assert_eq!(range.to_string(), "22ef2fdcff5cea306e42ad7e15ed8a0c5e789e7d2ec34658c10d2758946847da");
}

#[test]
fn blinded_chunk_hash_is_the_published_one_and_no_key_is_noop() {
    let hello = chunk(HELLO_WORLD);
    let blinded = HmacKey::from_bytes(counting()).blind(&hello);
    assert_eq!(blinded.to_string(), "01d774a58eab4d28ea31a959ebdd1adbfb6940544b51a316db7acd593dfdd0b4");
    assert_eq!(HmacKey::NONE.blind(&hello), hello);
    assert!(!format!("{:?}", HmacKey::from_bytes(counting())).contains("07"), "a key does not print itself");
}

#[test]
fn every_1024th_hash_is_eligible_for_global_deduplication() {
    let eligible = |last_word: u64| {
        let mut bytes = [0xFF; 32];
        bytes[24..].copy_from_slice(&last_word.to_le_bytes());
        ChunkHash::from_bytes(bytes).is_dedup_eligible()
    };
    assert!(eligible(0) && eligible(1024) && eligible(5 << 10));
    assert!(!eligible(1) && !eligible(512) && !eligible(1023) && !eligible(u64::MAX));
}

/// The nodes that the published aggregation vectors are made of.
fn node(letter: char) -> (ChunkHash, u64) {
    let (text, len) = match letter {
        'A' => ("cfc5d07f6f03c29bbf424132963fe08d19a37d5757aaf520bf08119f05cd56d6", 100),
        'B' => ("c3e67584b5c4fc2a89837ec39e40f2c8a6bb0b2987ac94cd4b31e5fbdd210a72", 200),
        'C' => ("0d2beb91b9196929a5ddec9f6e306924ddf4a24268e3e59fd8464738d525af37", 300),
        'D' => ("adf8773496a9b7319b2e50dc98093f344053b17d8ad37100b9c07d9805988784", 400),
        'E' => ("4ac202caf347fc1e9c874b1ef6a1c5e619141eb775a6f43f0f0124ccd0060d9e", 500),
        'F' => ("b3b28636f65c149ea52eb1f94669466f70f033b54cea792824c696ba6ef3c389", 600),
        'G' => ("0e2c1a002aae913d2c0fc8ddfa4e9e14b7b311b3b0d458726d5d9f6a6318013c", 700),
        _ => return (ChunkHash::from_bytes([0; 32]), 0),
    };
    (chunk(text), len)
}

#[test]
fn aggregation_gives_the_published_xorb_and_file_hashes() {
    let zeros = "0".repeat(64);
    let check = |letters: &str, xorb: &str, file: &str| {
        let nodes: Vec<_> = letters.chars().map(node).collect();
        let pairs = || nodes.iter().map(|(hash, len)| (hash, *len));
        assert_eq!(merkle::xorb_hash(pairs()).to_string(), xorb, "xorb of {letters}");
        assert_eq!(merkle::file_hash(pairs()).to_string(), file, "file of {letters}");
    };
    check("", &zeros, &zeros);
    assert_eq!(merkle::file_hash([]), FileHash::EMPTY);
    check("Z", &zeros, "638a6bc391964a85939d48f008e8bdbae6a7975e7ca2d87a3ce2492f4e4d8a4c");
    check(
        "A",
        "cfc5d07f6f03c29bbf424132963fe08d19a37d5757aaf520bf08119f05cd56d6",
        "8e16257caa3fe079d484d872a8975264b2ff683b0d6db9028cc7c0f968a45661",
    );
    check(
        "ABC",
        "71ec1275fca074724e2dd666921b3277c7cee603e4d025bcab2d4050015be2bc",
        "54e55dccc6653c612bdb5576c5d3cb34bb31bc4e100248abccf4c908b3ef7715",
    );
    check(
        "AAAA",
        "89f2ada89ff8c96763c6b25010e6dd76a4c05b1466207633ea559acf2093211b",
        "2cdba690d0e09563596e0cda626d43eb4c96ef1e994fe72d9b2f5a83cfcd36dd",
    );
    check(
        "ABABCD",
        "52c826f99507aa05d0b45e9837fa1709e0485425cfbcb1e80db3905cf98b3ee9",
        "91d21684db364c8883ab8209fa5eb2e781cf07f37e1fa43e731c30839afe422f",
    );
    check(
        "ZABCDEFG",
        "f62abe77e3fb9c954fe52b0028027ddc90c064c45951a4fd2211d87e5c0011db",
        "d1b068be5bbdb38992269e8efe61f601881e39f7a7585fd76883cc6ea5c23b44",
    );
}

/// The aggregation by the rule of the specification, without optimization: level by level, on whole
/// lists.
fn aggregate_by_the_specification(nodes: &[(ChunkHash, u64)]) -> XorbHash {
    let node_key: [u8; 32] = [
        0x01, 0x7e, 0xc5, 0xc7, 0xa5, 0x47, 0x29, 0x96, 0xfd, 0x94, 0x66, 0x66, 0xb4, 0x8a, 0x02, 0xe6, 0x5d, 0xdd,
        0x53, 0x6f, 0x37, 0xc7, 0x6d, 0xd2, 0xf8, 0x63, 0x52, 0xe6, 0x4a, 0x53, 0x71, 0x3f,
    ];
    let mut level = nodes.to_vec();
    while level.len() > 1 {
        let mut parents = Vec::new();
        let mut rest = level.as_slice();
        while !rest.is_empty() {
            let cut = (2..rest.len().min(9)).find(|index| {
                u64::from_le_bytes(rest[*index].0.as_bytes()[24..].try_into().unwrap()).is_multiple_of(4)
            });
            let count = if rest.len() <= 2 { rest.len() } else { cut.map_or(rest.len().min(9), |index| index + 1) };
            let (group, after) = rest.split_at(count);
            let text: String = group.iter().map(|(hash, len)| format!("{hash} : {len}\n")).collect();
            let hash = ChunkHash::from_bytes(*blake3::keyed_hash(&node_key, text.as_bytes()).as_bytes());
            parents.push((hash, group.iter().map(|(_, len)| len).sum()));
            rest = after;
        }
        level = parents;
    }
    XorbHash::from_bytes(level.first().map_or([0; 32], |(hash, _)| *hash.as_bytes()))
}

#[test]
fn aggregation_equals_level_by_level_up_to_1100_chunks() {
    let mut aggregator = Aggregator::new();
    let mut nodes = Vec::new();
    for index in 0_u64..1_100 {
        assert_eq!(aggregator.clone().xorb_hash(), aggregate_by_the_specification(&nodes), "{} chunks", nodes.len());
        let node = (ChunkHash::of(&index.to_le_bytes()), index * 37 + 1);
        aggregator.push(&node.0, node.1);
        nodes.push(node);
    }
}

/// With hashes of which none, or each, can end a group.
#[test]
fn aggregation_equals_level_by_level_without_and_all_group_ends() {
    for last_byte in [0, 1] {
        for count in [1, 2, 3, 8, 9, 10, 26, 27, 28, 81, 82, 730, 8_192] {
            let nodes: Vec<_> = (0_u64..count)
                .map(|index| {
                    let mut bytes = *ChunkHash::of(&index.to_le_bytes()).as_bytes();
                    bytes[24] = last_byte;
                    (ChunkHash::from_bytes(bytes), 1)
                })
                .collect();
            let pairs = nodes.iter().map(|(hash, len)| (hash, *len));
            assert_eq!(merkle::xorb_hash(pairs), aggregate_by_the_specification(&nodes), "{count} chunks, {last_byte}");
        }
    }
}
