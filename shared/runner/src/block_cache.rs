//! Blocks of records that are decoded together, such as the pages of a Parquet file: each is read and decoded once for the
//! splits of a worker that follow each other.

use crate::{LeaseError, dataset::PlannedRead, indexing::IndexedFile};
use bytes::Bytes;
use gristmill_pipeline::PipelineSource;
use gristmill_policy::cost::FunctionShape;
use gristmill_sources::{BlockRange, OpenedRecords};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::OnceCell;

/// Most bytes of blocks in the cache, apart from those that splits hold: four pages of pyarrow's 1,024 rows of 92 kB.
const CACHED_BYTES: usize = 384 << 20;
/// The part of a function's memory that the cache may take, as a divisor.
const FUNCTION_PART: usize = 5;

/// Records of a file that are decoded together.
pub(crate) struct RecordBlock {
    rows: Range<u32>,
    file: Arc<IndexedFile>,
    /// The stored bytes, once they are read and until they are decoded.
    parts: OnceCell<Mutex<Vec<Bytes>>>,
    opened: OnceLock<Result<OpenedRecords, LeaseError>>,
    /// Bytes of memory.
    bytes: AtomicUsize,
}

impl RecordBlock {
    fn new(rows: Range<u32>, file: Arc<IndexedFile>) -> Self {
        let (parts, bytes) = (OnceCell::new(), AtomicUsize::new(0));
        Self { rows, file, parts, opened: OnceLock::new(), bytes }
    }

    /// Takes the stored bytes, which `read` reads unless somebody did or does. Returns how many were read here.
    pub async fn fetch(
        &self,
        read: impl AsyncFnOnce(PlannedRead) -> Result<Vec<Bytes>, LeaseError>,
        number: u32,
    ) -> Result<u64, LeaseError> {
        let mut bytes = 0;
        let Range { start, end } = self.rows;
        let span = PlannedRead { file: number, first_record: start, records: end - start };
        let init = async || {
            let parts = read(span).await?;
            bytes = parts.iter().map(Bytes::len).sum();
            self.bytes.store(bytes, Ordering::Relaxed);
            Ok::<_, LeaseError>(Mutex::new(parts))
        };
        self.parts.get_or_try_init(init).await?;
        Ok(bytes as u64)
    }

    /// All its records, decoded by the first who asks.
    fn open(&self, source: &PipelineSource) -> Result<&OpenedRecords, LeaseError> {
        let opened = self.opened.get_or_init(|| {
            let parts = self.parts.get().map(|parts| std::mem::take(&mut *parts.lock()));
            let parts = parts.unwrap_or_default();
            let Range { start, end } = self.rows;
            let opened = self.file.index.open_each(start, end - start, source, &parts);
            let opened = opened
                .map_err(|error| LeaseError::fatal(format!("{}: {error}", self.file.path)))?;
            self.bytes.store(opened.memory_bytes(), Ordering::Relaxed);
            Ok(opened)
        });
        opened.as_ref().map_err(Clone::clone)
    }
}

pub(crate) fn open(
    blocks: &[Arc<RecordBlock>],
    first: u32,
    n: u32,
    source: &PipelineSource,
) -> Result<OpenedRecords, LeaseError> {
    let end = first + n;
    let part = |block: &Arc<RecordBlock>| {
        let (from, to) = (first.max(block.rows.start), end.min(block.rows.end));
        Ok(block.open(source)?.part(from, to.saturating_sub(from)))
    };
    let parts = blocks.iter().map(part).collect::<Result<Option<Vec<_>>, LeaseError>>()?;
    let joined = parts.and_then(OpenedRecords::joined);
    joined.ok_or_else(|| LeaseError::fatal(format!("blocks do not hold records {first}..{end}")))
}

/// Bytes of blocks of files, in order. Neighbouring spans of a split may lie in one block.
pub(crate) fn distinct_bytes(blocks: &[(u32, BlockRange)]) -> u64 {
    let same = |left: &(u32, BlockRange), right: &(u32, BlockRange)| {
        (left.0, left.1.rows.start) == (right.0, right.1.rows.start)
    };
    blocks.chunk_by(same).map(|same| same[0].1.bytes).fold(0, u64::saturating_add)
}

/// The latest blocks of a dataset.
pub(crate) struct BlockCache {
    blocks: Mutex<VecDeque<(u32, Arc<RecordBlock>)>>,
    most_bytes: usize,
}

impl BlockCache {
    /// An empty cache, for a process on that function, or on a machine.
    pub fn for_process(function: Option<FunctionShape>) -> Self {
        let part = |shape: FunctionShape| (shape.memory_mb as usize) << 20;
        let most_bytes = function.map_or(usize::MAX, |shape| part(shape) / FUNCTION_PART);
        Self { blocks: Mutex::default(), most_bytes: most_bytes.min(CACHED_BYTES) }
    }

    /// Whether a split may decode whole blocks of so many bytes, for other splits to use. It decodes its own records alone
    /// otherwise.
    pub fn admits(&self, bytes: u64) -> bool {
        usize::try_from(bytes).is_ok_and(|bytes| bytes <= self.most_bytes)
    }

    /// The block `rows` of file number `number`, of that version of the file. Drops those that were used longest ago, if
    /// all take too much.
    pub fn block(
        &self,
        number: u32,
        rows: Range<u32>,
        file: &Arc<IndexedFile>,
    ) -> Arc<RecordBlock> {
        let mut blocks = self.blocks.lock();
        let is_it = |(of, block): &(u32, Arc<RecordBlock>)| {
            *of == number && block.rows == rows && Arc::ptr_eq(&block.file, file)
        };
        let found = blocks.iter().position(is_it).and_then(|at| blocks.remove(at));
        let (_, block) =
            found.unwrap_or_else(|| (number, Arc::new(RecordBlock::new(rows, Arc::clone(file)))));
        blocks.push_front((number, Arc::clone(&block)));
        let mut bytes = 0;
        let kept = blocks.iter().take_while(|(_, block)| {
            bytes += block.bytes.load(Ordering::Relaxed);
            bytes <= self.most_bytes
        });
        let kept = kept.count().max(1);
        blocks.truncate(kept);
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_ports::ObjectPath;
    use gristmill_sources::{IndexBuilder, jsonl::Jsonl};

    const LINE: &[u8] = b"{\"x\": 1}\n";

    /// A file of ten records.
    fn file() -> Arc<IndexedFile> {
        let mut builder = IndexBuilder::new(&Jsonl.into()).unwrap();
        builder.push(&LINE.repeat(10)).unwrap();
        let path = ObjectPath::new("b", "x");
        Arc::new(IndexedFile { path, index: builder.finish().unwrap(), stamp: None, pack: None })
    }

    #[tokio::test]
    async fn a_block_is_read_once_by_all_who_want_it_at_a_time() {
        let (cache, file) = (BlockCache::for_process(None), file());
        let reads = AtomicUsize::new(0);
        let read = async || {
            let block = cache.block(0, 2..5, &file);
            let read = async |span: PlannedRead| {
                assert_eq!((span.file, span.first_record, span.records), (0, 2, 3));
                reads.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok(vec![Bytes::from(LINE.repeat(3))])
            };
            block.fetch(read, 0).await.unwrap()
        };
        let (first, second) = tokio::join!(read(), read());
        assert_eq!(first + second, 3 * LINE.len() as u64);
        assert_eq!(read().await, 0);
        assert_eq!(reads.into_inner(), 1);
        let block = cache.block(0, 2..5, &file);
        assert!(Arc::ptr_eq(&block, &cache.block(0, 2..5, &file)));
        assert!(!Arc::ptr_eq(&block, &cache.block(1, 2..5, &file)), "of another file");
        let rewritten = self::file();
        assert!(!Arc::ptr_eq(&block, &cache.block(0, 2..5, &rewritten)), "of another version");
    }

    #[tokio::test]
    async fn a_block_that_cannot_be_read_is_read_by_the_next_who_wants_it() {
        let (cache, file) = (BlockCache::for_process(None), file());
        let block = cache.block(0, 0..2, &file);
        let fails = async |_| Err(LeaseError::Passing("a fault".to_owned()));
        block.fetch(fails, 0).await.unwrap_err();
        let reads = async |_| Ok(vec![Bytes::from(LINE.repeat(2))]);
        assert_eq!(
            cache.block(0, 0..2, &file).fetch(reads, 0).await.unwrap(),
            2 * LINE.len() as u64
        );
    }

    #[test]
    fn a_block_that_several_spans_lie_in_is_counted_once() {
        let block = |file, rows: Range<u32>| (file, BlockRange { rows, bytes: 10 });
        let blocks = [block(0, 0..9), block(0, 0..9), block(0, 9..12), block(1, 9..12)];
        assert_eq!(distinct_bytes(&blocks), 30);
    }

    #[test]
    fn a_small_function_caches_a_fifth_of_its_memory() {
        let shape = FunctionShape { memory_mb: 512, ..FunctionShape::default() };
        let cache = BlockCache::for_process(Some(shape));
        assert!(cache.admits(102 << 20) && !cache.admits(103 << 20));
        let large = FunctionShape { memory_mb: 10_240, ..FunctionShape::default() };
        assert!(!BlockCache::for_process(Some(large)).admits(CACHED_BYTES as u64 + 1));
    }

    #[test]
    fn the_cache_is_bounded_in_bytes() {
        let (cache, file) = (BlockCache::for_process(None), file());
        let large = |rows: Range<u32>| {
            let block = cache.block(0, rows, &file);
            block.bytes.store(CACHED_BYTES / 3, Ordering::Relaxed);
            block
        };
        let blocks: Vec<_> = (0..5).map(|row| large(row..row + 1)).collect();
        cache.block(0, 9..10, &file);
        assert_eq!(cache.blocks.lock().len(), 4);
        assert!(Arc::ptr_eq(&blocks[4], &cache.block(0, 4..5, &file)));
        assert!(!Arc::ptr_eq(&blocks[0], &cache.block(0, 0..1, &file)));
    }
}
