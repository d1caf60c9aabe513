//! Token ids match those of the Python package in `tests/golden`; unusable tokenizers are refused.

use super::*;
use bytes::Bytes;
use gristmill_executor::{CompiledPipeline, PipelineCompiler};
use gristmill_model::RecordKey;
use gristmill_pipeline::Pipeline;
use serde_json::Value;

const CASES: &str = include_str!("../../../../tests/golden/tokenizers.json");

fn file(name: &str) -> &'static str {
    match name {
        "bytelevel" => include_str!("../../../../tests/golden/tokenizer-bytelevel.json"),
        "split" => include_str!("../../../../tests/golden/tokenizer-split.json"),
        "wordpiece" => include_str!("../../../../tests/golden/tokenizer-wordpiece.json"),
        "unigram" => include_str!("../../../../tests/golden/tokenizer-unigram.json"),
        other => panic!("{other}"),
    }
}

fn load(
    tokenizer: &str,
    max_length: Option<u32>,
    dtype: FieldDType,
) -> Result<TokeniseKernel, String> {
    load_with(tokenizer, max_length, dtype, true)
}

fn load_with(
    tokenizer: &str,
    max_length: Option<u32>,
    dtype: FieldDType,
    add_special_tokens: bool,
) -> Result<TokeniseKernel, String> {
    let hash = AssetReference::hash(tokenizer.as_bytes());
    let assets = BTreeMap::from([(hash, Bytes::copy_from_slice(tokenizer.as_bytes()))]);
    let op = Tokenise {
        field: "text".into(),
        tokenizer: AssetReference::Content(hash),
        add_special_tokens,
        max_length,
        dtype,
    };
    TokeniseKernel::new(&op, &assets).map_err(|error| error.to_string())
}

fn run(tokens: &TokeniseKernel, text: &[u8]) -> Result<Vec<u8>, String> {
    let record = RecordKey { file: 0, record: 0 };
    let key = DrawKey { seed: 0, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 };
    let mut out = Vec::new();
    let view = ValueView { bytes: text, size: [0, 0] };
    let made = tokens.run(
        view,
        KernelOutput::Buffer(&mut out),
        &mut KernelScratch::default(),
        &mut key.draw(),
    )?;
    out.truncate(made.bytes);
    Ok(out)
}

#[test]
fn tokens_are_those_of_the_python_package() {
    let all: Value = serde_json::from_str(CASES).unwrap();
    let cases = all["cases"].as_array().unwrap();
    let mut tokens = 0;
    for case in cases {
        let (name, text) = (case["tokenizer"].as_str().unwrap(), case["text"].as_str().unwrap());
        let max_length = case["max_length"].as_u64().map(|length| length as u32);
        let ids: Vec<i64> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        tokens += ids.len();
        for (dtype, made) in [
            (FieldDType::I64, ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>()),
            (FieldDType::I32, ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect()),
            (FieldDType::U16, ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect()),
        ] {
            let special = case["add_special_tokens"].as_bool().unwrap();
            let tokenizer = load_with(file(name), max_length, dtype, special).unwrap();
            assert_eq!(run(&tokenizer, text.as_bytes()).unwrap(), made, "{case}");
        }
    }
    assert!(cases.len() > 200 && tokens > 3000, "{} cases, {tokens} tokens", cases.len());
}

#[test]
fn unusable_tokenizers_are_refused() {
    let good = file("wordpiece");
    let drops = file("bytelevel").replace("\"dropout\":null", "\"dropout\":0.1");
    let large = good.replace("\"grain\":", "\"grain\":70000,\"other\":");
    for (tokenizer, max_length, why) in [
        ("", None, "it is no tokenizer.json: EOF"),
        ("{}", None, "it is no tokenizer.json"),
        ("[1, 2]", None, "it is no tokenizer.json"),
        (&good[..good.len() / 2], None, "it is no tokenizer.json"),
        (&good.replace("WordPiece", "Word\nPiece"), None, "it is no tokenizer.json"),
        (&drops, None, "set its `dropout` to null"),
        (&large, None, "u16 cannot hold"),
        (good, Some(1), "adds 2 tokens to every text"),
    ] {
        let error = load(tokenizer, max_length, FieldDType::U16).err().unwrap_or_default();
        assert!(error.starts_with("`tokenise` cannot use its tokenizer: "), "{why}: {error}");
        assert!(error.contains(why) && !error.contains('\n') && error.len() < 400, "{error}");
    }
    let tokens = load(good, Some(2), FieldDType::U16).unwrap();
    assert_eq!(run(&tokens, b"the mill").unwrap(), [2, 0, 3, 0]);
    assert_eq!(run(&tokens, b"a\xff").unwrap_err(), "it is not UTF-8 (byte 1), so no text");
    let long = vec![b'a'; MAX_TEXT_BYTES + 1];
    assert_eq!(run(&tokens, &long).unwrap_err(), "a text of 1048577 bytes; the most is 1048576");
}

#[test]
fn programs_load_tokenizers_by_their_content() {
    let yaml = "
source: { jsonl: x, features: { text: { dtype: bytes } } }
ops:
  - tokenise: { field: text, tokenizer: vocabularies/small.json, dtype: u16 }
  - batch: { size: 2, ragged: true }
";
    let pipeline = crate::parse(yaml).unwrap();
    let refused = |pipeline: &Pipeline, compiler: PipelineCompiler<'_>| {
        compiler.compile(pipeline).err().map_or(String::new(), |error| error.to_string())
    };
    assert!(
        refused(&pipeline, PipelineCompiler::default())
            .contains("vocabularies/small.json is a path")
    );
    let content = file("unigram").as_bytes();
    let pipeline = pipeline.with_assets(&mut |_| Ok(AssetReference::hash(content))).unwrap();
    let pipeline = crate::from_canonical(&pipeline.canonical_json()).unwrap();
    assert!(refused(&pipeline, PipelineCompiler::default()).contains("loads no files"));
    let mut assets: BTreeMap<_, _> =
        pipeline.assets().into_iter().map(|hash| (hash, Bytes::from_static(content))).collect();
    let program: CompiledPipeline =
        PipelineCompiler { assets: &assets, fuse: true }.compile(&pipeline).unwrap();
    assert_eq!(program.steps().collect::<Vec<_>>(), ["tokenise"]);
    assets.values_mut().for_each(|content| *content = content.slice(1..));
    assert!(
        refused(&pipeline, PipelineCompiler { assets: &assets, fuse: true })
            .contains("store the file again")
    );
}
