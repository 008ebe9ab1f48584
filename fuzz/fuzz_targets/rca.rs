//! The target `rca`: for the fuzzer, or for the files that the command line names.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| zorb_fuzz::rca::check(input));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    zorb_fuzz::replay(zorb_fuzz::rca::check)
}
