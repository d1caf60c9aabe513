//! Archives of every kind that writers make, and every kind of lie.

use super::*;
use crate::Parsed;
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

const LIMITS: Limits = Limits { record_bytes: 20_000, records: 100 };

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
    let mut builder = Box::new(Scanner::new(LIMITS));
    for piece in file.chunks(piece) {
        builder.push(piece).map_err(|error| error.to_string())?;
    }
    builder.finish().map_err(|error| error.to_string())
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

fn extractor(features: &str) -> Extractor {
    let yaml = format!("{{ webdataset: x, features: {{ {features} }} }}");
    Extractor::new(&Parsed::of(&yaml).unwrap().features)
}

const IMAGE: &str = "image: { key: jpg;png, dtype: bytes }, label: { key: cls, dtype: i64 }";

/// The bytes of every value of a record.
fn values(extractor: &Extractor, record: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut cells: Vec<Cell> = extractor.wanted.iter().map(|_| Cell::default()).collect();
    extractor.extract(record, &mut cells)?;
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
fn links_directories_and_their_kind_are_no_records() {
    let mut builder = Builder::new(Vec::new());
    for kind in [EntryType::Directory, EntryType::Symlink, EntryType::Link, EntryType::Fifo] {
        let mut header = header(0, kind);
        header.set_path("x.jpg").unwrap();
        header.set_cksum();
        builder.append(&header, &b""[..]).unwrap();
    }
    let file = builder.into_inner().unwrap();
    assert_eq!(index(&file).len(), 0);
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
fn records_without_what_is_wanted_say_so() {
    let extractor = extractor(IMAGE);
    let read = |members| values(&extractor, record(&archive(members), 0)).unwrap_err();
    assert_eq!(read(&[("a.cls", b"1")]), "member `.jpg` or `.png` is missing");
    let twice: &[(&str, &[u8])] = &[("a.jpg", b"x"), ("a.cls", b"1"), ("a.JPG", b"y")];
    assert_eq!(read(twice), "it has two members `.jpg`");
}

#[test]
fn every_cut_is_found() {
    let file = archive(&[("a.jpg", b"first"), ("b.jpg", b"second")]);
    for end in (1..2048).filter(|end| *end != 1024) {
        let message = fail(&file[..end]);
        assert!(message.contains("cut short"), "{end}: {message}");
    }
    // Without its end mark it is still whole.
    assert_eq!(index(&file[..2048]).len(), 2);
    assert_eq!(index(&[]).len(), 0);
}

#[test]
fn archives_that_lie_are_refused_by_record_and_byte() {
    let good = archive(&[("a.jpg", b"first"), ("b.jpg", b"second")]);
    let mut broken = good.clone();
    broken[1024 + 3] ^= 1;
    assert!(fail(&broken).starts_with("record 0 at byte 0: the header at byte 1024 has no valid"));
    assert!(fail(&[0x1f; 600]).contains("is this a tar file, and not compressed?"));
    assert!(
        fail(&[good.clone(), good.clone()].concat()).contains("there is more after the end mark")
    );

    let padded = [good.clone(), vec![0; 17 << 20]].concat();
    assert!(fail(&padded).contains("zeros follow the end mark"));

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
