//! Replies as JSON: key order and compact separators are the contract's.

mod pool;

use hyper::StatusCode;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;

use super::status;
use crate::protocol::{Event, Fault, FaultKind, LedgerReport, Refusal, Reply, TurnReport};
use crate::verdict::VerdictView;

/// Status and body of a reply.
pub fn reply(reply: &Reply, generation: &str) -> (StatusCode, String) {
    let body = match reply {
        Reply::Fault(fault) => return self::fault(fault),
        Reply::Health(health) => format!(r#"{{"ok":true,"version":{},"auth_required":false}}"#, json!(health.version)),
        Reply::Verdict(verdict) => VerdictView(verdict).to_json(),
        Reply::Prepared { permit, expires_in_ms } => format!(
            r#"{{"ok":true,"idle":true,"token":{},"expires_in_ms":{},"generation":{}}}"#,
            json!(permit.expose()),
            json!(expires_in_ms),
            json!(generation)
        ),
        Reply::Refused(refusal) => text(&RefusalView(refusal)),
        Reply::Committed { ok: true, next_due } => format!(r#"{{"ok":true,"next_due":{}}}"#, json!(next_due)),
        Reply::Committed { ok, .. } | Reply::Cancelled { ok } => format!(r#"{{"ok":{ok}}}"#),
        Reply::Ledgers(report) => text(&LedgersView(report)),
        Reply::Held { number } => format!(r#"{{"ok":true,"number":{number}}}"#),
        Reply::Released { ok } => format!(r#"{{"ok":{ok}}}"#),
        Reply::Questions(questions) => {
            let each = questions.iter().map(|question| {
                json!({
                    "id": question.id,
                    "kind": question.kind.name(),
                    "text": question.text,
                    "choices": question.choices,
                    "age_ms": question.age_ms,
                })
            });
            format!(r#"{{"ok":true,"prompts":{}}}"#, json!(each.collect::<Vec<_>>()))
        }
        Reply::ProcessReleased { command } => format!(r#"{{"ok":true,"command":{}}}"#, json!(command)),
        Reply::Submitted { turn, ahead } => format!(r#"{{"ok":true,"turn":{turn},"ahead":{ahead}}}"#),
        Reply::Interrupting { turn } => format!(r#"{{"ok":true,"turn":{turn}}}"#),
        Reply::Turn(report) => json!({"ok": true, "turn": turn(report)}).to_string(),
        Reply::Log(turns) => json!({"ok": true, "turns": turns.iter().map(turn).collect::<Vec<_>>()}).to_string(),
        Reply::Sessions(sessions) => {
            let each = sessions.iter().map(|session| {
                json!({
                    "session": session.session,
                    "running": session.running,
                    "queued": session.queued,
                    "last": session.last,
                })
            });
            json!({"ok": true, "sessions": each.collect::<Vec<_>>()}).to_string()
        }
        Reply::Pool(report) => pool::report(report).to_string(),
        Reply::Touched { ok } => format!(r#"{{"ok":{ok}}}"#),
        Reply::Answered | Reply::Closed | Reply::Welcome(_) | Reply::Event(_) | Reply::Adopted => {
            r#"{"ok":true}"#.to_owned()
        }
    };
    (StatusCode::OK, body)
}

fn turn(turn: &TurnReport) -> serde_json::Value {
    json!({
        "turn": turn.turn,
        "session": turn.session,
        "state": turn.state.name(),
        "prompt": turn.prompt,
        "reply": turn.reply,
        "error": turn.error,
        "queued_at": turn.queued_at,
        "started_at": turn.started_at,
        "ended_at": turn.ended_at,
    })
}

/// One event of a stream as the text of its `data:` line.
pub fn event(event: &Event) -> String {
    match event {
        Event::Verdict(verdict) => VerdictView(verdict).to_json(),
        Event::Waiting(refusal) => text(&RefusalView(refusal)),
        Event::Prepared { permit, expires_in_ms } => {
            format!(r#"{{"ok":true,"idle":true,"token":{},"expires_in_ms":{expires_in_ms}}}"#, json!(permit.expose()))
        }
        Event::Pool(report) => pool::report(report).to_string(),
        Event::Opened(opened) => pool::opened(opened).to_string(),
        Event::Held { number } => format!(r#"{{"ok":true,"number":{number}}}"#),
        Event::Asked { id } => format!(r#"{{"ok":true,"id":{}}}"#, json!(id)),
        Event::Answered { answer } => {
            format!(r#"{{"ok":true,"answer":{}}}"#, json!(answer.as_ref().map(|a| a.expose())))
        }
    }
}

/// Status and body of a fault.
pub fn fault(fault: &Fault) -> (StatusCode, String) {
    let body = match fault.kind {
        FaultKind::Retiring => format!(r#"{{"detail":{},"retiring":true}}"#, json!(fault.message)),
        _ => detail(&fault.message),
    };
    (status(fault.kind), body)
}

/// The body of everything that went wrong.
pub(super) fn detail(message: &str) -> String {
    format!(r#"{{"detail":{}}}"#, json!(message))
}

fn text(view: &impl Serialize) -> String {
    // Serialising plain keys into memory cannot fail.
    serde_json::to_string(view).unwrap_or_default()
}

struct RefusalView<'a>(&'a Refusal);

impl Serialize for RefusalView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let refusal = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ok", &false)?;
        if refusal.retiring {
            map.serialize_entry("idle", &false)?;
            map.serialize_entry("reason", "retirement_in_progress")?;
        } else {
            refusal.verdict.write_keys(&mut map)?;
        }
        map.serialize_entry("since_ms", &refusal.since_ms)?;
        let holders = refusal.holders.iter();
        let holders: Vec<_> = holders
            .map(|holder| json!({"ledger": holder.ledger.name(), "id": holder.id, "age_ms": holder.age_ms}))
            .collect();
        map.serialize_entry("holders", &holders)?;
        map.serialize_entry("more", &refusal.more)?;
        map.end()
    }
}

struct LedgersView<'a>(&'a LedgerReport);

impl Serialize for LedgersView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ok", &true)?;
        report.verdict.write_keys(&mut map)?;
        let ledgers = report.ledgers.iter();
        let ledgers: Vec<_> =
            ledgers.map(|line| json!({"ledger": line.ledger.name(), "entries": line.entries})).collect();
        map.serialize_entry("ledgers", &ledgers)?;
        let entries = report.entries.iter().map(|entry| {
            json!({
                "number": entry.number,
                "ledger": entry.ledger.name(),
                "id": entry.id,
                "why": entry.why,
                "age_ms": entry.age_ms,
            })
        });
        map.serialize_entry("entries", &entries.collect::<Vec<_>>())?;
        map.serialize_entry("next", &report.next)?;
        map.serialize_entry(
            "ticker",
            &json!({
                "running": report.ticker.running,
                "next_due": report.ticker.next_due,
                "last_error": report.ticker.last_error,
                "bad_jobs": report.ticker.bad_jobs,
            }),
        )?;
        map.end()
    }
}
