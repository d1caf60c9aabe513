//! Files of pyarrow, which `scripts/make-golden parquet` made, and what they hold.

use super::*;

/// The values of one column of a file, or why there are none.
fn column(
    file: &'static [u8],
    column: &str,
    dtype: FeatureDType,
    shape: &[Option<u32>],
) -> Vec<Result<Vec<u8>, String>> {
    let file = Bytes::from_static(file);
    let (index, _) = index(&file);
    let source = features(&[(column, dtype, shape)]);
    let rows = rows(&index, &file, 0, index.len(), &source);
    rows.into_iter().map(|row| row.map(|mut values| values.swap_remove(0))).collect()
}

const DECIMALS: &[u8] = include_bytes!("../../../../tests/golden/decimals.parquet");
const TIMES: &[u8] = include_bytes!("../../../../tests/golden/times.parquet");
const ENCRYPTED: &[u8] = include_bytes!("../../../../tests/golden/encrypted.parquet");
const SEALED: &[u8] = include_bytes!("../../../../tests/golden/sealed.parquet");

#[test]
fn decimals_are_numbers_or_their_text() {
    use FeatureDType::{Bytes as Text, F32, F64, I64};
    for name in ["i32", "i64", "fixed"] {
        let reals: Vec<_> =
            column(DECIMALS, name, F64, &[]).into_iter().map(Result::unwrap).collect();
        assert_eq!(
            reals,
            [-0.5, -0.25, 0.0, 0.25, 0.5].map(|x: f64| x.to_le_bytes().to_vec()),
            "{name}"
        );
        let whole = column(DECIMALS, name, I64, &[]);
        let zeros = if name == "fixed" { "00" } else { "" };
        let refused = format!("column `{name}` holds `-0.50{zeros}`, which is no i64");
        assert_eq!((&whole[0], &whole[2]), (&Err(refused), &Ok(vec![0; 8])));
        let text = column(DECIMALS, name, Text, &[]);
        assert_eq!(text[3], Ok(format!("0.25{zeros}").into_bytes()));
    }
    let wide = column(DECIMALS, "wide", Text, &[]);
    assert_eq!(wide[0], Ok(format!("-0.5{}", "0".repeat(74)).into_bytes()));
    assert_eq!(wide[4], Err("column `wide` is null".into()));
    let list = column(DECIMALS, "list", F32, &[None]);
    assert_eq!(list[2], Ok([-0.5_f32, -0.25].map(f32::to_le_bytes).concat()));
}

#[test]
fn decimals_of_any_size_are_exact() {
    let of = |number: i128, scale| super::super::columns::decimal(&number.to_be_bytes(), scale);
    for (number, scale, text) in [
        (0, 0, "0"),
        (0, 3, "0.000"),
        (-1, 20, "-0.00000000000000000001"),
        (1_000_000_000, 9, "1.000000000"),
        (-1_000_000_000_000, 1, "-100000000000.0"),
        (i128::MIN, 0, "-170141183460469231731687303715884105728"),
        (i128::MAX, 38, "1.70141183460469231731687303715884105727"),
    ] {
        assert_eq!(of(number, scale).as_deref(), Ok(text));
    }
    let of = |bytes: &[u8]| super::super::columns::decimal(bytes, 1);
    assert_eq!(of(&[]).as_deref(), Ok("0.0"));
    assert_eq!(of(&[0x80]).as_deref(), Ok("-12.8"));
    assert!(of(&[0; 33]).unwrap_err().contains("33 bytes; the limit is 32"));
}

#[test]
fn times_of_96_bits_are_nanoseconds() {
    let times: Vec<_> = column(TIMES, "t", FeatureDType::I64, &[]);
    let expected =
        [-1_000_i64, 1_704_067_200_000_000_000].map(|time| Ok(time.to_le_bytes().to_vec()));
    assert_eq!(times, expected);
}

#[test]
fn a_page_that_differs_from_its_checksum_is_named() {
    let (index, _) = index(&Bytes::from_static(TIMES));
    let source = features(&[("t", FeatureDType::I64, &[])]);
    let ranges = index.stored_ranges(0, 2, &source).unwrap();
    let mut found = 0;
    for range in ranges {
        for at in range.clone() {
            let mut bad = TIMES.to_vec();
            bad[at as usize] ^= 0x10;
            let bad = Bytes::from(bad);
            if let Err(error) = index.open(0, 2, &source, &parts(&index, &bad, 0, 2, &source)) {
                let error = error.to_string();
                assert!(error.contains("column `t` of row group 0: "), "{error}");
                found += usize::from(error.contains("the checksum of its page at byte "));
            }
        }
    }
    // All bytes of the pages behind their headers.
    assert!(found >= 24, "{found}");
}

#[test]
fn pages_without_values_are_passed_over() {
    for file in [
        &include_bytes!("../../../../tests/golden/pages-1.parquet")[..],
        include_bytes!("../../../../tests/golden/pages-2.parquet"),
    ] {
        let lists = column(file, "x", FeatureDType::I64, &[None]);
        let expected: [&[i64]; 4] = [&[-2, 55], &[], &[7], &[1, 2, 3]];
        let bytes =
            |list: &[i64]| Ok(list.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        assert_eq!(lists, expected.map(bytes));
    }
}

#[test]
fn columns_that_are_not_encrypted_are_read() {
    let y = column(ENCRYPTED, "y", FeatureDType::I64, &[]);
    assert_eq!(y, [4_i64, 5].map(|y| Ok(y.to_le_bytes().to_vec())));
    let (index, _) = index(&Bytes::from_static(ENCRYPTED));
    let again = FileIndex::decode(&index.encode(), &Parquet.into()).unwrap();
    assert!(again == index);
    let error = again.stored_ranges(0, 1, &features(&[("x", FeatureDType::I64, &[])])).unwrap_err();
    assert!(error.to_string().contains("column `x` is encrypted"), "{error}");
    let mut builder = IndexBuilder::new(&Parquet.into()).unwrap();
    let error = builder.push(SEALED).and_then(|()| builder.finish().map(|_| ())).unwrap_err();
    assert!(error.to_string().contains("it is encrypted, which is not read"), "{error}");
}

#[test]
fn nulls_have_defaults() {
    let file = file(style(WriterVersion::PARQUET_2_0, Compression::SNAPPY));
    let (index, _) = index(&file);
    let mut source =
        features(&[("score", FeatureDType::F32, &[]), ("tokens", FeatureDType::I64, &[None])]);
    for (feature, default) in source.features.values_mut().zip(["2.5", "7 8"]) {
        feature.default = Some(default.into());
    }
    for (row, found) in rows(&index, &file, 0, 60, &source).into_iter().enumerate() {
        let score = if row % 10 == 9 { 2.5 } else { row as f32 / 8.0 };
        let tokens = if row % 7 == 3 { vec![7, 8] } else { tokens(row) };
        let tokens = tokens.iter().flat_map(|token| i64::from(*token).to_le_bytes()).collect();
        assert_eq!(found, Ok(vec![score.to_le_bytes().to_vec(), tokens]), "row {row}");
    }
    let source = ParsedSource::from_yaml(
        "{ parquet: x, defaults: { wide: none }, features: { wide: { dtype: bytes } } }",
    );
    let (index, source) = (super::index(&Bytes::from_static(DECIMALS)).0, source.unwrap());
    let found = super::rows(&index, &Bytes::from_static(DECIMALS), 4, 1, &source);
    assert_eq!(found, [Ok(vec![b"none".to_vec()])]);
}
