//! Files that are read and files that are left out, by name.

use super::*;
use gristmill_sources::{
    SourceFormat, images::Images, jsonl::Jsonl, parquet::Parquet, tfrecord::TfRecord,
    webdataset::WebDataset,
};

fn there(keys: &[&str]) -> LocationListing {
    let info = |key: &&str| ObjectInfo { key: (*key).to_owned(), size: 1, etag: String::new() };
    let mut files: Vec<ObjectInfo> = keys.iter().map(info).collect();
    files.sort_by(|a, b| a.key.cmp(&b.key));
    LocationListing { files, ..LocationListing::default() }
}

fn chosen(
    there: &LocationListing,
    pattern: &str,
    format: &FormatDefinition,
) -> (Vec<String>, String) {
    let selectors = PathSelector::all(pattern).unwrap();
    let (read, left_out) = select(&selectors, format, there, "/place").unwrap();
    let said = if left_out.is_empty() { String::new() } else { left_out.to_string() };
    (read.into_iter().map(|info| info.key).collect(), said)
}

#[test]
fn other_files_of_a_folder_are_left_out_and_named() {
    let hub = there(&[
        "d/.gitattributes",
        "d/README.md",
        "d/_SUCCESS",
        "d/data/a.parquet",
        "d/data/b.parquet",
        "d/info.json",
        "d/",
    ]);
    let (read, said) = chosen(&hub, "d", &Parquet::DEFINITION);
    assert_eq!(read, ["d/data/a.parquet", "d/data/b.parquet"]);
    let expected = "left out 4 of 6 files: d/.gitattributes (hidden), d/README.md (not Parquet), \
                    d/_SUCCESS (its name begins with _), d/info.json (not Parquet); \
                    a glob that matches them reads them";
    assert_eq!(said, expected);
    assert_eq!(chosen(&hub, "d/", &Parquet::DEFINITION), (read, said));
    assert_eq!(chosen(&hub, "d/*.json", &Parquet::DEFINITION).0, ["d/info.json"]);
    assert_eq!(chosen(&hub, "d/_SUCCESS", &TfRecord::DEFINITION).0, ["d/_SUCCESS"]);
    assert_eq!(chosen(&hub, "d/.git*", &TfRecord::DEFINITION).0, ["d/.gitattributes"]);
    let (read, said) = chosen(&hub, "d/*", &TfRecord::DEFINITION);
    assert_eq!(read, ["d/README.md", "d/_SUCCESS", "d/info.json"]);
    assert!(said.contains("1 of 4 files: d/.gitattributes (hidden)"), "{said}");
}

#[test]
fn json_is_left_out_where_it_is_not_the_data() {
    let set = there(&["a.json", "b.jsonl.gz", "c.tfrecord", "d.txt", "train-0", "LICENSE"]);
    assert_eq!(
        chosen(&set, "", &Jsonl::DEFINITION).0,
        ["a.json", "b.jsonl.gz", "d.txt", "train-0"]
    );
    assert_eq!(chosen(&set, "", &TfRecord::DEFINITION).0, ["c.tfrecord", "train-0"]);
}

#[test]
fn images_are_what_is_called_so() {
    let set = there(&["t/_bg/1.jpg", "t/.x/2.jpg", "t/cat/3.PNG", "t/cat/notes.txt"]);
    let (read, said) = chosen(&set, "t", &Images::DEFINITION);
    assert_eq!(read, ["t/_bg/1.jpg", "t/cat/3.PNG"]);
    assert!(said.contains("t/.x/2.jpg (hidden), t/cat/notes.txt (not an image)"), "{said}");
    let (read, said) = chosen(&set, "t/*/*", &Images::DEFINITION);
    assert_eq!(read, ["t/_bg/1.jpg", "t/cat/3.PNG"]);
    assert!(said.contains("t/cat/notes.txt (not an image)"), "{said}");
}

#[test]
fn images_of_other_formats_are_named_with_those_that_are_read() {
    let set = there(&["t/cat/a.gif", "t/cat/b.HEIC", "t/x.txt"]);
    let selectors = PathSelector::all("t").unwrap();
    let error = select(&selectors, &Images::DEFINITION, &set, "/place").unwrap_err();
    let expected = "no file matches /place/t: left out 3 of 3 files: t/cat/a.gif (.gif is not read), \
                    t/cat/b.HEIC (.heic is not read), t/x.txt (not an image); \
                    JPEG, PNG, WebP, BMP, TIFF, PGM and PPM are read: convert others";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn braces_select_in_their_order_and_each_of_them_something() {
    let set = there(&["s-000.tar", "s-001.tar", "s-002.tar", "s-003.tar", "x/0.tar", "y/0.tar"]);
    assert_eq!(
        chosen(&set, "s-{001..002}.tar", &WebDataset::DEFINITION).0,
        ["s-001.tar", "s-002.tar"]
    );
    assert_eq!(chosen(&set, "{y,x}/*.tar", &WebDataset::DEFINITION).0, ["y/0.tar", "x/0.tar"]);
    let selectors = PathSelector::all("s-{002..004}.tar").unwrap();
    assert_eq!(shared_prefix(&selectors), "s-00");
    let error = select(&selectors, &WebDataset::DEFINITION, &set, "/place").unwrap_err();
    assert_eq!(error.to_string(), "no file matches /place/s-004.tar");
}

#[test]
fn folders_are_entered_only_where_something_may_match() {
    let entered = |pattern: &str, key: &str| {
        enters(&PathSelector::all(pattern).unwrap(), key, &TfRecord::DEFINITION)
    };
    for (pattern, key) in [
        ("", "a/"),
        ("a", "a/"),
        ("a", "a/b/"),
        ("a/b/c", "a/"),
        ("*/x-*", "a/"),
        ("a/**/x", "a/"),
        ("a/**/x", "a/b/c/"),
        (".h/*", ".h/"),
    ] {
        assert!(entered(pattern, key), "{pattern} {key}");
    }
    for (pattern, key) in [
        ("", ".git/"),
        ("", "_delta_log/"),
        ("a", "a/.git/"),
        ("a", "ab/"),
        ("*/x-*", "a/b/"),
        ("*/x-*", ".git/"),
        ("a/**/x", "b/"),
        ("a/**/x", "a/.git/"),
        ("x-*", "y/"),
    ] {
        assert!(!entered(pattern, key), "{pattern} {key}");
    }
}

#[test]
fn a_path_that_is_no_file_is_named_and_one_to_be_read_is_an_error() {
    let mut set = there(&["a"]);
    set.others = vec![
        ("broken".to_owned(), Some(UnreadableReason::BrokenLink)),
        (".git/".to_owned(), None),
        ("notes.md".to_owned(), Some(UnreadableReason::Unreadable("permission denied".to_owned()))),
    ];
    let (read, said) = chosen(&set, "", &TfRecord::DEFINITION);
    assert_eq!(read, ["a"]);
    assert!(
        said.starts_with("left out 3 of 4 files: .git/ (hidden), broken (broken link), "),
        "{said}"
    );
    set.others.push((
        "shard".to_owned(),
        Some(UnreadableReason::Unreadable("permission denied".to_owned())),
    ));
    let refused = |pattern: &str| {
        let selectors = PathSelector::all(pattern).unwrap();
        select(&selectors, &TfRecord::DEFINITION, &set, "/place").unwrap_err().to_string()
    };
    assert_eq!(refused(""), "cannot read /place/shard: permission denied");
    assert_eq!(refused("broken"), "cannot read /place/broken: broken link");
    assert_eq!(chosen(&set, "a*", &TfRecord::DEFINITION).0, ["a"]);
}

fn expanded(text: &str) -> Vec<String> {
    expand_braces(text).unwrap()
}

#[test]
fn braces_stand_for_what_a_shell_makes_of_them() {
    assert_eq!(expanded("a-{000..003}.tar"), ["a-000.tar", "a-001.tar", "a-002.tar", "a-003.tar"]);
    assert_eq!(expanded("{a,b}/x"), ["a/x", "b/x"]);
    assert_eq!(expanded("{8..11}"), ["8", "9", "10", "11"]);
    assert_eq!(expanded("{08..10}"), ["08", "09", "10"]);
    assert_eq!(expanded("{0..10..5}"), ["0", "5", "10"]);
    assert_eq!(expanded("{3..1}"), ["3", "2", "1"]);
    assert_eq!(expanded("{-1..1}"), ["-1", "0", "1"]);
    assert_eq!(expanded("{a..c}"), ["a", "b", "c"]);
    assert_eq!(expanded("{a,b{1..2}}-{x,}"), ["a-x", "a-", "b1-x", "b1-", "b2-x", "b2-"]);
    assert_eq!(expanded("{train,val}/*-[{]?"), ["train/*-[{]?", "val/*-[{]?"]);
    for same in ["x", "", "{}", "{a}", "a{b", "}{", "{1..b}", "[{a,b}]x", "[]{a,b}]"] {
        assert_eq!(expanded(same), [same]);
    }
    assert_eq!(expanded("{a{1,2}}"), ["{a1}", "{a2}"]);
}

#[test]
fn there_are_not_too_many() {
    assert_eq!(expanded("{1..100000}").len(), 100_000);
    for many in ["{1..100001}", "{1..9223372036854775807}", "{1..1000}{1..1000}"] {
        assert!(expand_braces(many).unwrap_err().contains("100000"), "{many}");
    }
}
