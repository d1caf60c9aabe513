//! Files of records, for tests.

use crate::samples::{SampleRow, SampleValue};
use ::parquet::{
    data_type::{ByteArray, ByteArrayType, FloatType, Int64Type},
    file::writer::{SerializedColumnWriter, SerializedFileWriter},
    schema::parser::parse_message_type,
};

/// A file of one row group. Lists are lists of required values.
pub(crate) fn file(rows: &[SampleRow]) -> Option<Vec<u8>> {
    let column = |(key, value): &(&str, SampleValue)| {
        let list = |of: &str| {
            format!(
                "required group {key} (LIST) {{ repeated group list {{ required {of} element; }} }}"
            )
        };
        match value {
            SampleValue::Ints(_) => list("int64"),
            SampleValue::Floats(_) => list("float"),
            SampleValue::Text(_) => format!("required binary {key} (STRING);"),
        }
    };
    let columns: Vec<String> = rows.first()?.iter().map(column).collect();
    let schema = parse_message_type(&format!("message rows {{ {} }}", columns.join(" "))).ok()?;
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema.into(), Default::default()).ok()?;
    let mut group = writer.next_row_group().ok()?;
    for i in 0..columns.len() {
        let mut column = group.next_column().ok()??;
        let values: Vec<&SampleValue> = rows.iter().map(|row| &row[i].1).collect();
        write(&mut column, &values)?;
        column.close().ok()?;
    }
    group.close().ok()?;
    writer.into_inner().ok()
}

fn write(column: &mut SerializedColumnWriter<'_>, values: &[&SampleValue]) -> Option<()> {
    let (mut ints, mut floats, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut definition, mut repetition) = (Vec::new(), Vec::new());
    for value in values {
        let length = match value {
            SampleValue::Ints(values) => {
                ints.extend_from_slice(values);
                values.len()
            }
            SampleValue::Floats(values) => {
                floats.extend_from_slice(values);
                values.len()
            }
            SampleValue::Text(text) => {
                texts.push(ByteArray::from(text.clone().into_bytes()));
                continue;
            }
        };
        // An empty list is one entry that is not defined.
        definition.extend((0..length.max(1)).map(|_| i16::from(length > 0)));
        repetition.extend((0..length.max(1)).map(|i| i16::from(i > 0)));
    }
    let levels = (Some(definition.as_slice()), Some(repetition.as_slice()));
    match values.first()? {
        SampleValue::Ints(_) => column.typed::<Int64Type>().write_batch(&ints, levels.0, levels.1),
        SampleValue::Floats(_) => {
            column.typed::<FloatType>().write_batch(&floats, levels.0, levels.1)
        }
        SampleValue::Text(_) => column.typed::<ByteArrayType>().write_batch(&texts, None, None),
    }
    .ok()?;
    Some(())
}
