//! Buckets in other regions. S3 refuses a request that comes to the wrong region and names the right one; the SDK does not
//! follow.

use super::S3Objects;
use aws_sdk_s3::{Client, config::Region, error::SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Header with the region of a bucket.
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// Clients of the buckets that are in another region than the process, by bucket. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct OtherRegionClients(Arc<Mutex<BTreeMap<String, Client>>>);

impl S3Objects {
    /// Sends a request in the region of `bucket`, which the first refusal tells.
    pub(super) async fn ask<T, E, F>(
        &self,
        bucket: &str,
        request: impl Fn(Client) -> F,
    ) -> Result<T, SdkError<E, HttpResponse>>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let known = self.elsewhere.lock().get(bucket).cloned();
        let client = match known {
            Some(client) => client,
            None => self.client().await.clone(),
        };
        match request(client.clone()).await {
            Err(error) if let Some(region) = other_region(&client, &error) => {
                let config = client.config().to_builder().region(region);
                let client = Client::from_conf(config.build());
                self.elsewhere.lock().insert(bucket.to_owned(), client.clone());
                request(client).await
            }
            outcome => outcome,
        }
    }
}

impl OtherRegionClients {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The region to which an answer refers: regions opened after March 2019 answer 400 instead of a redirect.
fn other_region<E>(client: &Client, error: &SdkError<E, HttpResponse>) -> Option<Region> {
    let answer = error.raw_response()?;
    let region = answer.headers().get(BUCKET_REGION)?;
    let refers = matches!(answer.status().as_u16(), 301 | 302 | 307 | 400);
    let is_other = client.config().region().is_none_or(|own| own.as_ref() != region);
    (refers && is_other).then(|| Region::new(region.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdk::testing::{Answer, Asked, Server, signature::REGION};
    use bytes::Bytes;
    use gristmill_ports::{ObjectError, ObjectPath, ObjectStore as _, PutOutcome};

    const ELSEWHERE: &str = "eu-central-2";

    fn signed_for(asked: &Asked) -> String {
        let scope = asked.header("authorization").split(['/', ',']).nth(2);
        scope.unwrap_or_default().to_owned()
    }

    fn refusal(status: u16, code: &str, region: &str) -> Answer {
        let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
        Answer::Full(status, vec![(BUCKET_REGION, region.to_owned())], body.into())
    }

    /// Answers as S3 does for a bucket in [`ELSEWHERE`].
    async fn elsewhere(status: u16, code: &'static str) -> Server {
        Server::start(move |n, asked| {
            if signed_for(asked) != ELSEWHERE {
                return refusal(status, code, ELSEWHERE);
            }
            match asked.method.as_str() {
                // As after a put whose response was lost.
                "PUT" if n == 1 => Answer::status(412, ""),
                "HEAD" => {
                    Answer::Full(200, vec![("x-amz-meta-put-id", "id".to_owned())], "".into())
                }
                "GET" if asked.target.contains("list-type") => {
                    Answer::status(200, "<ListBucketResult></ListBucketResult>")
                }
                "GET" => Answer::Full(206, vec![("etag", "e".to_owned())], "01234".into()),
                _ => Answer::status(200, "<DeleteResult></DeleteResult>"),
            }
        })
        .await
    }

    const REFUSALS: [(u16, &str); 4] = [
        (301, "PermanentRedirect"),
        (307, "TemporaryRedirect"),
        (400, "AuthorizationHeaderMalformed"),
        (400, "IllegalLocationConstraintException"),
    ];

    #[tokio::test]
    async fn a_bucket_elsewhere_is_asked_there_and_remembered() {
        let path = ObjectPath::new("b", "k");
        for (status, code) in REFUSALS {
            for operation in ["get", "list", "put", "delete"] {
                let server = elsewhere(status, code).await;
                let objects = server.aws().objects();
                let ask = async |objects: &S3Objects| match operation {
                    "get" => {
                        let read = objects.get_range(&path, 0..5, None).await;
                        assert_eq!(read.unwrap(), "01234", "{code}");
                    }
                    "list" => assert_eq!(objects.list("b", "").await.unwrap(), [], "{code}"),
                    "put" => {
                        let put =
                            objects.put_if_absent(&path, Bytes::from_static(b"x"), "id").await;
                        assert_eq!(put.unwrap(), PutOutcome::Created, "{code}");
                    }
                    _ => objects.delete("b", &["k".to_owned()]).await.unwrap(),
                };
                ask(&objects).await;
                ask(&objects.clone()).await;
                let regions: Vec<_> = server.asked().iter().map(signed_for).collect();
                assert_eq!(regions[0], REGION, "{code} {operation}");
                assert!(regions.len() > 2 && regions[1..].iter().all(|to| to == ELSEWHERE));
                if operation == "put" {
                    assert!(
                        server
                            .asked()
                            .iter()
                            .all(|asked| asked.method == "HEAD" || asked.body == "x")
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn another_bucket_stays_in_the_region_of_the_process() {
        let server = Server::start(|_, asked| match asked.target.starts_with("/there") {
            true if signed_for(asked) == REGION => refusal(301, "PermanentRedirect", ELSEWHERE),
            _ => Answer::status(200, "<ListBucketResult></ListBucketResult>"),
        })
        .await;
        let objects = server.aws().objects();
        for bucket in ["there", "here"] {
            objects.list(bucket, "").await.unwrap();
        }
        let regions: Vec<_> = server.asked().iter().map(signed_for).collect();
        assert_eq!(regions, [REGION, ELSEWHERE, REGION]);
    }

    #[tokio::test]
    async fn a_refusal_is_followed_once_and_only_to_another_region() {
        for (region, requests) in [(REGION, 1), (ELSEWHERE, 2)] {
            for (status, code) in REFUSALS {
                let server = Server::start(move |_, _| refusal(status, code, region)).await;
                let error = server.aws().objects().list("b", "").await.unwrap_err();
                assert!(
                    matches!(&error, ObjectError::Rejected(text) if text.contains(code)),
                    "{error}"
                );
                assert_eq!(server.asked().len(), requests, "{code} {region}");
            }
        }
    }
}
