//! What a child is told by its command line and environment, checked before anything is touched.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::ServeError;
use crate::door::auth::Tokens;
use crate::door::http::loopback;
use crate::lifecycle::Owner;
use crate::secret::Token;

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--profile`: the home is `$HERMES_HOME/profiles/<profile>` then.
    pub profile: Option<String>,
    /// `--host`.
    pub host: String,
    /// `--port`; 0 takes any.
    pub port: u16,
    /// `--agent-command`.
    pub agent_command: Option<String>,
    /// `--turn-timeout`.
    pub turn_limit: Option<Duration>,
}

/// Everything a child needs to know.
#[derive(Debug)]
pub struct Settings {
    /// The profile's home.
    pub home: PathBuf,
    /// The profile's name.
    pub profile: Option<String>,
    /// A loopback address.
    pub host: IpAddr,
    /// The port; 0 takes any.
    pub port: u16,
    /// Who may come in.
    pub tokens: Tokens,
    /// Whose child this is.
    pub owner: Owner,
    /// Whether cron jobs run here.
    pub desktop: bool,
    /// How long running work may go on after a signal.
    pub shutdown_grace: Duration,
    /// How long running work may go on after the owner died.
    pub orphan_grace: Duration,
    /// The agent's command, split; empty if there is none.
    pub agent: Vec<OsString>,
    /// The longest that a turn may take.
    pub turn_limit: Option<Duration>,
}

/// Reads one environment variable; empty counts as absent.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Settings {
    /// Checks options and environment.
    ///
    /// # Errors
    /// [`ServeError::Usage`] names what is wrong and what to do.
    pub fn new(options: Options, env: Env<'_>) -> Result<Self, ServeError> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = |name: &str| env(name).and_then(|value| value.into_string().ok());
        let host = loopback(&options.host).ok_or_else(|| {
            ServeError::Usage(format!(
                "--host {} is not a loopback address: use 127.0.0.1, ::1 or localhost; this port is for this machine only",
                options.host
            ))
        })?;
        let root = home(&env)?;
        let home = match &options.profile {
            Some(profile) => root.join("profiles").join(plain_name(profile)?),
            None => root,
        };
        let session = match text("HERMES_DASHBOARD_SESSION_TOKEN") {
            Some(token) => Token::new(token),
            None => Token::random().map_err(|error| ServeError::Internal(error.to_string()))?,
        };
        let agent = split(options.agent_command.or_else(|| text("HERMES_AGENT_COMMAND")))?;
        Ok(Self {
            agent,
            turn_limit: options.turn_limit,
            home,
            profile: options.profile,
            host,
            port: options.port,
            tokens: Tokens::new(session, text("HERMES_CONTROL_TOKEN").map(Token::new)),
            owner: owner(&text),
            desktop: text("HERMES_DESKTOP").as_deref() == Some("1"),
            shutdown_grace: seconds(&text, "HERMES_SHUTDOWN_GRACE", 2.5)?,
            orphan_grace: seconds(&text, "HERMES_ORPHAN_GRACE", 600.0)?,
        })
    }
}

/// As a shell splits words; no shell ever runs it.
fn split(command: Option<String>) -> Result<Vec<OsString>, ServeError> {
    let Some(command) = command.filter(|command| !command.trim().is_empty()) else { return Ok(Vec::new()) };
    let words = shlex::split(&command).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| ServeError::Usage(format!("the agent command {command:?} has an open quote")))?;
    Ok(words.into_iter().map(OsString::from).collect())
}

/// The home that the environment names, or the usual one.
///
/// # Errors
/// It names none that can be used.
pub fn home(env: Env<'_>) -> Result<PathBuf, ServeError> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = match set("HERMES_HOME") {
        Some(home) => home,
        None => set("HOME").ok_or_else(no_home)?.join(".hermes"),
    };
    // Jobs run in other folders, where a relative home would be another one.
    std::path::absolute(&home).map_err(|error| ServeError::Usage(format!("HERMES_HOME: {error}")))
}

fn no_home() -> ServeError {
    ServeError::Usage("neither HERMES_HOME nor HOME is set: set HERMES_HOME to the folder of this backend".to_owned())
}

/// A profile is a folder's name and nothing that leads out of it.
fn plain_name(profile: &str) -> Result<&str, ServeError> {
    let plain = !profile.is_empty()
        && profile.len() <= 128
        && profile != "."
        && profile != ".."
        && !profile.contains(['/', '\\', '\0']);
    match plain {
        true => Ok(profile),
        false => Err(ServeError::Usage(format!("--profile {profile:?} is no plain name: give one path component"))),
    }
}

fn owner(text: &dyn Fn(&str) -> Option<String>) -> Owner {
    let Some(given) = text("HERMES_PARENT_PID") else { return Owner::Nobody };
    let Some(pid) = given.trim().parse().ok().filter(|pid| *pid > 0) else {
        tracing::warn!(given, "HERMES_PARENT_PID is no process id: the parent is not watched");
        return Owner::Nobody;
    };
    let (marker, nonce) = (text("HERMES_PARENT_START_MARKER"), text("HERMES_PARENT_NONCE"));
    if marker.is_some() != nonce.is_some() {
        tracing::warn!("HERMES_PARENT_START_MARKER and HERMES_PARENT_NONCE belong together; only one of them is set");
    }
    Owner::Process { pid, marker }
}

fn seconds(text: &dyn Fn(&str) -> Option<String>, name: &str, default: f64) -> Result<Duration, ServeError> {
    let Some(given) = text(name) else { return Ok(Duration::from_secs_f64(default)) };
    let parsed = given.trim().parse().ok().and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok());
    parsed.ok_or_else(|| ServeError::Usage(format!("{name}={given} is no number of seconds: give one like 5 or 0.5")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: Options, env: &[(&str, &str)]) -> Result<Settings, ServeError> {
        let find = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        Settings::new(options, &find)
    }

    fn local() -> Options {
        Options { host: "127.0.0.1".into(), ..Options::default() }
    }

    #[test]
    fn a_profile_has_a_home_of_its_own() {
        let options = Options { profile: Some("work".into()), ..local() };
        let found = settings(options, &[("HERMES_HOME", "/h")]).unwrap();
        assert_eq!(found.home, PathBuf::from("/h/profiles/work"));
        assert_eq!(settings(local(), &[("HOME", "/u")]).unwrap().home, PathBuf::from("/u/.hermes"));
        for bad in ["", "..", "a/b", "a\\b"] {
            let options = Options { profile: Some(bad.into()), ..local() };
            assert!(settings(options, &[("HOME", "/u")]).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_loopback_is_served() {
        for bad in ["0.0.0.0", "::", "10.0.0.1", "example.com", ""] {
            let options = Options { host: bad.into(), ..Options::default() };
            assert!(matches!(settings(options, &[("HOME", "/u")]), Err(ServeError::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn an_empty_token_is_no_token() {
        let found = settings(local(), &[("HOME", "/u"), ("HERMES_DASHBOARD_SESSION_TOKEN", "")]).unwrap();
        assert_eq!(found.tokens.session().expose().len(), 64);
    }

    #[test]
    fn the_parent_is_known_by_pid_and_marker() {
        let env = [("HOME", "/u"), ("HERMES_PARENT_PID", "7"), ("HERMES_PARENT_START_MARKER", "linux:9")];
        let expected = Owner::Process { pid: 7, marker: Some("linux:9".into()) };
        assert_eq!(settings(local(), &env).unwrap().owner, expected);
        assert_eq!(settings(local(), &[("HOME", "/u"), ("HERMES_PARENT_PID", "-1")]).unwrap().owner, Owner::Nobody);
    }

    #[test]
    fn a_grace_is_a_number_of_seconds() {
        let found = settings(local(), &[("HOME", "/u"), ("HERMES_ORPHAN_GRACE", "0")]).unwrap();
        assert_eq!(found.orphan_grace, Duration::ZERO);
        assert!(settings(local(), &[("HOME", "/u"), ("HERMES_SHUTDOWN_GRACE", "soon")]).is_err());
    }
}
