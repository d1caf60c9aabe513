//! Credentials that end and are renewed; and profiles, each in a process with a home of its own.

use super::*;
use crate::sdk::{
    Aws, AwsEndpoints, S3Objects,
    fault::reason,
    testing::{Answer, Asked, Server, signature},
};
use aws_credential_types::{Credentials, provider::future};
use gristmill_ports::ObjectStore as _;
use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Keys of assumed roles: each load has others, which last for `lasts`; the second load fails.
#[derive(Debug, Clone)]
struct Assumed {
    loads: Arc<AtomicUsize>,
    lasts: Duration,
}

impl Assumed {
    fn new(lasts: Duration) -> Self {
        Self { loads: Arc::default(), lasts }
    }
}

impl ProvideCredentials for Assumed {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let n = self.loads.fetch_add(1, Ordering::Relaxed);
        let end = SystemTime::now() + self.lasts;
        let id = format!("ASIA{n}");
        future::ProvideCredentials::ready(match n {
            1 => Err(CredentialsError::provider_error("STS is busy")),
            _ => Ok(Credentials::new(id, "secret", Some("token".to_owned()), Some(end), "test")),
        })
    }
}

fn key_of(asked: &Asked) -> String {
    let key = asked.header("authorization").split(['=', '/']).nth(1);
    key.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_keys_until_they_end() {
    // Shorter than the buffer, so that each call renews them.
    for (lasts, second) in [(Duration::from_secs(40), true), (Duration::ZERO, false)] {
        let cache =
            CredentialsCache::new(Some(SharedCredentialsProvider::new(Assumed::new(lasts))));
        let mut renewed = Vec::new();
        for _ in 0..3 {
            renewed.push(cache.identity().await.map_err(|error| reason(&error)));
        }
        assert_eq!(renewed.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, second, true]);
        if let Err(text) = &renewed[1] {
            assert!(text.contains("STS is busy"), "{text}");
        }
    }
}

#[tokio::test]
async fn keys_that_end_in_mid_run_are_renewed_in_every_region() {
    let server = Server::start(|_, asked| {
        let in_other_region = asked.header("authorization").contains("/eu-west-1/");
        let region = vec![("x-amz-bucket-region", "eu-west-1".to_owned())];
        if asked.target.starts_with("/there") && !in_other_region {
            Answer::Full(301, region, "".into())
        } else {
            Answer::status(200, "<ListBucketResult></ListBucketResult>")
        }
    })
    .await;
    // The SDK renews keys 10 s before they end.
    for (lasts, keys) in [(Duration::from_secs(5), 6), (Duration::from_secs(3600), 1)] {
        let assumed = SharedCredentialsProvider::new(Assumed::new(lasts));
        let at = AwsEndpoints { s3: Some(server.url.clone()), ..AwsEndpoints::default() };
        let aws = Aws::provided(signature::REGION.to_owned(), assumed, at, true);
        let objects = aws.objects();
        let before = server.asked().len();
        let mut failed = 0;
        for bucket in ["here", "here", "there", "there", "there", "here"] {
            failed += usize::from(objects.list(bucket, "").await.is_err());
        }
        let mut used: Vec<_> = server.asked()[before..].iter().map(key_of).collect();
        used.dedup();
        assert_eq!((used.len(), failed), (keys, usize::from(keys > 1)), "{used:?}");
    }
}

const START: &str = "https://example.awsapps.com/start";
const SSO: &str = "region = us-east-1\nsso_session = team\nsso_account_id = 111122223333\n\
                   sso_role_name = Trainer\n[sso-session team]\nsso_region = us-east-1\n\
                   sso_start_url = https://example.awsapps.com/start\n";
const LOGIN: &str = "region = us-east-1\nlogin_session = arn:aws:iam::111122223333:user/me\n";
/// Names that the AWS CLI gives: the SHA-1 of the session's name, the SHA-256 of the user's ARN.
const SSO_TOKEN: &str = ".aws/sso/cache/d25187dc137f35c88bc80ec8c3ffbdb17b5eb873.json";
const LOGIN_TOKEN: &str =
    ".aws/login/cache/6eeec053fe13079aaf7fd81065ec5ecbdb93674f20700e51842d0c769b240c8a.json";
const CHILD: &str = "GRISTMILL_TEST_PROFILE";

fn sso_token(year: u32) -> (&'static str, String) {
    let token = format!(
        r#"{{"accessToken":"a","expiresAt":"{year}-01-01T00:00:00Z","startUrl":"{START}","region":"us-east-1"}}"#
    );
    (SSO_TOKEN, token)
}

fn login_token() -> (&'static str, String) {
    let token = r#"{"accessToken":{"accessKeyId":"ASIALOGIN","secretAccessKey":"s","sessionToken":"t",
        "accountId":"111122223333","expiresAt":"2099-01-01T00:00:00Z"},"tokenType":"aws_sigv4",
        "refreshToken":"r","clientId":"arn:aws:signin:::devtools/same-device","dpopKey":"k"}"#;
    (LOGIN_TOKEN, token.to_owned())
}

/// The side of the process with the profile: lists a bucket, and again after another login.
#[tokio::test]
async fn a_process_with_a_profile() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let objects: S3Objects = Aws::from_env().await.unwrap().objects();
    let list = async || match objects.list("b", "").await {
        Ok(_) => "listed".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("first: {}", list().await);
    let (name, token) = sso_token(2099);
    put(Path::new(&std::env::var_os("HOME").unwrap()), name, &token);
    println!("after login: {}", list().await);
}

fn put(home: &Path, name: &str, text: &str) {
    let file = home.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Outcomes of a process whose home has `profile` and `token`, before and after a login to SSO.
fn outcomes(
    server: &Server,
    name: &str,
    profile: &str,
    token: Option<(&str, String)>,
) -> [String; 2] {
    outcomes_with(server, name, profile, token, &[])
}

/// The same, with variables in its environment; `~` in one is its home.
fn outcomes_with(
    server: &Server,
    name: &str,
    profile: &str,
    token: Option<(&str, String)>,
    variables: &[(&str, &str)],
) -> [String; 2] {
    let home = std::env::temp_dir().join(format!("gristmill-{}-{name}", std::process::id()));
    put(&home, ".aws/config", &format!("[default]\n{profile}"));
    if let Some((name, text)) = &token {
        put(&home, name, text);
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["sdk::aws::credentials_tests::a_process_with_a_profile", "--exact", "--nocapture"]);
    child.env_clear().env("HOME", &home).env(CHILD, "1").env("AWS_EC2_METADATA_DISABLED", "true");
    for service in ["S3", "SSO", "STS"] {
        child.env(format!("AWS_ENDPOINT_URL_{service}"), &server.url);
    }
    for (variable, value) in variables {
        child.env(variable, value.replace('~', home.to_str().unwrap()));
    }
    let output = child.output().unwrap();
    fs::remove_dir_all(&home).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    ["first: ", "after login: "].map(|mark| {
        let said = text.lines().find_map(|line| line.split_once(mark));
        said.unwrap_or_else(|| panic!("{text}")).1.to_owned()
    })
}

/// S3, and the portal of an SSO that knows the token or does not.
async fn portal(knows: bool) -> Server {
    Server::start(move |_, asked| match asked.target.starts_with("/federation/credentials") {
        true if knows && asked.header("x-amz-sso_bearer_token") == "a" => Answer::status(
            200,
            r#"{"roleCredentials":{"accessKeyId":"ASIASSO","secretAccessKey":"s","sessionToken":"t","expiration":4070908800000}}"#,
        ),
        true => {
            let kind = vec![("x-amzn-errortype", "UnauthorizedException".to_owned())];
            let text = r#"{"message":"Session token not found or invalid"}"#;
            Answer::Full(401, kind, text.into())
        }
        false => Answer::status(200, "<ListBucketResult></ListBucketResult>"),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_of_sso_and_login_have_keys() {
    for (profile, token, key) in
        [(SSO, sso_token(2099), "ASIASSO"), (LOGIN, login_token(), "ASIALOGIN")]
    {
        let server = portal(true).await;
        assert_eq!(outcomes(&server, key, profile, Some(token))[0], "listed");
        assert_eq!(server.asked().last().map(key_of).as_deref(), Some(key));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_or_profile_that_gives_no_keys_says_why() {
    let server = portal(false).await;
    let incomplete = SSO.replace("sso_account_id = 111122223333\n", "");
    let token_only = incomplete.replace("sso_role_name = Trainer\n", "");
    let no_source =
        "region = us-east-1\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = nobody\n";
    let nameless = SSO.replace("[sso-session team]", "[sso-session other]");
    let again = "aws sso login";
    for (name, profile, token, why, remedy) in [
        ("expired", SSO, Some(sso_token(2020)), "token has expired", again),
        ("refused", SSO, Some(sso_token(2099)), "Session token not found or invalid", again),
        ("sso-none", SSO, None, "cached SSO token", again),
        ("login-none", LOGIN, None, "/.aws/login/cache/", "aws login"),
        ("incomplete", &incomplete, None, "sso_account_id", "AWS_PROFILE"),
        ("nameless", &nameless, None, "`team`", "AWS_PROFILE"),
        ("token-only", &token_only, None, "sso_role_name", "AWS_PROFILE"),
        ("no-source", no_source, None, "nobody", "AWS_PROFILE"),
        ("empty", "region = us-east-1\n", None, "no AWS credentials found", "AWS_ACCESS_KEY_ID"),
    ] {
        let [text, _] = outcomes(&server, name, profile, token);
        assert!(text.contains(why) && text.contains(remedy), "{name}: {text}");
        assert!(text.starts_with("ListObjectsV2 on s3://b/: "), "{name}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_session_has_ended_takes_up_the_next_one() {
    let server = portal(true).await;
    for (name, token) in [("ended", Some(sso_token(2020))), ("none-yet", None)] {
        let [first, then] = outcomes(&server, name, SSO, token);
        assert!(first.contains("SSO token"), "{first}");
        assert_eq!(then, "listed", "{name}");
    }
}

/// S3, and an STS whose sessions are so short that each list needs another. Names of the keys say which.
async fn sessions() -> Server {
    let begun = AtomicUsize::new(0);
    Server::start(move |_, asked| {
        let body = String::from_utf8_lossy(&asked.body);
        let Some(action) = body.strip_prefix("Action=").and_then(|rest| rest.split('&').next())
        else {
            return Answer::status(200, "<ListBucketResult></ListBucketResult>");
        };
        let end = aws_smithy_types::DateTime::from(SystemTime::now() + Duration::from_secs(5));
        let end = end.fmt(aws_smithy_types::date_time::Format::DateTime).unwrap();
        let n = begun.fetch_add(1, Ordering::Relaxed);
        Answer::status(
            200,
            format!(
                "<{action}Response><{action}Result><Credentials><AccessKeyId>ASIA{n}</AccessKeyId>\
                 <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
                 <Expiration>{end}</Expiration></Credentials></{action}Result></{action}Response>"
            ),
        )
    })
    .await
}

const ROLE: &str = "arn:aws:iam::123456789012:role/gristmill-TrainerRole-1";

/// A trainer in another account, in a pod or on a GPU cloud, and one with certificates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_the_role_of_trainers_is_renewed_in_mid_run() {
    let chained = format!(
        "region = us-east-1\nrole_arn = {ROLE}\nsource_profile = base\n[profile base]\n\
         aws_access_key_id = AKIABASE\naws_secret_access_key = s\n"
    );
    // Certificates: the credential helper of IAM Roles Anywhere is such a program.
    let program = "region = us-east-1\ncredential_process = . $HOME/.program\n";
    let helper = r#"echo x >>$HOME/.asked; n=-1; while read -r _; do n=$((n + 1)); done <$HOME/.asked
        printf '{"Version":1,"AccessKeyId":"ASIA%s","SecretAccessKey":"s","SessionToken":"t",' $n
        echo '"Expiration":"2020-01-01T00:00:00Z"}'"#;
    let web = [("AWS_ROLE_ARN", ROLE), ("AWS_WEB_IDENTITY_TOKEN_FILE", "~/.token")];
    for (name, profile, token, variables, action) in [
        ("chained", chained.as_str(), None, &[][..], "AssumeRole"),
        (
            "web",
            "region = us-east-1\n",
            Some((".token", "jwt")),
            &web[..],
            "AssumeRoleWithWebIdentity",
        ),
        ("program", program, Some((".program", helper)), &[], "none"),
    ] {
        let token = token.map(|(name, text)| (name, text.to_owned()));
        let server = sessions().await;
        assert_eq!(outcomes_with(&server, name, profile, token, variables), ["listed", "listed"]);
        let asked = server.asked();
        let (of_sts, of_s3): (Vec<_>, Vec<_>) = asked.iter().partition(|a| !a.body.is_empty());
        assert_eq!(of_s3.into_iter().map(key_of).collect::<Vec<_>>(), ["ASIA0", "ASIA1"], "{name}");
        for asked in of_sts {
            let body = String::from_utf8_lossy(&asked.body).into_owned();
            assert!(body.starts_with(&format!("Action={action}&")), "{body}");
            assert!(body.contains("TrainerRole"), "{body}");
        }
    }
}
