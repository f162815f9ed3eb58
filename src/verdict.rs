//! The tri-state verdict, and how JSON shows it.

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// May this process be called idle?
///
/// Only [`Verdict::Idle`] says yes. Callers treat "cannot tell" exactly as busy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Every ledger was read and is empty.
    Idle,
    /// Work lives.
    TurnInFlight {
        /// Who holds it (`cron:<ids>`, …), if the holder has a name.
        detail: Option<String>,
    },
    /// A person is asked something.
    AwaitingHumanInput,
    /// A ledger of work cannot be read.
    TurnProbeUnavailable,
    /// The ledger of questions cannot be read.
    InputProbeUnavailable,
}

impl Verdict {
    /// `Some(true)` idle, `Some(false)` busy, `None` cannot tell.
    pub const fn idle(&self) -> Option<bool> {
        match self {
            Self::Idle => Some(true),
            Self::TurnInFlight { .. } | Self::AwaitingHumanInput => Some(false),
            Self::TurnProbeUnavailable | Self::InputProbeUnavailable => None,
        }
    }

    /// The reason on the wire; none while idle.
    pub const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Idle => None,
            Self::TurnInFlight { .. } => Some("turn_in_flight"),
            Self::AwaitingHumanInput => Some("awaiting_human_input"),
            Self::TurnProbeUnavailable => Some("turn_probe_unavailable"),
            Self::InputProbeUnavailable => Some("input_probe_unavailable"),
        }
    }

    /// Who holds it, where there is somebody to name.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::TurnInFlight { detail } => detail.as_deref(),
            _ => None,
        }
    }

    /// Writes `idle`, `reason` and, for work in flight alone, `detail` (null for a holder without a name).
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn write_keys<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("idle", &self.idle())?;
        map.serialize_entry("reason", &self.reason())?;
        if let Self::TurnInFlight { detail } = self {
            map.serialize_entry("detail", detail)?;
        }
        Ok(())
    }

    /// Reads the keys back, as a client does. Anything that is not plainly one of the verdicts is none.
    pub fn from_keys(idle: Option<bool>, reason: Option<&str>, detail: Option<&str>) -> Option<Self> {
        match (idle, reason) {
            (Some(true), None) => Some(Self::Idle),
            (Some(false), Some("awaiting_human_input")) => Some(Self::AwaitingHumanInput),
            (Some(false), _) => Some(Self::TurnInFlight { detail: detail.map(str::to_owned) }),
            (None, Some("input_probe_unavailable")) => Some(Self::InputProbeUnavailable),
            (None, _) => Some(Self::TurnProbeUnavailable),
            (Some(true), Some(_)) => None,
        }
    }
}

/// The body of `GET /api/health/idle`: `ok` is always true, the verdict says the rest.
pub struct VerdictView<'a>(pub &'a Verdict);

impl Serialize for VerdictView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ok", &true)?;
        self.0.write_keys(&mut map)?;
        map.end()
    }
}

impl VerdictView<'_> {
    /// The body as text.
    pub fn to_json(&self) -> String {
        let mut bytes = Vec::with_capacity(96);
        // Serialising these plain keys into memory cannot fail.
        let _ = self.serialize(&mut serde_json::Serializer::new(&mut bytes));
        String::from_utf8(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(verdict: &Verdict) -> String {
        VerdictView(verdict).to_json()
    }

    #[test]
    fn every_verdict_has_exactly_the_keys_of_the_contract() {
        assert_eq!(json(&Verdict::Idle), r#"{"ok":true,"idle":true,"reason":null}"#);
        assert_eq!(
            json(&Verdict::TurnInFlight { detail: Some("cron:a".into()) }),
            r#"{"ok":true,"idle":false,"reason":"turn_in_flight","detail":"cron:a"}"#
        );
        assert_eq!(
            json(&Verdict::TurnInFlight { detail: None }),
            r#"{"ok":true,"idle":false,"reason":"turn_in_flight","detail":null}"#
        );
        assert_eq!(json(&Verdict::AwaitingHumanInput), r#"{"ok":true,"idle":false,"reason":"awaiting_human_input"}"#);
        assert_eq!(
            json(&Verdict::TurnProbeUnavailable),
            r#"{"ok":true,"idle":null,"reason":"turn_probe_unavailable"}"#
        );
        assert_eq!(
            json(&Verdict::InputProbeUnavailable),
            r#"{"ok":true,"idle":null,"reason":"input_probe_unavailable"}"#
        );
    }

    #[test]
    fn reading_back_never_turns_a_doubt_into_idle() {
        assert_eq!(Verdict::from_keys(Some(true), Some("turn_in_flight"), None), None);
        assert_eq!(Verdict::from_keys(None, None, None), Some(Verdict::TurnProbeUnavailable));
        assert_eq!(Verdict::from_keys(Some(false), Some("news"), None), Some(Verdict::TurnInFlight { detail: None }));
    }
}
