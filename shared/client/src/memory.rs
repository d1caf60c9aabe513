//! Allocator settings for a process that holds a few large buffers at a time.

/// Size from which buffers are returned to the system: buffers of batches and objects are larger.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 2 << 20;

/// Free memory kept at the end of the heap, for the frequent allocations of requests.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_BYTES: libc::c_int = 8 << 20;

/// Makes glibc return large buffers to the system when they are freed. Otherwise it keeps them after it has
/// seen a few, up to twice the memory in use. Call it first in `main`. Does nothing with other C libraries.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "libc calls that only set a number")]
    // SAFETY: mallopt takes two integers and is safe to call before other threads exist.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES);
    }
}
