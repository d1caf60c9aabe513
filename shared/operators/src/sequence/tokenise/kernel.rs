//! `tokenise`: converts text to token ids.

use super::*;
use gristmill_kernel::*;
use std::panic::catch_unwind;
use tokenizers::{ModelWrapper, Tokenizer, TruncationParams};

/// Longest text, in bytes: encoding takes about 150 bytes of memory per byte, and workers are small.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// UTF-8 -> token ids.
pub(crate) struct TokeniseKernel {
    tokenizer: Tokenizer,
    add_special_tokens: bool,
    dtype: TokenDType,
}

/// Checks that `op` can use the content of a tokenizer.json.
///
/// # Errors
/// The reason why it cannot, in one line.
pub(crate) fn check(op: &Tokenise, content: &[u8]) -> Result<(), String> {
    TokeniseKernel::load(op, content).map(drop)
}

impl TokeniseKernel {
    /// Loads the tokenizer and checks that it suits `op`.
    pub(crate) fn new(op: &Tokenise, assets: &dyn AssetLoader) -> Result<Self, String> {
        let content = crate::kernels::assets::content(assets, "tokenise", &op.tokenizer)?;
        Self::load(op, &content)
            .map_err(|why| format!("`tokenise` cannot use its tokenizer: {why}"))
    }

    /// As [`new`](Self::new), with the content of its tokenizer.json.
    ///
    /// # Errors
    /// The reason why it cannot be used, in one line that does not name the file.
    pub(crate) fn load(op: &Tokenise, content: &[u8]) -> Result<Self, String> {
        let wrong = |why: String| -> String {
            why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
        };
        // The file is untrusted, and some contents make the library panic.
        let read = catch_unwind(|| Tokenizer::from_bytes(content));
        let read = read.map_err(|_| "it is no tokenizer.json".to_owned())?;
        let mut tokenizer =
            read.map_err(|error| wrong(format!("it is no tokenizer.json: {error}")))?;
        if let ModelWrapper::BPE(bpe) = tokenizer.get_model()
            && bpe.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err("it drops merges at random each time; set its `dropout` to null".into());
        }
        let most = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        if most > op.dtype.most() {
            let dtype = op.dtype.dtype();
            return Err(format!("it has token {most}, which {dtype} cannot hold"));
        }
        let truncation = match op.max_length {
            Some(max_length) => Some(truncation(&tokenizer, max_length as usize)?),
            None => None,
        };
        tokenizer.with_padding(None);
        tokenizer.with_truncation(truncation).map_err(|error| wrong(error.to_string()))?;
        Ok(TokeniseKernel { tokenizer, add_special_tokens: op.add_special_tokens, dtype: op.dtype })
    }
}

/// Truncation to `max_length` tokens, including those that the post-processor adds.
fn truncation(tokenizer: &Tokenizer, max_length: usize) -> Result<TruncationParams, String> {
    use tokenizers::PostProcessor;
    let added = tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(false));
    if max_length < added {
        Err(format!("it adds {added} tokens to every text, more than `max_length`"))
    } else {
        Ok(TruncationParams { max_length, ..TruncationParams::default() })
    }
}

impl TransformKernel for TokeniseKernel {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        _: &mut KernelScratch,
        _: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let given = input.bytes.len();
        if given > MAX_TEXT_BYTES {
            return Err(format!("a text of {given} bytes; the most is {MAX_TEXT_BYTES}"));
        }
        let text = str::from_utf8(input.bytes).map_err(|error| {
            format!("it is not UTF-8 (byte {}), so no text", error.valid_up_to())
        })?;
        let encoding = self.tokenizer.encode_fast(text, self.add_special_tokens);
        let encoding = encoding.map_err(|error| {
            let why: String = error.to_string().chars().take(160).collect();
            format!("it cannot be tokenised: {}", why.replace(char::is_control, " "))
        })?;
        let ids = encoding.get_ids();
        let value_bytes = crate::kernels::dtype_bytes(self.dtype.dtype());
        let bytes = ids.len() * value_bytes;
        let out = output.take(bytes)?;
        // Loading checked that every id of the vocabulary fits.
        match self.dtype {
            TokenDType::U16 => write(ids, out, |id| (id as u16).to_le_bytes()),
            TokenDType::I32 => write(ids, out, |id| (id as i32).to_le_bytes()),
            TokenDType::I64 => write(ids, out, |id| i64::from(id).to_le_bytes()),
        }
        Ok(OutputSize { bytes, size: [0, 0] })
    }
}

fn write<const N: usize>(ids: &[u32], out: &mut [u8], bytes: impl Fn(u32) -> [u8; N]) {
    for (id, to) in ids.iter().zip(out.as_chunks_mut::<N>().0) {
        *to = bytes(*id);
    }
}

#[cfg(test)]
mod tests;
