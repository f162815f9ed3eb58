//! Who may speak to the loopback port at all: a token, a loopback Host (DNS rebinding), no foreign Origin (a page).

use std::net::{IpAddr, SocketAddr};

use hyper::header::{self, HeaderMap};
use hyper::{Request, Uri};

use crate::door::auth::Tokens;
use crate::protocol::{Fault, FaultKind};
use crate::secret::Token;
use crate::verb::{Authority, VERBS};

/// The header that carries the token; `Authorization: Bearer` is the other.
const TOKEN_HEADER: &str = "x-hermes-session-token";

/// What the headers give their bearer. A wrong token in the one header does not spoil a right one in the other; of two
/// headers of one name the first counts.
pub(super) fn authority(headers: &HeaderMap, tokens: &Tokens) -> Authority {
    let own = headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok());
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let shown = |text: Option<&str>| text.and_then(|text| tokens.authority(&Token::new(text)));
    shown(own).max(shown(bearer)).unwrap_or(Authority::Public)
}

/// Token, Host and Origin, in that order.
pub(super) fn admit<B>(request: &Request<B>, path: &str, authority: Authority, ours: SocketAddr) -> Result<(), Fault> {
    if needs_token(path) && authority == Authority::Public {
        return Err(Fault::new(FaultKind::Unauthorized, "Unauthorized"));
    }
    if !host_is_loopback(request.headers(), request.uri()) {
        let message = "Invalid Host header: this port answers to 127.0.0.1, localhost and [::1] only";
        return Err(Fault::new(FaultKind::Invalid, message));
    }
    match request.headers().get(header::ORIGIN) {
        Some(origin) if !is_own_origin(origin.as_bytes(), ours) => {
            Err(Fault::new(FaultKind::Forbidden, "Invalid Origin header: pages of other origins are not served"))
        }
        _ => Ok(()),
    }
}

/// Everything under /api/ but the public rows needs a token, whether it exists or not: a stranger learns no paths.
fn needs_token(path: &str) -> bool {
    let public = |verb: &&&crate::verb::Verb| verb.authority == Authority::Public;
    let is_public =
        VERBS.iter().filter(public).any(|verb| verb.http.is_some_and(|route| route.matches(path).is_some()));
    path.starts_with("/api/") && !is_public
}

fn host_is_loopback(headers: &HeaderMap, uri: &Uri) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let in_uri = uri.authority().is_none_or(|authority| is_loopback_name(authority.as_str()));
    host.is_some_and(is_loopback_name) && in_uri
}

/// `name` or `name:port`, where the name is one of three.
fn is_loopback_name(authority: &str) -> bool {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]"
}

fn is_own_origin(origin: &[u8], ours: SocketAddr) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else { return false };
    let Some(authority) = origin.strip_prefix("http://") else { return false };
    let Some((_, port)) = authority.rsplit_once(':') else { return false };
    is_loopback_name(authority) && port.parse() == Ok(ours.port())
}

/// The address to bind, if it is one that only this machine reaches.
pub fn loopback(host: &str) -> Option<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    }
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_three_names_are_loopback() {
        for good in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9119", "[::1]", "[::1]:1"] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.test:80",
            "127.0.0.1.evil.test",
            "localhost.",
            "127.0.0.2",
            "::1",
            "127.0.0.1:",
            "127.0.0.1:x",
            "user@127.0.0.1",
            "127.0.0.1/",
            " 127.0.0.1",
        ] {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }

    #[test]
    fn an_origin_is_ours_only_with_our_port() {
        let ours = SocketAddr::from(([127, 0, 0, 1], 9119));
        assert!(is_own_origin(b"http://127.0.0.1:9119", ours));
        assert!(is_own_origin(b"http://localhost:9119", ours));
        for bad in ["null", "http://localhost:5173", "https://127.0.0.1:9119", "http://evil.example:9119", "file://"] {
            assert!(!is_own_origin(bad.as_bytes(), ours), "{bad}");
        }
    }
}
