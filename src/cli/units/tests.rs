use super::*;

#[test]
fn sizes_have_one_decimal_and_are_below_1024_of_their_unit() {
    for (len, expected) in [
        (0, "0 B"),
        (1, "1 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (1_536, "1.5 KiB"),
        (1_048_524, "1023.9 KiB"),
        (1_048_525, "1.0 MiB"),
        (1_048_576, "1.0 MiB"),
        (67_108_864, "64.0 MiB"),
        (1 << 40, "1.0 TiB"),
        (u64::MAX, "16.0 EiB"),
    ] {
        assert_eq!(Size(len).to_string(), expected, "{len}");
    }
    assert_eq!(format!("{:>10}|", Size(5)), "       5 B|");
}

#[test]
fn shares_are_rounded_to_a_tenth_of_a_percent() {
    for (part, whole, expected) in [
        (0, 0, "-"),
        (0, 7, "0.0%"),
        (1, 3, "33.3%"),
        (2, 3, "66.7%"),
        (7, 7, "100.0%"),
        (8, 7, "114.3%"),
        (u64::MAX, u64::MAX, "100.0%"),
    ] {
        assert_eq!(Share { part, whole }.to_string(), expected, "{part}/{whole}");
    }
}

#[test]
fn one_thing_is_singular() {
    assert_eq!(Count(0, "chunk").to_string(), "0 chunks");
    assert_eq!(Count(1, "chunk").to_string(), "1 chunk");
    assert_eq!(Count(8192, "chunk").to_string(), "8192 chunks");
}

#[test]
fn waits_are_tenths_of_seconds() {
    for (millis, expected) in [(0, "0.0 s"), (125, "0.1 s"), (950, "1.0 s"), (60_000, "60.0 s")] {
        assert_eq!(Wait(Duration::from_millis(millis)).to_string(), expected);
    }
}
