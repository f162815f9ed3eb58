//! A pool's life: home, lock, socket, whoever outlived the pool before it, READY; then until it is told to leave; then every
//! child by proof, and at the very end by signal.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::Settings;
use super::answer::Pool;
use super::child::Nursery;
use super::roster::Roster;
use super::service::{Command, Service};
use crate::clock::Clock;
use crate::door;
use crate::door::auth::Tokens;
use crate::doorway::Doorway;
use crate::footing::{Signals, prepare_home, raise_descriptor_limit};
use crate::handler::Identity;
use crate::process;
use crate::protocol::PoolReport;
use crate::runtime::{Role, RuntimeDir};
use crate::secret::{Token, random_hex};
use crate::serve::ServeError;

/// So many requests wait for the service; a further one waits at the door.
const COMMANDS: usize = 64;

/// After everybody was told to end: TERM, and KILL five seconds later.
const END: Duration = Duration::from_secs(8);

/// What a pool is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The home of it all.
    pub home: PathBuf,
    /// Its limits.
    pub limits: Settings,
    /// When it is told to leave, busy children may finish for so long.
    pub drain: Duration,
    /// The agent that every child is given.
    pub agent_command: Option<String>,
}

/// Keeps children until told to leave.
///
/// # Errors
/// See [`ServeError`]; nothing was printed as ready then.
pub async fn run(options: Options) -> Result<(), ServeError> {
    raise_descriptor_limit();
    let internal = |error: &dyn std::fmt::Display| ServeError::Internal(error.to_string());
    let mut signals = Signals::new(false).map_err(|error| internal(&error))?;
    prepare_home(&options.home).map_err(ServeError::Unusable)?;
    let doorway = Doorway::claim(&options.home, Role::Pool)?;
    let roster = Roster::claim(&options.home)?;
    let listener = doorway.listen()?;
    let identity = Identity { generation: random_hex::<8>().map_err(|error| internal(&error))?, profile: None };
    let token = Token::random().map_err(|error| internal(&error))?;

    let control = std::env::var("HERMES_CONTROL_TOKEN").ok().filter(|token| !token.is_empty()).map(Token::new);

    let pid = std::process::id();
    let nursery = Nursery {
        root: options.home.clone(),
        runtime: RuntimeDir::create(&RuntimeDir::locate(&|name| std::env::var_os(name)))
            .map_err(|error| ServeError::Unusable(error.to_string()))?,
        agent_command: options.agent_command,
        control: control.clone(),
        pid,
        start_marker: process::start_marker(pid).unwrap_or_default(),
    };
    let (commands, obeyed) = mpsc::channel(COMMANDS);
    let (report, watched) = watch::channel(PoolReport::default());
    let left = roster.read();
    let clock = Clock::system();
    let (mut service, inbox) = Service::new(clock, nursery.clone(), options.limits, roster, obeyed, report);
    left.into_iter().for_each(|member| service.find(member));
    let pool = Arc::new(Pool {
        identity,
        commands: commands.clone(),
        report: watched,
        places: Arc::new(Semaphore::new(door::lasting())),
    });
    let serving = tokio::spawn(service.run(inbox));
    let tokens = Arc::new(Tokens::new(token, control));
    let socket = doorway.socket().to_owned();
    let doorway = doorway.open(listener, &pool, tokens, None)?;
    announce(&socket.to_string_lossy());

    let name = signals.next().await;
    tracing::info!(name, "leaving: idle backends go now, busy ones when they are done");
    leave(&commands, serving, &mut signals, options.drain).await;
    doorway.close();
    Ok(())
}

/// By proof as long as there is time; a second signal, or the end of it, is the owner's word that proof no longer counts.
async fn leave(
    commands: &mpsc::Sender<Command>,
    mut serving: tokio::task::JoinHandle<()>,
    signals: &mut Signals,
    drain: Duration,
) {
    let _ = commands.send(Command::Drain).await;
    let patience = timeout(drain, signals.next_order());
    tokio::select! {
        _ = &mut serving => return,
        _ = patience => {}
    }
    let _ = commands.send(Command::EndAll).await;
    if timeout(END, serving).await.is_err() {
        tracing::error!("backends are left that do not end");
    }
}

/// The line that a parent waits for. A closed stdout is the parent's own choice.
fn announce(socket: &str) {
    let mut stdout = io::stdout().lock();
    let line = format!("HERMES_POOL_READY socket={socket}\n");
    if let Err(error) = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()) {
        tracing::warn!(%error, "stdout takes nothing: nobody will learn the socket from it");
    }
}
