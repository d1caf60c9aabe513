//! Folders with links, loops, special files and unreadable entries.

use super::*;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, fs::symlink, net::UnixListener},
};

/// Every key below `root` that starts with `prefix`, with its kind.
fn found(root: &Path, prefix: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    walk(root, prefix, &mut |entry| {
        match entry {
            FolderEntry::File(FolderFile { key, link: None, .. }) => {
                found.insert(key.to_owned(), "file".to_owned());
            }
            FolderEntry::File(FolderFile { key, link: Some(link), .. }) => {
                let target = link.target.file_name().unwrap().to_string_lossy();
                found.insert(key.to_owned(), format!("{} -> {target}", link.key));
            }
            FolderEntry::Other(key, why) => {
                found.insert(key.to_owned(), why.to_string());
            }
            FolderEntry::Folder(key) => return key != "skip/",
        }
        true
    })
    .unwrap();
    found
}

fn pairs(found: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    found.iter().map(|(key, what)| (key.as_str(), what.as_str())).collect()
}

#[test]
fn links_are_followed_wherever_they_lead() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("hub/snapshots/abc");
    let blobs = temp.path().join("hub/blobs");
    fs::create_dir_all(&root).unwrap();
    fs::create_dir_all(blobs.join("more/deep")).unwrap();
    for file in ["1", "2", "more/deep/3"] {
        fs::write(blobs.join(file), file).unwrap();
    }
    symlink("../../blobs/1", root.join("a.parquet")).unwrap();
    symlink(blobs.join("2"), root.join("b.parquet")).unwrap();
    symlink("../../blobs/more", root.join("more")).unwrap();
    symlink("a.parquet", root.join("again.parquet")).unwrap();
    fs::write(root.join("own"), "x").unwrap();
    symlink("own", root.join("same")).unwrap();
    let all = found(&root, "");
    let expected = [
        ("a.parquet", "a.parquet -> 1"),
        ("again.parquet", "again.parquet -> 1"),
        ("b.parquet", "b.parquet -> 2"),
        ("more/deep/3", "more -> more"),
        ("own", "file"),
        ("same", "same -> own"),
    ];
    assert_eq!(pairs(&all), expected);
    assert_eq!(pairs(&found(&root, "more/de")), [("more/deep/3", "more -> more")]);
    assert_eq!(pairs(&found(&root, "more/deep/")), [("more/deep/3", "more -> more")]);
    assert_eq!(found(&root, "none/x"), BTreeMap::new());
}

#[test]
fn unreadable_files_are_named_with_the_reason() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    symlink("nowhere", root.join("broken")).unwrap();
    symlink("ring", root.join("ring")).unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::write(root.join(OsStr::from_bytes(b"caf\xe9")), "x").unwrap();
    fs::create_dir(root.join(OsStr::from_bytes(b"dir\xe9"))).unwrap();
    fs::create_dir(root.join("skip")).unwrap();
    fs::write(root.join("skip/x"), "x").unwrap();
    let mut deep = root.to_owned();
    for _ in 0..5 {
        deep.push("n".repeat(210));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("x"), "x").unwrap();
    let all = found(root, "");
    let long = all.keys().find(|key| key.starts_with("nn")).unwrap().clone();
    let expected = [
        ("broken", "broken link"),
        ("caf\u{fffd}", "its name is not UTF-8: rename it"),
        ("dir\u{fffd}/", "its name is not UTF-8: rename it"),
        (long.as_str(), "its path has more than 1024 bytes"),
        ("pipe", "a pipe"),
        ("ring", "broken link"),
        ("socket", "a socket"),
    ];
    assert_eq!(pairs(&all), expected);
    assert!(walk(&root.join("absent"), "", &mut |_| true).is_err());
}

#[test]
fn a_folder_is_not_entered_from_within_itself() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("in");
    for folder in ["d", "e"] {
        fs::create_dir_all(root.join(folder)).unwrap();
        fs::write(root.join(folder).join("x"), "x").unwrap();
    }
    symlink("..", root.join("up")).unwrap();
    symlink(".", root.join("d/self")).unwrap();
    symlink("../e", root.join("d/over")).unwrap();
    symlink("../d", root.join("e/back")).unwrap();
    let inside = "a link to a folder that contains it";
    let all = found(&root, "");
    let expected = [
        ("d/over/back", inside),
        ("d/over/x", "d/over -> e"),
        ("d/self", inside),
        ("d/x", "file"),
        ("e/back/over", inside),
        ("e/back/self", inside),
        ("e/back/x", "e/back -> d"),
        ("e/x", "file"),
        ("up", inside),
    ];
    assert_eq!(pairs(&all), expected);
}

#[test]
fn folders_linked_to_each_other_come_to_an_end() {
    let temp = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..12).map(|i| format!("f{i}")).collect();
    for name in &names {
        fs::create_dir(temp.path().join(name)).unwrap();
        for other in &names {
            let _ = symlink(format!("../{other}"), temp.path().join(name).join(other));
        }
    }
    let all = found(temp.path(), "f0/");
    assert!(all.values().any(|why| why.contains("more than 4 links")), "{}", all.len());
}
