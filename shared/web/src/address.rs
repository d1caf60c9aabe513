//! Addresses of files on web servers.

use crate::client::refusal;

/// Whether `bucket` is the origin of a web server.
pub fn is_web(bucket: &str) -> bool {
    bucket.starts_with("https://") || bucket.starts_with("http://")
}

/// Origin, and path and query as written, of a web address. `None` for other kinds of address.
pub fn origin_and_key(text: &str) -> Option<Result<(String, String), String>> {
    if !is_web(text) {
        return None;
    }
    let start = text.find("://")? + 3;
    let rest = &text[start..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, key) = rest.split_at(end);
    // Messages leave out the query, which may be a secret.
    let shown = text.split(['?', '#']).next().unwrap_or_default();
    Some(if authority.is_empty() {
        Err("the address names no server".to_owned())
    } else if authority.contains('@') {
        Err("leave user and password out of the address, which is kept with the job: set GRISTMILL_WEB_AUTHORIZATION"
            .to_owned())
    } else if let Some(why) = refusal(&text[..start + end]) {
        Err(why)
    } else if key.split('?').next().unwrap_or_default().contains('*') {
        Err(format!(
            "{shown} has a wildcard, and listings of web servers are not read: name its files by braces, such as \
             shard-{{000..146}}.tar"
        ))
    } else if key.contains('#') {
        Err("an address of a file has no part after `#`".to_owned())
    } else if key.is_empty() || key.ends_with('/') && !key.contains('?') {
        Err(format!(
            "{shown} is a folder, and listings of web servers are not read: name its files, such as \
             {}/shard-{{000..146}}.tar",
            shown.trim_end_matches('/')
        ))
    } else {
        let key = key.strip_prefix('/').unwrap_or(key);
        Ok((text[..start + end].to_owned(), key.to_owned()))
    })
}

#[cfg(all(test, feature = "client"))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_cut_behind_the_server() {
        let cut = |text| origin_and_key(text).map(Result::ok);
        let both = |origin: &str, key: &str| Some(Some((origin.to_owned(), key.to_owned())));
        assert_eq!(
            cut("https://h:8443/a/b%20c.tar?x=1"),
            both("https://h:8443", "a/b%20c.tar?x=1")
        );
        for folder in ["http://h", "http://h/", "https://h/a/", "https://h/{a,b}/"] {
            let why = origin_and_key(folder).unwrap().unwrap_err();
            assert!(why.contains("listings of web servers are not read"), "{folder}: {why}");
        }
        for wrong in ["https://:80/x", "http://[::1/x", "https://h/*.tar"] {
            assert_eq!(cut(wrong), Some(None), "{wrong}");
        }
        for wrong in ["https://h/*.tar?x=s3cret", "https://h/a#s3cret", "https://u:s3cret@h/a"] {
            let why = origin_and_key(wrong).unwrap().unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
        assert_eq!(cut("https://h/?file=a"), both("https://h", "?file=a"));
        assert_eq!(cut("https://u:p@h/a"), Some(None));
        assert_eq!(cut("https:///a"), Some(None));
        assert_eq!(cut("https://h/a#b"), Some(None));
        assert_eq!(cut("s3://b/a"), None);
        assert_eq!(cut("data/https://"), None);
    }
}

/// Servers that files may be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedServers {
    /// Servers with public addresses.
    Public,
    /// All servers.
    Any,
}
