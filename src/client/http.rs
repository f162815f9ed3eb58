//! The client's half of the HTTP contract: any server that speaks it will do.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::protocol::{Token, Verdict};

/// An answer is at most so long.
const MAX_BODY: usize = 1024 * 1024;

/// Why a call failed. None of these is ever taken for idle.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be used.
    #[error("{0}")]
    Address(String),
    /// Nobody is there.
    #[error("nothing answers at {0}: {1}")]
    Unreachable(String, String),
    /// The token was not taken.
    #[error("the server does not take this token: check --token-file or HERMES_DASHBOARD_SESSION_TOKEN")]
    Unauthorized,
    /// Something answered, and it is no verdict.
    #[error("{0}")]
    Indeterminate(String),
}

/// A server, by its base address.
#[derive(Debug, Clone)]
pub struct Server {
    authority: String,
    base: String,
    token: Token,
    deadline: Duration,
}

/// What a server answered.
#[derive(Debug)]
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// Which process answered, if it says so.
    pub generation: Option<String>,
    /// The body as JSON, or nothing.
    pub body: Value,
}

impl Server {
    /// A server at `url`, such as `http://127.0.0.1:9119`.
    ///
    /// # Errors
    /// [`HttpError::Address`] if that is no http address.
    pub fn new(url: &str, token: Token, deadline: Duration) -> Result<Self, HttpError> {
        let bad = |why: &str| HttpError::Address(format!("--url {url} cannot be used: {why}"));
        let uri: Uri = url.parse().map_err(|_| bad("give it as http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(bad("https is not spoken here; a child listens on loopback, by http")),
            _ => return Err(bad("give it as http://HOST:PORT")),
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?.as_str().to_owned();
        if authority.contains('@') {
            return Err(bad("it must not carry a user or password"));
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { authority, base, token, deadline })
    }

    /// Asks for the verdict; the second value is the process's generation, if the server says it.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn idle(&self) -> Result<(Verdict, Option<String>), HttpError> {
        let response = self.get("/api/health/idle").await?;
        Ok((verdict(&response.body)?, response.generation))
    }

    /// Fetches a path; only 200 counts.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn get(&self, path: &str) -> Result<Response, HttpError> {
        let late = |_| self.late();
        let response = timeout(self.deadline, self.fetch(path)).await.map_err(late)??;
        match response.status {
            StatusCode::OK => Ok(response),
            StatusCode::UNAUTHORIZED => Err(HttpError::Unauthorized),
            status => {
                Err(HttpError::Indeterminate(format!("{} answered {status}, which is no verdict", self.authority)))
            }
        }
    }

    fn late(&self) -> HttpError {
        HttpError::Indeterminate(format!("{} did not answer within {:?}", self.authority, self.deadline))
    }

    async fn fetch(&self, path: &str) -> Result<Response, HttpError> {
        let response = self.open(path).await?;
        let status = response.status();
        let generation = response.headers().get("x-hermes-generation").and_then(|value| value.to_str().ok());
        let generation = generation.map(str::to_owned);
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| HttpError::Indeterminate(format!("{} broke off: {error}", self.authority)))?;
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null);
        Ok(Response { status, generation, body })
    }

    async fn open(&self, path: &str) -> Result<hyper::Response<hyper::body::Incoming>, HttpError> {
        let gone = |error: &dyn std::fmt::Display| HttpError::Unreachable(self.authority.clone(), error.to_string());
        let broken = |error: hyper::Error| {
            HttpError::Indeterminate(format!("{} does not answer in HTTP: {error}", self.authority))
        };
        let address = match self.authority.rsplit_once(':') {
            Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => self.authority.clone(),
            _ => format!("{}:80", self.authority),
        };
        let stream = TcpStream::connect(&address).await.map_err(|error| gone(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection);
        let request = Request::get(format!("{}{path}", self.base))
            .header(header::HOST, &self.authority)
            .header("x-hermes-session-token", self.token.expose())
            .body(Full::<Bytes>::default())
            .map_err(|_| HttpError::Address("the token or address cannot stand in a header".to_owned()))?;
        sender.send_request(request).await.map_err(broken)
    }

    /// Subscribes to the verdict; `None` if the server has no events.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn events(&self) -> Result<Option<Events>, HttpError> {
        let late = |_| self.late();
        let response = timeout(self.deadline, self.open("/api/health/idle/events")).await.map_err(late)??;
        let is_stream = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        match response.status() {
            StatusCode::OK if is_stream => Ok(Some(Events { body: response.into_body(), pending: Vec::new() })),
            StatusCode::UNAUTHORIZED => Err(HttpError::Unauthorized),
            _ => Ok(None),
        }
    }
}

/// A stream of verdicts.
pub struct Events {
    body: hyper::body::Incoming,
    pending: Vec<u8>,
}

impl Events {
    /// The next verdict; `None` when the server has ended the stream.
    ///
    /// # Errors
    /// What came is no event.
    pub async fn next(&mut self) -> Result<Option<Verdict>, HttpError> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.pending.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return verdict(&serde_json::from_str(data).unwrap_or(Value::Null)).map(Some);
                }
                continue;
            }
            if self.pending.len() > MAX_BODY {
                return Err(HttpError::Indeterminate("an event is too long".to_owned()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }
}

/// A verdict only if it is plainly one: anything else is no answer.
fn verdict(body: &Value) -> Result<Verdict, HttpError> {
    let no_verdict = || HttpError::Indeterminate("the answer is no verdict".to_owned());
    if body.get("ok") != Some(&Value::Bool(true)) {
        return Err(no_verdict());
    }
    let idle = match body.get("idle") {
        Some(Value::Bool(idle)) => Some(*idle),
        Some(Value::Null) => None,
        _ => return Err(no_verdict()),
    };
    let text = |key: &str| body.get(key).and_then(Value::as_str);
    Verdict::from_keys(idle, text("reason"), text("detail")).ok_or_else(no_verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_plain_verdict_is_one() {
        assert_eq!(verdict(&json!({"ok": true, "idle": true, "reason": null})).unwrap(), Verdict::Idle);
        for bad in [
            json!(null),
            json!([]),
            json!({"idle": true}),
            json!({"ok": false, "idle": true, "reason": null}),
            json!({"ok": true}),
            json!({"ok": true, "idle": "true"}),
            json!({"ok": true, "idle": 1}),
            json!({"ok": true, "idle": true, "reason": "turn_in_flight"}),
        ] {
            assert!(verdict(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_http_addresses_are_taken() {
        let new = |url: &str| Server::new(url, Token::new("t"), Duration::from_secs(1));
        assert!(new("http://127.0.0.1:9119").is_ok() && new("http://localhost/").is_ok());
        for bad in ["", "127.0.0.1:1", "https://127.0.0.1:1", "ftp://x", "http://u:p@127.0.0.1"] {
            assert!(matches!(new(bad), Err(HttpError::Address(_))), "{bad}");
        }
    }
}
