//! The pool: so many children at once and no more, and how one makes room for another without work being lost.
//!
//! Making room, in steps; each is named by a test in `pool/coordinator/tests.rs`:
//! 1. A lease is taken before a child is spawned, and is given back by its exit or by a spawn that failed, by nothing else.
//! 2. A foreground waiter comes before a due one, a due one before a background one; first come, first served within.
//! 3. When the waiters need more slots than are on their way, every resident that may go is asked at once: a probe.
//! 4. Of those that say idle, the one that was used least recently is asked to prepare, as soon as every resident that was
//!    used less recently has answered. One that is known to be hung is waited for by nobody.
//! 5. Prepared, the need is looked at again: gone, the permit is given back; still there, it is committed.
//! 6. Committed, the profile is marked as retired and the child as stopping, *then* it is told to stop. Nothing aborts that.
//! 7. Refused, the next resident has its turn. If nobody is idle the waiters wait: the first word that one is idle goes to
//!    step 4 at once.
//! 8. A waiter's deadline is end to end. Whoever gives up is told what was in the way.
//!
//! A child that outlives its pool has its slot in the next one from the start, and is taken over as soon as it lets itself be; until
//! its exit nobody else gets that slot.
//!
//! The coordinator is a pure machine: events and the time in, effects out (`coordinator`, `room`, `queue`, `slot`, `crash`,
//! `marks`). The service carries them out with real processes (`service`, `resident`, `child`, `contact`) and adds what is
//! none of the coordinator's business: who waits for whom (`waiter`), whose job is due (`due`) and came to nothing (`attempts`), what it costs (`memory`), whom
//! the next pool may adopt (`roster`). `answer` is its door, `life` its life.

pub mod answer;
mod attempts;
pub mod child;
pub mod contact;
mod coordinator;
mod crash;
pub mod due;
mod event;
pub mod life;
pub mod log;
mod marks;
pub mod memory;
mod queue;
pub mod resident;
mod room;
pub mod roster;
pub mod service;
mod slot;
pub mod told;
mod view;
pub mod waiter;

pub use answer::Pool;
pub use coordinator::{Coordinator, MAX_WAITERS};
pub use crash::{CRASH_LOOP, CRASH_WINDOW, MAX_BACKOFF, MAX_RESTART_DELAY};
pub use event::{Denial, Effect, Event, Lease, Settings, Standing, Ticket};
pub use life::{Options, run};
pub use marks::MAX_MARKS;
pub use room::{DEFAULT_BYTES, MAX_PAUSE};
pub use service::Command;
pub use slot::State;
pub use told::in_the_way_of;
pub use view::{PoolView, SlotView, WaiterView};

pub use crate::protocol::Class;
