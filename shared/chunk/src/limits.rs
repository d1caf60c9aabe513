//! Limits on the memory that a reader allocates for an object, and on what a writer writes.

/// Limits, checked before anything is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Size of one object.
    pub object_bytes: u64,
    /// Number of frames in one object; bounds the footer.
    pub frames: u64,
    /// Size of one frame when decoded.
    pub frame_bytes: u64,
    /// Size of the JSON header of one frame.
    pub header_bytes: u64,
}

impl Default for ChunkLimits {
    /// Eight times the largest object of a default job (128 MiB): unusual jobs still work, but a hostile object
    /// cannot exhaust a machine.
    fn default() -> Self {
        ChunkLimits {
            object_bytes: 1 << 30,
            frames: 1 << 16,
            frame_bytes: 512 << 20,
            header_bytes: 1 << 20,
        }
    }
}
