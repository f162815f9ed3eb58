//! `hermes demo`: three real children, one with a real cron job that runs, asked over both doors. It starts the product as
//! anybody would and asks it as `hermesctl` does; nothing here is a special path.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::failure::Failure;
use super::idle::{Ask, Via};
use super::render::{Observation, print, table};
use super::target::Peer;
use crate::clock::Clock;
use crate::cron::schedule::iso;
use crate::error::Exit;
use crate::protocol::{Reply, Request};
use crate::runtime::{Endpoint, Role, RuntimeDir};
use crate::secret::random_hex;
use crate::verdict::Verdict;

/// Everything that should happen soon gets so long.
const SOON: Duration = Duration::from_secs(20);

/// What the job runs.
const SCRIPT: &str = "echo counting; sleep 3; echo counted > \"$HERMES_HOME/report.txt\"; echo done\n";

/// Shows the main job on real children, and cleans up.
///
/// # Errors
/// A child does not come up or does not answer.
pub async fn run() -> Result<Exit, Failure> {
    let stage = Stage::set()?;
    let shown = show(&stage).await;
    stage.strike();
    shown.map(|()| Exit::Idle)
}

async fn show(stage: &Stage) -> Result<(), Failure> {
    let mut children = Vec::new();
    for profile in ["personal", "work", "nightly"] {
        children.push(Actor::start(stage, profile).await?);
    }
    print("Three children; nightly runs a cron job. Each is asked over its socket and over HTTP:\n\n");
    show_all(&children).await?;

    let busy = children.iter().find(|child| child.profile == "nightly");
    let idle = children.iter().find(|child| child.profile == "work");
    let (Some(busy), Some(idle)) = (busy, idle) else { return Ok(()) };
    print("\nA permit to stop is issued on proof alone:\n\n");
    let refused = retire(busy).await?;
    let granted = retire(idle).await?;
    print(&table(&[vec!["nightly".to_owned(), refused], vec!["work".to_owned(), granted]]));

    print("\nWaiting for nightly to become idle, by subscription:\n\n");
    let ask = Ask { via: Via::Socket, json: false, quiet: true };
    let answer =
        timeout(SOON, ask.wait(&busy.peer, None)).await.map_err(|_| Failure::new(Exit::Busy, "it never did"))?;
    print(&table(&[Observation { peer: busy.peer.clone(), answer }.row()]));
    let report = std::fs::read_to_string(stage.home("nightly").join("report.txt")).unwrap_or_default();
    print(&format!("\nand its job has done its work: report.txt says {:?}.\n", report.trim()));
    Ok(())
}

async fn show_all(children: &[Actor]) -> Result<(), Failure> {
    let mut rows = vec![["SOCKET", "HTTP", "PROFILE", "PID", "HELD BY"].map(str::to_owned).to_vec()];
    for child in children {
        let (mut states, mut held) = (Vec::new(), String::new());
        for via in [Via::Socket, Via::Http] {
            let (verdict, _) = Ask { via, json: false, quiet: true }.once(&child.peer).await?;
            held = verdict.detail().unwrap_or_default().to_owned();
            states.push(if verdict == Verdict::Idle { "idle" } else { "busy" }.to_owned());
        }
        let pid = child.peer.pid.map_or(String::new(), |pid| pid.to_string());
        states.extend([child.profile.to_owned(), pid, held]);
        rows.push(states);
    }
    print(&table(&rows));
    Ok(())
}

/// Prepares, and commits if there is a permit; what came of it in words.
async fn retire(child: &Actor) -> Result<String, Failure> {
    let mut client = child.peer.connect().await?;
    match client.call(&Request::Prepare { request_id: None, tied: true }).await? {
        Reply::Prepared { permit, .. } => {
            let committed = client.call(&Request::Commit { permit }).await?;
            let gone = timeout(SOON, crate::work::group::exited(child.peer.pid.unwrap_or(0))).await.is_ok();
            Ok(match (committed, gone) {
                (Reply::Committed { ok: true, .. }, true) => "permit committed; the child left by itself".to_owned(),
                _ => "permit issued, and the child did not leave".to_owned(),
            })
        }
        Reply::Refused(refusal) => {
            let holder = refusal.holders.first().map_or(String::new(), |holder| {
                format!(": {} {} has been there for {} ms", holder.ledger.name(), holder.id, holder.age_ms)
            });
            Ok(format!("refused{holder}"))
        }
        other => Err(crate::client::unexpected(&other).into()),
    }
}

/// A temporary home and runtime directory.
struct Stage {
    root: PathBuf,
}

impl Stage {
    fn set() -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(Exit::Indeterminate, format!("no temporary folder: {error}"));
        // Short, since a socket's path is.
        let root = PathBuf::from(format!("/tmp/hermes-demo-{}", random_hex::<4>().map_err(failed)?));
        let stage = Self { root };
        private_folder(&stage.root).map_err(failed)?;
        stage.write_job().map_err(failed)?;
        Ok(stage)
    }

    fn home(&self, profile: &str) -> PathBuf {
        self.root.join("home/profiles").join(profile)
    }

    fn runtime(&self) -> PathBuf {
        self.root.join("run")
    }

    fn write_job(&self) -> io::Result<()> {
        let home = self.home("nightly");
        private_folder(&home.join("cron"))?;
        private_folder(&home.join("scripts"))?;
        std::fs::write(home.join("scripts/report.sh"), SCRIPT)?;
        let due = iso(Clock::system().wall(), &jiff::tz::TimeZone::UTC);
        let job = json!({
            "id": "nightly-report", "name": "nightly report", "no_agent": true, "script": "report.sh",
            "schedule": {"kind": "interval", "minutes": 60, "display": "every 60m"}, "next_run_at": due,
        });
        std::fs::write(home.join("cron/jobs.json"), json!({"jobs": [job]}).to_string())
    }

    fn strike(self) {
        if let Err(error) = std::fs::remove_dir_all(&self.root) {
            eprintln!("hermes: {} cannot be removed: {error}", self.root.display());
        }
    }
}

fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// One child; told to go when dropped.
struct Actor {
    profile: &'static str,
    peer: Peer,
    process: Child,
}

impl Actor {
    async fn start(stage: &Stage, profile: &'static str) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Unreachable, format!("the child of profile {profile} did not come up: {error}"))
        };
        let mut command = Command::new(std::env::current_exe().map_err(|error| failed(&error))?);
        command.args(["--profile", profile, "serve", "--host", "127.0.0.1", "--port", "0"]);
        command.env("HERMES_HOME", stage.root.join("home")).env("HERMES_RUNTIME_DIR", stage.runtime());
        command.env("HERMES_DESKTOP", "1").env("HERMES_LOG", "warn").env_remove("HERMES_DASHBOARD_SESSION_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| failed(&error))?;
        let stdout = process.stdout.take().ok_or_else(|| failed(&"no pipe"))?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = timeout(SOON, lines.next_line()).await.map_err(|_| failed(&"no READY in time"))?;
        match ready {
            Ok(Some(line)) if line.starts_with("HERMES_BACKEND_READY port=") => {}
            other => return Err(failed(&format!("{other:?} instead of READY"))),
        }
        let dir = RuntimeDir::open(&stage.runtime()).map_err(|error| failed(&error))?;
        let names = dir.names(&stage.home(profile), Role::Backend).map_err(|error| failed(&error))?;
        let endpoint = Endpoint::read(&names.record).map_err(|error| failed(&error))?;
        Ok(Self { profile, peer: Peer::found(endpoint, None), process })
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Asked to go in order; whatever does not is killed with its handle.
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        let Some(pid) = pid.map(nix::unistd::Pid::from_raw) else { return };
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let clock = Clock::system();
        let begun = clock.now();
        while matches!(self.process.try_wait(), Ok(None)) && clock.now().since(begun) < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
