//! Reads the images of a folder as records; each image is an object.

use crate::LeaseError;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use gristmill_model::wire::PackedImage;
use gristmill_ports::{ObjectPath, ObjectStore};

/// Concurrent reads of images: enough to hide the time to first byte, few enough for the memory.
const READS_AHEAD: usize = 16;

/// Reads `images` into consecutive records, `bytes` in total; each record is the label (i64, little-endian)
/// and the image's content.
pub(crate) async fn read_images(
    objects: &dyn ObjectStore,
    bucket: &str,
    images: &[PackedImage],
    bytes: u64,
) -> Result<Bytes, LeaseError> {
    let read = |image: &PackedImage| {
        let (path, label) = (ObjectPath::new(bucket, &image.key), i64::from(image.label));
        let (size, etag) = (image.size, image.etag.clone());
        async move {
            let content = match size {
                // An empty range cannot be requested.
                0 => Bytes::new(),
                _ => objects.get_range(&path, 0..size, Some(&etag)).await?,
            };
            Ok::<_, LeaseError>((label, content))
        }
    };
    let mut reads = stream::iter(images.iter().map(read)).buffered(READS_AHEAD);
    let mut data = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    while let Some((label, content)) = reads.try_next().await? {
        data.extend_from_slice(&label.to_le_bytes());
        data.extend_from_slice(&content);
    }
    Ok(Bytes::from(data))
}
