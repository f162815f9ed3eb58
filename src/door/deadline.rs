//! Deadlines in both directions: a peer that stops in the middle of a frame, or stops taking what it asked for, is dropped.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use super::WRITE_DEADLINE;

/// A stream whose writes fail once the peer has taken nothing for [`WRITE_DEADLINE`].
pub struct WriteDeadline<S> {
    stream: S,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteDeadline<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> Self {
        Self { stream, stalled: None }
    }

    fn check<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_DEADLINE)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.check(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The length-delimited codec, and whether a frame has begun and not ended.
pub struct Frames {
    inner: LengthDelimitedCodec,
    begun: bool,
}

impl Frames {
    /// Wraps the codec.
    pub fn new(inner: LengthDelimitedCodec) -> Self {
        Self { inner, begun: false }
    }

    /// The peer has sent a part of a frame and owes the rest.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Changes the limit of a frame.
    pub fn set_max(&mut self, max: usize) {
        self.inner.set_max_frame_length(max);
    }
}

impl Decoder for Frames {
    type Item = BytesMut;
    type Error = io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> io::Result<Option<BytesMut>> {
        // The header may have been taken off already, so an empty buffer does not mean that nothing has begun.
        let some = !src.is_empty();
        let frame = self.inner.decode(src)?;
        self.begun = frame.is_none() && (self.begun || some);
        Ok(frame)
    }
}

impl Encoder<Bytes> for Frames {
    type Error = io::Error;

    fn encode(&mut self, frame: Bytes, dst: &mut BytesMut) -> io::Result<()> {
        self.inner.encode(frame, dst)
    }
}
