//! Checksums of a put: those promised by the client, and their verification.
//!
//! Only checksums sent by the client are computed. The entity tag is random instead of the customary MD5, which would cost
//! more than the rest of a put; a client that sends `Content-MD5` gets it as the tag, because then it is known.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto::PutObjectInput;
use s3s::{S3Result, s3_error};
use serde::{Deserialize, Serialize};

/// A checksum of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    fn given(self, input: &PutObjectInput) -> Option<&str> {
        match self {
            Self::Crc32 => input.checksum_crc32.as_deref(),
            Self::Crc32c => input.checksum_crc32c.as_deref(),
            Self::Crc64Nvme => input.checksum_crc64nvme.as_deref(),
            Self::Sha1 => input.checksum_sha1.as_deref(),
            Self::Sha256 => input.checksum_sha256.as_deref(),
        }
    }
}

/// Checksums of one put: computed while its bytes are written, verified before it is published.
#[derive(Default)]
pub(super) struct Sums {
    hasher: ChecksumHasher,
    md5: Option<Md5>,
    /// Base64.
    expected: Vec<(Algorithm, String)>,
    expected_md5: Option<[u8; 16]>,
    /// Announced checksum that follows the body.
    trailing: Option<Algorithm>,
}

impl Sums {
    /// Checksums promised by the headers of a put.
    ///
    /// # Errors
    /// `InvalidDigest` or `InvalidRequest` for a malformed checksum.
    pub(super) fn promised(input: &PutObjectInput, headers: &HeaderMap) -> S3Result<Self> {
        let mut sums = Self::default();
        for algorithm in Algorithm::ALL {
            if let Some(text) = algorithm.given(input) {
                sums.expect(algorithm, text)?;
            }
        }
        if let Some(text) = &input.content_md5 {
            let sum: Option<[u8; 16]> = STANDARD.decode(text).ok().and_then(|b| b.try_into().ok());
            let malformed = || s3_error!(InvalidDigest, "the Content-MD5 you sent is not one");
            sums.expected_md5 = Some(sum.ok_or_else(malformed)?);
            sums.md5 = Some(Md5::new());
        }
        let announced = headers.get("x-amz-trailer").and_then(|value| value.to_str().ok());
        let announced = announced.map(str::trim);
        sums.trailing = Algorithm::ALL
            .into_iter()
            .find(|a| announced.is_some_and(|name| name.eq_ignore_ascii_case(a.header())));
        if let Some(algorithm) = sums.trailing {
            sums.compute(algorithm);
        }
        Ok(sums)
    }

    fn expect(&mut self, algorithm: Algorithm, text: &str) -> S3Result<()> {
        let header = algorithm.header();
        if STANDARD.decode(text).ok().is_none_or(|sum| sum.len() != algorithm.bytes()) {
            return Err(s3_error!(InvalidRequest, "value for {header} header is invalid"));
        }
        self.compute(algorithm);
        self.expected.push((algorithm, text.to_owned()));
        Ok(())
    }

    fn compute(&mut self, algorithm: Algorithm) {
        match algorithm {
            Algorithm::Crc32 => self.hasher.crc32 = Some(Crc32::new()),
            Algorithm::Crc32c => self.hasher.crc32c = Some(Crc32c::new()),
            Algorithm::Crc64Nvme => self.hasher.crc64nvme = Some(Crc64Nvme::new()),
            Algorithm::Sha1 => self.hasher.sha1 = Some(Sha1::new()),
            Algorithm::Sha256 => self.hasher.sha256 = Some(Sha256::new()),
        }
    }

    /// Reads the checksum that follows the body.
    ///
    /// # Errors
    /// `InvalidRequest` if an announced checksum is missing.
    pub(super) fn trailed(&mut self, trailers: Option<&HeaderMap>) -> S3Result<()> {
        let Some(algorithm) = self.trailing else { return Ok(()) };
        let header = algorithm.header();
        let value = trailers.and_then(|map| map.get(header)).and_then(|value| value.to_str().ok());
        let text = value.ok_or_else(|| {
            s3_error!(InvalidRequest, "the trailer {header} was announced and did not come")
        })?;
        if STANDARD.decode(text).ok().is_none_or(|sum| sum.len() != algorithm.bytes()) {
            return Err(s3_error!(InvalidRequest, "value for {header} trailer is invalid"));
        }
        self.expected.push((algorithm, text.to_owned()));
        Ok(())
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
    }

    /// Verifies. Returns the checksums to keep, and the MD5 if known.
    ///
    /// # Errors
    /// `BadDigest`.
    #[allow(clippy::type_complexity, reason = "two results of one comparison")]
    pub(super) fn verify(self) -> S3Result<(Vec<(Algorithm, String)>, Option<[u8; 16]>)> {
        let found = self.hasher.finalize();
        for (algorithm, expected) in &self.expected {
            let found = match algorithm {
                Algorithm::Crc32 => &found.checksum_crc32,
                Algorithm::Crc32c => &found.checksum_crc32c,
                Algorithm::Crc64Nvme => &found.checksum_crc64nvme,
                Algorithm::Sha1 => &found.checksum_sha1,
                Algorithm::Sha256 => &found.checksum_sha256,
            };
            if found.as_ref() != Some(expected) {
                let header = algorithm.header();
                return Err(s3_error!(
                    BadDigest,
                    "the {header} you sent does not match what arrived"
                ));
            }
        }
        let found_md5 = self.md5.map(Md5::finalize);
        if found_md5 != self.expected_md5 {
            return Err(s3_error!(
                BadDigest,
                "the Content-MD5 you sent does not match what arrived"
            ));
        }
        Ok((self.expected, found_md5))
    }
}
