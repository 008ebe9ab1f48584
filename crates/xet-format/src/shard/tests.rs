#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic"
)]

mod corrupt;
mod dedup;
mod differential;
mod parsing;
#[cfg(feature = "reference-data")]
mod reference;
mod support;
mod writing;
