//! Reads any bytes as a chunk object.

#![no_main]

#[path = "../read_everything.rs"]
mod read_everything;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    read_everything::read_everything(bytes);
});
