//! A small program: files of web servers are refused with the remedy.

#![cfg(not(feature = "client"))]
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use bytes::Bytes;
use gristmill_ports::{ObjectPath, ObjectStore, memory::MemoryObjects};
use gristmill_web::{AllowedServers, WebRoutedStore, origin_and_key};
use std::sync::Arc;

const REMEDY: &str =
    "this gristmill was built without the feature `web`: build it without --no-default-features";

#[test]
fn addresses_are_refused_with_the_remedy_and_without_secrets() {
    let refused = |text| origin_and_key(text).unwrap().unwrap_err();
    assert_eq!(refused("https://h:8443/a.tar?x=s3cret"), format!("https://h:8443: {REMEDY}"));
    assert!(!refused("https://u:s3cret@h/a").contains("s3cret"));
    assert_eq!(origin_and_key("s3://b/a"), None);
}

#[tokio::test]
async fn web_servers_are_refused_and_other_objects_are_not() {
    let objects =
        WebRoutedStore::from_env(Arc::new(MemoryObjects::default()), AllowedServers::Any).unwrap();
    let (web, own) = (ObjectPath::new("https://h", "a"), ObjectPath::new("b", "a"));
    objects.put_if_absent(&own, Bytes::from_static(b"x"), "1").await.unwrap();
    assert_eq!(objects.get(&own).await.unwrap(), "x");
    let refused = [
        objects.get(&web).await.map(|_| ()),
        objects.get_range(&web, 0..1, None).await.map(|_| ()),
        objects.list(&web.bucket, "a").await.map(|_| ()),
    ];
    for refused in refused {
        assert!(refused.unwrap_err().to_string().contains(REMEDY));
    }
}
