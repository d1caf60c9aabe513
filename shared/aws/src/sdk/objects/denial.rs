//! Denied reads. To a caller that may not list an object's key, S3 denies what does not exist as it denies what exists.

use super::S3Objects;
use aws_sdk_s3::Client;
use gristmill_ports::{ObjectError, ObjectPath};

pub(super) const GRANT_LIST: &str =
    "grant s3:ListBucket on the bucket; requester-pays buckets are not supported";
const GRANT_KEY: &str = "grant kms:Decrypt on the key of the bucket: a policy names it by its key \
                         ARN, an alias ARN grants nothing";
const GRANT_READ: &str =
    "the object exists: grant s3:GetObject on it, and kms:Decrypt on the key that encrypts it";
const GRANT_BOTH: &str = "it does not exist, or may not be read: grant s3:ListBucket on the bucket \
                          to tell, and s3:GetObject on its objects; requester-pays buckets are \
                          not supported";

impl S3Objects {
    /// Explains a denied read. A listing of the key tells more than a second read: policies often grant `s3:ListBucket`
    /// for a prefix, which a read does not name.
    pub(super) async fn explain_denial(&self, path: &ObjectPath, why: String) -> ObjectError {
        let remedy = if why.contains("kms:") {
            GRANT_KEY
        } else {
            match self.exists(path).await {
                Some(false) => return ObjectError::NotFound(path.clone()),
                Some(true) => GRANT_READ,
                None => GRANT_BOTH,
            }
        };
        ObjectError::Denied(format!("{why}: {remedy}"))
    }

    /// Whether a listing has the object; `None` if there is no listing.
    async fn exists(&self, path: &ObjectPath) -> Option<bool> {
        let ObjectPath { bucket, key } = path;
        let list =
            |client: Client| client.list_objects_v2().bucket(bucket).prefix(key).max_keys(1).send();
        // The key itself is the first with this prefix.
        let page = self.ask(bucket, list).await.ok()?;
        Some(page.contents().iter().any(|found| found.key() == Some(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdk::testing::{Answer, Server};
    use gristmill_ports::ObjectStore as _;

    const DENIED: &str = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";

    fn listing(keys: &[&str]) -> Answer {
        let object = |key: &&str| {
            format!("<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag></Contents>")
        };
        let objects: String = keys.iter().map(object).collect();
        Answer::status(200, format!("<ListBucketResult>{objects}</ListBucketResult>"))
    }

    /// The error of a read that is denied with `refusal`, and the number of requests.
    async fn denied(refusal: &'static str, list: fn() -> Answer) -> (ObjectError, usize) {
        let server = Server::start(move |_, asked| {
            if asked.target.contains("list-type") { list() } else { Answer::status(403, refusal) }
        })
        .await;
        let path = ObjectPath::new("b", "dir/k.tar");
        let error = server.aws().objects().get_range(&path, 0..9, Some("e")).await.unwrap_err();
        let asked = server.asked();
        if let Some(list) = asked.get(1) {
            assert!(list.target.contains("prefix=dir%2Fk.tar"), "{}", list.target);
        }
        (error, asked.len())
    }

    #[tokio::test]
    async fn a_denied_object_that_no_listing_has_does_not_exist() {
        let others: [fn() -> Answer; 2] = [|| listing(&[]), || listing(&["dir/k.tar.gz"])];
        for list in others {
            let (error, asked) = denied(DENIED, list).await;
            assert!(matches!(error, ObjectError::NotFound(_)), "{error}");
            assert_eq!(asked, 2, "a listing, once");
        }
    }

    #[tokio::test]
    async fn a_denied_object_says_which_right_is_missing() {
        const KEY: &str = "<Error><Code>AccessDenied</Code><Message>User: u is not authorized to \
                           perform: kms:Decrypt on the resource</Message></Error>";
        let unlisted: fn() -> Answer = || Answer::status(403, DENIED);
        for (refusal, list, requests, remedy) in [
            (DENIED, (|| listing(&["dir/k.tar"])) as fn() -> Answer, 2, "grant s3:GetObject on it"),
            (DENIED, unlisted, 2, "grant s3:ListBucket on the bucket"),
            (DENIED, unlisted, 2, "requester-pays"),
            (KEY, unlisted, 1, "alias ARN grants nothing"),
        ] {
            let (error, asked) = denied(refusal, list).await;
            let ObjectError::Denied(text) = error else { panic!("{error}") };
            assert!(text.starts_with("GetObject on s3://b/dir/k.tar: AccessDenied: "), "{text}");
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
            assert_eq!(asked, requests, "{remedy}");
        }
    }
}
