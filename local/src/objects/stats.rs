//! Counters of the object server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gristmill_model::stored::keys::is_chunk;
use serde::Serialize;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Put,
    Get,
    Head,
    Delete,
    DeleteMany,
    List,
    /// Any request about buckets.
    Bucket,
}

impl Operation {
    const COUNT: usize = Self::Bucket as usize + 1;
}

/// The content of an object, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Rows of a split, delivered or cached.
    Chunk,
    Other,
}

impl Content {
    pub(crate) fn of(key: &str) -> Self {
        match is_chunk(key) {
            true => Self::Chunk,
            false => Self::Other,
        }
    }
}

/// Signed requests by kind since the start, and object bytes transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ObjectStats {
    /// `PutObject` requests, including refused ones.
    pub put: u64,
    /// `GetObject` requests.
    pub get: u64,
    /// `HeadObject` requests.
    pub head: u64,
    /// `DeleteObject` requests.
    pub delete: u64,
    /// `DeleteObjects` requests.
    pub delete_many: u64,
    /// `ListObjectsV2` requests.
    pub list: u64,
    /// Requests about buckets.
    pub bucket: u64,
    /// Responses with a status of 400 to 499, including those to unsigned requests.
    pub refused: u64,
    /// Responses with a status of 500 or more.
    pub failed: u64,
    /// Bytes of objects put.
    pub received_bytes: u64,
    /// Bytes of objects and ranges sent.
    pub sent_bytes: u64,
    /// Those of `received_bytes` that are chunks.
    pub received_chunk_bytes: u64,
    /// Those of `sent_bytes` that are of chunks.
    pub sent_chunk_bytes: u64,
}

/// Atomic counters behind [`ObjectStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: [AtomicU64; Operation::COUNT],
    refused: AtomicU64,
    failed: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    received_chunk_bytes: AtomicU64,
    sent_chunk_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn operation(&self, operation: Operation) {
        self.operations[operation as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn answered(&self, status: u16) {
        match status {
            400..=499 => drop(self.refused.fetch_add(1, Relaxed)),
            500.. => drop(self.failed.fetch_add(1, Relaxed)),
            _ => {}
        }
    }

    pub(crate) fn received(&self, kind: Content, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
        if kind == Content::Chunk {
            self.received_chunk_bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    pub(crate) fn sent(&self, kind: Content, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
        if kind == Content::Chunk {
            self.sent_chunk_bytes.fetch_add(bytes as u64, Relaxed);
        }
    }

    pub(crate) fn read(&self) -> ObjectStats {
        let count = |operation: Operation| self.operations[operation as usize].load(Relaxed);
        ObjectStats {
            put: count(Operation::Put),
            get: count(Operation::Get),
            head: count(Operation::Head),
            delete: count(Operation::Delete),
            delete_many: count(Operation::DeleteMany),
            list: count(Operation::List),
            bucket: count(Operation::Bucket),
            refused: self.refused.load(Relaxed),
            failed: self.failed.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_chunk_bytes: self.received_chunk_bytes.load(Relaxed),
            sent_chunk_bytes: self.sent_chunk_bytes.load(Relaxed),
        }
    }
}
