//! Ledgers: what work lives, entered only through an [`Admission`] and left only by dropping a [`Guard`].
//!
//! Every kind of work has a table of its own, so that one that cannot be read hides no other. Reading what a verdict needs
//! costs the same whether a table holds one entry or a hundred thousand: a detail names at most [`MAX_NAMED`] holders.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::clock::{Clock, Moment};
use crate::fence::{Admission, Fence, Presence, Retiring};
use crate::protocol::{Holder, LedgerEntry, LedgerKind};

/// A detail names so many holders; the rest is counted.
pub const MAX_NAMED: usize = 32;

/// A table that cannot be read: a thread died while it held the lock, or what belongs into it is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {} ledger cannot be read", .0.name())]
pub struct Unreadable(pub LedgerKind);

/// All ledgers of one process. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Ledgers {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    fence: Fence,
    tables: [Mutex<Table>; LedgerKind::ENTRIES.len()],
    /// Grows with every entry: its order is the order of age.
    numbers: AtomicU64,
    /// Counts changes of what lives, for those who wait for one.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    /// The ids in order, each with how many entries bear it, so that naming the first few needs no sorting.
    names: BTreeMap<Arc<str>, usize>,
    /// How many entries stand for work that cannot be told.
    doubts: usize,
    /// Who holds it, put into words once a change and not once a question.
    told: OnceCell<Option<String>>,
}

struct Entry {
    id: Arc<str>,
    why: Arc<str>,
    since: Moment,
    doubt: bool,
}

impl Ledgers {
    /// Empty ledgers with a fence of their own.
    pub fn new(clock: Clock) -> Self {
        let changes = watch::Sender::new(0);
        let teller = changes.clone();
        let fence = Fence::observed(Box::new(move || teller.send_modify(|count| *count += 1)));
        let tables = Default::default();
        Self { shared: Arc::new(Shared { clock, fence, tables, numbers: AtomicU64::new(1), changes }) }
    }

    /// The fence that admits to these ledgers.
    pub fn fence(&self) -> &Fence {
        &self.shared.fence
    }

    /// The clock that ages are measured on.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Sees every change of what lives or of the permit, coalesced.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Lets a piece of work begin.
    ///
    /// # Errors
    /// The process is retiring.
    pub fn admit(&self) -> Result<Admission, Retiring> {
        self.shared.fence.admit(self.shared.clock.now())
    }

    /// Enters admitted work. It leaves when the guard is dropped, by whatever way.
    pub fn enter(&self, admission: &Admission, kind: LedgerKind, id: &str, why: &str) -> Guard {
        self.put(admission, kind, id, why, false)
    }

    /// Enters that a source of work cannot be read: until the guard is dropped the whole ledger cannot be, and the verdict
    /// is unknown.
    pub fn doubt(&self, admission: &Admission, kind: LedgerKind, id: &str, why: &str) -> Guard {
        self.put(admission, kind, id, why, true)
    }

    fn put(&self, admission: &Admission, kind: LedgerKind, id: &str, why: &str, doubt: bool) -> Guard {
        let presence = admission.enter();
        let number = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { id: id.into(), why: why.into(), since: self.shared.clock.now(), doubt };
        self.shared.with(kind, |table| {
            table.told.take();
            table.doubts += usize::from(doubt);
            *table.names.entry(Arc::clone(&entry.id)).or_default() += 1;
            table.entries.insert(number, entry);
        });
        Guard { shared: Arc::clone(&self.shared), kind, number, presence: Some(presence) }
    }

    /// Who holds a ledger, as the detail of a verdict; `None` if it is empty.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn detail(&self, kind: LedgerKind) -> Result<Option<String>, Unreadable> {
        self.shared.known(kind, |table| table.told.get_or_init(|| table.detail(kind)).clone())
    }

    /// How many entries a ledger holds.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn count(&self, kind: LedgerKind) -> Result<usize, Unreadable> {
        self.shared.known(kind, |table| table.entries.len())
    }

    /// Whether an entry of this id lives. A ledger that cannot be read may hold anything.
    pub fn holds(&self, kind: LedgerKind, id: &str) -> bool {
        self.shared.read(kind, |table| table.names.contains_key(id)).unwrap_or(true)
    }

    /// The oldest `most` holders over all ledgers, and how many more there are.
    pub fn holders(&self, most: usize) -> (Vec<Holder>, u64) {
        let (entries, total) = self.oldest(None, most);
        let more = total.saturating_sub(entries.len() as u64);
        let holders = entries
            .into_iter()
            .map(|entry| Holder { ledger: entry.ledger, id: entry.id, age_ms: entry.age_ms })
            .collect();
        (holders, more)
    }

    /// One page of entries behind `after`, oldest first, and how many entries there are in all.
    pub fn oldest(&self, after: Option<u64>, most: usize) -> (Vec<LedgerEntry>, u64) {
        let (now, first) = (self.shared.clock.now(), after.map_or(0, |after| after.saturating_add(1)));
        let (mut page, mut total) = (Vec::new(), 0);
        for kind in LedgerKind::ENTRIES {
            let read = self.shared.read(kind, |table| {
                total += table.entries.len() as u64;
                let entries = table.entries.range(first..).take(most);
                page.extend(entries.map(|(number, entry)| entry.shown(*number, kind, now)));
            });
            // An unreadable ledger has a line of its own in the report.
            let _ = read;
        }
        page.sort_by_key(|entry| entry.number);
        page.truncate(most);
        (page, total)
    }

    /// Makes a table unreadable, as a thread that dies under its lock does.
    #[cfg(test)]
    pub(crate) fn poison(&self, kind: LedgerKind) {
        let shared = Arc::clone(&self.shared);
        let died = std::thread::spawn(move || shared.with(kind, |_| panic!("dies under the lock"))).join();
        assert!(died.is_err());
    }
}

impl Shared {
    fn table(&self, kind: LedgerKind) -> Option<&Mutex<Table>> {
        LedgerKind::ENTRIES.iter().position(|other| *other == kind).and_then(|place| self.tables.get(place))
    }

    /// Changes a table. A poisoned one is still changed: what reads it says that it cannot be trusted.
    fn with(&self, kind: LedgerKind, change: impl FnOnce(&mut Table)) {
        if let Some(table) = self.table(kind) {
            change(&mut table.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn read<T>(&self, kind: LedgerKind, look: impl FnOnce(&Table) -> T) -> Result<T, Unreadable> {
        let table = self.table(kind).ok_or(Unreadable(kind))?;
        Ok(look(&*table.lock().map_err(|_| Unreadable(kind))?))
    }

    /// Reads a table that holds all that belongs into it.
    fn known<T>(&self, kind: LedgerKind, look: impl FnOnce(&Table) -> T) -> Result<T, Unreadable> {
        self.read(kind, |table| (table.doubts == 0).then(|| look(table)))?.ok_or(Unreadable(kind))
    }
}

impl Table {
    fn detail(&self, kind: LedgerKind) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let prefix = match kind {
            // The delegations are many and short-lived: their number helps nobody.
            LedgerKind::Delegation => return Some("delegation".to_owned()),
            LedgerKind::Admission => "admission:",
            LedgerKind::Session => "session:",
            LedgerKind::Cron => "cron:",
            LedgerKind::Hold => "hold:",
            LedgerKind::Process => "process:",
            LedgerKind::HumanInput => "human_input:",
        };
        let mut detail = prefix.to_owned();
        let named = match kind {
            LedgerKind::Session => self.by_age(&mut detail),
            _ => self.by_name(&mut detail),
        };
        let rest = self.names.len() - named;
        if rest > 0 {
            detail.push_str(&format!(",+{rest} more"));
        }
        Some(detail)
    }

    fn by_name(&self, detail: &mut String) -> usize {
        push_joined(detail, self.names.keys().take(MAX_NAMED))
    }

    fn by_age(&self, detail: &mut String) -> usize {
        let mut ids: Vec<&Arc<str>> = Vec::new();
        // Sessions have a few entries each; looking at a bounded number keeps a crowded table as cheap as an empty one.
        for entry in self.entries.values().take(4 * MAX_NAMED) {
            if ids.len() < MAX_NAMED && !ids.contains(&&entry.id) {
                ids.push(&entry.id);
            }
        }
        push_joined(detail, ids.into_iter())
    }
}

fn push_joined<'a>(detail: &mut String, ids: impl Iterator<Item = &'a Arc<str>>) -> usize {
    let mut count = 0;
    for id in ids {
        if count > 0 {
            detail.push(',');
        }
        detail.push_str(id);
        count += 1;
    }
    count
}

impl Entry {
    fn shown(&self, number: u64, ledger: LedgerKind, now: Moment) -> LedgerEntry {
        let age_ms = u64::try_from(now.since(self.since).as_millis()).unwrap_or(u64::MAX);
        LedgerEntry { number, ledger, id: self.id.to_string(), why: self.why.to_string(), age_ms }
    }
}

/// One entry of a ledger. The work is over when it is dropped, panic and cancellation included.
#[must_use = "work that is dropped at once is over"]
pub struct Guard {
    shared: Arc<Shared>,
    kind: LedgerKind,
    number: u64,
    /// Taken in `drop`, after the entry has gone, so that the fence never counts less than the tables hold.
    presence: Option<Presence>,
}

impl Guard {
    /// The entry's number in [`LedgerEntry::number`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Admits more work under this. Never refused.
    pub fn admit(&self) -> Option<Admission> {
        self.presence.as_ref().map(Presence::admit)
    }

    /// Says what the work is doing now.
    pub fn set_why(&self, why: &str) {
        self.shared.with(self.kind, |table| {
            if let Some(entry) = table.entries.get_mut(&self.number) {
                entry.why = why.into();
            }
        });
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("kind", &self.kind).field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.with(self.kind, |table| {
            table.told.take();
            let Some(entry) = table.entries.remove(&self.number) else { return };
            table.doubts -= usize::from(entry.doubt);
            if let Some(count) = table.names.get_mut(&entry.id) {
                *count -= 1;
                if *count == 0 {
                    table.names.remove(&entry.id);
                }
            }
        });
        drop(self.presence.take());
    }
}

#[cfg(test)]
mod tests;
