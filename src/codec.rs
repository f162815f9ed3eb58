//! Frames and their payload; the only file that knows the payload format, so that another implementation can replace it.
//!
//! A frame is its length (4 bytes, big-endian) and a payload: bincode 2, standard configuration, over serde. That means
//! - a whole number below 251 is one byte; 251, 252, 253 announce 2, 4, 8 bytes, little-endian;
//! - a string or list is its length as such a number, then its bytes or elements;
//! - an option is `00`, or `01` and the value; a bool is `00` or `01`;
//! - an enum is its variant's place, counted from 0, then the variant's fields in order; a struct is its fields in order.
//!
//! The first two frames of a conversation with the token `tok`, written out:
//!
//! ```text
//! 00 00 00 06   00 01 03 74 6f 6b     Request::Hello { protocol: 1, token: "tok" }
//! 00 00 00 01   02                    Request::Idle
//! ```
//!
//! and the answer to the second, of generation `ab` and idle: `00 00 00 05   02 61 62 03 00` (the generation, variant 3
//! `Verdict` of `Reply`, variant 0 `Idle` of `Verdict`).

use bincode::error::DecodeError;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::codec::LengthDelimitedCodec;

/// A frame before the handshake holds at most so many bytes.
pub const MAX_HELLO: usize = 4 * 1024;

/// A frame holds at most so many bytes, in both directions.
pub const MAX_FRAME: usize = 1024 * 1024;

/// Bytes that are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// They do not decode.
    #[error("{0}")]
    Malformed(&'static str),
    /// They decode, and more follows.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// It does not fit into a frame.
    #[error("the message has {0} bytes, and a frame holds at most {MAX_FRAME}")]
    TooLong(usize),
}

/// What a short payload may decode to: every byte of it a number of eight bytes.
const SHORT: usize = 8 * MAX_HELLO;

/// The payload of a message.
///
/// # Errors
/// It does not fit into a frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Bytes, CodecError> {
    let bytes = bincode::serde::encode_to_vec(message, bincode::config::standard())
        .map_err(|_| CodecError::Malformed("the message cannot be written"))?;
    if bytes.len() > MAX_FRAME { Err(CodecError::TooLong(bytes.len())) } else { Ok(bytes.into()) }
}

/// The message of a payload, which must be used up.
///
/// # Errors
/// The bytes are no such message.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, CodecError> {
    // A length in the payload is only a claim: no more than the limit is ever allocated for it.
    let standard = bincode::config::standard();
    let decoded = match payload.len() {
        0..=MAX_HELLO => bincode::serde::decode_from_slice(payload, standard.with_limit::<SHORT>()),
        _ => bincode::serde::decode_from_slice(payload, standard.with_limit::<MAX_FRAME>()),
    };
    let (message, used) = decoded.map_err(|error| CodecError::Malformed(plain(&error)))?;
    match payload.len() - used {
        0 => Ok(message),
        rest => Err(CodecError::Trailing(rest)),
    }
}

/// What is wrong, in words of ours: bincode shows its own types, and might quote what was sent.
fn plain(error: &DecodeError) -> &'static str {
    match error {
        DecodeError::UnexpectedEnd { .. } => "the message ends in the middle",
        DecodeError::LimitExceeded => "a length in it is more than a message holds",
        DecodeError::Utf8 { .. } => "a text in it is not UTF-8",
        DecodeError::InvalidIntegerType { .. } => "a number in it is too large for its place",
        DecodeError::InvalidBooleanValue(_) => "a flag in it is neither true nor false",
        // What serde itself refuses: above all the number of a variant.
        DecodeError::UnexpectedVariant { .. } | DecodeError::OtherString(_) => "something in it is of no known kind",
        _ => "the message cannot be read",
    }
}

/// The protocol number of a `Hello`, even if the rest of it is of another time.
pub fn peek_hello_protocol(payload: &[u8]) -> Option<u32> {
    let standard = bincode::config::standard();
    let ((variant, protocol), _): ((u32, u32), usize) = bincode::serde::decode_from_slice(payload, standard).ok()?;
    (variant == 0).then_some(protocol)
}

/// Frames of at most `max` bytes. A longer one is refused by its header alone.
pub fn frames(max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().length_field_length(4).max_frame_length(max).new_codec()
}

#[cfg(test)]
mod tests;
