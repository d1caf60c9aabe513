//! The command and environment variables of a function's process.

use std::fs::File;
use std::process::{Command, Stdio};

use super::config::FunctionConfig;
use super::host::Host;
use crate::Credentials;

/// The command of a new environment of a function. `token` authenticates it at the Runtime API; its output goes to
/// `log`.
pub(super) fn command(
    config: &FunctionConfig,
    log: Option<&File>,
    host: &Host,
    token: &str,
) -> std::io::Result<Command> {
    let mut command = Command::new(&config.command);
    command.args(&config.args).stdin(Stdio::null()).env_clear();
    for name in ["PATH", "HOME", "TMPDIR", "RUST_LOG"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let Credentials { access_key_id, secret_access_key } = &host.settings.credentials;
    let region = &host.settings.region;
    if config.ambient {
        command.envs(std::env::vars_os().filter(|(name, _)| is_ambient(name)));
        command
            .env("GRISTMILL_LOCAL_REGION", region)
            .env("GRISTMILL_LOCAL_ACCESS_KEY_ID", access_key_id)
            .env("GRISTMILL_LOCAL_SECRET_ACCESS_KEY", secret_access_key);
    } else {
        command
            .env("AWS_REGION", region)
            .env("AWS_DEFAULT_REGION", region)
            .env("AWS_ACCESS_KEY_ID", access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", secret_access_key)
            .env("AWS_EC2_METADATA_DISABLED", "true");
    }
    command
        .env("TZ", ":UTC")
        // Their output goes to a file.
        .env("NO_COLOR", "1")
        .env("AWS_LAMBDA_FUNCTION_NAME", &config.name)
        .env("AWS_LAMBDA_FUNCTION_VERSION", &config.version)
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", config.memory_mb.to_string())
        .env("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")
        .env("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{}", config.name))
        .env("AWS_LAMBDA_LOG_STREAM_NAME", token)
        // The scheme is needed: without it the runtime cannot read an address that carries a path.
        .env("AWS_LAMBDA_RUNTIME_API", format!("http://{}/{token}", host.runtime_api))
        .envs(&config.env);
    match log {
        Some(log) => command.stdout(log.try_clone()?).stderr(log.try_clone()?),
        None => command.stdout(Stdio::null()).stderr(Stdio::null()),
    };
    Ok(command)
}

/// Whether a variable configures access to AWS and web servers.
fn is_ambient(name: &std::ffi::OsStr) -> bool {
    const OTHERS: [&str; 7] = [
        "GRISTMILL_WEB_AUTHORIZATION",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    name.to_str().is_some_and(|name| {
        (name.starts_with("AWS_") && !name.starts_with("AWS_LAMBDA_")) || OTHERS.contains(&name)
    })
}
