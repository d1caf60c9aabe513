//! Decodes baseline JPEGs to RGB, whole or a window, pixel for pixel as libjpeg-turbo does.
//!
//! Entropy decoding is two thirds of a JPEG's cost, bound by one dependent table look-up per symbol.
//! Here one look-up decodes two short symbols, bits are refilled without a branch from bytes whose
//! stuffing is removed, and data outside the window is parsed without being stored, transformed or
//! converted. The transforms are libjpeg-turbo-rs's.
//!
//! Supported: one scan, Huffman codes, 8 bits, grey or YCbCr at 4:4:4, 4:2:2 or 4:2:0, which covers
//! nearly every photograph in a dataset. Everything else, including every damaged image, returns
//! `None`; the caller falls back to libjpeg-turbo-rs, whose errors are then the only ones.

mod entropy;
mod frame;
mod huffman;
#[cfg(test)]
mod tests;
mod window;

pub use frame::JpegHeaders;
pub use window::JpegDecoder;
