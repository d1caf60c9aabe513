//! Images of a folder, grouped so that they are planned and leased like the records of a file.

use crate::Fingerprint;
use serde::{Deserialize, Serialize};

/// Images of one pack: few enough that its description is read at once, and enough that a million
/// images are a thousand packs.
pub const PACK_IMAGES: usize = 1024;

/// One image; `etag` pins its content for the life of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedImage {
    pub key: String,
    pub size: u64,
    pub etag: String,
    /// Its class.
    pub label: u32,
}

/// Images that are read as the records of one file, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePack {
    /// The bucket the images are in.
    pub bucket: String,
    pub images: Vec<PackedImage>,
}

impl ImagePack {
    /// Identifies this pack by its stored form: another pack, or another order, has another
    /// fingerprint.
    pub fn fingerprint(stored: &[u8]) -> Fingerprint {
        Fingerprint::from_content("gristmill pack v1", stored)
    }
}
