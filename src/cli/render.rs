//! How results look: aligned columns for people, stable keys for programs.

use std::io::{self, IsTerminal, Write};

use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::target::Peer;
use crate::door::http::view;
use crate::error::Exit;
use crate::protocol::Reply;
use crate::verdict::{Verdict, VerdictView};

/// What one child answered.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Who was asked.
    pub peer: Peer,
    /// Its verdict and generation, or why there is none.
    pub answer: Result<(Verdict, Option<String>), Failure>,
}

impl Observation {
    /// The exit code it stands for.
    pub fn exit(&self) -> Exit {
        match &self.answer {
            Ok((verdict, _)) => Exit::from(verdict),
            Err(failure) => failure.exit,
        }
    }

    /// One row: state, who, and what holds it or what to do.
    pub fn row(&self) -> Vec<String> {
        let pid = self.peer.pid.map_or(String::new(), |pid| format!("pid {pid}"));
        let (state, rest) = match &self.answer {
            Ok((verdict, _)) => describe(verdict),
            Err(failure) => (state_of(failure.exit), failure.message.clone()),
        };
        vec![state.to_owned(), self.peer.name(), pid, rest]
    }

    /// The keys of the wire, and who answered. What gave no verdict has `ok` false.
    pub fn json(&self) -> Value {
        let object = match &self.answer {
            Ok((verdict, _)) => serde_json::to_value(VerdictView(verdict)).ok(),
            Err(failure) => {
                let reason = match failure.exit {
                    Exit::Unauthorized => "unauthorized",
                    Exit::Unreachable => "unreachable",
                    _ => "indeterminate",
                };
                Some(json!({"ok": false, "idle": null, "reason": reason, "error": failure.message}))
            }
        }
        .and_then(|value| value.as_object().cloned())
        .unwrap_or_else(Map::new);
        let generation = match &self.answer {
            Ok((_, generation)) => generation.clone(),
            Err(_) => self.peer.endpoint.as_ref().map(|endpoint| endpoint.generation.clone()),
        };
        let mut object = Value::Object(object);
        name_peer(&mut object, &self.peer, generation);
        object
    }
}

/// The keys that say who has answered; the generation on record, if no answer named one.
pub fn name_peer(object: &mut Value, peer: &Peer, generation: Option<String>) {
    object["profile"] = json!(peer.profile);
    object["pid"] = json!(peer.pid);
    object["generation"] = json!(generation.or_else(|| peer.endpoint.as_ref().map(|e| e.generation.clone())));
}

/// What the HTTP door would say, as a value.
pub fn wire(reply: &Reply) -> Value {
    let (_, body) = view::reply(reply, "");
    serde_json::from_str(&body).unwrap_or_else(|_| json!({"ok": false}))
}

fn describe(verdict: &Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Idle => ("idle", String::new()),
        Verdict::TurnInFlight { detail: Some(detail) } => {
            ("busy", format!("{detail}  (hermesctl ledger shows since when)"))
        }
        Verdict::TurnInFlight { detail: None } => ("busy", "by work without a name".to_owned()),
        Verdict::AwaitingHumanInput => ("waiting", "a person is asked something: answer it there".to_owned()),
        Verdict::TurnProbeUnavailable => {
            ("unknown", "a ledger of work cannot be read: counts as busy; see the backend's log".to_owned())
        }
        Verdict::InputProbeUnavailable => {
            ("unknown", "the ledger of questions cannot be read: counts as busy; see the backend's log".to_owned())
        }
    }
}

/// What a person reads in the first column.
pub fn state_of(exit: Exit) -> &'static str {
    match exit {
        Exit::Idle => "idle",
        Exit::Busy => "busy",
        Exit::Usage | Exit::Indeterminate => "unknown",
        Exit::Unreachable => "gone",
        Exit::Unauthorized => "denied",
    }
}

/// Results go to stdout. A reader that has gone away has had enough: that is no error.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// What others have written, without what a terminal would take for an order.
pub fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Aligned columns; the state in front is coloured on a terminal.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count() + 2);
            match coloured && column == 0 {
                true => line.push_str(&format!("{}{cell}\x1b[0m{padding}", colour(cell))),
                false => line.push_str(&format!("{cell}{padding}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn colour(state: &str) -> &'static str {
    match state {
        "idle" => "\x1b[32m",
        "busy" | "waiting" => "\x1b[33m",
        "unknown" | "gone" | "denied" => "\x1b[31m",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let rows = [vec!["idle".into(), "a".into(), String::new()], vec!["busy".into(), "long".into(), "x".into()]];
        assert_eq!(table(&rows), "idle  a\nbusy  long  x\n");
    }

    #[test]
    fn a_failure_is_never_shown_as_idle() {
        let peer = Peer {
            profile: Some("p".into()),
            pid: Some(1),
            socket: None,
            url: None,
            token: crate::secret::Token::new("t"),
            endpoint: None,
        };
        for exit in [Exit::Unreachable, Exit::Unauthorized, Exit::Indeterminate] {
            let seen = Observation { peer: peer.clone(), answer: Err(Failure::new(exit, "no")) };
            let json = seen.json();
            assert_eq!((json["ok"].clone(), json["idle"].clone()), (json!(false), json!(null)));
            assert_eq!(seen.exit(), exit);
        }
    }
}
