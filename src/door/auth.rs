//! Who is asking: tokens, authorities, and what a connection holds.

use crate::clock::Clock;
use crate::fence::Fence;
use crate::handler::Place;
use crate::ledger::Guard;
use crate::secret::{Permit, Token};
use crate::verb::Authority;

/// The tokens of one process.
#[derive(Debug, Clone)]
pub struct Tokens {
    session: Token,
    control: Option<Token>,
}

impl Tokens {
    /// The session token, and the control token if retirement needs one of its own.
    pub fn new(session: Token, control: Option<Token>) -> Self {
        Self { session, control }
    }

    /// The session token, for the endpoint record.
    pub fn session(&self) -> &Token {
        &self.session
    }

    /// What `presented` gives its bearer; `None` if it is none of ours.
    pub fn authority(&self, presented: &Token) -> Option<Authority> {
        // Both are compared always, so that the time taken tells nothing.
        let session = !presented.is_empty() && *presented == self.session;
        let control = self.control.as_ref().is_some_and(|control| *presented == *control);
        match (control, session, &self.control) {
            (true, _, _) | (_, true, None) => Some(Authority::Control),
            (_, true, Some(_)) => Some(Authority::Session),
            _ => None,
        }
    }
}

/// The peer of a connection, and what goes when it ends.
#[derive(Debug)]
pub struct Caller {
    /// What it has shown.
    pub authority: Authority,
    /// Its process id, where the kernel says so (the socket).
    pub pid: Option<u32>,
    /// Whether the connection lasts, so that something may be tied to it.
    pub connected: bool,
    permit: Option<TiedPermit>,
    holds: Vec<(Guard, Option<Place>)>,
}

/// So many holds a connection has at a time.
pub const MAX_HOLDS: usize = 64;

impl Caller {
    /// A connection over the control socket.
    pub fn connected(authority: Authority, pid: Option<u32>) -> Self {
        Self { authority, pid, connected: true, permit: None, holds: Vec::new() }
    }

    /// One HTTP request.
    pub fn passing(authority: Authority) -> Self {
        Self { authority, pid: None, connected: false, permit: None, holds: Vec::new() }
    }

    /// Ties a permit to this connection: it is cancelled when the connection ends.
    pub fn tie(&mut self, permit: TiedPermit) {
        // There is one live permit at most, so an older one is over.
        self.permit = Some(permit);
    }

    /// Keeps a hold until it is released or the connection ends; false if there are too many.
    pub fn hold(&mut self, guard: Guard, place: Option<Place>) -> bool {
        let room = self.holds.len() < MAX_HOLDS;
        if room {
            self.holds.push((guard, place));
        }
        room
    }

    /// Gives a hold back; false if there is none of this number.
    pub fn release(&mut self, number: u64) -> bool {
        let before = self.holds.len();
        self.holds.retain(|(hold, _)| hold.number() != number);
        self.holds.len() < before
    }
}

/// A permit that goes with its connection.
pub struct TiedPermit {
    fence: Fence,
    clock: Clock,
    permit: Permit,
}

impl TiedPermit {
    /// Cancels `permit` when dropped, unless it was committed by then.
    pub fn new(fence: Fence, clock: Clock, permit: Permit) -> Self {
        Self { fence, clock, permit }
    }
}

impl Drop for TiedPermit {
    fn drop(&mut self) {
        self.fence.cancel(self.clock.now(), &self.permit);
    }
}

impl std::fmt::Debug for TiedPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TiedPermit(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_control_token_the_session_token_may_retire() {
        let tokens = Tokens::new(Token::new("s"), None);
        assert_eq!(tokens.authority(&Token::new("s")), Some(Authority::Control));
        assert_eq!(tokens.authority(&Token::new("")), None);
        assert_eq!(tokens.authority(&Token::new("x")), None);
    }

    #[test]
    fn with_a_control_token_the_session_token_may_only_look() {
        let tokens = Tokens::new(Token::new("s"), Some(Token::new("c")));
        assert_eq!(tokens.authority(&Token::new("s")), Some(Authority::Session));
        assert_eq!(tokens.authority(&Token::new("c")), Some(Authority::Control));
    }
}
