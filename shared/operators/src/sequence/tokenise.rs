//! `tokenise`: converts text to token ids.

use crate::prelude::*;

/// Largest `max_length`, in tokens.
const MAX_TOKENS: u32 = 1 << 20;

/// The largest token id that a dtype holds; tokenizers' ids are u32.
const fn largest_id(dtype: FieldDType) -> u32 {
    match dtype {
        FieldDType::U16 => u16::MAX as u32,
        FieldDType::I32 => i32::MAX as u32,
        _ => u32::MAX,
    }
}

/// bytes (UTF-8) -> `dtype` `[n]`: the token ids that Hugging Face's `tokenizers` makes with that
/// `tokenizer.json`, exactly those of its Python package 0.23. The file's own truncation and padding are
/// ignored: use `max_length`, and `pad_sequence` or `padded_batch`. A file with BPE dropout is refused,
/// because its tokens are random. Text that is not UTF-8 or exceeds 1 MiB is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tokenise {
    pub field: String,
    pub tokenizer: AssetReference,
    pub add_special_tokens: bool,
    pub max_length: Option<u32>,
    pub dtype: FieldDType,
}

impl OperatorDefinition for Tokenise {
    // Increase the version when a new release of `tokenizers` makes different tokens.
    const DECLARATION: OperatorDeclaration = element_wise("tokenise", 1).costs(2_000, 50_000);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The text."),
        required(
            "tokenizer",
            ParameterKind::Text,
            "A `tokenizer.json` of at most 64 MiB. Its content, not its path, is part of the fingerprint.",
        ),
        or(
            "add_special_tokens",
            ParameterKind::Bool,
            "true",
            "Whether the file's post-processor adds its tokens, such as `[CLS]` and `[SEP]`.",
        ),
        absent(
            "max_length",
            from_to(1, MAX_TOKENS),
            "Most tokens of a text, special ones included: as the package's `enable_truncation`.",
        ),
        or(
            "dtype",
            ParameterKind::Choice(&["i64", "i32", "u16"]),
            "i64",
            "i64, i32 or u16, which must be able to hold every token of the file.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        let tokenizer = AssetReference::parse(params, "tokenizer")?;
        let add_special_tokens = params.read_flag("add_special_tokens")?;
        let (max_length, range) = (params.given("max_length"), params.wholes_of("max_length"));
        let max_length =
            max_length.map(|node| params.whole("max_length", node, range)).transpose()?;
        let dtypes = [FieldDType::I64, FieldDType::I32, FieldDType::U16];
        let dtype = params.read_choice("dtype", &dtypes)?;
        Ok(Tokenise { field, tokenizer, add_special_tokens, max_length, dtype })
    }
}

impl Operator for Tokenise {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = &self.field;
        if flow.field("tokenise", field)?.dtype != FieldDType::Bytes {
            return Err(flow.needs("tokenise", "text", field));
        }
        let range = ValueRange { min: 0.0, max: f64::from(largest_id(self.dtype)) };
        let (dtype, shape) = (self.dtype, vec![None]);
        flow.write("tokenise", field, FieldSchema { dtype, shape, range: Some(range) });
        Ok(())
    }

    replaces_field!();

    fn asset(&self) -> Option<&AssetReference> {
        Some(&self.tokenizer)
    }

    fn asset_mut(&mut self) -> Option<&mut AssetReference> {
        Some(&mut self.tokenizer)
    }

    #[cfg(feature = "tokenise")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::transform(kernel::TokeniseKernel::new(self, input.assets)?))
    }

    #[cfg(all(feature = "kernels", not(feature = "tokenise")))]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Err("`tokenise` cannot be compiled: this build has no feature `tokenise`".into())
    }

    #[cfg(feature = "tokenise")]
    fn check_asset(&self, content: &[u8]) -> Result<(), String> {
        kernel::check(self, content)
    }
}

#[cfg(feature = "tokenise")]
pub(crate) mod kernel {
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
        dtype: FieldDType,
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
            let content = crate::kernels::asset_content(assets, "tokenise", &op.tokenizer)?;
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
            if most > largest_id(op.dtype) {
                let dtype = op.dtype;
                return Err(format!("it has token {most}, which {dtype} cannot hold"));
            }
            tokenizer.with_padding(None);
            truncate(&mut tokenizer, op)?;
            Ok(TokeniseKernel {
                tokenizer,
                add_special_tokens: op.add_special_tokens,
                dtype: op.dtype,
            })
        }
    }

    /// Truncates to `max_length` tokens, including those that the post-processor adds.
    fn truncate(tokenizer: &mut Tokenizer, op: &Tokenise) -> Result<(), String> {
        use tokenizers::PostProcessor;
        let Some(max_length) = op.max_length.map(|most| most as usize) else {
            return tokenizer.with_truncation(None).map(drop).map_err(|error| error.to_string());
        };
        let added = tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(false));
        if op.add_special_tokens && max_length < added {
            return Err(format!("it adds {added} tokens to every text, more than `max_length`"));
        }
        // The library checks as if special tokens were always added, and leaves room for them only if they are.
        let params = TruncationParams { max_length: max_length.max(added), ..Default::default() };
        tokenizer.with_truncation(Some(params)).map_err(|error| error.to_string())?;
        if let Some(params) = tokenizer.get_truncation_mut() {
            params.max_length = max_length;
        }
        Ok(())
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
            let value_bytes = crate::kernels::dtype_bytes(self.dtype);
            let bytes = ids.len() * value_bytes;
            let out = output.take(bytes)?;
            // Loading checked that every id of the vocabulary fits.
            match self.dtype {
                FieldDType::U16 => write(ids, out, |id| (id as u16).to_le_bytes()),
                FieldDType::I32 => write(ids, out, |id| (id as i32).to_le_bytes()),
                _ => write(ids, out, |id| i64::from(id).to_le_bytes()),
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
}
