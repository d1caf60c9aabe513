//! Read-only queries about a deployment: identity, access to the bucket, configuration of the functions. Each
//! returns one answer or one [`ProbeError`] within seconds.

use crate::sdk::{
    AwsEndpoints, BucketRights, CallerIdentity, ConcurrencyQuota, DeployedFunction, PROBE_DEADLINE,
    ProbeError, ReadableObject, ServiceResponder,
    aws::{CONNECT_TIMEOUT, s3_config},
    fault::{RequestFault, reason},
    lambda::LambdaClient,
};
use aws_config::{SdkConfig, imds, retry::RetryConfig, timeout::TimeoutConfig};
use aws_credential_types::provider::{ProvideCredentials as _, error::CredentialsError};
use aws_sdk_s3::{
    config::Region,
    error::{ProvideErrorMetadata, SdkError},
    primitives::ByteStream,
};
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{
            Intercept,
            context::{
                BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
            },
            dyn_dispatch_hint,
        },
        orchestrator::HttpResponse,
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::{DateTime, config_bag::ConfigBag, date_time::Format};
use gristmill_model::{Fingerprint, Namespace, stored::keys};
use http::Uri;
use parking_lot::Mutex;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    error::Error,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Timeout of the metadata service, which answers within milliseconds if present.
const METADATA_TIMEOUT: Duration = Duration::from_millis(500);
/// MD5 that no sent content has, in base64.
const WRONG_MD5: &str = "AAAAAAAAAAAAAAAAAAAAAA==";

/// Codes that concern the keys or the signature instead of the requested resource.
const KEYS_REFUSED: [&str; 10] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

/// Sends the queries. Shares keys and connections with its [`crate::sdk::Aws`].
#[derive(Debug)]
pub struct DeploymentProbes {
    sdk: SdkConfig,
    responders: RespondersByService,
    s3: aws_sdk_s3::Client,
    lambda: LambdaClient,
    sts: aws_sdk_sts::Client,
}

impl DeploymentProbes {
    pub(crate) fn new(sdk: &SdkConfig, at: &AwsEndpoints, path_style: bool) -> Self {
        let sdk = sdk
            .to_builder()
            .retry_config(RetryConfig::standard().with_max_attempts(2))
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(CONNECT_TIMEOUT)
                    .operation_timeout(PROBE_DEADLINE)
                    .build(),
            )
            .build();
        let responders = RespondersByService::default();
        let s3 = s3_config(&sdk, at, path_style);
        let s3 = s3.interceptor(ResponderInterceptor::new("s3", &responders));
        let sts = aws_sdk_sts::config::Builder::from(&sdk)
            .interceptor(ResponderInterceptor::new("sts", &responders));
        Self {
            s3: aws_sdk_s3::Client::from_conf(s3.build()),
            lambda: LambdaClient::new(
                &sdk,
                at.lambda.as_deref(),
                ResponderInterceptor::new("lambda", &responders),
            ),
            sts: aws_sdk_sts::Client::from_conf(sts.build()),
            responders,
            sdk,
        }
    }

    /// Region of the requests.
    pub fn region(&self) -> String {
        self.sdk.region().map(ToString::to_string).unwrap_or_default()
    }

    /// Servers that have answered so far, by service.
    pub fn responders(&self) -> BTreeMap<&'static str, ServiceResponder> {
        self.responders.snapshot()
    }

    /// Access key id of the keys found, or the reason why there are none.
    pub async fn keys(&self) -> Result<String, String> {
        let none = || reason(&CredentialsError::not_loaded("no provider"));
        let provider = self.sdk.credentials_provider().ok_or_else(none)?;
        let found = tokio::time::timeout(PROBE_DEADLINE, provider.provide_credentials()).await;
        match found {
            Ok(Ok(keys)) => Ok(keys.access_key_id().to_owned()),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err(format!("no AWS credentials within {} s", PROBE_DEADLINE.as_secs())),
        }
    }

    /// Identity of the keys. Needs no permission.
    pub async fn caller(&self) -> Result<CallerIdentity, ProbeError> {
        let found = self.sts.get_caller_identity().send().await;
        let found =
            found.map_err(|error| self.trouble("sts", "GetCallerIdentity", "STS", &error))?;
        let Some((account, arn)) = found.account.zip(found.arn) else {
            return Err(ProbeError::Other(
                "the service that answers GetCallerIdentity is not STS".to_owned(),
            ));
        };
        Ok(CallerIdentity { account, arn })
    }

    /// Region of `bucket`, if the server reports it.
    pub async fn bucket_region(&self, bucket: &str) -> Result<Option<String>, ProbeError> {
        match self.s3.head_bucket().bucket(bucket).send().await {
            Ok(found) => Ok(found.bucket_region),
            Err(error) => {
                // A bucket in another region cannot be accessed, but its region is reported.
                let headers = error.raw_response().map(|answer| answer.headers());
                let region = headers.and_then(|headers| headers.get("x-amz-bucket-region"));
                match (region, error.raw_response().map(|answer| answer.status().as_u16())) {
                    (Some(region), Some(301 | 400)) => Ok(Some(region.to_owned())),
                    _ => {
                        let place = format!("s3://{bucket}");
                        Err(self.trouble("s3", "HeadBucket", &place, &error))
                    }
                }
            }
        }
    }

    /// Permissions on the objects of `ns` in `bucket`. Leaves no object behind.
    pub async fn bucket_rights(&self, bucket: &str, ns: &Namespace) -> BucketRights {
        let (list, get_chunks, put_indices) = futures::join!(
            self.may_list(bucket, ns),
            self.may_get_chunks(bucket, ns),
            self.may_put_indices(bucket, ns),
        );
        BucketRights { list, get_chunks, put_indices }
    }

    async fn may_list(&self, bucket: &str, ns: &Namespace) -> Result<(), ProbeError> {
        let prefix = keys::jobs_prefix(ns);
        let asked = self.s3.list_objects_v2().bucket(bucket).prefix(&prefix).max_keys(1).send();
        let place = format!("s3://{bucket}/{prefix}");
        asked.await.map_err(|error| self.trouble("s3", "ListObjectsV2", &place, &error))?;
        Ok(())
    }

    /// Getting a missing object: with permission the answer is "not found".
    async fn may_get_chunks(&self, bucket: &str, ns: &Namespace) -> Result<(), ProbeError> {
        let key = format!("{}gristmill-doctor", keys::jobs_prefix(ns));
        let asked = self.s3.head_object().bucket(bucket).key(&key).send().await;
        let place = format!("s3://{bucket}/{key}");
        let trouble = |error| self.trouble("s3", "HeadObject", &place, &error);
        match asked.map_err(trouble) {
            Ok(_) | Err(ProbeError::Missing(_)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Puts with a wrong checksum: permission is checked before the content, and nothing is stored. Conditional, as the
    /// bucket's policy requires.
    async fn may_put_indices(&self, bucket: &str, ns: &Namespace) -> Result<(), ProbeError> {
        let key = keys::index(ns, Fingerprint([0; 32]), "probe", None);
        let put = self.s3.put_object().bucket(bucket).key(&key).if_none_match("*");
        let asked = put.content_md5(WRONG_MD5).body(ByteStream::from_static(b"")).send().await;
        let place = format!("s3://{bucket}/{key}");
        match asked {
            Ok(_) => {
                // The server does not verify checksums.
                let undone = self.s3.delete_object().bucket(bucket).key(&key).send().await;
                undone.map_err(|error| self.trouble("s3", "DeleteObject", &place, &error))?;
                Ok(())
            }
            Err(error) => {
                let status = error.raw_response().map(|answer| answer.status().as_u16());
                let code = error.as_service_error().and_then(|error| error.code());
                let is_the_sum =
                    code.is_some_and(|code| matches!(code, "BadDigest" | "InvalidDigest"));
                match (status, self.trouble("s3", "PutObject", &place, &error)) {
                    (Some(412), _) => Ok(()),
                    _ if is_the_sum => Ok(()),
                    (_, trouble) => Err(trouble),
                }
            }
        }
    }

    /// Configuration of a function by name or ARN.
    pub async fn function(&self, name: &str) -> Result<DeployedFunction, ProbeError> {
        let found = self.lambda.function_configuration(name).await;
        let found = found
            .map_err(|error| self.trouble("lambda", "GetFunctionConfiguration", name, &error))?;
        let reserved = self.lambda.function_concurrency(&unqualified(name)).await;
        let reserved = reserved.map(|found| count(&found["ReservedConcurrentExecutions"]));
        Ok(DeployedFunction {
            state: found["State"].as_str().unwrap_or("Active").to_owned(),
            architecture: architecture(found["Architectures"][0].as_str()),
            reserved: reserved
                .map_err(|error| self.trouble("lambda", "GetFunctionConcurrency", name, &error)),
        })
    }

    /// Concurrency of the account.
    pub async fn quota(&self) -> Result<ConcurrencyQuota, ProbeError> {
        let found = self.lambda.account_settings().await;
        let found = found
            .map_err(|error| self.trouble("lambda", "GetAccountSettings", "the account", &error))?;
        let of = &found["AccountLimit"];
        let limit = count(&of["ConcurrentExecutions"])
            .ok_or_else(|| ProbeError::Other("GetAccountSettings reports no limits".to_owned()))?;
        let unreserved = count(&of["UnreservedConcurrentExecutions"]).unwrap_or(limit);
        Ok(ConcurrencyQuota { limit, unreserved })
    }

    /// VPC of this machine, if it is an EC2 instance with access to its metadata.
    pub async fn vpc(&self) -> Option<String> {
        let disabled = std::env::var("AWS_EC2_METADATA_DISABLED");
        if disabled.is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
            return None;
        }
        let metadata = imds::Client::builder()
            .max_attempts(1)
            .connect_timeout(METADATA_TIMEOUT)
            .read_timeout(METADATA_TIMEOUT)
            .build();
        let vpc = async {
            let interfaces = "/latest/meta-data/network/interfaces/macs/";
            let macs = metadata.get(interfaces).await.ok()?;
            let mac = macs.as_ref().lines().next()?.trim_end_matches('/').to_owned();
            let vpc = metadata.get(format!("{interfaces}{mac}/vpc-id")).await.ok()?;
            Some(vpc.as_ref().to_owned())
        };
        tokio::time::timeout(PROBE_DEADLINE, vpc).await.ok().flatten()
    }

    fn trouble<E>(
        &self,
        service: &'static str,
        operation: &str,
        place: &str,
        error: &SdkError<E, HttpResponse>,
    ) -> ProbeError
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        let fault = RequestFault::new(operation, place, error);
        let code = fault.code.as_deref().unwrap_or_default();
        match fault.status {
            None => match self.responders.address(service) {
                Some(address) => ProbeError::Unreachable(format!("{} (at {address})", fault.text)),
                None => ProbeError::Unreachable(fault.text),
            },
            Some(_) if KEYS_REFUSED.contains(&code) => ProbeError::KeysRefused(fault.text),
            Some(401 | 403) => ProbeError::Denied(fault.text),
            Some(404) => ProbeError::Missing(fault.text),
            Some(_) => ProbeError::Other(fault.text),
        }
    }
}

/// A function's ARN without the version: concurrency belongs to functions.
fn unqualified(name: &str) -> String {
    let parts: Vec<&str> = name.split(':').collect();
    match parts.as_slice() {
        ["arn", _, "lambda", _, _, "function", _, _] => parts[..7].join(":"),
        [function, _version] => (*function).to_owned(),
        _ => name.to_owned(),
    }
}

fn architecture(found: Option<&str>) -> String {
    match found {
        Some("arm64") => "aarch64".to_owned(),
        // Lambda's default.
        None => "x86_64".to_owned(),
        Some(other) => other.to_owned(),
    }
}

fn count(number: &Value) -> Option<u32> {
    number.as_u64().and_then(|number| u32::try_from(number).ok())
}

impl DeploymentProbes {
    /// Lists one object below `prefix` and reads its first byte, in the region of `bucket`.
    pub async fn dataset(&self, bucket: &str, prefix: &str) -> Result<ReadableObject, ProbeError> {
        let region = self.bucket_region(bucket).await?;
        let config = self.s3.config().to_builder();
        let s3 = aws_sdk_s3::Client::from_conf(match &region {
            Some(region) => config.region(Region::new(region.clone())).build(),
            None => config.build(),
        });
        let place = format!("s3://{bucket}/{prefix}");
        let listed = s3.list_objects_v2().bucket(bucket).prefix(prefix).max_keys(1).send().await;
        let listed = listed.map_err(|error| self.trouble("s3", "ListObjectsV2", &place, &error))?;
        let first = listed.contents.into_iter().flatten().find_map(|object| object.key);
        let key = first.ok_or_else(|| ProbeError::Missing(format!("{place}: no object")))?;
        let read = s3.get_object().bucket(bucket).key(&key).range("bytes=0-0").send().await;
        let place = format!("s3://{bucket}/{key}");
        match read {
            Ok(_) => Ok(ReadableObject { key, region }),
            // An empty object has no such range.
            Err(error) if error.raw_response().is_some_and(|a| a.status().as_u16() == 416) => {
                Ok(ReadableObject { key, region })
            }
            Err(error) => Err(self.trouble("s3", "GetObject", &place, &error)),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct RespondersByService(Arc<Mutex<BTreeMap<&'static str, ServiceResponder>>>);

impl RespondersByService {
    /// The services that have answered, by name.
    pub fn snapshot(&self) -> BTreeMap<&'static str, ServiceResponder> {
        self.0.lock().clone()
    }

    /// The address that answered for `service`.
    pub fn address(&self, service: &str) -> Option<String> {
        self.0.lock().get(service).map(|responder| responder.address.clone())
    }
}

#[derive(Debug)]
struct ResponderInterceptor {
    service: &'static str,
    responders: RespondersByService,
}

impl ResponderInterceptor {
    /// An interceptor of the client of `service`.
    pub fn new(service: &'static str, responders: &RespondersByService) -> Self {
        Self { service, responders: responders.clone() }
    }
}

#[dyn_dispatch_hint]
impl Intercept for ResponderInterceptor {
    fn name(&self) -> &'static str {
        "ResponderInterceptor"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let uri: Uri = context.request().uri().parse()?;
        let scheme = uri.scheme_str().unwrap_or("https");
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let mut responders = self.responders.0.lock();
        responders.entry(self.service).or_default().address = format!("{scheme}://{authority}");
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        let mut responders = self.responders.0.lock();
        let responder = responders.entry(self.service).or_default();
        responder.server = headers.get("server").map(str::to_owned).or(responder.server.take());
        responder.ahead_s = headers.get("date").and_then(ahead_s).or(responder.ahead_s);
        Ok(())
    }
}

fn ahead_s(date: &str) -> Option<i64> {
    let there = DateTime::from_str(date, Format::HttpDate).ok()?.secs();
    let here = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(there - i64::try_from(here).ok()?)
}

#[cfg(test)]
mod tests;
