//! The store on real files: conformance, races of processes, folders of the user, errors of the disk.

mod faults;
mod simulated;

use super::*;
use gristmill_ports::conformance;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

const BUCKET: &str = "own";
const FOLDER: &str = "dir-0123456789abcdef01234567";

fn at(key: &str) -> ObjectPath {
    ObjectPath::new(BUCKET, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_conform_and_stay() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("objects");
    let objects = FileObjects::open(&root, BUCKET).unwrap();
    conformance::objects(&objects, BUCKET, "t").await;
    conformance::objects(&objects, BUCKET, "t/n/jobs/J É/x").await;
    let body = Bytes::from(vec![7; 3 << 20]);
    for key in ["k", "k/", "k/a", "K"] {
        objects.put_if_absent(&at(key), body.clone(), "1").await.unwrap();
    }
    let again = FileObjects::open(&root, BUCKET).unwrap();
    let same = again.put_if_absent(&at("k"), body.clone(), "2").await.unwrap();
    assert_eq!(same, PutOutcome::Created, "an equal body is a put repeated");
    assert_eq!(again.get(&at("k")).await.unwrap(), body);
    let listed = again.list(BUCKET, "").await.unwrap();
    let keys: Vec<_> = listed.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["K", "k", "k/", "k/a", "t/n/jobs/J É/x/race", "t/race"]);
    let file = fs::metadata(root.join("own/k=")).unwrap();
    assert_eq!((file.mode() & 0o777, file.nlink()), (0o600, 1), "private, without its draft");
    assert_eq!(fs::metadata(root.join("own/k+")).unwrap().mode() & 0o777, 0o700);
    again
        .delete(BUCKET, &keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>())
        .await
        .unwrap();
    assert_eq!(fs::read_dir(root.join("own")).unwrap().count(), 0, "empty folders go");

    let long = objects.put_if_absent(&at(&"k".repeat(1025)), body.clone(), "1").await;
    assert!(matches!(long, Err(ObjectError::Rejected(_))), "{long:?}");
    for bucket in ["elsewhere", FOLDER] {
        let other = objects.put_if_absent(&ObjectPath::new(bucket, "k"), body.clone(), "1").await;
        assert!(matches!(other, Err(ObjectError::Rejected(_))), "{other:?}");
        let listed = objects.list(bucket, "").await.unwrap_err();
        let is_known_later = matches!(listed, ObjectError::Unavailable(_));
        assert_eq!(is_known_later, bucket == FOLDER, "{listed}");
    }
}

/// Puts and deletes by a process of its own; see the test below.
#[tokio::test]
#[ignore = "a part of another test"]
async fn put_and_delete() {
    let Some(root) = std::env::var_os("GRISTMILL_TEST_ROOT") else { return };
    let objects = FileObjects::open(root.as_ref(), BUCKET).unwrap();
    let me = std::process::id().to_string();
    let mut created = 0;
    for i in 0..200 {
        let path = at(&format!("t/n/jobs/{}/{i}.gmc", i % 7));
        let put = objects.put_if_absent(&path, Bytes::from(me.clone()), &me).await.unwrap();
        created += usize::from(put == PutOutcome::Created);
        // Folders vanish under the puts of the others.
        let own = format!("t/n/jobs/{}/deep/{me}/{i}.gmc", i % 5);
        objects.put_if_absent(&at(&own), Bytes::new(), &me).await.unwrap();
        objects.delete(BUCKET, &[own]).await.unwrap();
        objects.sweep().unwrap();
    }
    println!("\ncreated {created}");
}

#[tokio::test]
async fn one_of_several_processes_creates_each_object() {
    let temp = tempfile::tempdir().unwrap();
    let start = |_| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "objects::tests::put_and_delete"])
            .env("GRISTMILL_TEST_ROOT", temp.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..4).map(start).collect();
    let created = processes.into_iter().map(|process| {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("created ")).unwrap();
        line.parse::<usize>().unwrap()
    });
    assert_eq!(created.sum::<usize>(), 200);
    let objects = FileObjects::open(temp.path(), BUCKET).unwrap();
    assert_eq!(objects.list(BUCKET, "t/n/").await.unwrap().len(), 200, "nothing else is left");
}

#[tokio::test]
async fn broken_files_links_and_drafts_are_no_objects() {
    let temp = tempfile::tempdir().unwrap();
    let objects = FileObjects::open(temp.path(), BUCKET).unwrap();
    let put = async |body: &'static str| {
        objects.put_if_absent(&at("d/k"), body.into(), body).await.unwrap()
    };
    let (file, secret) = (temp.path().join("own/d+/k="), temp.path().join("secret"));
    fs::write(&secret, "secret").unwrap();
    for damage in 0..4 {
        put("whole").await;
        match damage {
            3 => fs::remove_file(&file).and_then(|()| symlink(&secret, &file)).unwrap(),
            kept => fs::File::options().write(true).open(&file).unwrap().set_len(kept).unwrap(),
        }
        assert!(matches!(objects.get(&at("d/k")).await, Err(ObjectError::NotFound(_))));
        assert_eq!(objects.list(BUCKET, "d/").await.unwrap(), []);
        assert_eq!(
            (put("again").await, put("third").await),
            (PutOutcome::Created, PutOutcome::Exists)
        );
        objects.delete(BUCKET, &["d/k".to_owned()]).await.unwrap();
    }
    assert_eq!(fs::read(&secret).unwrap(), b"secret");

    // A delete may not come between the look and the removal of a put that replaces a broken file.
    put("whole").await;
    let lock = disk::Disk::lock_folder(&HostDisk, &temp.path().join("own")).unwrap();
    let store = Arc::clone(&objects.store);
    let delete = std::thread::spawn(move || store.delete(&["d/k".to_owned()]));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(file.exists(), "a delete waits for the lock");
    drop(lock);
    delete.join().unwrap().unwrap();
    assert!(!file.exists());

    let draft = |name: &str| temp.path().join("own").join(name);
    let alive = disk::Disk::create(&HostDisk, &draft("1.draft")).unwrap();
    fs::write(draft("2.draft"), "of a killed writer").unwrap();
    objects.sweep().unwrap();
    assert!(draft("1.draft").exists() && !draft("2.draft").exists());
    drop(alive);
    objects.sweep().unwrap();
    assert!(!draft("1.draft").exists());
}

#[tokio::test]
async fn a_full_disk_is_said_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(temp.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: only root can mount a small disk");
        return;
    }
    let objects = FileObjects::open(temp.path(), BUCKET).unwrap();
    let put = async |bytes| objects.put_if_absent(&at("k"), vec![1; bytes].into(), "1").await;
    let (full, fits) = (put(2 << 20).await, put(1 << 19).await);
    fs::write(temp.path().join("filler"), vec![1; 2 << 20]).unwrap_err();
    FileObjects::open(temp.path(), BUCKET).unwrap();
    let left = objects
        .delete(BUCKET, &["k".to_owned()])
        .await
        .map(|()| fs::read_dir(temp.path().join("own")).unwrap().count());
    assert!(Command::new("umount").arg(temp.path()).status().unwrap().success());
    let Err(ObjectError::Unavailable(text)) = full else { panic!("{full:?}") };
    assert!(text.starts_with("no space left below /") && text.ends_with(" bytes free)"), "{text}");
    assert_eq!((fits.unwrap(), left.unwrap()), (PutOutcome::Created, 0));
}

#[tokio::test]
async fn a_folder_is_read_and_leads_nowhere_but_where_its_links_led() {
    let temp = tempfile::tempdir().unwrap();
    let (data, out) = (temp.path().join("data"), temp.path().join("out"));
    fs::create_dir_all(data.join("train")).unwrap();
    fs::create_dir_all(&out).unwrap();
    fs::write(data.join("train/0"), vec![5; 3 << 20]).unwrap();
    fs::write(out.join("secret"), "secret").unwrap();
    fs::write(out.join("other"), "other").unwrap();
    symlink("../out/secret", data.join("file")).unwrap();
    symlink(&out, data.join("folder")).unwrap();
    symlink("train/0", data.join("inside")).unwrap();
    // Two processes: one adds the folder, the other reads it.
    let registry = FolderRegistry::new(temp.path());
    registry.add(FOLDER, &data).unwrap();
    let objects = FileObjects::open(&temp.path().join("objects"), BUCKET).unwrap();
    let objects = objects.with_folders(FolderRegistry::new(temp.path()));
    let get = async |key: &str| match objects.get(&ObjectPath::new(FOLDER, key)).await {
        Ok(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Err(ObjectError::NotFound(_)) => "absent".to_owned(),
        Err(ObjectError::Denied(_)) => "denied".to_owned(),
        Err(error) => panic!("{key}: {error}"),
    };
    assert_eq!((get("file").await, get("folder/secret").await), ("secret".into(), "secret".into()));
    assert_eq!(get("inside").await.len(), 3 << 20);
    // Links made or changed later count when the folder is added again.
    symlink(out.join("other"), data.join("new")).unwrap();
    fs::remove_file(data.join("file")).unwrap();
    symlink(out.join("other"), data.join("file")).unwrap();
    assert_eq!((get("file").await, get("new").await), ("secret".into(), "denied".into()));
    registry.add(FOLDER, &data).unwrap();
    assert_eq!((get("file").await, get("new").await), ("other".into(), "other".into()));
    for key in
        ["../out/secret", "train/../../out/secret", "/etc/passwd", "train", "train/", "no", ""]
    {
        assert_eq!(get(key).await, "absent", "{key}");
    }
    let listed = objects.list(FOLDER, "").await.unwrap();
    let keys: Vec<_> = listed.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["file", "folder/other", "folder/secret", "inside", "new", "train/0"]);

    assert_eq!(registry.all().unwrap(), [(FOLDER.to_owned(), data.canonicalize().unwrap())]);
    assert!(registry.add("data", &data).is_err() && registry.add(FOLDER, &out.join("no")).is_err());
    let put = objects.put_if_absent(&ObjectPath::new(FOLDER, "k"), Bytes::new(), "1").await;
    assert!(matches!(put, Err(ObjectError::Rejected(_))) && !data.join("k").exists());
}

#[tokio::test]
async fn a_file_that_changes_or_shrinks_is_a_change() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("f");
    fs::write(&file, vec![5; 64 << 20]).unwrap();
    let registry = FolderRegistry::new(temp.path());
    registry.add(FOLDER, temp.path()).unwrap();
    let objects = FileObjects::open(&temp.path().join("objects"), BUCKET).unwrap();
    let (objects, path) = (objects.with_folders(registry), ObjectPath::new(FOLDER, "f"));
    let etag = objects.list(FOLDER, "f").await.unwrap().remove(0).etag;
    assert_eq!(objects.get_range(&path, 1..9, Some(&etag)).await.unwrap(), vec![5; 8]);
    let shrink = std::thread::spawn({
        let file = fs::File::options().write(true).open(&file).unwrap();
        move || (0..64).rev().for_each(|mib| file.set_len(mib << 20).unwrap())
    });
    // Whole, or an error: which depends on who is faster.
    let read = objects.get_range(&path, 0..64 << 20, Some(&etag)).await;
    shrink.join().unwrap();
    assert!(matches!(&read, Err(ObjectError::Changed(_))) || read.unwrap().len() == 64 << 20);
    let changed = objects.get_range(&path, 1..9, Some(&etag)).await;
    assert!(matches!(changed, Err(ObjectError::Changed(_))), "{changed:?}");
}

#[tokio::test]
async fn a_file_under_another_key_is_absent_and_a_damaged_description_is_put_again() {
    let temp = tempfile::tempdir().unwrap();
    let objects = FileObjects::open(&temp.path().join("objects"), BUCKET).unwrap();
    let (one, other) = (at("t/n/one.json"), at("t/n/other.json"));
    for (path, body) in [(&one, "first"), (&other, "second")] {
        objects.put_if_absent(path, body.into(), body).await.unwrap();
    }
    let file = |path: &ObjectPath| {
        temp.path().join("objects/own/t+/n+").join(format!("{}=", &path.key[4..]))
    };
    fs::copy(file(&other), file(&one)).unwrap();
    assert!(matches!(objects.get(&one).await, Err(ObjectError::NotFound(_))));
    objects.put_if_absent(&one, "third".into(), "3").await.unwrap();
    assert_eq!(objects.get(&one).await.unwrap(), "third");

    let mut bytes = fs::read(file(&other)).unwrap();
    bytes[2] ^= 1;
    fs::write(file(&other), bytes).unwrap();
    assert!(matches!(objects.get(&other).await, Err(ObjectError::NotFound(_))));
    objects.put_if_absent(&other, "fourth".into(), "4").await.unwrap();
    assert_eq!(objects.get(&other).await.unwrap(), "fourth");
}

#[tokio::test]
async fn no_object_counts_as_absent_without_the_folder_of_its_bucket() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("objects");
    let objects = FileObjects::open(&root, BUCKET).unwrap();
    assert!(matches!(objects.get(&at("k")).await, Err(ObjectError::NotFound(_))));
    fs::rename(&root, temp.path().join("away")).unwrap();
    assert!(matches!(objects.get(&at("k")).await, Err(ObjectError::Unavailable(_))));
}
