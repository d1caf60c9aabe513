//! The items in one redb file: opening, commits, reads, and what follows an error.

#[cfg(test)]
mod faults;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use gristmill_ports::{Item, ItemKey, TableError, WriteOutcome};
use redb::backends::FileBackend;
use redb::{
    AccessGuard, Builder, Database, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};
use rustix::fs::OFlags;

/// Partition and sort key, which the store compares as bytes.
type StoredKey = (&'static str, &'static str);
/// Version, expiry (0: none) and body.
type StoredItem = (u64, u64, &'static [u8]);
type StoredItems = ReadOnlyTable<StoredKey, StoredItem>;

const ITEMS: TableDefinition<'static, StoredKey, StoredItem> = TableDefinition::new("items");
const FILE_NAME: &str = "table.redb";
const CACHE_BYTES: usize = 16 << 20;
/// A larger file of which not even a quarter is content is compacted when it is opened.
const COMPACT_FROM_BYTES: u64 = 16 << 20;

/// A conditional write.
#[derive(Debug)]
pub(super) struct ItemWrite {
    pub key: ItemKey,
    pub expected: u64,
    pub body: Bytes,
    pub expires_at_s: Option<u64>,
}

/// Why a call failed. A commit that failed may have been applied.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct StoreFailure {
    /// Which opening of the file failed.
    opening: u64,
    error: redb::Error,
}

type OpenDatabase = Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>;

struct Opened {
    /// None after an error until the file can be opened again.
    database: Option<Database>,
    /// Counts openings.
    opening: u64,
}

/// Items, as last committed.
pub(super) struct ItemStore {
    path: PathBuf,
    open: OpenDatabase,
    opened: RwLock<Opened>,
}

impl std::fmt::Debug for ItemStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ItemStore {
    /// Opens the file in `dir`, and the lock that keeps other processes from it.
    pub fn in_directory(dir: &Path) -> Result<(File, Self), TableError> {
        let path = dir.join(FILE_NAME);
        let lock = lock(dir).map_err(|error| refusal(&path, &error))?;
        create_file(dir, &path).map_err(|error| refusal(&path, &error))?;
        let file = path.clone();
        let open = move || open_database(FileBackend::new(private_file(&file, false)?)?);
        let store = Self::open(path.clone(), Box::new(open));
        Ok((lock, store.map_err(|error| refusal(&path, &error))?))
    }

    fn open(path: PathBuf, open: OpenDatabase) -> Result<Self, redb::Error> {
        let opened = Opened { database: Some(open()?), opening: 0 };
        Ok(Self { path, open, opened: RwLock::new(opened) })
    }

    /// Opens the file again unless that has been done since `failure`. One thread calls this.
    pub fn reopen(&self, failure: &StoreFailure) -> Result<(), StoreFailure> {
        let opening = {
            let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
            if opened.opening != failure.opening {
                return Ok(());
            }
            opened.database = None;
            opened.opening
        };
        let database = (self.open)().map_err(|error| StoreFailure { opening, error })?;
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        *opened = Opened { database: Some(database), opening: opening + 1 };
        Ok(())
    }

    fn with_database<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreFailure> {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        let result = match &opened.database {
            Some(database) => work(database),
            None => Err(redb::Error::DatabaseClosed),
        };
        result.map_err(|error| StoreFailure { opening: opened.opening, error })
    }

    /// Opens the file if it is closed. Only the thread that writes calls this.
    fn ready(&self) -> Result<(), StoreFailure> {
        let closed = {
            let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
            opened.database.is_none().then_some(opened.opening)
        };
        let Some(opening) = closed else { return Ok(()) };
        self.reopen(&StoreFailure { opening, error: redb::Error::DatabaseClosed })
    }

    /// Applies writes in their order, in one synced commit.
    pub fn commit(&self, writes: &[ItemWrite]) -> Result<Vec<WriteOutcome>, StoreFailure> {
        self.ready()?;
        self.with_database(|database| {
            let transaction = database.begin_write()?;
            let mut items = transaction.open_table(ITEMS)?;
            let outcomes: Result<Vec<_>, _> =
                writes.iter().map(|write| apply(&mut items, write)).collect();
            let outcomes = outcomes?;
            drop(items);
            match outcomes.contains(&WriteOutcome::Written) {
                true => transaction.commit()?,
                false => transaction.abort()?,
            }
            Ok(outcomes)
        })
    }

    /// Looks at `limit` items from `from` on, moves `from` behind them, and removes those that have expired.
    pub fn sweep(
        &self,
        from: &mut ItemKey,
        now_s: u64,
        limit: usize,
    ) -> Result<usize, StoreFailure> {
        self.ready()?;
        let start = (from.pk.as_str(), from.sk.as_str());
        let (expired, next) = self.with_items(|items| {
            let (mut expired, mut seen) = (Vec::new(), 0);
            for entry in items.range(start..)? {
                let (key, stored) = entry?;
                let (pk, sk) = key.value();
                let key = ItemKey { pk: pk.to_owned(), sk: sk.to_owned() };
                if seen == limit {
                    return Ok((expired, key));
                }
                seen += 1;
                let (_, expires_at_s, _) = stored.value();
                if expires_at_s != 0 && expires_at_s <= now_s {
                    expired.push(key);
                }
            }
            Ok((expired, ItemKey { pk: String::new(), sk: String::new() }))
        })?;
        if !expired.is_empty() {
            self.with_database(|database| {
                let transaction = database.begin_write()?;
                let mut items = transaction.open_table(ITEMS)?;
                for key in &expired {
                    items.remove((key.pk.as_str(), key.sk.as_str()))?;
                }
                drop(items);
                Ok(transaction.commit()?)
            })?;
        }
        *from = next;
        Ok(expired.len())
    }

    fn with_items<T>(
        &self,
        read: impl FnOnce(&StoredItems) -> Result<T, redb::Error>,
    ) -> Result<T, StoreFailure> {
        self.with_database(|database| read(&database.begin_read()?.open_table(ITEMS)?))
    }

    pub fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, StoreFailure> {
        self.with_items(|items| {
            let one = |key: &ItemKey| -> Result<Option<Item>, redb::Error> {
                Ok(items.get((key.pk.as_str(), key.sk.as_str()))?.map(|stored| item(&stored)))
            };
            keys.iter().map(one).collect()
        })
    }

    pub fn query(&self, pk: &str, prefix: &str) -> Result<Vec<(String, Item)>, StoreFailure> {
        self.with_items(|items| {
            let mut found = Vec::new();
            for entry in items.range((pk, prefix)..)? {
                let (key, stored) = entry?;
                let (partition, sk) = key.value();
                if partition != pk || !sk.starts_with(prefix) {
                    break;
                }
                found.push((sk.to_owned(), item(&stored)));
            }
            Ok(found)
        })
    }

    pub fn range(
        &self,
        pk: &str,
        keys: RangeInclusive<&str>,
    ) -> Result<Vec<(String, Item)>, StoreFailure> {
        self.with_items(|items| {
            items.range((pk, *keys.start())..=(pk, *keys.end()))?.map(listed).collect()
        })
    }

    pub fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, Item)>, StoreFailure> {
        // No partition key sorts between `pk` and `pk` with a zero byte appended.
        let end = format!("{pk}\0");
        self.with_items(|items| {
            items.range((pk, "")..(end.as_str(), ""))?.rev().take(limit).map(listed).collect()
        })
    }

    pub fn bytes_on_disk(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |found| found.blocks() * 512)
    }

    /// What a call answers after `failure`.
    pub fn unavailable(&self, failure: &StoreFailure) -> TableError {
        TableError::Unavailable(described(&self.path, &failure.error))
    }
}

type Stored<'a> = AccessGuard<'a, StoredItem>;

fn item(stored: &Stored<'_>) -> Item {
    let (version, _, body) = stored.value();
    Item { version, body: Bytes::copy_from_slice(body) }
}

/// An entry as queries return it.
fn listed(
    entry: Result<(AccessGuard<'_, StoredKey>, Stored<'_>), redb::StorageError>,
) -> Result<(String, Item), redb::Error> {
    let (key, stored) = entry?;
    Ok((key.value().1.to_owned(), item(&stored)))
}

fn apply(
    items: &mut redb::Table<'_, StoredKey, StoredItem>,
    write: &ItemWrite,
) -> Result<WriteOutcome, redb::Error> {
    let key = (write.key.pk.as_str(), write.key.sk.as_str());
    let current = items.get(key)?;
    if current.as_ref().map_or(0, |stored| stored.value().0) != write.expected {
        return Ok(WriteOutcome::Conflict(current.map(|stored| item(&stored))));
    }
    drop(current);
    items.insert(key, (write.expected + 1, write.expires_at_s.unwrap_or(0), &write.body[..]))?;
    Ok(WriteOutcome::Written)
}

/// Opens or creates the database in `backend`. A crash at any point leaves what was last synced.
fn open_database(backend: impl StorageBackend) -> Result<Database, redb::Error> {
    let length = write_back(&backend)?;
    let mut database = Builder::new()
        .set_cache_size(CACHE_BYTES)
        // Reports a damaged file, which would otherwise panic later.
        .set_check_integrity_on_open(true)
        .create_with_backend(backend)?;
    if matches!(
        database.begin_read()?.open_table(ITEMS),
        Err(redb::TableError::TableDoesNotExist(_))
    ) {
        let transaction = database.begin_write()?;
        transaction.open_table(ITEMS)?;
        transaction.commit()?;
    }
    if length > COMPACT_FROM_BYTES {
        let transaction = database.begin_write()?;
        let content = transaction.stats()?.stored_bytes();
        transaction.abort()?;
        if content < length / 4 {
            database.compact()?;
        }
    }
    Ok(database)
}

/// Writes every byte back to its place, and syncs. After a sync that failed the kernel may show bytes that are not on
/// the disk and that no later sync writes: the next commits would build on them.
fn write_back(backend: &impl StorageBackend) -> std::io::Result<u64> {
    let length = backend.len()?;
    let mut piece = vec![0; 1 << 18];
    let mut at = 0;
    while at < length {
        let left = usize::try_from(length - at).unwrap_or(usize::MAX);
        let part = piece.len().min(left);
        backend.read(at, &mut piece[..part])?;
        backend.write(at, &piece[..part])?;
        at += part as u64;
    }
    backend.sync_data()?;
    Ok(length)
}

/// Takes the lock of `dir`, which is created if it is absent.
fn lock(dir: &Path) -> Result<File, redb::Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let file = private_file(&dir.join("table.lock"), true)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(redb::Error::DatabaseAlreadyOpen),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Creates the file whole: a power cut leaves none or a complete one.
fn create_file(dir: &Path, path: &Path) -> Result<(), redb::Error> {
    if path.try_exists()? {
        return Ok(());
    }
    let draft = path.with_extension("new");
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    open_database(FileBackend::new(private_file(&draft, true)?)?)?.close()?;
    std::fs::rename(&draft, path)?;
    File::open(dir)?.sync_all()?;
    Ok(())
}

/// Opens a file that is no link, for its owner alone.
fn private_file(path: &Path, create: bool) -> std::io::Result<File> {
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false).mode(0o600);
    options.custom_flags(no_link).open(path)
}

/// What an opening answers that fails.
fn refusal(path: &Path, error: &redb::Error) -> TableError {
    match error {
        redb::Error::DatabaseAlreadyOpen => TableError::Rejected(format!(
            "{} is open in another process: end that, or name another directory",
            path.display()
        )),
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) => {
            TableError::Rejected(format!(
                "{} is damaged ({error}): move it away to begin with an empty table",
                path.display()
            ))
        }
        _ => TableError::Unavailable(described(path, error)),
    }
}

fn described(path: &Path, error: &redb::Error) -> String {
    let free = rustix::fs::statvfs(path.parent().unwrap_or(path));
    let free = free.map_or_else(
        |_| "an unknown number of".to_owned(),
        |disk| (disk.f_bavail * disk.f_frsize).to_string(),
    );
    format!("{}: {error} ({free} bytes free on its disk)", path.display())
}
