//! The same names in a program without the SDK. Nothing on AWS is reached, so [`Aws`] has no values.

use crate::{
    AwsCredentials, AwsEndpoints, BucketRights, CallerIdentity, ConcurrencyQuota, DeployedFunction,
    ProbeError, ReadableObject, ServiceResponder, SettingsError,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::{
    Namespace,
    wire::{AnyCall, AnyReply},
};
use gristmill_ports::{
    CallError, Coordinator, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PutOutcome, Table,
};
use std::{collections::BTreeMap, convert::Infallible, ops::Range, sync::Arc};

/// Stands for everything on AWS, and has no values: its methods are those of the real types, and are never called. The field is private, so that callers compile as with the SDK.
#[derive(Debug, Clone)]
pub struct Aws(Infallible);

pub type HttpCoordinator = Aws;
pub type DeploymentProbes = Aws;

impl Aws {
    pub async fn from_env() -> Result<Self, SettingsError> {
        Err(SettingsError::NotBuilt)
    }

    pub fn with(
        _endpoints: AwsEndpoints,
        _region: String,
        _credentials: AwsCredentials,
    ) -> Result<Self, SettingsError> {
        Err(SettingsError::NotBuilt)
    }

    pub fn table(&self, _name: &str) -> Arc<dyn Table> {
        match self.0 {}
    }

    pub fn objects(&self) -> S3Objects {
        match self.0 {}
    }

    pub fn coordinator(&self, _url: &str, _ns: Namespace) -> Result<Self, SettingsError> {
        match self.0 {}
    }

    pub fn has_own_endpoints(&self) -> bool {
        match self.0 {}
    }

    pub fn counts(&self) -> BTreeMap<String, u64> {
        match self.0 {}
    }

    pub async fn make_table(&self, _name: &str) -> Result<(), SettingsError> {
        match self.0 {}
    }

    pub async fn make_bucket(&self, _name: &str) -> Result<(), SettingsError> {
        match self.0 {}
    }

    pub fn url_region(&self) -> Option<&str> {
        match self.0 {}
    }
}

/// The queries of `gristmill doctor`.
impl Aws {
    pub fn probes(&self) -> Self {
        match self.0 {}
    }

    pub fn region(&self) -> String {
        match self.0 {}
    }

    pub fn responders(&self) -> BTreeMap<&'static str, ServiceResponder> {
        match self.0 {}
    }

    pub async fn keys(&self) -> Result<String, String> {
        match self.0 {}
    }

    pub async fn caller(&self) -> Result<CallerIdentity, ProbeError> {
        match self.0 {}
    }

    pub async fn bucket_region(&self, _bucket: &str) -> Result<Option<String>, ProbeError> {
        match self.0 {}
    }

    pub async fn bucket_rights(&self, _bucket: &str, _ns: &Namespace) -> BucketRights {
        match self.0 {}
    }

    pub async fn dataset(
        &self,
        _bucket: &str,
        _prefix: &str,
    ) -> Result<ReadableObject, ProbeError> {
        match self.0 {}
    }

    pub async fn function(&self, _name: &str) -> Result<DeployedFunction, ProbeError> {
        match self.0 {}
    }

    pub async fn quota(&self) -> Result<ConcurrencyQuota, ProbeError> {
        match self.0 {}
    }

    pub async fn vpc(&self) -> Option<String> {
        match self.0 {}
    }
}

#[async_trait]
impl Coordinator for Aws {
    async fn exchange(&self, _call: &AnyCall) -> Result<AnyReply, CallError> {
        match self.0 {}
    }

    fn speak(&self, _version: u32) {
        match self.0 {}
    }
}

/// Refuses every request.
#[derive(Debug, Clone, Default)]
pub struct S3Objects;

impl S3Objects {
    pub fn ambient() -> Self {
        Self
    }

    pub fn at(_endpoint: String, _region: String, _credentials: AwsCredentials) -> Self {
        Self
    }
}

fn refusal(place: &str) -> ObjectError {
    ObjectError::Rejected(format!("{place}: {}", SettingsError::NotBuilt))
}

#[async_trait]
impl ObjectStore for S3Objects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        _body: Bytes,
        _put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        Err(refusal(&path.to_string()))
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        Err(refusal(&path.to_string()))
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        _range: Range<u64>,
        _etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        Err(refusal(&path.to_string()))
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        Err(refusal(&ObjectPath::new(bucket, prefix).to_string()))
    }

    async fn delete(&self, bucket: &str, _keys: &[String]) -> Result<(), ObjectError> {
        Err(refusal(&format!("s3://{bucket}")))
    }
}
