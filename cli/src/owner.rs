//! The process that started this one, and holds its standard input open.

use tokio::io::AsyncReadExt;

/// Resolves once standard input closes: its owner has ended, however it did.
pub async fn gone() {
    let mut byte = [0];
    while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1)) {}
}
