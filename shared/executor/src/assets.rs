//! Files that operators need beside the pipeline, by the hash of their content.

#![cfg_attr(not(feature = "tokenise"), allow(dead_code, reason = "nothing else needs files"))]

use crate::ExecError;
use bytes::Bytes;
use gristmill_model::Fingerprint;
use gristmill_pipeline::{Asset, MAX_ASSET_BYTES, Op};
use std::collections::BTreeMap;

/// Where the contents are that [`Pipeline::assets`](gristmill_pipeline::Pipeline::assets) names. What comes
/// from there is checked against its hash; it need not be trusted.
pub trait Assets {
    /// The content with this hash.
    ///
    /// # Errors
    /// Why it cannot be had, in one line.
    fn load(&self, hash: &Fingerprint) -> Result<Bytes, String>;
}

/// Contents that were fetched before.
impl Assets for BTreeMap<Fingerprint, Bytes> {
    fn load(&self, hash: &Fingerprint) -> Result<Bytes, String> {
        self.get(hash).cloned().ok_or_else(|| "it was not loaded".into())
    }
}

/// For pipelines whose operators need none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoAssets;

impl Assets for NoAssets {
    fn load(&self, _: &Fingerprint) -> Result<Bytes, String> {
        Err("this part of the system loads no files for operators".into())
    }
}

/// Whether `op` can use `content`, that of the file it needs, and if not, why: in one line that does not name
/// the file.
///
/// # Errors
/// Why it cannot.
#[cfg_attr(not(feature = "tokenise"), allow(unused_variables, reason = "nothing else needs files"))]
pub fn check_asset(op: &Op, content: &[u8]) -> Result<(), String> {
    match op {
        #[cfg(feature = "tokenise")]
        Op::Tokenise(op) => crate::ops::check_tokenizer(op, content),
        _ => Ok(()),
    }
}

/// The content that `asset` names, checked.
pub(crate) fn content(assets: &dyn Assets, op: &str, asset: &Asset) -> Result<Bytes, ExecError> {
    let wrong = |why: String| ExecError::Pipeline(format!("`{op}` needs a file: {why}"));
    let hash = match asset {
        Asset::Content(hash) => hash,
        Asset::Path(path) => {
            let path: String = path.chars().take(200).collect();
            return Err(wrong(format!("{path} is a path; workers need its content's hash")));
        }
    };
    let content = assets.load(hash).map_err(|why| wrong(format!("blake3 {hash}: {why}")))?;
    let bytes = content.len() as u64;
    if bytes > MAX_ASSET_BYTES {
        return Err(wrong(format!("{hash} has {bytes} bytes; the limit is {MAX_ASSET_BYTES}")));
    }
    let found = Asset::hash(&content);
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

    #[test]
    fn only_what_was_asked_for_is_used() {
        let hash = Asset::hash(b"good");
        let load = |asset: &Asset, stored: &[(Fingerprint, &'static [u8])]| {
            let stored: BTreeMap<_, _> =
                stored.iter().map(|(hash, bytes)| (*hash, Bytes::from_static(bytes))).collect();
            content(&stored, "tokenise", asset).map_err(|error| error.to_string())
        };
        let asset = Asset::Content(hash);
        assert_eq!(load(&asset, &[(hash, b"good")]), Ok(Bytes::from_static(b"good")));
        for (asset, stored, why) in [
            (asset.clone(), None, "it was not loaded"),
            (asset, Some(&b"evil"[..]), "store the file again"),
            (Asset::Path("/home/x.json".into()), None, "/home/x.json is a path"),
        ] {
            let stored: Vec<_> = stored.map(|bytes| (hash, bytes)).into_iter().collect();
            let error = load(&asset, &stored).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }
}
