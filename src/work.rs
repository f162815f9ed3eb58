//! Work that other programs do for a child: spawned behind a gate, supervised as a whole process group, and on record
//! before it begins, so that a child that dies leaves no work that nobody knows of.

pub mod agent;
pub mod capture;
pub mod group;
pub mod journal;
pub mod question;
pub mod record;
pub mod shim;
pub mod spawn;
pub mod strays;
pub mod supervise;
pub mod survivors;
pub mod turn;

/// What a running piece of work is told while its child shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Go on.
    Run,
    /// Start nothing more; what runs goes on.
    Drain,
    /// End: the group gets TERM.
    Term,
    /// Now: the group gets KILL.
    Kill,
}
