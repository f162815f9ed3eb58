//! A child's life: home, runtime dir, lock, doors, first scan, record, READY; then until it is told to leave; then drain.
//!
//! What ends it, all joined in `until_told_to_leave`:
//! 1. SIGTERM or SIGINT: admission closes, running work gets the grace, then TERM, then KILL.
//! 2. A committed permit: the doors stay open for [`LINGER`], then it leaves by itself.
//! 3. The owner's death: an idle child leaves, a busy one may finish or be adopted.

mod drain;
mod owner;
pub mod settings;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::clock::Clock;
use crate::cron::ticker::Ticker;
use crate::cron::zone::Zone;
use crate::door::{self, http};
use crate::doorway::{Doorway, DoorwayError};
use crate::footing::{Signals, prepare_home, raise_descriptor_limit};
use crate::handler::{Backend, Identity};
use crate::hub::Hub;
use crate::ledger::Ledgers;
use crate::lifecycle::{Lifecycle, Owner};
use crate::proof::Proof;
use crate::runtime::Role;
use crate::secret::random_hex;
use crate::verdict::Verdict;
use crate::work::Stop;
use crate::work::agent::Agent;
use crate::work::question::Questions;
use crate::work::strays::Strays;
use crate::work::turn::Turns;
use settings::Settings;

/// After a commit the doors stay open so long, so that a lost reply can be asked for again.
pub const LINGER: Duration = Duration::from_millis(1200);

/// Why a child did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Options or environment cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The port is taken.
    #[error("port {0} is in use: stop what listens there, or use --port 0 for any free one")]
    PortInUse(u16),
    /// Another child serves this home.
    #[error("{0}")]
    AlreadyServed(String),
    /// Home, runtime dir or socket cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The system gave out.
    #[error("{0}")]
    Internal(String),
}

impl From<DoorwayError> for ServeError {
    fn from(error: DoorwayError) -> Self {
        match error {
            DoorwayError::Unusable(message) => Self::Unusable(message),
            DoorwayError::Taken(message) => Self::AlreadyServed(message),
        }
    }
}

impl ServeError {
    /// The exit code of a child whose home is served by another.
    pub const ALREADY_SERVED: i32 = 76;

    /// The process's exit code.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Internal(_) => 70,
            Self::Unusable(_) => 73,
            Self::PortInUse(_) => 75,
            Self::AlreadyServed(_) => 76,
        }
    }
}

/// Why a child leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Leave {
    Signal(&'static str),
    Committed(Option<String>),
    Orphaned,
}

/// Serves until told to leave.
///
/// # Errors
/// See [`ServeError`]; nothing was printed as ready then.
pub async fn run(mut settings: Settings) -> Result<(), ServeError> {
    raise_descriptor_limit();
    let mut signals =
        Signals::new(settings.owner != Owner::Nobody).map_err(|error| ServeError::Internal(error.to_string()))?;
    prepare_home(&settings.home).map_err(ServeError::Unusable)?;
    // What runs for this home bears its name: it must be the same however it was spelled.
    settings.home = settings.home.canonicalize().map_err(|error| ServeError::Unusable(error.to_string()))?;
    let doorway = Doorway::claim(&settings.home, Role::Backend)?;
    let tcp = bind(&settings).await?;
    let address = tcp.local_addr().map_err(|error| ServeError::Internal(error.to_string()))?;
    let listener = doorway.listen()?;

    let generation = random_hex::<8>().map_err(|error| ServeError::Internal(error.to_string()))?;
    let identity = Identity { generation, profile: settings.profile.clone() };
    let ledgers = Ledgers::new(Clock::system());
    let proof = Arc::new(Proof::new(ledgers.clone()));
    let strays = Strays::new(ledgers.clone(), &settings.home);
    let stop = watch::Sender::new(Stop::Run);
    let agent = Agent {
        command: settings.agent.clone(),
        limit: settings.turn_limit,
        home: settings.home.clone(),
        socket: doorway.socket().to_owned(),
    };
    let backend = Arc::new(Backend {
        turns: Turns::new(agent, ledgers.clone(), strays.clone(), Zone::of(&settings.home), stop.subscribe()),
        identity,
        hub: Hub::follow(Arc::clone(&proof)),
        proof,
        lifecycle: Lifecycle::new(settings.owner.clone()),
        ticker: Arc::new(Mutex::default()),
        questions: Questions::default(),
        strays: strays.clone(),
        places: Arc::new(Semaphore::new(door::lasting())),
    });
    backend.turns.recover().await;
    if owner::is_gone(&settings.owner) {
        // Nobody counts it: what was accepted is run, and nothing new is begun.
        tracing::warn!("the owner is gone already: nothing new is admitted");
        backend.proof.ledgers().fence().close();
        backend.lifecycle.set_owner(Owner::Lost);
    }
    // Before the doors answer anybody: what is due, or survived a dead predecessor, is in its ledger by then.
    let report = Arc::clone(&backend.ticker);
    let ticker = Ticker::start(
        &settings.home,
        settings.desktop,
        ledgers,
        report,
        stop.subscribe(),
        strays.clone(),
        backend.turns.clone(),
    );
    ticker.first_scan().await;

    let tokens = Arc::new(settings.tokens.clone());
    let door = http::Door::new(Arc::clone(&backend), Arc::clone(&tokens), address);
    tokio::spawn(door.serve(tcp));
    let doorway = doorway.open(listener, &backend, tokens, Some(address.port()))?;
    announce(address);
    tracing::info!(
        profile = settings.profile,
        port = address.port(),
        generation = backend.identity.generation,
        "ready"
    );

    let leave = until_told_to_leave(&backend, &settings, &mut signals).await;
    tracing::info!(?leave, "leaving");
    backend.proof.ledgers().fence().close();
    ticker.stop();
    match leave {
        Leave::Committed(_) => {}
        Leave::Signal(_) => drain::drain(&backend, &stop, &strays, settings.shutdown_grace).await,
        // It has had a grace of its own.
        Leave::Orphaned => drain::drain(&backend, &stop, &strays, Duration::ZERO).await,
    }
    doorway.close();
    Ok(())
}

async fn bind(settings: &Settings) -> Result<TcpListener, ServeError> {
    let address = SocketAddr::new(settings.host, settings.port);
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            print_line(&format!("BACKEND_PORT_IN_USE port={}\n", settings.port));
            ServeError::PortInUse(settings.port)
        }
        _ => ServeError::Unusable(format!("cannot listen on {address}: {error}")),
    })
}

/// The two lines that a parent waits for. A closed stdout is the parent's own choice.
fn announce(address: SocketAddr) {
    let port = address.port();
    print_line(&format!("HERMES_BACKEND_READY port={port}\nHERMES_DASHBOARD_READY port={port}\n"));
}

fn print_line(text: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        tracing::warn!(%error, "stdout takes nothing: nobody will learn the port from it");
    }
}

async fn until_told_to_leave(backend: &Backend, settings: &Settings, signals: &mut Signals) -> Leave {
    loop {
        let owner = backend.lifecycle.owner();
        let mut owners = backend.lifecycle.owners();
        owners.mark_unchanged();
        tokio::select! {
            name = signals.next() => return Leave::Signal(name),
            committed = backend.lifecycle.committed() => {
                // A signal in this time is the owner's word that nobody needs to ask again.
                let _ = timeout(LINGER, signals.next()).await;
                return Leave::Committed(committed.request_id);
            }
            _ = owners.changed() => {}
            () = owner::gone(&owner) => {
                tracing::warn!(?owner, "the owner is gone: nothing new is admitted");
                // Closed before anybody may adopt, so that an adoption's reopening cannot be undone by us.
                backend.proof.ledgers().fence().close();
                backend.lifecycle.set_owner(Owner::Lost);
            }
            () = orphan_may_leave(backend, settings, &owner) => return Leave::Orphaned,
        }
    }
}

/// Resolves when an orphan is idle, or its grace is over; never while there is an owner.
async fn orphan_may_leave(backend: &Backend, settings: &Settings, owner: &Owner) {
    if *owner != Owner::Lost {
        return std::future::pending().await;
    }
    let idle = async {
        let mut changes = backend.proof.ledgers().changes();
        while backend.proof.verdict() != Verdict::Idle {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = idle => {}
        () = sleep(settings.orphan_grace) => tracing::warn!("the orphan's grace is over"),
    }
}
