//! The proof: fence and ledgers in, one verdict out.
//!
//! First hit wins, in the order admission, session, delegation, cron, hold, process, human input. A ledger that cannot be
//! read answers "cannot tell", and nothing behind it is asked. No error path leads to [`Verdict::Idle`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fence::admission_verdict;
use crate::ledger::Ledgers;
use crate::protocol::{LedgerKind, LedgerReport, LedgerSummary, Refusal, TickerReport};
use crate::verdict::Verdict;

/// What the probe of work says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnProbe {
    /// No work lives.
    NotBusy,
    /// Work lives; who holds it, if that has a name.
    Busy(Option<String>),
    /// Cannot be told.
    Unknown,
}

/// What the probe of human input says: how many questions are open, `None` if that cannot be told.
pub type InputProbe = Option<u64>;

/// The rule itself. `input` is asked only if no work lives.
pub fn idle_proof(turn: impl FnOnce() -> TurnProbe, input: impl FnOnce() -> InputProbe) -> Verdict {
    match turn() {
        TurnProbe::Unknown => Verdict::TurnProbeUnavailable,
        TurnProbe::Busy(detail) => Verdict::TurnInFlight { detail },
        TurnProbe::NotBusy => match input() {
            None => Verdict::InputProbeUnavailable,
            Some(0) => Verdict::Idle,
            Some(_) => Verdict::AwaitingHumanInput,
        },
    }
}

/// The ledgers that hold work, in the order in which they are asked behind the admissions.
const WORK: [LedgerKind; 5] =
    [LedgerKind::Session, LedgerKind::Delegation, LedgerKind::Cron, LedgerKind::Hold, LedgerKind::Process];

/// Reads one process's own ledgers.
pub struct Proof {
    ledgers: Ledgers,
    turn_warned: AtomicBool,
    input_warned: AtomicBool,
}

impl Proof {
    /// A proof over these ledgers.
    pub fn new(ledgers: Ledgers) -> Self {
        Self { ledgers, turn_warned: AtomicBool::new(false), input_warned: AtomicBool::new(false) }
    }

    /// The ledgers it reads.
    pub fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    /// The verdict now: a snapshot, which never authorises a stop.
    pub fn verdict(&self) -> Verdict {
        // Work may hop from a ledger not yet read into one already read. It cannot without an admission, so an idle
        // verdict counts only if none was given meanwhile.
        for _ in 0..3 {
            let Ok((_, before)) = self.ledgers.fence().admissions() else { return self.turn_unknown() };
            let verdict = self.read();
            let after = self.ledgers.fence().admissions().map(|(_, granted)| granted);
            if verdict != Verdict::Idle || after == Ok(before) {
                return verdict;
            }
        }
        admission_verdict()
    }

    /// Every ledger once, in order. Exact while admission is frozen, which is how `prepare` uses it.
    pub fn read(&self) -> Verdict {
        idle_proof(|| self.turn_probe(), || self.input_probe())
    }

    fn turn_probe(&self) -> TurnProbe {
        match catch_unwind(AssertUnwindSafe(|| self.busy_ledger())) {
            Ok(Ok(None)) => TurnProbe::NotBusy,
            Ok(Ok(detail)) => TurnProbe::Busy(detail),
            Ok(Err(reason)) => {
                warn_once(&self.turn_warned, &reason);
                TurnProbe::Unknown
            }
            Err(_) => {
                warn_once(&self.turn_warned, "a ledger panicked while it was read");
                TurnProbe::Unknown
            }
        }
    }

    fn busy_ledger(&self) -> Result<Option<String>, String> {
        let (admissions, _) = self.ledgers.fence().admissions().map_err(|error| error.to_string())?;
        if admissions > 0 {
            return Ok(admission_verdict().detail().map(str::to_owned));
        }
        for kind in WORK {
            let detail = self.ledgers.detail(kind).map_err(|error| error.to_string())?;
            if detail.is_some() {
                return Ok(detail);
            }
        }
        Ok(None)
    }

    fn input_probe(&self) -> InputProbe {
        let count = catch_unwind(AssertUnwindSafe(|| self.ledgers.count(LedgerKind::HumanInput)));
        match count {
            Ok(Ok(count)) => u64::try_from(count).ok(),
            _ => {
                warn_once(&self.input_warned, "the human-input ledger cannot be read");
                None
            }
        }
    }

    fn turn_unknown(&self) -> Verdict {
        warn_once(&self.turn_warned, "the admission count cannot be read");
        Verdict::TurnProbeUnavailable
    }

    /// What a refused `prepare` tells.
    pub fn refusal(&self, verdict: Verdict, retiring: bool) -> Refusal {
        let (holders, more) = self.ledgers.holders(Refusal::MAX_HOLDERS);
        let since_ms = holders.first().map(|oldest| oldest.age_ms);
        Refusal { verdict, retiring, since_ms, holders, more }
    }

    /// Every ledger, and one page of entries.
    pub fn report(&self, after: Option<u64>, limit: usize, ticker: TickerReport) -> LedgerReport {
        let (entries, _) = self.ledgers.oldest(after, limit.saturating_add(1));
        let next =
            (entries.len() > limit).then(|| entries.get(limit.wrapping_sub(1)).map(|last| last.number)).flatten();
        let entries = entries.into_iter().take(limit).collect();
        let admissions = self.ledgers.fence().admissions().ok().map(|(count, _)| count as u64);
        let mut ledgers = vec![LedgerSummary { ledger: LedgerKind::Admission, entries: admissions }];
        ledgers.extend(LedgerKind::ENTRIES.map(|ledger| LedgerSummary {
            ledger,
            entries: self.ledgers.count(ledger).ok().map(|count| count as u64),
        }));
        LedgerReport { verdict: self.verdict(), ledgers, entries, next, ticker }
    }
}

/// Every probe finds the same: saying it once is enough.
fn warn_once(warned: &AtomicBool, reason: &str) {
    if !warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(reason, "a ledger cannot be read; as long as that is so the verdict is unknown");
    }
}

#[cfg(test)]
mod tests;
