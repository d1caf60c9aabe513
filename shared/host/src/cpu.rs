//! CPU time of processes of this machine.

/// CPU of a process so far in milliseconds, its children not included; 0 if it cannot be read.
pub fn process_cpu_ms(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    // The name in parentheses may contain any character; count the fields after it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    (ticks(11) + ticks(12)) * 1000 / per_second
}
