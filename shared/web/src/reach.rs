//! Which servers may be read from.

/// Servers that files may be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedServers {
    /// Servers with public addresses.
    Public,
    /// All servers.
    Any,
}
