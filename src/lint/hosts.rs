//! Family 5: what a target's address says about where data and keys go.

use std::net::{IpAddr, Ipv4Addr};

use crate::diag::{Diagnostic, Example, Rule, Severity, quoted};
use crate::spec::policy::DataClass;

use super::view::View;

/// All of them.
pub static ALL: [&Rule; 2] = [&IN_CLEAR, &NO_VENDOR];

/// A key over an open network.
pub static IN_CLEAR: Rule = Rule {
    code: "LF505",
    name: "key-in-clear",
    severity: Severity::Warning,
    what: "A target with credentials has an `http://` address on a host that is not loopback, in a private network or under a local name.",
    why: "The key and every text of every customer cross the open network unencrypted, and anybody on the way can read and change them.",
    fix: "Write `https://`. If the host is reached through a tunnel, name the tunnel's own address.",
    example: Example::Policy {
        good: "base_url: https://api.vendor-x.example/v1",
        bad: "base_url: http://api.vendor-x.example/v1",
    },
};

/// A public host without a vendor.
pub static NO_VENDOR: Rule = Rule {
    code: "LF506",
    name: "vendor-not-said",
    severity: Severity::Info,
    what: "A route with personal data names a target on a public host that does not say whose it is (`domains: { vendor: ... }`).",
    why: "Only a target with `domains.vendor` counts as external: without it nothing tells that personal data leaves the house (LF502), and drills do not know what fails together.",
    fix: "Write `domains: { vendor: NAME }` if a vendor runs it. If it is your own, leave it.",
    example: Example::Policy {
        good: "domains: { vendor: x, region: eu-1, egress: kz-2 }",
        bad: "domains: { region: eu-1, egress: kz-2 }",
    },
};

/// Findings about the addresses of targets.
pub fn check(view: &View<'_>, found: &mut Vec<Diagnostic>) {
    for (name, target) in view.raw.targets.iter().flat_map(|t| t.iter()) {
        let at = View::target_at(name, "base_url");
        let Some((scheme, host)) = target.base_url.as_deref().and_then(split) else { continue };
        if !is_public(&host) {
            continue;
        }
        if scheme.eq_ignore_ascii_case("http") && target.credentials.is_some() {
            let message = format!("the key of {} and all texts go to a public host unencrypted", quoted(name));
            found.push(
                view.doc
                    .at(&IN_CLEAR, &at, message)
                    .label("not encrypted")
                    .and(view.doc.place(&View::target_at(name, "credentials")), "sent with every request")
                    .expected("`https://`, or a loopback, private or local address")
                    .help("write `https://`"),
            );
        }
        // A map that could not be read may have said it.
        let said = target.domains.as_ref().map_or_else(
            || view.doc.get(&View::target_at(name, "domains")).is_some(),
            |d| d.get("vendor").is_some() || view.doc.get(&View::target_at(name, "domains/vendor")).is_some(),
        );
        if said {
            continue;
        }
        let personal = view.routes().find(|(_, _, route)| {
            let named = || route.attempts.iter().flatten().flat_map(|a| view.targets(a)).any(|t| t.name == name);
            route.data != Some(DataClass::None) && View::legal(route, target) && named()
        });
        if let Some((_, who, _)) = personal {
            let message =
                format!("{who} has personal data, and nothing says who runs {} on a public host", quoted(name));
            found.push(
                view.doc
                    .at(&NO_VENDOR, &at, message)
                    .label("a vendor's, or your own?")
                    .help("write `domains: { vendor: NAME }` on the target if a vendor runs it; else leave it"),
            );
        }
    }
}

/// Scheme and host of an address, the host in lower case and without brackets, port and closing dot.
fn split(url: &str) -> Option<(&str, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit('@').next()?;
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next()?,
        None => authority.split(':').next()?,
    };
    Some((scheme, host.trim_end_matches('.').to_ascii_lowercase()))
}

/// True if the host may lie outside the house: neither loopback, private or link-local, nor a name that only a local resolver
/// knows (one word, or one of the endings kept for that).
fn is_public(host: &str) -> bool {
    const LOCAL: [&str; 6] = [".localhost", ".local", ".internal", ".lan", ".intranet", ".home.arpa"];
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => is_public_v4(ip),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => is_public_v4(ip),
            // fc00::/7 is unique local, fe80::/10 link-local.
            None => {
                let head = ip.segments()[0];
                !(ip.is_loopback() || ip.is_unspecified() || head & 0xfe00 == 0xfc00 || head & 0xffc0 == 0xfe80)
            }
        },
        Err(_) => host.contains('.') && !LOCAL.iter().any(|end| host.ends_with(end)),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    // 100.64.0.0/10 is shared address space behind a carrier's or a mesh's own network.
    let shared = a == 100 && b & 0xc0 == 64;
    !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_unspecified() || shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_the_house_are_not_public() {
        for (url, public) in [
            ("http://127.0.0.1:8000/v1", false),
            ("http://[::1]:8000/v1", false),
            ("http://[fd00::12]/v1", false),
            ("http://[fe80::1]/v1", false),
            ("http://[::ffff:10.0.0.1]/v1", false),
            ("http://10.20.0.11:8000/v1", false),
            ("http://172.16.0.1/v1", false),
            ("http://192.168.1.1/v1", false),
            ("http://169.254.1.1/v1", false),
            ("http://100.64.0.9/v1", false),
            ("http://localhost:11434/v1", false),
            ("http://vllm:8000/v1", false),
            ("http://gpu.LOCAL/v1", false),
            ("http://llm.models.svc.cluster.local:8000/v1", false),
            ("http://172.32.0.1/v1", true),
            ("http://8.8.8.8/v1", true),
            ("http://[2001:db8::1]/v1", true),
            ("https://API.vendor.example./v1", true),
            ("http://mylocal.example/v1", true),
        ] {
            assert_eq!(split(url).map(|(_, host)| is_public(&host)), Some(public), "{url}");
        }
        assert_eq!(split("http://[::1]:8000/v1"), Some(("http", "::1".to_owned())));
    }
}
