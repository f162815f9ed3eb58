//! The control socket: peer uid, `Hello`, frames, deadlines.
//!
//! 1. The kernel says who the peer is; anybody but us or root is cut off before a byte is read.
//! 2. The first frame, at most 4 KiB and within 2 s, must be `Hello` with our protocol number and a token of ours.
//! 3. Then frames of at most 1 MiB; each request is handed to the handler, answers go back in order.
//! 4. What the connection holds (a tied permit) goes when it ends.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::{SinkExt, Stream as _};
use interprocess::local_socket::tokio::{Listener, Stream as SocketStream, prelude::*};
use interprocess::local_socket::{GenericFilePath, ListenerOptions};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::codec::Framed;

use super::auth::{Caller, Tokens};
use super::deadline::{Frames, WriteDeadline};
use super::{Acceptance, MAX_CONNECTIONS, Places, READ_DEADLINE, hear_out};
use crate::codec::{self, MAX_FRAME, MAX_HELLO};
use crate::handler::{Handler, Outcome};
use crate::protocol::{Answer, Fault, FaultKind, PROTOCOL, Reply, Request, Welcome};
use crate::stream::Stream;

/// The handshake must be there within this.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(2);

type Connection = Framed<WriteDeadline<SocketStream>, Frames>;

/// Listens at `path`, mode 0600. What is there must have been cleared away before, under the lock.
///
/// # Errors
/// Those of bind and listen.
pub fn listen(path: &Path) -> io::Result<Listener> {
    // The name is not reclaimed on drop: only our own inode may be unlinked, which the runtime directory sees to.
    ListenerOptions::new().name(path.to_fs_name::<GenericFilePath>()?).mode(0o600).reclaim_name(false).create_tokio()
}

/// Everything that a connection needs to be served.
pub struct Door<H> {
    handler: Arc<H>,
    /// Who may come in.
    tokens: Arc<Tokens>,
}

impl<H> Clone for Door<H> {
    fn clone(&self) -> Self {
        Self { handler: Arc::clone(&self.handler), tokens: Arc::clone(&self.tokens) }
    }
}

impl<H: Handler> Door<H> {
    /// A door to `handler`.
    pub fn new(handler: Arc<H>, tokens: Arc<Tokens>) -> Self {
        Self { handler, tokens }
    }

    /// Accepts until the process ends. `renewed` brings a fresh listener when the old one's name has vanished.
    pub async fn serve(self, mut listener: Listener, mut renewed: mpsc::Receiver<Listener>) {
        let places = Places::new();
        let mut acceptance = Acceptance::at("control socket");
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(fresh) = renewed.recv() => { listener = fresh; continue }
            };
            let Some(stream) = acceptance.take(accepted).await else { continue };
            let (door, Some(place)) = (self.clone(), places.take()) else { continue };
            tokio::spawn(async move {
                match place.turned_away {
                    false => door.connection(stream).await,
                    true => door.turn_away(stream).await,
                }
                drop(place);
            });
        }
    }

    async fn turn_away(&self, stream: SocketStream) {
        let mut connection = framed(stream);
        let message = format!("too many connections: at most {MAX_CONNECTIONS} at a time; close some and try again");
        if self.send(&mut connection, Reply::Fault(Fault::new(FaultKind::TooMany, message))).await.is_ok() {
            hear_out(connection.into_inner()).await;
        }
    }

    async fn connection(&self, stream: SocketStream) {
        let Some(pid) = trusted_peer(&stream) else { return };
        let mut connection = framed(stream);
        match timeout(HELLO_DEADLINE, self.hello(&mut connection, pid)).await {
            Ok(Ok(Some(mut caller))) => {
                if let Err(error) = self.requests(&mut connection, &mut caller).await {
                    tracing::debug!(%error, "a control connection ended");
                }
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "no handshake on the control socket"),
            Err(_) => tracing::debug!("no handshake on the control socket in time"),
        }
    }

    /// One answer for every failure of the token; a wrong protocol is told both numbers.
    async fn hello(&self, connection: &mut Connection, pid: Option<u32>) -> io::Result<Option<Caller>> {
        let Some(frame) = next_frame(connection).await? else { return Ok(None) };
        let theirs = codec::peek_hello_protocol(&frame);
        if let Some(theirs) = theirs.filter(|theirs| *theirs != PROTOCOL) {
            let message = format!("this backend speaks protocol {PROTOCOL}, the client {theirs}: update the older one");
            self.send(connection, Reply::Fault(Fault::new(FaultKind::ProtocolMismatch, message))).await?;
            return Ok(None);
        }
        let authority = match codec::decode(&frame) {
            Ok(Request::Hello { token, .. }) => self.tokens.authority(&token),
            _ => None,
        };
        let Some(authority) = authority else {
            let fault = Fault::new(FaultKind::Unauthorized, "Unauthorized");
            self.send(connection, Reply::Fault(fault)).await?;
            return Ok(None);
        };
        connection.codec_mut().set_max(MAX_FRAME);
        let welcome = Welcome {
            protocol: PROTOCOL,
            version: crate::VERSION.to_owned(),
            pid: std::process::id(),
            profile: self.handler.identity().profile.clone(),
        };
        self.send(connection, Reply::Welcome(welcome)).await?;
        Ok(Some(Caller::connected(authority, pid)))
    }

    async fn requests(&self, connection: &mut Connection, caller: &mut Caller) -> io::Result<()> {
        while let Some(frame) = next_frame(connection).await? {
            let outcome = match codec::decode::<Request>(&frame) {
                Ok(request) => self.handler.handle(caller, request).await,
                Err(error) => {
                    let message = format!("this backend knows no such request: {error}");
                    Err(Fault::new(FaultKind::UnknownRequest, message))
                }
            };
            match outcome {
                Ok(Outcome::Reply(reply)) => self.send(connection, reply).await?,
                Ok(Outcome::Stream(stream)) => self.stream(connection, stream, caller).await?,
                Err(fault) => self.send(connection, Reply::Fault(fault)).await?,
            }
        }
        Ok(())
    }

    /// Passes events on until the stream ends. A peer that speaks or leaves meanwhile ends it too.
    async fn stream(&self, connection: &mut Connection, mut stream: Stream, caller: &mut Caller) -> io::Result<()> {
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                frame = next_frame(connection) => {
                    return match frame? {
                        None => Err(io::ErrorKind::UnexpectedEof.into()),
                        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a request into a stream")),
                    };
                }
            };
            match event {
                Ok(Some(event)) => {
                    if let Some(permit) = self.handler.lease(&event) {
                        caller.tie(permit);
                    }
                    self.send(connection, Reply::Event(event)).await?;
                }
                Ok(None) => return Ok(()),
                Err(fault) => return self.send(connection, Reply::Fault(fault)).await,
            }
        }
    }

    async fn send(&self, connection: &mut Connection, reply: Reply) -> io::Result<()> {
        let mut answer = Answer { generation: self.handler.identity().generation.clone(), reply };
        let bytes = codec::encode(&answer).or_else(|error| {
            tracing::error!(%error, "an answer cannot be sent");
            answer.reply =
                Reply::Fault(Fault::new(FaultKind::Unavailable, format!("the answer cannot be sent: {error}")));
            codec::encode(&answer).map_err(io::Error::other)
        })?;
        connection.send(bytes).await
    }
}

fn framed(stream: SocketStream) -> Connection {
    Framed::new(WriteDeadline::new(stream), Frames::new(codec::frames(MAX_HELLO)))
}

/// The peer's pid, if the kernel says that it is us or root; `None` cuts it off.
fn trusted_peer(stream: &SocketStream) -> Option<Option<u32>> {
    let credentials = stream.peer_creds().ok()?;
    let uid = credentials.euid()?;
    let ours = nix::unistd::geteuid().as_raw();
    if uid != ours && uid != 0 {
        tracing::warn!(uid, "a peer of another user was cut off");
        return None;
    }
    Some(credentials.pid().and_then(|pid| u32::try_from(pid).ok()))
}

/// The next frame; `None` at a clean end. Waits for ever between frames, and not in the middle of one.
async fn next_frame(connection: &mut Connection) -> io::Result<Option<BytesMut>> {
    let mut late = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(frame) = Pin::new(&mut *connection).poll_next(cx) {
            return Poll::Ready(frame.transpose());
        }
        if !connection.codec().begun() {
            return Poll::Pending;
        }
        let late = late.get_or_insert_with(|| Box::pin(sleep(READ_DEADLINE)));
        std::task::ready!(Future::poll(late.as_mut(), cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the rest of a frame did not come in time")))
    })
    .await
}
