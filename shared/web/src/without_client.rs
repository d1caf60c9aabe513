//! The same names in a program without the HTTP client: every request is refused.

use crate::AllowedServers;
use bytes::Bytes;
use gristmill_ports::{ObjectError, ObjectInfo, ObjectPath, without_feature};
use std::ops::Range;

/// Why `origin`, or any other server, is not read from.
pub(crate) fn refusal(origin: &str) -> Option<String> {
    Some(format!("{origin}: {}", without_feature("web")))
}

/// The error as it is: no server has said it.
pub(crate) fn server_error(error: ObjectError) -> ObjectError {
    error
}

/// Files of web servers, none of which is read.
pub struct WebObjects;

impl WebObjects {
    pub(crate) fn from_env(_reach: AllowedServers) -> Result<Self, String> {
        Ok(Self)
    }

    pub(crate) async fn look(&self, path: &ObjectPath) -> Result<Option<ObjectInfo>, ObjectError> {
        Err(ObjectError::Rejected(refusal(&path.bucket).unwrap_or_default()))
    }

    pub(crate) async fn read(
        &self,
        path: &ObjectPath,
        _range: Range<u64>,
        _tag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        Err(ObjectError::Rejected(refusal(&path.bucket).unwrap_or_default()))
    }
}
