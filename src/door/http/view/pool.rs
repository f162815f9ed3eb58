//! What a pool tells, as JSON.

use serde_json::{Value, json};

use crate::protocol::{Opened, PoolReport, PoolSlot};

/// The whole pool.
pub(super) fn report(report: &PoolReport) -> Value {
    let queue = report.queue.iter().map(|waiter| {
        json!({
            "ticket": waiter.ticket,
            "profile": waiter.profile,
            "class": waiter.class.name(),
            "waited_ms": waiter.waited_ms,
        })
    });
    let due = report.due.iter().map(|due| json!({"profile": due.profile, "at": due.at}));
    json!({
        "ok": true,
        "max": report.max,
        "memory_budget": report.memory_budget,
        "draining": report.draining,
        "slots": report.slots.iter().map(slot).collect::<Vec<_>>(),
        "queue": queue.collect::<Vec<_>>(),
        "due": due.collect::<Vec<_>>(),
    })
}

fn slot(slot: &PoolSlot) -> Value {
    let holders = slot
        .holders
        .iter()
        .map(|entry| json!({"ledger": entry.ledger.name(), "id": entry.id, "why": entry.why, "age_ms": entry.age_ms}));
    json!({
        "profile": slot.profile,
        "class": slot.class.name(),
        "state": slot.state.name(),
        "pid": slot.pid,
        "idle": slot.verdict.idle(),
        "reason": slot.verdict.reason(),
        "detail": slot.verdict.detail(),
        "holders": holders.collect::<Vec<_>>(),
        "more": slot.more,
        "age_ms": slot.age_ms,
        "unused_ms": slot.unused_ms,
        "memory": slot.memory,
    })
}

/// A child that is ready: its record without the token.
pub(super) fn opened(opened: &Opened) -> Value {
    json!({
        "pid": opened.pid,
        "start_marker": opened.start_marker,
        "generation": opened.generation,
        "profile": opened.profile,
        "home": opened.home,
        "socket": opened.socket.to_string_lossy(),
        "port": opened.port,
        "version": opened.version,
    })
}
