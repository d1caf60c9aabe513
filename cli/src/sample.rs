//! The cost of operators and the division of a dataset, estimated from its first elements.

use crate::thread_cpu;
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits, FrameCodec, repack};
use gristmill_client::{
    DatasetLocation, ProgramFailure,
    report::DatasetDivision,
    sample::{SampledDatasets, SampledDraws, SampledRun, first_files, run_from},
};
use gristmill_executor::{AssetLoader, PipelineCompiler};
use gristmill_model::wire::WorkProfile;
use gristmill_pipeline::Pipeline;
use gristmill_policy::placement::PackedBytes;
use std::path::Path;

/// Default number of elements whose cost is measured.
pub const ELEMENTS: u32 = 300;

/// The location of `data`, or of the datasets that the pipeline, a file in `dir`, names.
pub fn place(
    pipeline: &Pipeline,
    data: Option<&str>,
    dir: &Path,
) -> Result<DatasetLocation, ProgramFailure> {
    let place = match data {
        Some(_) if pipeline.source().is_zip() => {
            return Err(ProgramFailure::usage(
                "the pipeline zips datasets, and its file names their paths: leave out `--data`",
            ));
        }
        Some(data) => DatasetLocation::parse(data, Path::new(".")),
        None => DatasetLocation::parse_all(&pipeline.source_paths(), dir),
    };
    place.map_err(ProgramFailure::usage)
}

/// Lists the dataset at `place`, and says which files are not read.
pub async fn listed(
    pipeline: &Pipeline,
    place: DatasetLocation,
) -> Result<SampledDatasets, ProgramFailure> {
    let data = SampledDatasets::find(pipeline, place).await?;
    if !data.left_out.is_empty() {
        gristmill_client::complain!("{}", data.left_out);
    }
    Ok(data)
}

/// The division that jobs choose for the dataset, estimated from the bytes of its files.
pub fn division(
    pipeline: &Pipeline,
    data: &SampledDatasets,
    sample: &SampledRun,
) -> DatasetDivision {
    let stored_bytes = sample.stored_bytes / f64::from(sample.n_records.max(1));
    let records = data.records(pipeline, sample);
    chosen_division(pipeline, records, data.n_files(), stored_bytes as u64)
}

/// The division that jobs choose; `stored_bytes` are the bytes of one record.
pub fn chosen_division(
    pipeline: &Pipeline,
    records: u64,
    files: u64,
    stored_bytes: u64,
) -> DatasetDivision {
    let batches = pipeline.split_batches(records, stored_bytes);
    let split_records = batches.saturating_mul(u64::from(pipeline.batch_size()));
    DatasetDivision { records, files, split_records, is_given: false }
}

/// The first records, as they were measured.
pub struct ProfiledSample {
    pub profile: WorkProfile,
    /// The dataset's division.
    pub division: DatasetDivision,
    object: Vec<u8>,
}

/// Measures the first `most` records, operator by operator as they run.
pub async fn profile(
    pipeline: &Pipeline,
    assets: &dyn AssetLoader,
    data: &SampledDatasets,
    most: u32,
) -> Result<ProfiledSample, ProgramFailure> {
    let compiler = PipelineCompiler { assets, fuse: true };
    let program = compiler.compile(pipeline).map_err(ProgramFailure::usage)?;
    let first = first_files(pipeline, data, most).await?;
    // A warm-up run first: the steady state is measured.
    let run = |most| {
        let draws = SampledDraws { most, ..SampledDraws::default() };
        run_from(&program, pipeline, &first, draws)?.with_elements()
    };
    run(most.min(16))?;
    let before = thread_cpu();
    let sample = run(most)?;
    let cpu = thread_cpu().saturating_sub(before);
    let profile = WorkProfile {
        cpu_us: cpu.as_micros() as u64,
        reads: vec![(sample.stored_bytes as u64, 0)],
        ..sample.output.work_profile(pipeline)
    };
    let division = division(pipeline, data, &sample);
    Ok(ProfiledSample { profile, division, object: sample.output.object })
}

impl ProfiledSample {
    /// Compression of its batches at the fastest level: bytes, and time beyond that of copying them.
    pub fn packed(&self) -> Result<PackedBytes, ProgramFailure> {
        let packed = |object: &[u8], codec| {
            let chunk = Chunk::open(Bytes::copy_from_slice(object), &ChunkLimits::default());
            let chunk = chunk.map_err(ProgramFailure::failed)?;
            let before = thread_cpu();
            let object = repack(&chunk, codec).map_err(ProgramFailure::failed)?;
            let seconds = thread_cpu().saturating_sub(before).as_secs_f64();
            Ok::<_, ProgramFailure>((object, seconds))
        };
        let (plain, copy_s) = packed(&self.object, FrameCodec::Stored)?;
        let (small, pack_s) = packed(&plain, FrameCodec::Zstd { level: 1 })?;
        let (_, unpack_s) = packed(&small, FrameCodec::Stored)?;
        let per_byte = |seconds: f64| (seconds - copy_s).max(0.0) / plain.len() as f64;
        Ok(PackedBytes {
            ratio: small.len() as f64 / plain.len() as f64,
            pack_s_per_byte: per_byte(pack_s),
            unpack_s_per_byte: per_byte(unpack_s),
        })
    }
}
