//! Kernels and helpers that several operators share.

pub(crate) mod boxes;
pub(crate) mod canvas;
pub(crate) mod colours;
pub mod floor;
pub(crate) mod fused;
pub(crate) mod masks;
pub(crate) mod planes;
pub(crate) mod resample;
pub(crate) mod warp;

use bytes::Bytes;
use gristmill_kernel::{
    AssetLoader, Kernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, ValueView,
};
use gristmill_pipeline::{AssetReference, FieldDType, FieldSchema, MAX_ASSET_BYTES};

pub(crate) use gristmill_pipeline::value_bytes;

/// A kernel that writes its output elsewhere than its input.
pub(crate) fn transform(
    run: impl Fn(
        ValueView<'_>,
        KernelOutput<'_>,
        &mut KernelScratch,
        &mut OperatorDraws,
    ) -> Result<OutputSize, String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    Kernel::transform(run)
}

/// A kernel that changes values where they are.
pub(crate) fn in_place(
    change: impl Fn(&mut [u8], [usize; 2], &mut KernelScratch, &mut OperatorDraws) -> Result<(), String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    Kernel::in_place(change)
}

/// A kernel that changes each value with probability `p`.
pub(crate) fn sometimes(
    p: f64,
    change: impl Fn(&mut [u8], [usize; 2], &mut KernelScratch, &mut OperatorDraws) -> Result<(), String>
    + Send
    + Sync
    + 'static,
) -> Kernel {
    in_place(
        move |value, size, tools, draw| {
            if draw.unit() >= p { Ok(()) } else { change(value, size, tools, draw) }
        },
    )
}

/// Channels of an `[h, w, c]` image.
pub(crate) fn channels(schema: &FieldSchema) -> usize {
    schema.shape.last().copied().flatten().unwrap_or(1) as usize
}

/// Bytes of one pixel of an `[h, w, c]` image.
pub(crate) fn pixel_bytes(schema: &FieldSchema) -> usize {
    channels(schema) * dtype_bytes(schema.dtype)
}

/// Bytes of one value; 1 for byte strings.
pub(crate) fn dtype_bytes(dtype: FieldDType) -> usize {
    dtype.size_bytes().map_or(1, |bytes| bytes as usize)
}

/// Reads `bytes` as an integer of `dtype`; none for floats and byte strings.
pub(crate) fn integer(dtype: FieldDType, bytes: &[u8]) -> Option<i128> {
    Some(match dtype {
        FieldDType::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::U64 => u64::from_le_bytes(bytes.try_into().ok()?).into(),
        FieldDType::Bytes
        | FieldDType::F16
        | FieldDType::BF16
        | FieldDType::F32
        | FieldDType::F64 => return None,
    })
}

/// Bytes of one item of a sequence; 1 if items differ in size.
pub(crate) fn item_bytes(schema: &FieldSchema) -> usize {
    schema.item_bytes().map_or(1, |bytes| bytes.max(1) as usize)
}

// Asset files of operators, checked against their hashes.

/// Loads the content of `asset` and checks its size and hash.
pub(crate) fn asset_content(
    assets: &dyn AssetLoader,
    op: &str,
    asset: &AssetReference,
) -> Result<Bytes, String> {
    let wrong = |why: String| format!("`{op}` needs a file: {why}");
    let hash = match asset {
        AssetReference::Content(hash) => hash,
        AssetReference::Path(path) => {
            let path: String = path.chars().take(200).collect();
            return Err(wrong(format!("{path} is a path; workers need its content's hash")));
        }
    };
    let content = assets.load(hash).map_err(|why| wrong(format!("blake3 {hash}: {why}")))?;
    let bytes = content.len() as u64;
    if bytes > MAX_ASSET_BYTES {
        return Err(wrong(format!("{hash} has {bytes} bytes; the limit is {MAX_ASSET_BYTES}")));
    }
    let found = AssetReference::hash(&content);
    if found != *hash {
        return Err(wrong(format!(
            "what is stored as {hash} has the hash {found}; store the file again"
        )));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    mod golden;
    mod properties;

    use super::*;

    use gristmill_model::Fingerprint;
    use std::collections::BTreeMap;

    #[test]
    fn only_what_was_asked_for_is_used() {
        let hash = AssetReference::hash(b"good");
        let load = |asset: &AssetReference, stored: &[(Fingerprint, &'static [u8])]| {
            let stored: BTreeMap<_, _> =
                stored.iter().map(|(hash, bytes)| (*hash, Bytes::from_static(bytes))).collect();
            asset_content(&stored, "tokenise", asset)
        };
        let asset = AssetReference::Content(hash);
        assert_eq!(load(&asset, &[(hash, b"good")]), Ok(Bytes::from_static(b"good")));
        for (asset, stored, why) in [
            (asset.clone(), None, "it was not loaded"),
            (asset, Some(&b"evil"[..]), "store the file again"),
            (AssetReference::Path("/home/x.json".into()), None, "/home/x.json is a path"),
        ] {
            let stored: Vec<_> = stored.map(|bytes| (hash, bytes)).into_iter().collect();
            let error = load(&asset, &stored).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }
}
