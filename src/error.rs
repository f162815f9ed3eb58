//! placeholder
use crate::protocol::FaultKind;
/// x
pub fn http_status(kind: FaultKind) -> u16 {
    match kind {
        FaultKind::Unauthorized => 401,
        FaultKind::Forbidden => 403,
        FaultKind::NotFound => 404,
        FaultKind::Conflict => 409,
        FaultKind::Retiring | FaultKind::TooMany | FaultKind::Unavailable => 503,
        FaultKind::TimedOut => 504,
        _ => 400,
    }
}
