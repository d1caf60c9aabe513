//! The items in one redb file: opening, commits, reads, and what follows an error.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use gristmill_host::{free_space, open_private};
use gristmill_ports::{ItemKey, TableError, TableItem, WriteOutcome};
use redb::backends::FileBackend;
use redb::{
    AccessGuard, Builder, Database, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition, WriteTransaction,
};

/// Partition and sort key, which redb compares as bytes.
type StoredKey = (&'static str, &'static str);
/// Version, expiry (0: none) and body.
type StoredItem = (u64, u64, &'static [u8]);

const ITEMS: TableDefinition<'static, StoredKey, StoredItem> = TableDefinition::new("items");
const FILE_NAME: &str = "table.redb";
const CACHE_BYTES: usize = 16 << 20;
/// A file keeps its largest size while it is open. A larger one than this is compacted when it is opened, if less than
/// a quarter of it is content.
const COMPACT_FROM_BYTES: u64 = 16 << 20;

/// A conditional write.
#[derive(Debug)]
pub(super) struct ItemWrite {
    pub key: ItemKey,
    pub expected: u64,
    pub body: Bytes,
    pub expires_at_s: Option<u64>,
}

type OpenDatabase = Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>;

/// Items, as last committed. An error may come from a commit that was applied.
pub(super) struct ItemStore {
    path: PathBuf,
    open: OpenDatabase,
    database: RwLock<Option<Database>>,
    /// Set by an error: redb then refuses everything until it is opened again.
    failed: AtomicBool,
}

impl ItemStore {
    /// Opens the file in `dir`, and the lock that keeps other processes from it.
    pub fn in_directory(dir: &Path) -> Result<(File, Self), TableError> {
        let path = dir.join(FILE_NAME);
        let lock = lock(dir).map_err(|error| refusal(&path, &error))?;
        create_file(dir, &path).map_err(|error| refusal(&path, &error))?;
        let file = path.clone();
        let open = move || open_database(FileBackend::new(open_file(&file, false)?)?);
        let store = Self::open(path.clone(), Box::new(open));
        Ok((lock, store.map_err(|error| refusal(&path, &error))?))
    }

    fn open(path: PathBuf, open: OpenDatabase) -> Result<Self, redb::Error> {
        let database = RwLock::new(Some(open()?));
        Ok(Self { path, open, database, failed: AtomicBool::new(false) })
    }

    fn with_database<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let result = work(database.as_ref().ok_or(redb::Error::DatabaseClosed)?);
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Opens the file again after an error. Only the thread that writes calls this.
    fn ready(&self) -> Result<(), redb::Error> {
        if self.failed.load(Ordering::Relaxed) {
            *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
            let opened = (self.open)()?;
            *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
            self.failed.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Applies writes in their order, in one synced commit.
    pub fn commit(&self, writes: &[ItemWrite]) -> Result<Vec<WriteOutcome>, redb::Error> {
        self.ready()?;
        self.with_database(|database| {
            let transaction = database.begin_write()?;
            let mut items = transaction.open_table(ITEMS)?;
            let mut outcomes = Vec::with_capacity(writes.len());
            for write in writes {
                outcomes.push(apply(&mut items, write)?);
            }
            drop(items);
            finish(transaction, outcomes.contains(&WriteOutcome::Written))?;
            Ok(outcomes)
        })
    }

    /// Looks at `limit` items from `from` on, moves `from` behind them, and removes those that have expired.
    pub fn sweep(
        &self,
        from: &mut ItemKey,
        now_s: u64,
        limit: usize,
    ) -> Result<usize, redb::Error> {
        self.ready()?;
        self.with_database(|database| {
            let transaction = database.begin_write()?;
            let mut items = transaction.open_table(ITEMS)?;
            let (mut expired, mut seen) = (Vec::new(), Vec::new());
            for entry in
                items.range((from.pk.as_str(), from.sk.as_str())..)?.take(limit.saturating_add(1))
            {
                let (key, stored) = entry?;
                let (pk, sk) = key.value();
                seen.push(ItemKey { pk: pk.to_owned(), sk: sk.to_owned() });
                let (_, expires_at_s, _) = stored.value();
                if seen.len() <= limit && expires_at_s != 0 && expires_at_s <= now_s {
                    expired.extend(seen.last().cloned());
                }
            }
            for key in &expired {
                items.remove((key.pk.as_str(), key.sk.as_str()))?;
            }
            drop(items);
            finish(transaction, !expired.is_empty())?;
            let next = (seen.len() > limit).then(|| seen.pop()).flatten();
            *from = next.unwrap_or(ItemKey { pk: String::new(), sk: String::new() });
            Ok(expired.len())
        })
    }

    fn with_items<T>(
        &self,
        read: impl FnOnce(&ReadOnlyTable<StoredKey, StoredItem>) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        self.with_database(|database| read(&database.begin_read()?.open_table(ITEMS)?))
    }

    /// The items of `keys`, in their order.
    pub fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, redb::Error> {
        self.with_items(|items| {
            let mut found = Vec::with_capacity(keys.len());
            for key in keys {
                found.push(items.get((key.pk.as_str(), key.sk.as_str()))?.map(|one| item(&one)));
            }
            Ok(found)
        })
    }

    /// The items of a partition from the sort key `from` on, as long as they are `wanted`.
    pub fn list(
        &self,
        pk: &str,
        from: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(String, TableItem)>, redb::Error> {
        self.with_items(|items| {
            let mut found = Vec::new();
            for entry in items.range((pk, from)..)? {
                let (key, stored) = entry?;
                let (partition, sk) = key.value();
                if partition != pk || !wanted(sk) {
                    break;
                }
                found.push((sk.to_owned(), item(&stored)));
            }
            Ok(found)
        })
    }

    /// The last items of a partition key, at most `limit`, the last one first.
    pub fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, redb::Error> {
        // No partition key sorts between `pk` and `pk` with a zero byte appended.
        let end = format!("{pk}\0");
        self.with_items(|items| {
            let mut found = Vec::new();
            for entry in items.range((pk, "")..(end.as_str(), ""))?.rev().take(limit) {
                let (key, stored) = entry?;
                found.push((key.value().1.to_owned(), item(&stored)));
            }
            Ok(found)
        })
    }

    /// The answer of a call that fails with `error`.
    pub fn unavailable(&self, error: &redb::Error) -> TableError {
        let error = unavailable(&self.path, error);
        tracing::warn!(%error, "a call to the table failed");
        error
    }
}

fn item(stored: &AccessGuard<'_, StoredItem>) -> TableItem {
    let (version, _, body) = stored.value();
    TableItem { version, body: Bytes::copy_from_slice(body) }
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

/// A transaction without changes costs no sync.
fn finish(transaction: WriteTransaction, changed: bool) -> Result<(), redb::Error> {
    if changed { Ok(transaction.commit()?) } else { Ok(transaction.abort()?) }
}

/// Opens or creates the database in `backend`. A crash at any point leaves what was last synced.
fn open_database(backend: impl StorageBackend) -> Result<Database, redb::Error> {
    let length = write_back(&backend)?;
    let mut builder = Builder::new();
    // The check reports a damaged file, which would otherwise panic later.
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    let mut database = builder.create_with_backend(backend)?;
    let transaction = database.begin_write()?;
    let absent = transaction.list_tables()?.next().is_none();
    transaction.open_table(ITEMS)?;
    finish(transaction, absent)?;
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
/// the disk and that no later sync writes; commits that build on them would be lost in a power cut, and the file with them.
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
    let file = open_file(&dir.join("table.lock"), true)?;
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
    let draft = open_file(&path.with_extension("new"), true)?;
    draft.set_len(0)?;
    open_database(FileBackend::new(draft)?)?.close()?;
    std::fs::rename(path.with_extension("new"), path)?;
    Ok(File::open(dir)?.sync_all()?)
}

fn open_file(path: &Path, create: bool) -> std::io::Result<File> {
    open_private(path, File::options().read(true).write(true).create(create).truncate(false))
}

/// The answer of an opening that fails.
fn refusal(path: &Path, error: &redb::Error) -> TableError {
    let cause = match error {
        redb::Error::DatabaseAlreadyOpen => {
            "is open in another process: end that, or name another directory".to_owned()
        }
        _ if is_damage(error) => {
            format!("is damaged ({error}): move it away to begin with an empty table")
        }
        _ => return unavailable(path, error),
    };
    TableError::Rejected(format!("{} {cause}", path.display()))
}

/// Whether the file's content is wrong, and not its disk.
fn is_damage(error: &redb::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, UnexpectedEof};
    match error {
        redb::Error::Corrupted(_) => true,
        redb::Error::Io(error) => matches!(error.kind(), InvalidData | UnexpectedEof),
        _ => false,
    }
}

fn unavailable(path: &Path, error: &redb::Error) -> TableError {
    let free = free_space(path.parent().unwrap_or(path));
    TableError::Unavailable(format!("{}: {error}; {free}", path.display()))
}

#[cfg(test)]
mod tests;
