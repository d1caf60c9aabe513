//! GIF to RGB: the first frame on its canvas. Transparency is dropped.

use super::{MAX_MEMORY_BYTES, checked_size, indices::StoredIndices, one_line};
use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use gristmill_kernel::KernelOutput;
use std::{io::Cursor, num::NonZero};

/// First bytes of a file, but for the version.
pub(super) const MAGIC: &[u8] = b"GIF8";

fn bad(error: DecodingError) -> String {
    format!("bad GIF: {}", one_line(&error.to_string()))
}

/// The colours of the first frame, and its indices, decoded into `spare`.
fn read<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<(Vec<[u8; 3]>, StoredIndices<'a>), String> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    let most = NonZero::new(MAX_MEMORY_BYTES).ok_or("no memory is allowed")?;
    options.set_memory_limit(MemoryLimit::Bytes(most));
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(bad)?;
    let screen = [decoder.height(), decoder.width()].map(usize::from);
    let frame = decoder.next_frame_info().map_err(bad)?.ok_or("bad GIF: it has no image")?;
    let [top, left] = [frame.top, frame.left].map(usize::from);
    let [height, width] = [frame.height, frame.width].map(usize::from);
    let around = frame.transparent.unwrap_or(0);
    // A frame beyond the screen widens it, as in Pillow.
    let [tall, wide] = [screen[0].max(top + height), screen[1].max(left + width)];
    let size = checked_size("GIF", tall as u64, wide as u64)?;
    let colours = decoder.palette().map_err(bad)?.as_chunks::<3>().0.to_vec();
    let mut pixels = vec![0; height * width];
    decoder.read_into_buffer(&mut pixels).map_err(bad)?;
    let indices = KernelOutput::Buffer(spare).take(tall * wide)?;
    indices.fill(around);
    let rows = indices.chunks_exact_mut(wide).skip(top);
    for (row, from) in rows.zip(pixels.chunks_exact(width.max(1))) {
        row[left..left + width].copy_from_slice(from);
    }
    Ok((colours, StoredIndices { size, bits: 8, samples: 1, bytes: indices }))
}

/// Decodes into `output` and returns height and width. `spare` is scratch space.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    let (colours, stored) = read(bytes, spare)?;
    let rgb = output.take(stored.bytes.len() * 3)?;
    for (to, index) in rgb.as_chunks_mut::<3>().0.iter_mut().zip(stored.bytes) {
        // Colours that the file lacks are black.
        *to = colours.get(usize::from(*index)).copied().unwrap_or_default();
    }
    Ok(stored.size)
}

/// Decodes the palette indices of a file into `spare`.
pub(super) fn stored<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<StoredIndices<'a>, String> {
    Ok(read(bytes, spare)?.1)
}
