//! CPU that comes with a function's memory.

/// Memory that comes with one vCPU, in MB (AWS Lambda developer guide, "Configure function
/// memory"); more memory brings more, less memory a part of one.
pub const MB_PER_VCPU: f64 = 1769.0;

/// Splits that a worker with this much memory computes at a time, one thread each: its number of
/// vCPUs, rounded. A small fraction of a vCPU is worth less than the memory that another split
/// takes.
pub fn worker_threads(memory_mb: u32) -> u32 {
    (f64::from(memory_mb) / MB_PER_VCPU).round().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_processors_that_memory_brings() {
        for (memory_mb, threads) in
            [(512, 1), (1769, 1), (2048, 1), (3008, 2), (3538, 2), (10_240, 6)]
        {
            assert_eq!(worker_threads(memory_mb), threads);
        }
    }
}
