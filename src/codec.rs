//! Placeholder until the codec lands.
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::codec::LengthDelimitedCodec;
/// x
pub const MAX_HELLO: usize = 4 * 1024;
/// x
pub const MAX_FRAME: usize = 1024 * 1024;
/// x
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(String);
fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MAX_FRAME>()
}
/// x
pub fn encode<T: Serialize>(value: &T) -> Result<Bytes, CodecError> {
    bincode::serde::encode_to_vec(value, config()).map(Bytes::from).map_err(|e| CodecError(e.to_string()))
}
/// x
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, config()).map_err(|e| CodecError(e.to_string()))?;
    if used != bytes.len() {
        return Err(CodecError("trailing bytes".into()));
    }
    Ok(value)
}
/// x
pub fn peek_hello_protocol(bytes: &[u8]) -> Option<u32> {
    let ((variant, protocol), _): ((u32, u32), usize) = bincode::serde::decode_from_slice(bytes, config()).ok()?;
    (variant == 0).then_some(protocol)
}
/// x
pub fn frames(max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(max).new_codec()
}
