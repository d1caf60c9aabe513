//! The cost of operators and the division of a dataset, estimated from its first elements.

use crate::thread_cpu;
use gristmill_client::{
    DatasetLocation, ProgramFailure,
    report::DatasetDivision,
    sample::{SampledDatasets, SampledDraws, SampledRun, first_files, run_from},
};
use gristmill_executor::{AssetLoader, PipelineCompiler};
use gristmill_model::wire::WorkProfile;
use gristmill_pipeline::Pipeline;
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

/// Measures the first `most` records, operator by operator as they run; also finds the dataset's
/// division.
pub async fn profile(
    pipeline: &Pipeline,
    assets: &dyn AssetLoader,
    data: &SampledDatasets,
    most: u32,
) -> Result<(WorkProfile, DatasetDivision), ProgramFailure> {
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
    Ok((profile, division(pipeline, data, &sample)))
}
