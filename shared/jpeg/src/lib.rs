//! Baseline JPEGs to RGB, whole or a window of them, pixel for pixel as libjpeg-turbo decodes them.
//!
//! Entropy decoding is two thirds of what a JPEG costs, and bound by one dependent table look-up a
//! symbol. Here a look-up answers two symbols where they are short, bits are refilled without a
//! branch from bytes whose stuffing is gone, and what lies outside the window is parsed without being
//! stored, transformed or coloured. The transforms are libjpeg-turbo-rs's.
//!
//! What nearly every photograph in a dataset is, is decoded: one scan, Huffman codes, 8 bits, grey or
//! YCbCr at 4:4:4, 4:2:2 or 4:2:0. For everything else, and for every image that is damaged, there is
//! no answer but `None`: libjpeg-turbo-rs decodes those, or says what is wrong with them, so that only
//! one decoder has an opinion.

mod entropy;
mod frame;
mod huffman;
mod pixels;
mod segments;
#[cfg(test)]
mod tests;
mod window;

pub use frame::Frame;
pub use window::Decoder;
