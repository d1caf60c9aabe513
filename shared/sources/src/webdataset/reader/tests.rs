//! Archives of every kind that writers make, and every kind of lie.

use super::*;
use crate::{ParsedSource, webdataset::tar::BLOCK_BYTES};
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

const LIMITS: SourceLimits = SourceLimits { record_bytes: 20_000, records: 100 };

fn header(size: u64, kind: EntryType) -> Header {
    let mut header = Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_entry_type(kind);
    header.set_cksum();
    header
}

/// An archive of regular files, closed by its end mark.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn index_in(file: &[u8], piece: usize) -> Result<FileIndex, String> {
    let mut builder = Box::new(WebDatasetScanner::new(LIMITS));
    for piece in file.chunks(piece) {
        builder.push(piece).map_err(|error| error.to_string())?;
    }
    builder.check_end().and_then(|()| builder.finish()).map_err(|error| error.to_string())
}

fn index(file: &[u8]) -> FileIndex {
    index_in(file, 1 << 20).unwrap()
}

fn fail(file: &[u8]) -> String {
    index_in(file, 1 << 20).unwrap_err()
}

fn record(file: &[u8], record: u32) -> &[u8] {
    let range = index(file).byte_range(record, 1).unwrap();
    &file[range.start as usize..range.end as usize]
}

fn extractor(features: &str) -> WebDatasetRecordReader {
    let yaml = format!("{{ webdataset: x, features: {{ {features} }} }}");
    WebDatasetRecordReader::new(&ParsedSource::from_yaml(&yaml).unwrap().features)
}

const IMAGE: &str = "image: { key: jpg;png, dtype: bytes }, label: { key: cls, dtype: i64 }";

/// The bytes of every value of a record.
fn values(extractor: &WebDatasetRecordReader, record: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut cells: Vec<FieldCell> = extractor.wanted.iter().map(|_| FieldCell::default()).collect();
    extractor.find(record, &mut cells)?;
    Ok(cells.iter_mut().map(|cell| cell.split(record, None).unwrap().0.to_vec()).collect())
}

#[test]
fn names_are_cut_at_the_first_dot_of_the_last_component() {
    let split = |name: &'static str| {
        let (name, key) = split_name(name.as_bytes())?;
        Some((str::from_utf8(name).unwrap(), str::from_utf8(key).unwrap()))
    };
    assert_eq!(split("a.jpg"), Some(("a", "jpg")));
    assert_eq!(split("./x/a.seg.png"), Some(("./x/a", "seg.png")));
    assert_eq!(split("a.b/c.d"), Some(("a.b/c", "d")));
    assert_eq!(split("../../etc/passwd.x"), Some(("../../etc/passwd", "x")));
    for none in ["", "a", "a.", ".hidden", "a.b/._c.jpg", "a.b/c", "x.y/"] {
        assert_eq!(split(none), None, "{none}");
    }
}

#[test]
fn members_of_one_name_are_one_record() {
    let file = archive(&[
        ("notes", b"no key"),
        ("s/1.jpg", b"first"),
        ("s/1.cls", b"7\n"),
        ("s/2.CLS", b" -3 "),
        ("s/2.png", b"second"),
        ("README", b"between"),
        ("s/3.cls", b"9"),
        ("s/3.jpg", b"third"),
        ("s/3.png", b"not preferred"),
    ]);
    let extractor = extractor(IMAGE);
    let got: Vec<_> = (0..3).map(|i| values(&extractor, record(&file, i)).unwrap()).collect();
    let value = |image: &[u8], label: i64| vec![image.to_vec(), label.to_le_bytes().to_vec()];
    assert_eq!(got, [value(b"first", 7), value(b"second", -3), value(b"third", 9)]);
    assert_eq!(index(&file).len(), 3);
}

#[test]
fn pieces_of_any_size_give_the_same_index() {
    let long = format!("{}/{}.jpg", "d".repeat(150), "n".repeat(300));
    let file =
        archive(&[("a.jpg", &[1; 700]), (&long, &[2; 512]), ("c.jpg", b""), ("c.cls", b"1")]);
    let whole = index(&file);
    assert_eq!(whole.len(), 3);
    assert!(record(&file, 1).windows(300).any(|name| name == "n".repeat(300).as_bytes()));
    for piece in [1, 7, 511, 512, 513, 1025] {
        assert_eq!(index_in(&file, piece).unwrap(), whole, "{piece}");
    }
}

#[test]
fn pax_headers_name_and_size_the_next_member() {
    let mut builder = Builder::new(Vec::new());
    let name = "é".repeat(200) + ".jpg";
    builder.append_pax_extensions([("path", name.as_bytes()), ("size", b"5")]).unwrap();
    builder.append(&header(5, EntryType::Regular), &b"hello"[..]).unwrap();
    let file = builder.into_inner().unwrap();
    let extractor = extractor("image: { key: jpg, dtype: bytes }");
    assert_eq!(values(&extractor, record(&file, 0)).unwrap(), [b"hello"]);
}

#[test]
fn names_are_divided_as_webdataset_divides_them() {
    let names = include_str!("../../../tests/golden/names.tsv");
    assert!(names.lines().count() > 300);
    for line in names.lines() {
        let mut columns = line.split('\t');
        let name = columns.next().unwrap();
        let theirs = columns.next().zip(columns.next());
        let split = split_name(name.as_bytes());
        let ours =
            split.map(|(base, key)| (str::from_utf8(base).unwrap(), str::from_utf8(key).unwrap()));
        // Hidden files are none of a record, and neither are names without a key.
        let is_hidden = name.rsplit('/').next().unwrap().starts_with('.');
        if !is_hidden && !name.ends_with('.') {
            assert_eq!(ours, theirs, "{name}");
        } else if is_hidden {
            assert_eq!(ours, None, "{name}");
        }
    }
    for (name, is_about) in [
        ("__meta__.json", true),
        ("__m__/a.jpg", true),
        ("__a__.jpg", false),
        ("x/__m__/a.b", false),
    ] {
        assert_eq!(split_name(name.as_bytes()).is_none(), is_about, "{name}");
    }
}

#[test]
fn a_pattern_is_the_member_that_ends_so() {
    let image = "image: { key: '*.png;*.jpg', dtype: bytes }";
    let read = |key: &str, members: &[(&str, &[u8])]| {
        values(&extractor(key), record(&archive(members), 0))
    };
    for name in ["a.png", "a.seg.png", "a.b.c.PNG"] {
        assert_eq!(read(image, &[("a.apng", b"0"), (name, b"1")]).unwrap(), [b"1"], "{name}");
    }
    assert_eq!(read(image, &[("a.x.jpg", b"0"), ("a.y.png", b"1")]).unwrap(), [b"1"]);
    let error = read(image, &[("a.x.png", b"0"), ("a.y.png", b"1")]).unwrap_err();
    assert_eq!(error, "it has two members `*.png`");
    let error = read(image, &[("a.apng", b"0")]).unwrap_err();
    assert!(error.starts_with("member `*.png` or `*.jpg` is missing; it has `.apng`"), "{error}");
    for key in ["*", "*png", "*.", "x.*", "*.*"] {
        let yaml =
            format!("{{ webdataset: x, features: {{ v: {{ key: '{key}', dtype: bytes }} }} }}");
        assert!(ParsedSource::from_yaml(&yaml).is_err(), "{key}");
    }
}

#[test]
fn archives_that_are_joined_have_the_records_of_both() {
    let (first, second) =
        ([("a.jpg", &b"1"[..]), ("b.jpg", b"2")], [("b.cls", &b"3"[..]), ("c.jpg", b"4")]);
    let all: Vec<(&str, &[u8])> = first.into_iter().chain(second).collect();
    let (joined, one) = ([archive(&first), archive(&second)].concat(), archive(&all));
    let (index, of_one) = (index(&joined), index(&one));
    assert_eq!((index.len(), of_one.len()), (3, 3));
    let read = |file: &[u8], key: &str| -> Vec<_> {
        let extractor = extractor(&format!("v: {{ key: {key}, dtype: bytes }}"));
        (0..3).map(|i| values(&extractor, record(file, i))).collect()
    };
    for key in ["jpg", "cls"] {
        assert_eq!(read(&joined, key), read(&one, key));
    }
    let padded = [archive(&first), vec![0; 9 * BLOCK_BYTES], archive(&second)].concat();
    assert_eq!(read(&padded, "jpg"), read(&one, "jpg"));
}

#[test]
fn pax_values_may_have_line_ends() {
    let mut builder = Builder::new(Vec::new());
    let note = b"a\nb\n20 path=other.jpg\n";
    let extensions = [("comment", &note[..]), ("path", b"two\nlines.jpg"), ("size", b"5")];
    builder.append_pax_extensions(extensions).unwrap();
    builder.append(&header(5, EntryType::Regular), &b"hello"[..]).unwrap();
    let file = builder.into_inner().unwrap();
    let extractor = extractor("image: { key: jpg, dtype: bytes }");
    assert_eq!(values(&extractor, record(&file, 0)).unwrap(), [b"hello"]);
}

#[test]
fn directories_and_devices_are_no_records() {
    let mut builder = Builder::new(Vec::new());
    for kind in [b'3', b'4', b'5', b'6', b'D', b'V', b'N'] {
        let mut header = header(0, EntryType::new(kind));
        header.set_path("x.jpg").unwrap();
        header.set_cksum();
        builder.append(&header, &b""[..]).unwrap();
    }
    // A directory of the time before they had a kind.
    let mut old = Header::new_old();
    old.as_mut_bytes()[..6].copy_from_slice(b"a.jpg/");
    old.set_size(700);
    old.set_cksum();
    builder.append(&old, &b""[..]).unwrap();
    assert_eq!(index(&builder.into_inner().unwrap()).len(), 0);
}

#[test]
fn members_of_unknown_kinds_are_files_and_checksums_may_be_signed() {
    let mut builder = Builder::new(Vec::new());
    let mut header = header(5, EntryType::new(b'Q'));
    header.set_path("é.jpg").unwrap();
    header.set_cksum();
    let signed = header.as_bytes().iter().map(|byte| i64::from(byte.cast_signed())).sum::<i64>();
    let unsigned = header.as_bytes().iter().map(|byte| i64::from(*byte)).sum::<i64>();
    let sum = i64::from(header.cksum().unwrap()) + signed - unsigned;
    header.as_mut_bytes()[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    builder.append(&header, &b"hello"[..]).unwrap();
    let file = builder.into_inner().unwrap();
    let extractor = extractor("image: { key: jpg, dtype: bytes }");
    assert_eq!(values(&extractor, record(&file, 0)).unwrap(), [b"hello"]);
}

#[test]
fn values_of_global_extensions_are_refused() {
    let global = |key: &str| {
        let record = format!("{} {key}=1\n", key.len() + 6);
        let record = if record.len() == key.len() + 6 {
            record
        } else {
            format!("{} {key}=1\n", key.len() + 5)
        };
        let mut builder = Builder::new(Vec::new());
        let header = header(record.len() as u64, EntryType::XGlobalHeader);
        builder.append(&header, record.as_bytes()).unwrap();
        builder.into_inner().unwrap()
    };
    assert_eq!(index(&global("comment")).len(), 0);
    assert!(fail(&global("size")).contains("gives all members one `size`"));
    assert!(fail(&global("GNU.sparse.major")).contains("sparse"));
}

/// A link, as a member of an archive.
fn link(builder: &mut Builder<Vec<u8>>, name: &str, target: &str, kind: EntryType) {
    builder.append_link(&mut header(0, kind), name, target).unwrap();
}

fn file(builder: &mut Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = header(content.len() as u64, EntryType::Regular);
    builder.append_data(&mut header, name, content).unwrap();
}

/// The values of records `first .. first + n` as a worker reads them.
fn read(stored: &[u8], piece: usize, n: u32) -> Vec<Result<Vec<u8>, String>> {
    let source =
        ParsedSource::from_yaml("{ webdataset: x, features: { i: { key: cls, dtype: bytes } } }")
            .unwrap();
    let mut builder = crate::IndexBuilder::with_limits(&source.format, LIMITS).unwrap();
    stored.chunks(piece).for_each(|piece| builder.push(piece).unwrap());
    let made = builder.finish().unwrap();
    let index = FileIndex::decode_with(&made.encode(), &source.format, LIMITS).unwrap();
    assert_eq!(index, made);
    let extractor = WebDatasetRecordReader::new(&source.features);
    let mut all = Vec::new();
    for first in (0..index.len()).step_by(n as usize) {
        let n = n.min(index.len() - first);
        let ranges = index.stored_ranges(first, n, &source).unwrap();
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
        let part = |range: &Range<u64>| {
            bytes::Bytes::copy_from_slice(&stored[range.start as usize..range.end as usize])
        };
        let parts: Vec<_> = ranges.iter().map(part).collect();
        let opened = index.open(first, n, &source, &parts).unwrap();
        let places = opened.index.as_ref().unwrap_or(&index);
        let base = places.byte_range(first, 0).unwrap().start;
        for record in first..first + n {
            let range = places.byte_range(record, 1).unwrap();
            let bytes = &opened.data[(range.start - base) as usize..(range.end - base) as usize];
            assert_eq!(index.weight(record, 1), bytes.len() as u64);
            all.push(values(&extractor, bytes).map(|mut values| values.remove(0)));
        }
    }
    all
}

#[test]
fn a_link_is_the_file_that_it_leads_to() {
    let far = format!("{}/far", "d".repeat(200));
    let mut builder = Builder::new(Vec::new());
    link(&mut builder, "s/0.cls", "../blobs/late", EntryType::Symlink);
    file(&mut builder, "s/1.cls", b"one");
    link(&mut builder, "s/2.cls", "./s/1.cls", EntryType::Link);
    link(&mut builder, "s/3.cls", "2.cls", EntryType::Symlink);
    link(&mut builder, "s/4.cls", &format!("../{far}"), EntryType::Symlink);
    // A name that has one file before these links, and another at last.
    file(&mut builder, "twice", b"before");
    link(&mut builder, "s/5.cls", "twice", EntryType::Link);
    link(&mut builder, "s/6.cls", "../twice", EntryType::Symlink);
    file(&mut builder, "twice", b"at last");
    file(&mut builder, "blobs/late", &[7; 600]);
    file(&mut builder, &far, b"far");
    file(&mut builder, "blobs/empty", b"");
    link(&mut builder, "s/7.cls", "../blobs/empty", EntryType::Symlink);
    let plain = builder.into_inner().unwrap();
    let wanted: [&[u8]; 8] =
        [&[7; 600], b"one", b"one", b"one", b"far", b"before", b"at last", b""];
    let wanted = wanted.map(|content| Ok(content.to_vec()));
    for stored in [plain.clone(), crate::samples::gzip(&plain)] {
        for (piece, n) in [(1, 1), (700, 3), (1 << 20, 8)] {
            assert_eq!(read(&stored, piece, n), wanted, "{n} at a time");
        }
    }
}

#[test]
fn a_link_that_leads_to_no_file_of_the_archive_is_a_bad_record() {
    for (target, kind) in [
        ("elsewhere", EntryType::Symlink),
        ("../../elsewhere", EntryType::Symlink),
        ("1.cls", EntryType::Symlink),
        ("folder", EntryType::Symlink),
        ("3.cls", EntryType::Symlink),
        ("s/3.cls", EntryType::Link),
    ] {
        let mut builder = Builder::new(Vec::new());
        link(&mut builder, "s/1.cls", target, kind);
        file(&mut builder, "s/2.cls", b"good");
        link(&mut builder, "s/3.cls", "1.cls", EntryType::Symlink);
        let got = read(&builder.into_inner().unwrap(), 1 << 20, 9);
        let message = got[0].clone().unwrap_err();
        let said =
            format!("member `.cls` is a link to `{target}`, which is no file of this archive");
        assert!(message.starts_with(&said), "{message}");
        assert_eq!(got[1], Ok(b"good".to_vec()));
    }
}

#[test]
fn records_that_links_make_too_large_are_refused() {
    let mut builder = Builder::new(Vec::new());
    file(&mut builder, "large", &[1; 12_000]);
    link(&mut builder, "1.a", "large", EntryType::Link);
    link(&mut builder, "1.b", "large", EntryType::Link);
    let message = fail(&builder.into_inner().unwrap());
    assert!(message.contains("with what its links lead to it has 38400 bytes"), "{message}");
}

#[test]
fn numbers_are_text() {
    let extractor = extractor("v: { key: txt, dtype: f32, shape: [3] }");
    let read = |content: &[u8]| {
        let file = archive(&[("a.txt", content)]);
        values(&extractor, record(&file, 0)).map(|mut values| values.remove(0))
    };
    let floats = [1.5_f32, -2.0, 3e8].map(f32::to_le_bytes).concat();
    assert_eq!(read(b" 1.5, -2\n3e8 ").unwrap(), floats);
    for (content, message) in [
        (&b"1 2"[..], "member `.txt` has 2 values, the pipeline reads 3"),
        (b"1 2 3 4", "member `.txt` has more than 3 values"),
        (b"1 two 3", "member `.txt` holds `two`, which is no f32"),
        (b"\xff", "member `.txt` is not text"),
    ] {
        assert_eq!(read(content).unwrap_err(), message);
    }
}

#[test]
fn missing_members_have_defaults() {
    let extractor = extractor(&format!("{IMAGE} }}, defaults: {{ image: none, label: -1"));
    let read = |members| values(&extractor, record(&archive(members), 0));
    let number = |number: i64| number.to_le_bytes().to_vec();
    assert_eq!(read(&[("a.x", b"")]), Ok(vec![b"none".to_vec(), number(-1)]));
    assert_eq!(read(&[("a.cls", b"7.0")]), Ok(vec![b"none".to_vec(), number(7)]));
    assert!(read(&[("a.cls", b"")]).unwrap_err().contains("member `.cls` has 0 values"));
}

#[test]
fn records_without_what_is_wanted_say_so() {
    let extractor = extractor(IMAGE);
    let read = |members| values(&extractor, record(&archive(members), 0)).unwrap_err();
    let missing = "member `.jpg` or `.png` is missing; it has `.cls`, `.x.y`: if members of a record lie apart";
    assert!(read(&[("a.cls", b"1"), ("a.x.y", b"1")]).starts_with(missing));
    let twice: &[(&str, &[u8])] = &[("a.jpg", b"x"), ("a.cls", b"1"), ("a.JPG", b"y")];
    assert_eq!(read(twice), "it has two members `.jpg`");
}

#[test]
fn every_cut_is_found() {
    let file = archive(&[("a.jpg", b"first"), ("b.jpg", b"second")]);
    for end in 0..2048 + BLOCK_BYTES {
        let message = fail(&file[..end]);
        assert!(message.contains("cut short"), "{end}: {message}");
    }
    // One block is mark enough, as for other readers.
    assert_eq!(index(&file[..2048 + BLOCK_BYTES]).len(), 2);
}

#[test]
fn archives_that_lie_are_refused_by_record_and_byte() {
    let good = archive(&[("a.jpg", b"first"), ("b.jpg", b"second")]);
    let mut broken = good.clone();
    broken[1024 + 3] ^= 1;
    assert!(fail(&broken).starts_with("record 0 at byte 0: the header at byte 1024 has no valid"));
    assert!(fail(&[0x1f; 600]).contains("is this a tar file, and not compressed?"));
    let more = [&good[..], b"rubbish", &[7; 600]].concat();
    assert!(fail(&more).contains("there is something after the end mark"));
    assert!(fail(&more[..good.len() + 9]).contains("cut short"));

    let padded = [good.clone(), vec![0; 17 << 20]].concat();
    assert!(fail(&padded).contains("zeros after the end mark"));

    let with = |header: &Header| [header.as_bytes().as_slice(), &[0; 2048]].concat();
    let named = |size: u64, kind: EntryType| {
        let mut header = header(size, kind);
        header.set_path("a.jpg").unwrap();
        header.set_cksum();
        header
    };
    let large = fail(&with(&named(1 << 40, EntryType::Regular)));
    assert!(large.contains("the limit is 20000"), "{large}");
    let huge = fail(&with(&named(u64::MAX - 600, EntryType::Regular)));
    assert!(huge.contains("a size of"), "{huge}");
    let extension = fail(&with(&named(1 << 30, EntryType::XHeader)));
    assert!(extension.contains("the limit is 65536"), "{extension}");
    assert!(fail(&with(&named(9, EntryType::XHeader))).contains("`length key=value`"));
    assert!(fail(&with(&named(0, EntryType::GNUSparse))).contains("sparse"));

    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("size", &b"18446744073709551615"[..])]).unwrap();
    builder.append(&named(5, EntryType::Regular), &b"hello"[..]).unwrap();
    assert!(fail(&builder.into_inner().unwrap()).contains("a size of 18446744073709551615"));
    let many = archive(&vec![("a.jpg", &b""[..]); 60]);
    assert!(fail(&many).contains("the limit is 20000"));
    let names: Vec<String> = (0..101).map(|i| format!("{i}.jpg")).collect();
    let members: Vec<_> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    assert!(fail(&archive(&members)).contains("the limit is 100 records a file"));
}

proptest! {
    #[test]
    fn damaged_archives_never_panic(
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let long = "n".repeat(300) + ".jpg";
        let mut file = archive(&[("a.jpg", b"first"), ("a.cls", b"1"), (&long, &[3; 600])]);
        let place = at.index(file.len());
        file[place] = byte;
        file.truncate(cut.index(file.len()) + 1);
        let extractor = extractor(IMAGE);
        if let Ok(index) = index_in(&file, 1000) {
            prop_assert!(index.file_bytes() <= file.len() as u64);
            for i in 0..index.len() {
                let range = index.byte_range(i, 1).unwrap();
                let _ = values(&extractor, &file[range.start as usize..range.end as usize]);
            }
        }
        let _ = values(&extractor, &file);
    }
}
