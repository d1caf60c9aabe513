//! The suites of `scripts/test-peers` against peers in containers. Requires Docker and the feature
//! `docker`.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};
use testcontainers::{
    Container, ContainerRequest, GenericImage, ImageExt,
    core::{ContainerPort, IntoContainerPort},
    runners::SyncRunner,
};

/// A peer in a container, which stops when dropped.
struct Peer {
    /// Name in the script.
    name: &'static str,
    container: Container<GenericImage>,
    port: ContainerPort,
}

impl Peer {
    fn start(
        name: &'static str,
        (image, tag): (&str, &str),
        port: u16,
        configured: impl FnOnce(GenericImage) -> ContainerRequest<GenericImage>,
    ) -> Result<Self> {
        let port = port.tcp();
        // The script waits until it responds.
        let image = GenericImage::new(image, tag).with_exposed_port(port);
        let container =
            configured(image).start().with_context(|| format!("{name}: no container"))?;
        Ok(Self { name, container, port })
    }

    /// `NAME=ADDRESS`, for the script's option.
    fn place(&self) -> Result<String> {
        let (host, port) =
            (self.container.get_host()?, self.container.get_host_port_ipv4(self.port)?);
        Ok(format!("{}=http://{host}:{port}", self.name))
    }
}

/// Versions that the script installs without Docker.
fn peers() -> Result<[Peer; 3]> {
    let in_memory = ["-jar", "DynamoDBLocal.jar", "-inMemory", "-disableTelemetry"];
    Ok([
        Peer::start("dynamodb-local", ("amazon/dynamodb-local", "3.3.0"), 8000, |image| {
            image.with_cmd(in_memory)
        })?,
        Peer::start("localstack", ("localstack/localstack", "4.14.0"), 4566, |image| {
            image.with_env_var("SERVICES", "s3")
        })?,
        Peer::start("moto", ("motoserver/moto", "5.2.5"), 5000, Into::into)?,
    ])
}

#[test]
fn the_suites_hold_against_peers_in_containers() -> Result<()> {
    let peers = peers()?;
    let mut script = Command::new("scripts/test-peers");
    script.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    for peer in &peers {
        script.args(["--at", &peer.place()?]);
    }
    let status = script.status().context("scripts/test-peers cannot be started")?;
    ensure!(status.success(), "scripts/test-peers ended with {status}");
    Ok(())
}
