//! The listeners of a service and their ports.

use std::net::TcpListener;

use super::config::{Endpoints, Others, Ports};
use crate::{LocalError, http_server};

/// Listeners, all bound before anything serves.
pub(super) struct Listeners {
    pub ports: Ports,
    pub lambda: TcpListener,
    pub s3: TcpListener,
    pub dynamodb: TcpListener,
    pub coordinator: TcpListener,
}

impl Listeners {
    /// Binds the ports of `requested`; for 0 that of `before`, or any free one.
    pub(super) fn bind(requested: Ports, before: Option<Ports>) -> Result<Self, LocalError> {
        let before = before.unwrap_or_default();
        let bind = |what, requested: u16, before: u16| {
            let listener =
                http_server::bind(what, if requested == 0 { before } else { requested })?;
            let system = |source| LocalError::System { what, source };
            let port = listener.local_addr().map_err(system)?.port();
            Ok::<_, LocalError>((listener, port))
        };
        let (lambda, lambda_port) = bind("function API", requested.lambda, before.lambda)?;
        let (s3, s3_port) = bind("object store", requested.s3, before.s3)?;
        let (dynamodb, dynamodb_port) = bind("table", requested.dynamodb, before.dynamodb)?;
        let (coordinator, coordinator_port) =
            bind("coordinator's URL", requested.coordinator, before.coordinator)?;
        let ports = Ports {
            lambda: lambda_port,
            s3: s3_port,
            dynamodb: dynamodb_port,
            coordinator: coordinator_port,
        };
        Ok(Self { ports, lambda, s3, dynamodb, coordinator })
    }

    pub(super) fn endpoints(&self, others: &Others) -> Endpoints {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let folders = url(self.ports.s3);
        Endpoints {
            lambda: url(self.ports.lambda),
            s3: others.s3.clone().unwrap_or_else(|| folders.clone()),
            folders,
            dynamodb: others.dynamodb.clone().unwrap_or_else(|| url(self.ports.dynamodb)),
            coordinator_url: url(self.ports.coordinator),
        }
    }
}
