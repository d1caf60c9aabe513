//! The adapters of a small program: every request is refused with the remedy.

#![cfg(not(feature = "sdk"))]
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use bytes::Bytes;
use gristmill_aws::{Aws, AwsCredentials, AwsEndpoints, S3Objects, SettingsError, is_built};
use gristmill_ports::{ObjectPath, ObjectStore};

const REMEDY: &str =
    "this gristmill was built without the feature `aws`: build it without --no-default-features";

fn keys() -> AwsCredentials {
    let key = || "test".to_owned();
    AwsCredentials { access_key_id: key(), secret_access_key: key(), session_token: None }
}

#[tokio::test]
async fn objects_on_s3_are_refused_with_the_remedy() {
    let path = ObjectPath::new("b", "k");
    for s3 in [S3Objects::ambient(), S3Objects::at("http://h".into(), "r".into(), keys())] {
        let refused = [
            s3.put_if_absent(&path, Bytes::new(), "1").await.map(|_| ()),
            s3.get(&path).await.map(|_| ()),
            s3.get_range(&path, 0..1, None).await.map(|_| ()),
            s3.list("b", "k").await.map(|_| ()),
            s3.delete("b", &[]).await,
        ];
        for refused in refused {
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("s3://b") && why.contains(REMEDY), "{why}");
        }
    }
}

#[tokio::test]
async fn no_connection_to_aws_is_made() {
    assert_eq!(Aws::from_env().await.unwrap_err(), SettingsError::NotBuilt);
    let made = Aws::with(AwsEndpoints::default(), "us-east-1".to_owned(), keys());
    assert_eq!(made.unwrap_err().to_string(), REMEDY);
    assert_eq!(is_built(), Err(SettingsError::NotBuilt));
}
