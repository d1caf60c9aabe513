//! How a person, or a supervisor, ends a program.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The request that ends a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Interruption {
    /// Exit code after this signal: 128 plus the signal's number.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }
}

impl std::fmt::Display for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Interrupted => "interrupted",
            Self::Terminated => "terminated",
        })
    }
}

/// Ctrl-C and SIGTERM, which no longer end the process themselves once this exists.
pub struct InterruptionSignals(Option<(Signal, Signal)>);

impl InterruptionSignals {
    /// To be called within a runtime.
    #[expect(clippy::new_without_default, reason = "it takes the signals from the process")]
    pub fn new() -> Self {
        Self(signal(SignalKind::interrupt()).ok().zip(signal(SignalKind::terminate()).ok()))
    }

    /// Resolves at the next one.
    pub async fn next(&mut self) -> Interruption {
        let Some((interrupt, terminate)) = &mut self.0 else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => Interruption::Interrupted,
            _ = terminate.recv() => Interruption::Terminated,
        }
    }
}

/// Resolves at Ctrl-C or SIGTERM. After the first call, these signals no longer end the process themselves.
pub async fn interruption() -> Interruption {
    InterruptionSignals::new().next().await
}

/// Lets a write beyond a limit on the size of files (`ulimit -f`) fail, instead of ending this process: then it is treated
/// as a full disk. To be called within a runtime.
pub fn survive_size_limits() {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    const SIGXFSZ: i32 = 25;
    // The handler stays when the receiver is dropped.
    if let Err(error) = signal(SignalKind::from_raw(SIGXFSZ)) {
        tracing::debug!(%error, "a limit on the size of files would end this process");
    }
}
