//! `tokenise`: converts text to token ids.

use crate::prelude::*;

/// Largest `max_length`, in tokens.
const MAX_TOKENS: u32 = 1 << 20;

/// The dtypes of token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenDType {
    U16,
    I32,
    I64,
}

impl TokenDType {
    /// The same as a field's dtype.
    pub const fn dtype(self) -> FieldDType {
        match self {
            TokenDType::U16 => FieldDType::U16,
            TokenDType::I32 => FieldDType::I32,
            TokenDType::I64 => FieldDType::I64,
        }
    }

    /// The largest token id that it holds; tokenizers' ids are u32.
    pub const fn most(self) -> u32 {
        match self {
            TokenDType::U16 => u16::MAX as u32,
            TokenDType::I32 => i32::MAX as u32,
            TokenDType::I64 => u32::MAX,
        }
    }
}

/// bytes (UTF-8) -> `dtype` `[n]`: the token ids that Hugging Face's `tokenizers` makes with that
/// `tokenizer.json`, exactly those of its Python package 0.23. The file's own truncation and padding are
/// ignored: use `max_length`, and `pad_sequence` or `padded_batch`. A file with BPE dropout is refused,
/// because its tokens are random. Text that is not UTF-8 or exceeds 1 MiB is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tokenise {
    pub field: String,
    /// A `tokenizer.json` of at most 64 MiB. Its content, not its path, is part of the fingerprint.
    pub tokenizer: AssetReference,
    /// Whether the file's post-processor adds its tokens, such as `[CLS]` and `[SEP]`.
    pub add_special_tokens: bool,
    /// Most tokens of a text, including special ones, as with the package's `enable_truncation`.
    pub max_length: Option<u32>,
    /// i64, i32 or u16, which must be able to hold every token of the file.
    pub dtype: TokenDType,
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
            ParameterKind::Whole { min: 1, max: MAX_TOKENS as u64 },
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
        let add_special_tokens = flag::<Self>(params, "add_special_tokens")?;
        let max_length = optional_whole::<Self>(params, "max_length")?;
        let dtypes = [TokenDType::I64, TokenDType::I32, TokenDType::U16];
        let dtype = choice::<Self, _>(params, "dtype", &dtypes)?;
        Ok(Tokenise { field, tokenizer, add_special_tokens, max_length, dtype })
    }
}

impl Operator for Tokenise {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let (input, field) = (flow.field("tokenise", &self.field)?, &self.field);
        if input.dtype != FieldDType::Bytes {
            let origin = flow.origin(field);
            return Err(format!("`tokenise` needs text, but `{field}` is {input}{origin}"));
        }
        let range = ValueRange { min: 0.0, max: f64::from(self.dtype.most()) };
        let (dtype, shape) = (self.dtype.dtype(), vec![None]);
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
pub(crate) mod kernel;
