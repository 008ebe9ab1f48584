//! The `zorb` binary.

fn main() {}
