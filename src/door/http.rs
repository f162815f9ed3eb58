//! Loopback HTTP: JSON in, JSON out, the same handler behind it.
//!
//! A request passes, in this order: token (401), Host (400), Origin (403), path (404), method (405), body (413, 400), and
//! then the handler. That the token comes first is the order of the system this contract is taken from.

mod guard;
mod route;
pub mod view;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

pub use guard::loopback;

use super::auth::{Caller, Tokens};
use super::deadline::WriteDeadline;
use super::{Acceptance, Places, READ_DEADLINE, hear_out};
use crate::handler::{Backend, Outcome};
use crate::protocol::{Fault, FaultKind};
use crate::stream::Stream;

/// A body is at most so long.
pub const MAX_BODY: usize = 64 * 1024;

/// A request's head is at most so long.
const MAX_HEAD: usize = 16 * 1024;

const GENERATION: header::HeaderName = header::HeaderName::from_static("x-hermes-generation");

/// Which kind of fault a refusal is: several kinds share a status.
const FAULT: header::HeaderName = header::HeaderName::from_static("x-hermes-fault");

type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

/// Everything that a request needs to be answered.
#[derive(Clone)]
pub struct Door {
    /// The handler.
    pub backend: Arc<Backend>,
    /// Who may come in.
    pub tokens: Arc<Tokens>,
    /// Where we listen: our own origin.
    pub address: SocketAddr,
    /// The backend's generation as every response bears it.
    generation: Option<header::HeaderValue>,
}

impl Door {
    /// A door to `backend` at `address`.
    pub fn new(backend: Arc<Backend>, tokens: Arc<Tokens>, address: SocketAddr) -> Self {
        let generation = backend.identity.generation.parse().ok();
        Self { backend, tokens, address, generation }
    }

    /// Accepts until the process ends.
    pub async fn serve(self, listener: TcpListener) {
        let places = Places::new();
        let mut acceptance = Acceptance::at("loopback port");
        loop {
            let Some((stream, _)) = acceptance.take(listener.accept().await).await else { continue };
            let (door, Some(place)) = (self.clone(), places.take()) else { continue };
            tokio::spawn(async move {
                match place.turned_away {
                    false => door.connection(stream).await,
                    true => turn_away(stream).await,
                }
                drop(place);
            });
        }
    }

    async fn connection(self, stream: TcpStream) {
        // A verdict is one small segment: it must not wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| async { Ok::<_, Infallible>(self.answer(request).await) });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            // Head and body are short: one copy is cheaper than two pieces.
            .writev(false)
            .header_read_timeout(READ_DEADLINE)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(WriteDeadline::new(stream)), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "an HTTP connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let mut response = match self.outcome(request).await {
            Ok(Outcome::Reply(reply)) => {
                let (status, json) = view::reply(&reply, &self.backend.identity.generation);
                respond(status, json)
            }
            Ok(Outcome::Stream(stream)) => events(stream),
            Err(refused) => refused,
        };
        if let Some(generation) = &self.generation {
            response.headers_mut().insert(GENERATION, generation.clone());
        }
        response
    }

    async fn outcome(&self, request: Request<Incoming>) -> Result<Outcome, Response<Body>> {
        let path = request.uri().path().to_owned();
        let authority = guard::authority(request.headers(), &self.tokens);
        guard::admit(&request, &path, authority, self.address).map_err(fault)?;
        let (routed, row) = route::find(request.method().as_str(), &path).map_err(|missing| match missing {
            route::Missing::Path => refuse(StatusCode::NOT_FOUND, FaultKind::UnknownRequest, "Not Found"),
            route::Missing::Method(allowed) => {
                let (status, kind) = (StatusCode::METHOD_NOT_ALLOWED, FaultKind::UnknownRequest);
                let mut response = refuse(status, kind, "Method Not Allowed");
                response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
                response
            }
        })?;
        let mut caller = Caller::passing(authority);
        // Forbidden before the body is read, as Unauthorized is.
        self.backend.permit_entry(&caller, routed).map_err(fault)?;
        let query = request.uri().query().map(str::to_owned);
        let body = match row.method {
            "POST" => read_body(request.into_body()).await?,
            _ => Bytes::new(),
        };
        let request = route::parse(row, &path, query.as_deref(), &body).map_err(fault)?;
        self.backend.handle(&mut caller, request).await.map_err(fault)
    }
}

async fn turn_away(mut stream: TcpStream) {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 33\r\n\
        x-hermes-fault: too_many\r\nconnection: close\r\n\r\n{\"detail\":\"too many connections\"}";
    if matches!(timeout(READ_DEADLINE, stream.write_all(answer)).await, Ok(Ok(()))) {
        // The end of the answer, told without closing on what is still to be heard.
        let _ = stream.shutdown().await;
        hear_out(stream).await;
    }
}

async fn read_body(body: Incoming) -> Result<Bytes, Response<Body>> {
    let mut body = Limited::new(body, MAX_BODY);
    let mut bytes = Vec::new();
    let read = async {
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    match timeout(READ_DEADLINE, read).await {
        Ok(Ok(())) => Ok(bytes.into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() && !route::too_deep(&bytes) => {
            let message = format!("a body has at most {MAX_BODY} bytes");
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, FaultKind::Invalid, &message))
        }
        Ok(Err(_)) => Err(refuse(StatusCode::BAD_REQUEST, FaultKind::Invalid, route::JSON_REQUIRED)),
        Err(_) => Err(refuse(StatusCode::REQUEST_TIMEOUT, FaultKind::TimedOut, "the body did not come in time")),
    }
}

fn respond(status: StatusCode, json: String) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(json.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

fn fault(fault: Fault) -> Response<Body> {
    let (status, json) = view::fault(&fault);
    of_kind(fault.kind, respond(status, json))
}

/// Where HTTP has a finer status than the kind of fault alone.
fn refuse(status: StatusCode, kind: FaultKind, message: &str) -> Response<Body> {
    of_kind(kind, respond(status, view::detail(message)))
}

fn of_kind(kind: FaultKind, mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(FAULT, header::HeaderValue::from_static(kind.name()));
    response
}

/// Server-sent events: one `data:` line each.
fn events(stream: Stream) -> Response<Body> {
    let frames = unfold(Some(stream), |stream| async {
        let mut stream = stream?;
        let (text, rest) = match stream.next().await {
            Ok(Some(event)) => (format!("data: {}\n\n", view::event(&event)), Some(stream)),
            Ok(None) => return None,
            Err(fault) => (format!("event: fault\ndata: {}\n\n", view::fault(&fault).1), None),
        };
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), rest))
    });
    let mut response = Response::new(Either::Right(UnsyncBoxBody::new(StreamBody::new(frames))));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

/// The status that stands for a kind of fault.
pub(crate) fn status(kind: FaultKind) -> StatusCode {
    StatusCode::from_u16(crate::error::http_status(kind)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
