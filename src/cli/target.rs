//! Which child a command speaks to, and with which token.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use crate::client::Client;
use crate::client::http::Server;
use crate::error::Exit;
use crate::protocol::{Reply, Request};
use crate::runtime::{DirError, Endpoint, Found, RecordError, Role, RuntimeDir};
use crate::secret::Token;

/// How long a child may take to answer.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// The options that every verb takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Target {
    /// The child that serves this profile.
    #[arg(long = "profile", short = 'p', value_name = "NAME", global = true)]
    pub named: Option<String>,
    /// The child with this process id.
    #[arg(long, value_name = "PID", global = true, conflicts_with_all = ["named", "socket", "url"])]
    pub pid: Option<u32>,
    /// The child behind this control socket.
    #[arg(long, value_name = "PATH", global = true, conflicts_with_all = ["named", "url"])]
    pub socket: Option<PathBuf>,
    /// Any server that speaks the HTTP contract.
    #[arg(long, value_name = "URL", global = true, conflicts_with = "named")]
    pub url: Option<String>,
    /// Read the token from this file.
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
}

/// A child that can be asked.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The profile it serves, where that is known.
    pub profile: Option<String>,
    /// Its pid, where that is known.
    pub pid: Option<u32>,
    /// Its control socket, where that is known.
    pub socket: Option<PathBuf>,
    /// Its address for HTTP, where that is known.
    pub url: Option<String>,
    /// What it is shown.
    pub token: Token,
    /// Its record, if it was found by one.
    pub endpoint: Option<Endpoint>,
}

impl Peer {
    /// What a person calls it.
    pub fn name(&self) -> String {
        match (&self.profile, self.pid, &self.socket, &self.url) {
            (Some(profile), ..) => profile.clone(),
            (None, Some(_), ..) => "default".to_owned(),
            (None, None, Some(socket), _) => socket.display().to_string(),
            (None, None, None, url) => url.clone().unwrap_or_default(),
        }
    }

    /// Connects over the control socket.
    ///
    /// # Errors
    /// The child cannot be reached, or does not take the token.
    pub async fn connect(&self) -> Result<Client, Failure> {
        self.connect_for(DEADLINE).await
    }

    /// Connects for something that may take longer.
    ///
    /// # Errors
    /// As [`Peer::connect`].
    pub async fn connect_for(&self, deadline: Duration) -> Result<Client, Failure> {
        Ok(Client::connect(self.control_socket()?, &self.token, deadline).await?)
    }

    /// Connects and asks, in one round trip.
    ///
    /// # Errors
    /// As [`Peer::connect`], and what the answer says.
    pub async fn ask(&self, request: &Request) -> Result<(Client, Reply), Failure> {
        Ok(Client::ask(self.control_socket()?, &self.token, request, DEADLINE).await?)
    }

    fn control_socket(&self) -> Result<&Path, Failure> {
        self.socket.as_deref().ok_or_else(|| {
            Failure::usage("--url speaks HTTP only: name the child by profile, --pid or --socket for this")
        })
    }

    /// Speaks HTTP instead.
    ///
    /// # Errors
    /// No port is known.
    pub fn server(&self) -> Result<Server, Failure> {
        let url = self
            .url
            .as_ref()
            .ok_or_else(|| Failure::usage("no port is known for this child: leave --via http away, or give --url"))?;
        Ok(Server::new(url, self.token.clone(), DEADLINE)?)
    }

    /// The child behind an endpoint record; `token` instead of the record's, if one was given.
    pub fn found(endpoint: Endpoint, token: Option<Token>) -> Self {
        Self {
            profile: endpoint.profile.clone(),
            pid: Some(endpoint.pid),
            socket: Some(endpoint.socket.clone()),
            url: endpoint.port.map(|port| format!("http://127.0.0.1:{port}")),
            token: token.unwrap_or_else(|| endpoint.token.clone()),
            endpoint: Some(endpoint),
        }
    }
}

impl Target {
    /// The one child that is meant. `argument` is the profile given as the verb's argument.
    ///
    /// # Errors
    /// None, or more than one, or options that contradict each other.
    pub fn one(&self, argument: Option<&str>) -> Result<Peer, Failure> {
        let token = self.token()?;
        if let Some(url) = &self.url {
            only_one(argument)?;
            let token = token.or_else(from_environment).unwrap_or_else(|| Token::new(""));
            return Ok(Peer { profile: None, pid: None, socket: None, url: Some(url.clone()), token, endpoint: None });
        }
        if let Some(socket) = &self.socket {
            only_one(argument)?;
            return by_socket(socket, token);
        }
        let profile = self.profile(argument)?;
        let mut found = children()?;
        match (self.pid, profile) {
            (Some(pid), _) => {
                found.live.retain(|child| child.pid == pid);
                one_of(found, token, &format!("no backend has pid {pid}: see hermesctl list"))
            }
            (None, Some(profile)) => {
                found.live.retain(|child| serves(child, profile));
                one_of(found, token, &format!("no backend serves profile {profile}: see hermesctl list"))
            }
            (None, None) => one_of(found, token, "no backend runs: start one with hermes serve"),
        }
    }

    /// As [`Target::one`], for verbs that stop or take over a child: where no token file is given and
    /// `HERMES_CONTROL_TOKEN` is set, that is shown (a record never holds it).
    ///
    /// # Errors
    /// As [`Target::one`].
    pub fn one_to_control(&self, argument: Option<&str>) -> Result<Peer, Failure> {
        let mut peer = self.one(argument)?;
        if peer.socket.is_none() {
            return Err(Failure::usage(
                "this is done over the control socket: name the child by profile, --pid or --socket",
            ));
        }
        self.show_control(&mut peer);
        Ok(peer)
    }

    fn show_control(&self, peer: &mut Peer) {
        let control = std::env::var("HERMES_CONTROL_TOKEN").ok().filter(|token| !token.is_empty());
        if let (None, Some(control)) = (&self.token_file, control) {
            peer.token = Token::new(control);
        }
    }

    /// The pool that is meant: by socket or pid, else the only one, else that of this home; and the profile, if one is
    /// named. `argument` is the profile given as the verb's argument.
    ///
    /// # Errors
    /// None, or more than one, or options that contradict each other.
    pub fn pool(&self, argument: Option<&str>) -> Result<(Peer, Option<String>), Failure> {
        let token = self.token()?;
        if self.url.is_some() {
            return Err(Failure::usage("a pool has a control socket only: leave --url away"));
        }
        let named = |argument: Option<&str>| match (self.named.as_deref(), argument) {
            (Some(option), Some(argument)) if option != argument => {
                Err(Failure::usage(format!("two profiles are named, {argument} and {option}: give one")))
            }
            (option, argument) => Ok(argument.or(option).map(str::to_owned)),
        };
        let profile = named(argument)?;
        if let Some(socket) = &self.socket {
            let mut peer = by_socket(socket, token)?;
            self.show_control(&mut peer);
            return Ok((peer, profile));
        }
        let mut pools = records()?.live;
        pools.retain(|found| found.kind.as_deref() == Role::Pool.kind());
        if let Some(pid) = self.pid {
            pools.retain(|pool| pool.pid == pid);
        }
        if pools.len() > 1 {
            let home = home();
            pools.retain(|pool| home.as_deref() == Some(Path::new(&pool.home)));
        }
        match pools.pop() {
            Some(pool) if pools.is_empty() => {
                let mut peer = Peer::found(pool, token);
                self.show_control(&mut peer);
                Ok((peer, profile))
            }
            Some(_) => Err(Failure::usage("several pools fit: name one by --pid or --socket")),
            None => Err(Failure::new(Exit::Unreachable, "no pool runs: start one with hermes pool")),
        }
    }

    /// Every child, and what may be one but cannot be told.
    ///
    /// # Errors
    /// The runtime directory cannot be used, or a target was named as well.
    pub fn all(&self, argument: Option<&str>) -> Result<(Vec<Peer>, Vec<RecordError>), Failure> {
        let named = self.pid.is_some() || self.socket.is_some() || self.url.is_some();
        if named || self.profile(argument)?.is_some() {
            return Err(Failure::usage("--all asks every backend: leave the other target away"));
        }
        let token = self.token()?;
        let Records { live, bad } = children()?;
        Ok((live.into_iter().map(|child| Peer::found(child, token.clone())).collect(), bad))
    }

    fn profile<'a>(&'a self, argument: Option<&'a str>) -> Result<Option<&'a str>, Failure> {
        if argument == Some("") || self.named.as_deref() == Some("") {
            return Err(Failure::usage(
                "a profile has a name: give one, or leave it away for the only backend there is",
            ));
        }
        match (self.named.as_deref(), argument) {
            (Some(option), Some(argument)) if option != argument => {
                Err(Failure::usage(format!("two profiles are named, {argument} and {option}: give one")))
            }
            (Some(_), Some(_)) | (None, _) if self.pid.is_some() && argument.is_some() => {
                Err(Failure::usage("a profile and --pid are given: give one"))
            }
            (option, argument) => Ok(argument.or(option)),
        }
    }

    fn token(&self) -> Result<Option<Token>, Failure> {
        self.token_file.as_deref().map(read_token).transpose()
    }
}

/// The default child has no profile; people call it `default`.
fn serves(child: &Endpoint, profile: &str) -> bool {
    match &child.profile {
        Some(own) => own == profile,
        None => profile == "default",
    }
}

fn only_one(argument: Option<&str>) -> Result<(), Failure> {
    match argument {
        Some(profile) => Err(Failure::usage(format!("a profile ({profile}) and another target are given: give one"))),
        None => Ok(()),
    }
}

fn read_token(path: &Path) -> Result<Token, Failure> {
    let bad = |why: &str| Failure::usage(format!("--token-file {}: {why}", path.display()));
    let mut text = String::new();
    // Not to be held up by a pipe.
    let file = OpenOptions::new().read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path);
    let file = file.map_err(|error| bad(&error.to_string()))?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(bad("it is no regular file"));
    }
    file.take(4096).read_to_string(&mut text).map_err(|error| bad(&error.to_string()))?;
    match text.trim() {
        "" => Err(bad("it is empty")),
        token => Ok(Token::new(token)),
    }
}

fn from_environment() -> Option<Token> {
    std::env::var("HERMES_DASHBOARD_SESSION_TOKEN").ok().filter(|token| !token.is_empty()).map(Token::new)
}

/// A socket's token is in the record beside it.
fn by_socket(socket: &Path, token: Option<Token>) -> Result<Peer, Failure> {
    let endpoint = Endpoint::read(&socket.with_extension("json")).ok().filter(Endpoint::is_live);
    if let Some(endpoint) = endpoint {
        let mut peer = Peer::found(endpoint, token);
        peer.socket = Some(socket.to_owned());
        return Ok(peer);
    }
    let token = token.or_else(from_environment).unwrap_or_else(|| Token::new(""));
    Ok(Peer { profile: None, pid: None, socket: Some(socket.to_owned()), url: None, token, endpoint: None })
}

/// The home that the environment names.
fn home() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HERMES_HOME").or_else(|| set("HOME").map(|home| home.join(".hermes")))?.canonicalize().ok()
}

/// What lies in the runtime directory.
#[derive(Debug, Default)]
pub struct Records {
    /// Of living processes.
    pub live: Vec<Endpoint>,
    /// That cannot be believed.
    pub bad: Vec<RecordError>,
}

impl Records {
    /// A child may be behind one of these, and nothing can be told of it. No child writes what others may read or write.
    pub fn untold(bad: &[RecordError]) -> Option<&RecordError> {
        bad.iter().find(|error| matches!(error, RecordError::Unreadable(..)))
    }
}

/// Every child by its record. Pools have records too and are no children.
pub fn children() -> Result<Records, Failure> {
    let mut records = records()?;
    records.live.retain(|found| found.kind.is_none());
    Ok(records)
}

/// Every record, those of pools among them.
pub fn records() -> Result<Records, Failure> {
    let path = RuntimeDir::locate(&|name| std::env::var_os(name));
    let mut records = Records::default();
    let dir = match RuntimeDir::open(&path) {
        Ok(dir) => dir,
        Err(DirError::Missing(_)) => return Ok(records),
        Err(error) => return Err(Failure::new(Exit::Unreachable, error.to_string())),
    };
    for found in dir.endpoints() {
        match found {
            Found::Live(endpoint) => records.live.push(*endpoint),
            Found::Bad(error) => records.bad.push(error),
        }
    }
    Ok(records)
}

fn one_of(found: Records, token: Option<Token>, none: &str) -> Result<Peer, Failure> {
    let Records { mut live, bad } = found;
    match (live.len(), Records::untold(&bad)) {
        (0, None) => Err(Failure::new(Exit::Unreachable, none)),
        // It may be that one.
        (0, Some(error)) => Err(Failure::new(Exit::Indeterminate, error.to_string())),
        (1, _) => live.pop().map(|child| Peer::found(child, token)).ok_or_else(|| Failure::usage(none)),
        _ => {
            let named =
                |child: &Endpoint| format!("{} pid {}", child.profile.as_deref().unwrap_or("default"), child.pid);
            Err(Failure::usage(format!(
                "several backends fit ({}): name one by profile or --pid",
                live.iter().map(named).collect::<Vec<_>>().join(", ")
            )))
        }
    }
}
