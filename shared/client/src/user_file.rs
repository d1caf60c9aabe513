//! Files that a user names: pipelines, tokenizers, price lists. A mistyped name may lead to any file, so reads
//! have a size limit and a time limit.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a pipe may deliver no data.
const PIPE_PATIENCE: Duration = Duration::from_secs(4);
/// How long a pipe may have no writer.
const WRITER_PATIENCE: Duration = Duration::from_secs(1);
const PIPE_LOOK: Duration = Duration::from_millis(10);

/// Reads the file `path`, of at most `most` bytes.
///
/// # Errors
/// The file cannot be read, or is longer; the text does not contain the path.
pub fn read_user_file(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| in_words(&error))?;
    let about = file.metadata().map_err(|error| in_words(&error))?;
    if about.is_dir() {
        return Err("it is a directory, not a file".to_owned());
    }
    let too_long = || format!("it has more than {most} bytes: is this the right file?");
    if about.is_file() && about.len() > most {
        return Err(too_long());
    }
    let is_pipe = about.file_type().is_fifo();
    let content = read_to_end(file.take(most.saturating_add(1)), is_pipe)?;
    if content.len() as u64 > most {
        return Err(too_long());
    }
    if content.is_empty() && is_pipe {
        return Err("it is a pipe without a writer".to_owned());
    }
    Ok(content)
}

/// As [`read_user_file`], for UTF-8 text.
///
/// # Errors
/// As [`read_user_file`], and for text that is not UTF-8.
pub fn read_user_text(path: &Path, most: u64) -> Result<String, String> {
    let content = read_user_file(path, most)?;
    String::from_utf8(content).map_err(|error| not_text(error.as_bytes()))
}

fn not_text(content: &[u8]) -> String {
    match content {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: save it as UTF-8".to_owned(),
        _ => "it is not text (UTF-8)".to_owned(),
    }
}

fn read_to_end(mut from: impl Read, is_pipe: bool) -> Result<Vec<u8>, String> {
    let (mut content, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    let mut received = Instant::now();
    loop {
        match from.read(&mut chunk) {
            // The writer may have waited for this process to open it.
            Ok(0) if is_pipe && content.is_empty() && received.elapsed() < WRITER_PATIENCE => {
                sleep(PIPE_LOOK);
            }
            Ok(0) => return Ok(content),
            Ok(n) => {
                content.extend_from_slice(&chunk[..n]);
                received = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(in_words(&error)),
            Err(_) if received.elapsed() > PIPE_PATIENCE => {
                return Err(format!("no data arrived from it for {} s", PIPE_PATIENCE.as_secs()));
            }
            Err(_) => sleep(PIPE_LOOK),
        }
    }
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        _ if error.raw_os_error() == Some(libc::ENXIO) => "it is a socket, not a file".to_owned(),
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "no permission to read it".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn no_more_is_read_than_such_a_file_may_have() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.yaml");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_user_text(&path, 5).unwrap(), "12345");
        assert!(read_user_text(&path, 4).unwrap_err().contains("more than 4 bytes"));
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        assert!(read_user_text(&path, 4).unwrap_err().contains("more than 4 bytes"));
        let endless = read_user_file(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert!(endless.contains("more than 1048576 bytes"), "{endless}");
        assert!(read_user_file(dir.path(), 4).unwrap_err().contains("directory"));
        assert!(read_user_file(&dir.path().join("x"), 4).unwrap_err().contains("no such file"));
    }

    #[test]
    fn a_pipe_is_not_waited_for_in_silence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert!(read_user_file(&path, 4).unwrap_err().contains("without a writer"));
        let writer = path.clone();
        let writes = std::thread::spawn(move || fs::write(writer, "late"));
        assert_eq!(read_user_file(&path, 4).unwrap(), b"late");
        writes.join().unwrap().unwrap();
    }

    #[test]
    fn utf_16_is_named() {
        assert!(not_text(&[0xff, 0xfe, b'n', 0]).contains("UTF-16"));
    }
}
