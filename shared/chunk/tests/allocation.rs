//! Hostile input cannot make the reader allocate beyond its limits.
//!
//! A single test in its own binary, so that nothing else allocates meanwhile.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use gristmill_chunk::{
    Chunk, ChunkFrame, ChunkFrameKind, ChunkLimits, ChunkWriter, FrameCodec, FrameSchema,
    TensorDType, TensorSpec,
};

#[path = "support/read_everything.rs"]
#[allow(dead_code)]
mod read_everything;

/// Remembers the largest request since it was last reset.
struct Largest(AtomicUsize);

#[global_allocator]
static LARGEST: Largest = Largest(AtomicUsize::new(0));

// Allocations are visible only to the allocator; this one forwards every call.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.0.fetch_max(size, Ordering::Relaxed);
        unsafe { System.realloc(block, layout, size) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        unsafe { System.dealloc(block, layout) }
    }
}

fn largest_of<T>(run: impl FnOnce() -> T) -> (usize, T) {
    LARGEST.0.store(0, Ordering::Relaxed);
    let result = run();
    (LARGEST.0.load(Ordering::Relaxed), result)
}

/// Peak of this process's mapped memory, including C libraries.
fn most_mapped_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn allocations_stay_within_limits() {
    const FRAME: usize = 8 << 20;
    let limits = ChunkLimits { frame_bytes: 1 << 20, ..ChunkLimits::default() };

    // A decompression bomb: eight MiB of zeros in a few hundred bytes.
    let schema = FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [FRAME])]).unwrap();
    let mut writer = ChunkWriter::new(FrameCodec::Zstd { level: 1 });
    writer.begin_frame(&schema, 1).unwrap();
    writer.end_frame(ChunkFrameKind::Batch, 1).unwrap();
    let bomb = writer.finish().unwrap();
    let (largest, opened) = largest_of(|| Chunk::open(Bytes::from(bomb.clone()), &limits));
    assert!(opened.is_err());
    assert!(largest < 64 << 10, "{largest} bytes to refuse a frame over the limit");

    // The same with an index that understates it.
    let mut lying = bomb.clone();
    let raw_bytes_at = lying.len() - 24 - 40 + 24;
    lying[raw_bytes_at..raw_bytes_at + 8].copy_from_slice(&(1u64 << 20).to_le_bytes());
    read_everything::reseal(&mut lying).unwrap();
    let chunk = Chunk::open(Bytes::from(lying), &limits).unwrap();
    let (largest, frame) = largest_of(|| chunk.frame(0));
    assert!(frame.is_err());
    assert!(largest < 64 << 10, "{largest} bytes to refuse a lying index");

    few_bytes_that_claim_to_be_many();

    // A valid one costs its size, once.
    let chunk = Chunk::open(Bytes::from(bomb), &ChunkLimits::default()).unwrap();
    let (largest, frame) = largest_of(|| chunk.frame(0));
    assert_eq!(frame.unwrap().len(), largest);

    // A stored frame costs nothing.
    let mut writer = ChunkWriter::new(FrameCodec::Stored);
    writer.begin_frame(&schema, 1).unwrap();
    writer.end_frame(ChunkFrameKind::Batch, 1).unwrap();
    let chunk =
        Chunk::open(Bytes::from(writer.finish().unwrap()), &ChunkLimits::default()).unwrap();
    let (largest, frame) = largest_of(|| chunk.tensors(0));
    assert!(frame.is_ok());
    assert!(largest < 4 << 10, "{largest} bytes to read a stored frame");

    false_header_lengths(&limits);
    a_reserved_buffer_does_not_grow();
}

fn few_bytes_that_claim_to_be_many() {
    // A few bytes that index and frame declare to be many.
    let many =
        [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &(512_u32 << 20).to_le_bytes(), &[1, 0]].concat();
    let object = read_everything::packed_object(&many, 512 << 20, 1);
    let (largest, frame) = largest_of(|| {
        Chunk::open(Bytes::from(object), &ChunkLimits::default()).and_then(|chunk| chunk.frame(0))
    });
    assert!(frame.is_err());
    assert!(largest < 64 << 10, "{largest} bytes for a frame of {}", many.len());

    // A window of 2 GiB, for which zstd itself would allocate: a block of 128 KiB of zeros.
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0x80, 21 << 3];
    let block = (128_u32 << 10 << 3 | 0b11).to_le_bytes();
    let wide = [&head[..], &(128_u32 << 10).to_le_bytes(), &block[..3], &[0]].concat();
    let object = read_everything::packed_object(&wide, 128 << 10, 1);
    let chunk = Chunk::open(Bytes::from(object), &ChunkLimits::default()).unwrap();
    let before = most_mapped_kib();
    assert_eq!(chunk.frame(0).unwrap(), vec![0; 128 << 10]);
    let more = most_mapped_kib() - before;
    assert!(more < 16 << 10, "{more} KiB for a window");
}

fn false_header_lengths(limits: &ChunkLimits) {
    for header_bytes in [u64::MAX, 1 << 40, 1 << 20, 100] {
        let mut bytes = header_bytes.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{\"x\":{\"dtype\":\"U8\",\"shape\":[4294967295],");
        let (largest, frame) = largest_of(|| ChunkFrame::parse(Bytes::from(bytes), limits));
        assert!(frame.is_err());
        assert!(largest < 4 << 10, "{largest} bytes for a header of {header_bytes}");
    }
}

/// A writer with reserved capacity does not reallocate.
fn a_reserved_buffer_does_not_grow() {
    let rows = 64;
    let schema =
        FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [1 << 16])]).unwrap();
    let mut writer = ChunkWriter::new(FrameCodec::Stored);
    writer.reserve(3 * (rows << 16) + 4096);
    let (largest, object) = largest_of(|| {
        for _ in 0..3 {
            writer.begin_frame(&schema, rows).unwrap();
            writer.end_frame(ChunkFrameKind::Batch, rows).unwrap();
        }
        writer.finish().unwrap()
    });
    assert!(object.len() > 3 * (rows << 16));
    assert!(largest < 4 << 10, "{largest} bytes to write into a reserved buffer");
}
