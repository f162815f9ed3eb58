//! stub
use crate::ledger::Ledgers;
use crate::protocol::TickerReport;
use crate::work::Stop;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
/// x
pub struct Ticker;
impl Ticker {
    /// x
    pub fn start(_h: &Path, _e: bool, _l: Ledgers, _r: Arc<Mutex<TickerReport>>, _s: watch::Receiver<Stop>) -> Self {
        Self
    }
    /// x
    pub async fn first_scan(&self) {}
    /// x
    pub fn stop(&self) {}
}
