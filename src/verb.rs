//! One row a verb: the policy of every request as data, enforced once in `handler.rs`.

use crate::protocol::Request;

/// What a caller has shown. Each level includes those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Authority {
    /// Nothing.
    Public,
    /// The session token, which a renderer holds too.
    Session,
    /// The control token; without one, the session token counts as it.
    Control,
}

/// Where a verb is reached over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The only method it answers to.
    pub method: &'static str,
    /// The path; `{id}` stands for one part of it, whatever that is, percent-encoded.
    pub path: &'static str,
}

impl Route {
    /// Whether a path is this one, and what stands in the place of `{id}`, as it stands there.
    pub fn matches<'a>(&self, path: &'a str) -> Option<Option<&'a str>> {
        // Asked of every row at every request: most have no `{`, which one quick look tells.
        if !self.path.contains('{') {
            return (self.path == path).then_some(None);
        }
        let (head, tail) = self.path.split_once("{id}")?;
        let id = path.strip_prefix(head)?.strip_suffix(tail)?;
        (!id.is_empty() && !id.contains('/')).then_some(Some(id))
    }
}

/// The policy of one request.
#[derive(Debug, PartialEq, Eq)]
pub struct Verb {
    /// The one name: command-line verb, request, handler, test.
    pub name: &'static str,
    /// Who may ask.
    pub authority: Authority,
    /// Answered while a permit lives or was committed, and while the child drains.
    pub while_retiring: bool,
    /// The request itself is work: it holds an admission for as long as it is handled.
    pub work: bool,
    /// Written to the log. Reads are not.
    pub logged: bool,
    /// It may last as long as its connection: the number of such requests is limited.
    pub lasts: bool,
    /// Its place over HTTP; verbs that live as long as their connection have none.
    pub http: Option<Route>,
}

const fn get(path: &'static str) -> Option<Route> {
    Some(Route { method: "GET", path })
}

const fn post(path: &'static str) -> Option<Route> {
    Some(Route { method: "POST", path })
}

const fn read(name: &'static str, authority: Authority, http: Option<Route>) -> Verb {
    Verb { name, authority, while_retiring: true, work: false, logged: false, lasts: false, http }
}

const fn lasting(verb: Verb) -> Verb {
    Verb { lasts: true, ..verb }
}

const fn control(name: &'static str, http: Option<Route>) -> Verb {
    Verb { name, authority: Authority::Control, while_retiring: true, work: false, logged: true, lasts: false, http }
}

/// The path that the three steps of retirement share.
pub const RETIREMENT: &str = "/api/health/retirement";

static HELLO: Verb = read("hello", Authority::Public, None);
static HEALTH: Verb = read("health", Authority::Public, get("/api/health"));
static IDLE: Verb = read("idle", Authority::Session, get("/api/health/idle"));
static LEDGERS: Verb = read("ledger", Authority::Session, get("/api/health/ledgers"));
static WATCH: Verb = lasting(read("watch", Authority::Session, get("/api/health/idle/events")));
static PREPARE: Verb = control("prepare", post(RETIREMENT));
static COMMIT: Verb = control("commit", post(RETIREMENT));
static CANCEL: Verb = control("cancel", post(RETIREMENT));
static RETIRE_WHEN_IDLE: Verb = lasting(control("retire-when-idle", None));
static ADOPT: Verb = control("adopt", None);
static HOLD: Verb = lasting(work("hold", post("/api/holds")));
static RELEASE: Verb = read("release-hold", Authority::Session, None);

static ASK: Verb = lasting(work("ask", None));
static QUESTIONS: Verb = read("prompts", Authority::Session, get("/api/prompts"));
static ANSWER: Verb = Verb {
    name: "answer",
    authority: Authority::Session,
    // Answering is how a person lets a child become idle: it is never refused.
    while_retiring: true,
    work: false,
    logged: true,
    lasts: false,
    http: post("/api/prompts/{id}"),
};
static RELEASE_PROCESS: Verb = control("release", None);

const fn work(name: &'static str, http: Option<Route>) -> Verb {
    Verb { name, authority: Authority::Session, while_retiring: false, work: true, logged: true, lasts: false, http }
}

static SUBMIT: Verb = work("submit", post("/api/sessions/{id}/prompts"));
static TURN: Verb = lasting(read("turn", Authority::Session, get("/api/turns/{id}")));
static SESSIONS: Verb = read("sessions", Authority::Session, get("/api/sessions"));
static INTERRUPT: Verb = Verb {
    name: "interrupt",
    authority: Authority::Session,
    // Ending work is how a child becomes idle: it is never refused.
    while_retiring: true,
    work: false,
    logged: true,
    lasts: false,
    http: post("/api/sessions/{id}/interrupt"),
};
static LOG: Verb = read("log", Authority::Session, get("/api/sessions/{id}"));
static DELEGATE: Verb = work("delegate", post("/api/sessions/{id}/delegations"));

// Of a pool, which has no HTTP.
static OPEN: Verb = Verb { logged: true, ..lasting(read("open", Authority::Session, None)) };
static CLOSE: Verb = control("close", None);
static POOL: Verb = read("pool", Authority::Session, None);
static WATCH_POOL: Verb = lasting(read("watch-pool", Authority::Session, None));
static POOL_LIMIT: Verb = control("pool-limit", None);
static TOUCH: Verb = read("touch", Authority::Session, None);

/// Every verb, for the routes and for the tests.
pub static VERBS: [&Verb; 28] = [
    &HELLO,
    &HEALTH,
    &IDLE,
    &LEDGERS,
    &WATCH,
    &PREPARE,
    &COMMIT,
    &CANCEL,
    &RETIRE_WHEN_IDLE,
    &ADOPT,
    &HOLD,
    &RELEASE,
    &ASK,
    &QUESTIONS,
    &ANSWER,
    &RELEASE_PROCESS,
    &SUBMIT,
    &TURN,
    &SESSIONS,
    &INTERRUPT,
    &LOG,
    &DELEGATE,
    &OPEN,
    &CLOSE,
    &POOL,
    &WATCH_POOL,
    &POOL_LIMIT,
    &TOUCH,
];

impl Request {
    /// The policy of this request.
    pub fn verb(&self) -> &'static Verb {
        match self {
            Self::Hello { .. } => &HELLO,
            Self::Health => &HEALTH,
            Self::Idle => &IDLE,
            Self::Ledgers { .. } => &LEDGERS,
            Self::Watch => &WATCH,
            Self::Prepare { .. } => &PREPARE,
            Self::Commit { .. } => &COMMIT,
            Self::Cancel { .. } => &CANCEL,
            Self::RetireWhenIdle { .. } => &RETIRE_WHEN_IDLE,
            Self::Adopt { .. } => &ADOPT,
            Self::Hold { .. } => &HOLD,
            Self::Release { .. } => &RELEASE,
            Self::Ask { .. } => &ASK,
            Self::Questions => &QUESTIONS,
            Self::Answer { .. } => &ANSWER,
            Self::ReleaseProcess { .. } => &RELEASE_PROCESS,
            Self::Submit { .. } => &SUBMIT,
            Self::Turn { .. } => &TURN,
            Self::Sessions => &SESSIONS,
            Self::Interrupt { .. } => &INTERRUPT,
            Self::Log { .. } => &LOG,
            Self::Delegate { .. } => &DELEGATE,
            Self::Open { .. } => &OPEN,
            Self::Close { .. } => &CLOSE,
            Self::Pool => &POOL,
            Self::WatchPool => &WATCH_POOL,
            Self::PoolLimit { .. } => &POOL_LIMIT,
            Self::Touch { .. } => &TOUCH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_retirement_needs_the_control_authority() {
        for (place, verb) in VERBS.iter().enumerate() {
            assert!(VERBS.iter().skip(place + 1).all(|other| other.name != verb.name), "{}", verb.name);
            if verb.http.is_some_and(|route| route.path == RETIREMENT) {
                assert_eq!(verb.authority, Authority::Control);
            }
        }
    }

    #[test]
    fn only_health_is_public() {
        let public: Vec<_> = VERBS.iter().filter(|verb| verb.authority == Authority::Public).map(|v| v.name).collect();
        assert_eq!(public, ["hello", "health"]);
    }
}
