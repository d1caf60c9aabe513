//! Addresses that a worker may connect to.
//!
//! A function in an account can reach private addresses: its host's metadata service and private networks. A dataset's
//! address is user input and must not give access to them (server-side request forgery).

use crate::AllowedServers;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

impl AllowedServers {
    /// Whether `url`, possibly from a redirect, may be requested. Names are checked when they are resolved.
    pub(crate) fn check(self, url: &Url) -> Result<(), String> {
        let address = match url.host_str() {
            Some(host) => host.trim_matches(['[', ']']).parse::<IpAddr>().ok(),
            None => return Err("the address names no server".to_owned()),
        };
        match (self, address) {
            (Self::Public, Some(address)) if !is_public(address) => {
                Err(not_public(url.host_str().unwrap_or("")))
            }
            _ => Ok(()),
        }
    }
}

fn not_public(host: &str) -> String {
    format!(
        "{host} is not a public address, and workers of this stack read only public ones: put the \
         data on S3, or deploy with AllowPrivateSources"
    )
}

/// Resolves names to public addresses only, at every connection: a name may change between a check and its use.
pub(crate) struct PublicResolver;

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.filter(|found| is_public(found.ip())).collect();
            if found.is_empty() {
                Err(not_public(name.as_str()).into())
            } else {
                Ok(Box::new(found.into_iter()) as Addrs)
            }
        })
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => is_public_v4(inner),
            // Global unicast, except documentation addresses.
            None => {
                address.segments()[0] & 0xe000 == 0x2000
                    && address.segments()[..2] != [0x2001, 0xdb8]
            }
        },
    }
}

/// The IPv4 address embedded in an IPv6 address: mapped, NAT64 or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b) {
        (0, 0) if (c, d, e, f) == (0, 0, 0, 0xffff) => Some(joined(g, h)),
        (0x64, 0xff9b) => Some(joined(g, h)),
        (0x2002, _) => Some(joined(b, c)),
        _ => None,
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        // Carrier-grade NAT.
        || a == 100 && (64..128).contains(&b)
        || (a, b, c) == (192, 0, 0)
        || a == 198 && (18..20).contains(&b)
        // Multicast, reserved, broadcast.
        || a >= 224;
    !special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_of_its_own_is_out_of_reach() {
        for address in [
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["1.1.1.1", "100.128.0.1", "198.20.0.1", "2606:4700::1111", "::ffff:8.8.8.8"]
        {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn literal_addresses_are_judged_before_they_are_asked() {
        let check =
            |reach: AllowedServers, url: &str| reach.check(&Url::parse(url).unwrap()).is_ok();
        assert!(!check(AllowedServers::Public, "http://169.254.169.254/latest"));
        // All of these are 127.0.0.1.
        for url in
            ["http://2130706433/", "http://0x7f.1/", "http://[::ffff:127.0.0.1]/", "http://127.1/"]
        {
            assert!(!check(AllowedServers::Public, url), "{url}");
            assert!(check(AllowedServers::Any, url), "{url}");
        }
        assert!(check(AllowedServers::Public, "https://1.1.1.1/a"));
        assert!(check(AllowedServers::Public, "https://example.com/a"));
    }

    #[tokio::test]
    async fn names_of_this_machine_are_out_of_reach() {
        let found = PublicResolver.resolve("localhost".parse().unwrap()).await;
        assert!(found.err().unwrap().to_string().contains("not a public address"));
    }
}
