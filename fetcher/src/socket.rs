//! The unix socket of a fetcher: its owner's alone, and gone when the fetcher is.

use gristmill_serve::{ConnectedClient, error_frame};
use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

/// How long a client waits for another to leave: one that reconnects may overtake its own end.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Rest after a connection could not be accepted: there may be no room for another for a while.
const REST: Duration = Duration::from_millis(100);

/// Most bytes of a socket's path, which ends with one of zero.
const MAX_PATH_BYTES: usize = 107;

/// A socket that is listened at; dropping it removes it.
pub struct FetcherSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: what is at `path` later may be somebody else's.
    id: Option<(u64, u64)>,
}

impl FetcherSocket {
    /// Makes sure that `path` can be listened at. A socket left by a server that died goes.
    ///
    /// # Errors
    /// Another process serves it, or something else than a socket is there: that is left alone.
    pub fn check(path: &Path) -> io::Result<()> {
        let failed = |what: String| Err(named(path, &what));
        let bytes = path.as_os_str().len();
        if bytes > MAX_PATH_BYTES {
            return failed(format!(
                "its path has {bytes} bytes, and that of a socket {MAX_PATH_BYTES} at most: name a shorter --socket"
            ));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return failed(format!("the directory {} does not exist", folder.display()));
        }
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return failed(error.to_string()),
            Ok(there) if !there.file_type().is_socket() => {
                return failed("it exists and is not a socket: name another --socket".to_owned());
            }
            Ok(_) => {}
        }
        match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|error| named(path, &error.to_string()))
            }
            // It has gone meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => failed(error.to_string()),
            Ok(_) => failed("another process serves it".to_owned()),
        }
    }

    /// Listens at `path`, for its owner only.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Self::check(path)?;
        // Nobody else may connect, not even before a mode could be set.
        let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(mask);
        let listener = bound.map_err(|error| named(path, &error.to_string()))?;
        Ok(Self { listener, path: path.to_owned(), id: id_at(path) })
    }

    /// Passes trainers that connect to a server, at most `clients` at a time; returns when the server is gone.
    pub async fn accept(
        &self,
        visitors: mpsc::Sender<ConnectedClient<UnixStream>>,
        clients: usize,
    ) {
        let permit = Arc::new(Semaphore::new(clients));
        let mut waiting = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        waiting.spawn(offer(stream, Arc::clone(&permit), clients, visitors.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connecting trainer now");
                        tokio::time::sleep(REST).await;
                    }
                },
                Some(_) = waiting.join_next() => {}
                () = visitors.closed() => return,
            }
        }
    }
}

impl Drop for FetcherSocket {
    /// A socket left behind would look like a server that hangs.
    fn drop(&mut self) {
        if self.id.is_some() && id_at(&self.path) == self.id {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn named(path: &Path, what: &str) -> io::Error {
    io::Error::other(format!("cannot listen at {}: {what}", path.display()))
}

fn id_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

async fn offer(
    mut stream: UnixStream,
    permit: Arc<Semaphore>,
    clients: usize,
    visitors: mpsc::Sender<ConnectedClient<UnixStream>>,
) {
    match tokio::time::timeout(PERMIT_TIMEOUT, permit.acquire_owned()).await {
        Ok(Ok(permit)) => {
            // A server that is done has nothing for anybody.
            let _ = visitors.send(ConnectedClient::new(stream, permit)).await;
        }
        Ok(Err(_)) => {}
        Err(_) => {
            let why = format!("{clients} clients are connected to this fetcher, which is the most");
            // It may have left.
            let _ = stream.write_all(&error_frame(&why)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let _runtime = runtime();
        let _guard = _runtime.enter();
        fs::write(path("model.pt"), "weights").unwrap();
        let refused = FetcherSocket::bind(&path("model.pt")).err().unwrap().to_string();
        assert!(refused.contains("model.pt") && refused.contains("not a socket"), "{refused}");
        assert_eq!(fs::read(path("model.pt")).unwrap(), b"weights");

        let refused = FetcherSocket::bind(&path(&"s".repeat(120))).err().unwrap().to_string();
        assert!(refused.contains("107 at most: name a shorter"), "{refused}");

        drop(std::os::unix::net::UnixListener::bind(path("dead")).unwrap());
        let socket = FetcherSocket::bind(&path("dead")).unwrap();
        let mode = fs::metadata(path("dead")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            FetcherSocket::bind(&path("dead"))
                .err()
                .unwrap()
                .to_string()
                .contains("another process")
        );
        drop(socket);
        assert!(!path("dead").exists());
        // A file that another process has put there since is kept.
        let socket = FetcherSocket::bind(&path("taken")).unwrap();
        fs::remove_file(path("taken")).unwrap();
        fs::write(path("taken"), "mine").unwrap();
        drop(socket);
        assert!(path("taken").exists());
    }
}
