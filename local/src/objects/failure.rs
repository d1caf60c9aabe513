//! Converts I/O errors to S3 errors.

use std::io::{self, ErrorKind};

use s3s::{S3Error, S3ErrorCode};

/// An S3 error with the failed action, its object and the reason. All but the client's own mistakes are 5xx.
pub(super) fn io_failure(action: &str, what: &str, error: &io::Error) -> S3Error {
    crate::room::note(error);
    let (code, advice) = match error.kind() {
        ErrorKind::InvalidFilename => (S3ErrorCode::KeyTooLongError, ""),
        ErrorKind::PermissionDenied => (S3ErrorCode::AccessDenied, ""),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            (S3ErrorCode::InternalError, "; free some space")
        }
        _ => match rustix::io::Errno::from_io_error(error) {
            // Out of descriptors: transient.
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                (S3ErrorCode::SlowDown, "; raise the limit of open files")
            }
            _ => (S3ErrorCode::InternalError, ""),
        },
    };
    S3Error::with_message(code, format!("cannot {action} {what}: {error}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_the_servers_failure_and_says_so() {
        let error = io_failure("write", "a/b", &io::Error::from_raw_os_error(28));
        assert_eq!(error.status_code().unwrap().as_u16(), 500);
        assert!(error.message().unwrap().starts_with("cannot write a/b: "), "{error}");
        assert!(error.message().unwrap().ends_with("free some space"), "{error}");
        let busy = io_failure("open", "a", &io::Error::from_raw_os_error(24));
        assert_eq!(busy.status_code().unwrap().as_u16(), 503);
    }
}
