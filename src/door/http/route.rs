//! From method, path, query and body to one `Request`; the table of paths is verb.rs.

use serde_json::Value;

use crate::protocol::{AnswerText, Fault, FaultKind, Permit, Request};
use crate::verb::{RETIREMENT, Route, VERBS, Verb};

/// What a body that is not JSON is told.
pub(super) const JSON_REQUIRED: &str = "JSON body required";

/// Why there is no such route.
pub(super) enum Missing {
    Path,
    Method(&'static str),
}

/// The row for a method and a path. Where several verbs share one, they share its policy too.
pub(super) fn find(method: &str, path: &str) -> Result<(&'static Verb, Route), Missing> {
    let mut allowed = None;
    for verb in VERBS {
        match verb.http.filter(|route| route.matches(path).is_some()) {
            Some(route) if route.method == method => return Ok((verb, route)),
            Some(route) => allowed = Some(route.method),
            None => {}
        }
    }
    Err(allowed.map_or(Missing::Path, Missing::Method))
}

/// The request that stands at a path that [`find`] has found.
pub(super) fn parse(route: Route, path: &str, query: Option<&str>, body: &[u8]) -> Result<Request, Fault> {
    let id = route.matches(path).flatten().map(decoded).transpose()?.unwrap_or_default();
    match route.path {
        "/api/health" => Ok(Request::Health),
        "/api/health/idle" => Ok(Request::Idle),
        "/api/health/idle/events" => Ok(Request::Watch),
        "/api/health/ledgers" => {
            let after = number(query, "after")?;
            let limit = number(query, "limit")?.map_or(100, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
            Ok(Request::Ledgers { after, limit })
        }
        RETIREMENT => retirement(body),
        "/api/holds" => {
            let body = json(body)?;
            let field = |key: &str| optional(&body, key, |value| value.as_str().map(str::to_owned), "a string");
            let why = field("why")?.ok_or_else(|| invalid("why is required: what the backend is held for"))?;
            Ok(Request::Hold { who: field("who")?.unwrap_or_else(|| "http".to_owned()), why })
        }
        "/api/sessions" => Ok(Request::Sessions),
        "/api/sessions/{id}" => {
            let limit = number(query, "limit")?.map_or(50, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
            Ok(Request::Log { session: id, after: number(query, "after")?.unwrap_or(0), limit })
        }
        "/api/sessions/{id}/prompts" => Ok(Request::Submit { session: id, prompt: prompt(&json(body)?)? }),
        "/api/sessions/{id}/interrupt" => Ok(Request::Interrupt { session: id }),
        "/api/sessions/{id}/delegations" => {
            let body = json(body)?;
            let detached = optional(&body, "detached", Value::as_bool, "true or false")?.unwrap_or(false);
            Ok(Request::Delegate { session: id, prompt: prompt(&body)?, detached })
        }
        "/api/turns/{id}" => {
            let turn = id.parse().map_err(|_| invalid("a turn is a whole number"))?;
            Ok(Request::Turn { turn, wait: number(query, "wait")?.unwrap_or(0) > 0 })
        }
        "/api/prompts" => Ok(Request::Questions),
        "/api/prompts/{id}" => {
            let body = json(body)?;
            let text = optional(&body, "answer", |value| value.as_str().map(AnswerText::new), "a string")?;
            let decline = optional(&body, "decline", Value::as_bool, "true or false")?.unwrap_or(false);
            match (&text, decline) {
                (Some(_), false) | (None, true) => Ok(Request::Answer { id, answer: text }),
                _ => Err(invalid("give either answer, a string, or decline, true")),
            }
        }
        _ => Err(Fault::new(FaultKind::NotFound, "Not Found")),
    }
}

/// What a part of a path says. One that would say a `/` or NUL is taken for no name at all.
fn decoded(part: &str) -> Result<String, Fault> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                let (high, low) = digit().zip(digit()).ok_or_else(|| invalid("the path has a bad % escape"))?;
                bytes.extend(u8::try_from(16 * high + low));
            }
            byte => bytes.push(byte),
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| invalid("the path is not UTF-8"))?;
    if text.contains(['/', '\0']) { Err(invalid("a name in a path has no slash and no NUL")) } else { Ok(text) }
}

fn number(query: Option<&str>, key: &str) -> Result<Option<u64>, Fault> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    match pairs.into_iter().find(|(name, _)| *name == key) {
        None => Ok(None),
        Some((_, text)) => text.parse().map(Some).map_err(|_| invalid(&format!("{key} must be a whole number"))),
    }
}

fn retirement(body: &[u8]) -> Result<Request, Fault> {
    let body = json(body)?;
    let action = body.get("action").and_then(Value::as_str);
    match action {
        Some("prepare") => Ok(Request::Prepare {
            request_id: optional(&body, "request_id", |value| value.as_str().map(str::to_owned), "a string")?,
            tied: optional(&body, "tied", Value::as_bool, "true or false")?.unwrap_or(false),
        }),
        Some("commit") => Ok(Request::Commit { permit: permit(&body)? }),
        Some("cancel") => Ok(Request::Cancel { permit: permit(&body)? }),
        _ => Err(invalid("action must be prepare, commit, or cancel")),
    }
}

fn json(body: &[u8]) -> Result<Value, Fault> {
    serde_json::from_slice(body).map_err(|_| invalid(JSON_REQUIRED))
}

fn prompt(body: &Value) -> Result<String, Fault> {
    let prompt = optional(body, "prompt", |value| value.as_str().map(str::to_owned), "a string")?;
    prompt.ok_or_else(|| invalid("prompt is required"))
}

fn permit(body: &Value) -> Result<Permit, Fault> {
    let token = body.get("token").and_then(Value::as_str).filter(|token| !token.is_empty());
    token.map(Permit::new).ok_or_else(|| invalid("token required"))
}

fn optional<T>(body: &Value, key: &str, read: impl Fn(&Value) -> Option<T>, form: &str) -> Result<Option<T>, Fault> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| invalid(&format!("{key} must be {form}"))),
    }
}

fn invalid(message: &str) -> Fault {
    Fault::new(FaultKind::Invalid, message)
}

/// Whether the beginning of a body is nested deeper than any JSON that we take: then it is bad rather than merely long.
pub(super) fn too_deep(beginning: &[u8]) -> bool {
    let deepest = |depth: usize, byte: &u8| match byte {
        b'[' | b'{' => Some(depth + 1),
        byte if byte.is_ascii_whitespace() => Some(depth),
        _ => None,
    };
    // Strings need no care: what opens a body this deep has not come to its first value yet.
    let mut depth = 0;
    for byte in beginning {
        match deepest(depth, byte) {
            Some(deeper) => depth = deeper,
            None => break,
        }
    }
    depth > 128
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &str) -> String {
        let route = Route { method: "POST", path: RETIREMENT };
        parse(route, RETIREMENT, None, body.as_bytes()).unwrap_err().message
    }

    #[test]
    fn a_part_of_a_path_is_decoded_once() {
        for (part, name) in [("s", "s"), ("a%20b", "a b"), ("%E2%82%AC", "€"), ("%2525", "%25"), ("a+b", "a+b")] {
            assert_eq!(decoded(part).as_deref(), Ok(name), "{part}");
        }
        for bad in ["%", "a%2", "%zz", "%+1", "%-1", "%2", "%ff", "%c0%80", "a%2Fb", "%2f", "%00", "%e2%82"] {
            assert_eq!(decoded(bad).map_err(|fault| fault.kind), Err(FaultKind::Invalid), "{bad}");
        }
    }

    #[test]
    fn every_bad_body_is_told_what_is_wrong() {
        assert_eq!(message(""), "JSON body required");
        assert_eq!(message("prepare"), "JSON body required");
        assert_eq!(message("[]"), "action must be prepare, commit, or cancel");
        assert_eq!(message(r#"{"action":"nope"}"#), "action must be prepare, commit, or cancel");
        assert_eq!(message(r#"{"action":["prepare"]}"#), "action must be prepare, commit, or cancel");
        for token in ["", r#","token":"""#, r#","token":123"#, r#","token":null"#] {
            assert_eq!(message(&format!(r#"{{"action":"commit"{token}}}"#)), "token required");
            assert_eq!(message(&format!(r#"{{"action":"cancel"{token}}}"#)), "token required");
        }
        assert_eq!(message(r#"{"action":"prepare","request_id":1}"#), "request_id must be a string");
    }

    #[test]
    fn every_row_with_a_path_has_a_request() {
        for verb in VERBS.iter().filter(|verb| verb.http.is_some()) {
            let route = verb.http.unwrap();
            let body = format!(r#"{{"action":"{}","token":"t","why":"w","answer":"a","prompt":"p"}}"#, verb.name);
            let path = route.path.replace("{id}", "7");
            let request = parse(route, &path, None, body.as_bytes()).unwrap();
            assert_eq!(request.verb().name, verb.name);
            assert!(find(route.method, &path).is_ok());
        }
    }

    #[test]
    fn a_deep_body_is_deep_and_a_long_one_is_not() {
        assert!(too_deep("[".repeat(70_000).as_bytes()));
        assert!(!too_deep("x".repeat(70_000).as_bytes()));
        assert!(!too_deep(format!("{{\"a\":\"{}", "[".repeat(70_000)).as_bytes()));
    }
}
