//! How a process that holds a few large buffers at a time deals with its allocator.

/// Buffers of batches and objects; anything smaller is left to the allocator's own judgement.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 2 << 20;

/// Free memory kept at the end of the heap: what requests take and give back all the time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_BYTES: libc::c_int = 8 << 20;

/// Has large buffers returned to the system when they are freed, so that a process holds what it
/// uses. glibc would otherwise keep them once it has seen a few, up to twice the memory in use.
/// Call it first in `main`. Does nothing elsewhere.
pub fn return_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "libc calls that only set a number")]
    // SAFETY: mallopt takes two integers and is safe to call before other threads exist.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES);
    }
}
