//! Asset files of operators, checked against their hashes.

use bytes::Bytes;
use gristmill_kernel::AssetLoader;
use gristmill_pipeline::{AssetReference, MAX_ASSET_BYTES};

/// Loads the content of `asset` and checks its size and hash.
pub(crate) fn content(
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
    use super::*;
    use gristmill_model::Fingerprint;
    use std::collections::BTreeMap;

    #[test]
    fn only_what_was_asked_for_is_used() {
        let hash = AssetReference::hash(b"good");
        let load = |asset: &AssetReference, stored: &[(Fingerprint, &'static [u8])]| {
            let stored: BTreeMap<_, _> =
                stored.iter().map(|(hash, bytes)| (*hash, Bytes::from_static(bytes))).collect();
            content(&stored, "tokenise", asset)
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
