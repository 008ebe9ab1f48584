use super::*;

const POLICY: RetryPolicy = RetryPolicy { count: 9 };

fn check(failure_count: u32, asked_secs: Option<u64>, random: f64, expected_millis: Option<u64>) {
    let delay = POLICY.delay(failure_count, asked_secs.map(Duration::from_secs), random);
    assert_eq!(delay, expected_millis.map(Duration::from_millis), "{failure_count} {asked_secs:?} {random}");
}

#[test]
fn delay_doubles_to_a_limit_and_is_spread_over_half_of_it() {
    check(1, None, 0.0, Some(125));
    check(1, None, 0.8, Some(225));
    check(2, None, 0.0, Some(250));
    check(3, None, 0.0, Some(500));
    check(9, None, 0.0, Some(7_500));
    check(9, None, 1.0, Some(15_000));
}

#[test]
fn no_delay_follows_the_last_retry() {
    check(10, None, 0.0, None);
    check(10, Some(1), 0.0, None);
    assert_eq!(RetryPolicy { count: 0 }.delay(1, None, 0.0), None);
}

#[test]
fn retry_after_of_a_server_is_honoured_up_to_a_minute() {
    check(1, Some(2), 0.0, Some(2_000));
    check(3, Some(2), 1.0, Some(2_500));
    check(1, Some(100_000), 0.0, Some(60_000));
    check(1, Some(0), 0.0, Some(0));
}
