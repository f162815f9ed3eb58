//! The client's half of the control socket: used by `hermesctl`, the pool and the tests.
//!
//! The server is checked as well: only our own user or root is told the token, so that an impostor at the path learns
//! nothing and is not believed.

pub mod http;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use interprocess::local_socket::GenericFilePath;
use interprocess::local_socket::tokio::{Stream, prelude::*};
use tokio::time::timeout;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::codec::{self, MAX_FRAME};
use crate::protocol::{Answer, Event, Fault, FaultKind, PROTOCOL, Reply, Request, Token, Welcome};

/// Why a call failed. None of these is ever taken for idle.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket at the path.
    #[error("there is no control socket at {0}: the backend is gone")]
    Missing(PathBuf),
    /// There is one, and nobody listens.
    #[error("nobody listens at {0}: the backend has died")]
    Refused(PathBuf),
    /// We may not open it.
    #[error("the control socket {0} cannot be opened: permission denied")]
    Denied(PathBuf),
    /// Somebody else listens there.
    #[error("the control socket {0} belongs to user {1}: it is not believed")]
    Impostor(PathBuf, String),
    /// The token was not taken.
    #[error("the backend does not take this token: read its endpoint record again, or check --token-file")]
    Unauthorized,
    /// The backend carried the request out in no way.
    #[error("{0}")]
    Fault(Fault),
    /// The connection ended in the middle.
    #[error("the backend ended the connection before it had answered")]
    ShortReply,
    /// The answer is none of this protocol.
    #[error("the backend's answer cannot be understood: {0}")]
    Garbage(String),
    /// The deadline passed.
    #[error("the backend did not answer within {0:?}")]
    TimedOut(Duration),
    /// Anything else the system says.
    #[error("the connection to the backend failed: {0}")]
    Io(#[from] io::Error),
}

/// A connection that has shaken hands.
pub struct Client {
    frames: Framed<Stream, LengthDelimitedCodec>,
    deadline: Duration,
    welcome: Welcome,
    generation: String,
}

impl Client {
    /// Connects and shakes hands. `deadline` holds for this and for every later call.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect(path: &Path, token: &Token, deadline: Duration) -> Result<Self, ClientError> {
        within(deadline, Self::handshake(path, token, deadline)).await
    }

    async fn handshake(path: &Path, token: &Token, deadline: Duration) -> Result<Self, ClientError> {
        let mut client = Self::open(path, deadline).await?;
        client.send(&Request::Hello { protocol: PROTOCOL, token: token.clone() }).await?;
        client.be_welcomed().await?;
        Ok(client)
    }

    async fn open(path: &Path, deadline: Duration) -> Result<Self, ClientError> {
        let name = path.to_fs_name::<GenericFilePath>()?;
        let stream = Stream::connect(name).await.map_err(|error| cannot_connect(path, error))?;
        believe(path, &stream)?;
        let frames = Framed::new(stream, codec::frames(MAX_FRAME));
        let welcome = Welcome { protocol: PROTOCOL, version: String::new(), pid: 0, profile: None };
        Ok(Self { frames, deadline, welcome, generation: String::new() })
    }

    async fn be_welcomed(&mut self) -> Result<(), ClientError> {
        match self.receive().await? {
            Reply::Welcome(welcome) => self.welcome = welcome,
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }

    /// Connects, shakes hands and asks, in one round trip.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask(
        path: &Path,
        token: &Token,
        request: &Request,
        deadline: Duration,
    ) -> Result<(Self, Reply), ClientError> {
        within(deadline, async {
            let mut client = Self::open(path, deadline).await?;
            client.feed(&Request::Hello { protocol: PROTOCOL, token: token.clone() }).await?;
            client.send(request).await?;
            client.be_welcomed().await?;
            let reply = client.receive().await?;
            Ok((client, reply))
        })
        .await
    }

    /// Who answered the handshake.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The generation that the last answer came from.
    pub fn generation(&self) -> &str {
        &self.generation
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        within(self.deadline, async {
            self.send(request).await?;
            self.receive().await
        })
        .await
    }

    /// Asks something that takes as long as it takes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call_patiently(&mut self, request: &Request) -> Result<Reply, ClientError> {
        within(self.deadline, self.send(request)).await?;
        self.receive().await
    }

    /// Turns the connection into a stream.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn subscribe(&mut self, request: &Request) -> Result<(), ClientError> {
        within(self.deadline, self.send(request)).await
    }

    /// The next event of a stream; waits without a deadline.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn event(&mut self) -> Result<Event, ClientError> {
        match self.receive().await? {
            Reply::Event(event) => Ok(event),
            other => Err(unexpected(&other)),
        }
    }

    /// Puts a request behind what is to be sent, without sending it.
    async fn feed(&mut self, request: &Request) -> Result<(), ClientError> {
        let bytes = codec::encode(request).map_err(|error| ClientError::Garbage(error.to_string()))?;
        self.frames.feed(bytes).await.map_err(broken)
    }

    async fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        self.feed(request).await?;
        SinkExt::<Bytes>::flush(&mut self.frames).await.map_err(broken)
    }

    async fn receive(&mut self) -> Result<Reply, ClientError> {
        let frame: BytesMut = match self.frames.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(ClientError::Garbage(error.to_string()));
            }
            // A peer that dies in the middle of a frame.
            Some(Err(_)) | None => return Err(ClientError::ShortReply),
        };
        let answer: Answer = codec::decode(&frame).map_err(|error| ClientError::Garbage(error.to_string()))?;
        self.generation = answer.generation;
        match answer.reply {
            Reply::Fault(fault) if fault.kind == FaultKind::Unauthorized => Err(ClientError::Unauthorized),
            Reply::Fault(fault) => Err(ClientError::Fault(fault)),
            reply => Ok(reply),
        }
    }
}

fn broken(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::ShortReply,
        _ => error.into(),
    }
}

/// An answer that does not fit the question.
pub fn unexpected(reply: &Reply) -> ClientError {
    ClientError::Garbage(format!("not an answer to this question: {reply:?}"))
}

async fn within<T>(deadline: Duration, work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    timeout(deadline, work).await.unwrap_or(Err(ClientError::TimedOut(deadline)))
}

fn cannot_connect(path: &Path, error: io::Error) -> ClientError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => ClientError::Missing(path),
        io::ErrorKind::ConnectionRefused => ClientError::Refused(path),
        io::ErrorKind::PermissionDenied => ClientError::Denied(path),
        _ => error.into(),
    }
}

fn believe(path: &Path, stream: &Stream) -> Result<(), ClientError> {
    let uid = stream.peer_creds().ok().and_then(|credentials| credentials.euid());
    match uid {
        Some(uid) if uid == nix::unistd::geteuid().as_raw() || uid == 0 => Ok(()),
        other => {
            let who = other.map_or("unknown".to_owned(), |uid| uid.to_string());
            Err(ClientError::Impostor(path.to_owned(), who))
        }
    }
}
