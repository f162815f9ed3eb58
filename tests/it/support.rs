//! Fixtures that own their directories and processes: when a test ends, however it ends, nothing of it is left.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The session token that every child of these tests gets.
pub(crate) const TOKEN: &str = "it-session-token-0123456789abcdefghijklmnopq";

/// How long anything that should happen soon may take on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

const CAPTURE_LIMIT: usize = 4 << 20;
const SUITE_LIMIT: Duration = Duration::from_secs(480);

// ---------------------------------------------------------------- homes

static ROOTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static WATCHDOG: Once = Once::new();

/// One user's world: a home, a private runtime directory, and every process that was started in them.
#[derive(Clone)]
pub(crate) struct Home(Arc<Root>);

struct Root {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for Root {
    fn drop(&mut self) {
        kill_everything_under(&self.path);
        if let Ok(mut roots) = ROOTS.lock() {
            roots.retain(|root| *root != self.path);
        }
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        WATCHDOG.call_once(start_watchdog);
        let dir = tempfile::Builder::new().prefix("hm").tempdir_in("/tmp").expect("a temporary directory");
        let path = dir.path().canonicalize().expect("its real path");
        ROOTS.lock().unwrap().push(path.clone());
        for name in ["h", "r", "u"] {
            private_dir(&path.join(name));
        }
        Self(Arc::new(Root { path, _dir: dir }))
    }

    /// The directory that holds all of it; scratch files of a test go here too.
    pub(crate) fn root(&self) -> &Path {
        &self.0.path
    }

    /// `HERMES_HOME`.
    pub(crate) fn path(&self) -> PathBuf {
        self.root().join("h")
    }

    /// `HERMES_RUNTIME_DIR`.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.root().join("r")
    }

    /// A file of the home, by name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.file(name), b"").unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// The pid that a script wrote into a file of the home; waits for it.
    pub(crate) fn pid_in(&self, name: &str) -> u32 {
        wait_until(&format!("a pid in {name}"), SOON, || self.read(name).ends_with('\n'));
        self.read(name).trim().parse().expect("a pid")
    }

    pub(crate) fn jobs_path(&self) -> PathBuf {
        self.path().join("cron/jobs.json")
    }

    /// Replaces jobs.json by rename, as the model does.
    pub(crate) fn write_jobs(&self, jobs: &[Value]) {
        let file = json!({"jobs": jobs, "updated_at": iso_from_now(0)});
        self.write_jobs_text(&serde_json::to_string_pretty(&file).unwrap());
    }

    pub(crate) fn write_jobs_text(&self, text: &str) {
        write_jobs_in(&self.path(), text);
    }

    pub(crate) fn jobs_text(&self) -> String {
        fs::read_to_string(self.jobs_path()).expect("jobs.json")
    }

    /// One job as it is on disk now; null if there is none.
    pub(crate) fn job_on_disk(&self, id: &str) -> Value {
        let file: Value = serde_json::from_str(&self.jobs_text()).expect("jobs.json is JSON");
        let jobs = file["jobs"].as_array().expect("a list of jobs");
        jobs.iter().find(|job| job["id"] == id).cloned().unwrap_or(Value::Null)
    }

    /// Waits for a status of the last run, and returns the job.
    pub(crate) fn wait_status(&self, id: &str, status: &str) -> Value {
        wait_until(&format!("last_status {status} of job {id}"), SOON, || {
            self.job_on_disk(id)["last_status"] == status
        });
        self.job_on_disk(id)
    }

    pub(crate) fn script(&self, name: &str, text: &str) {
        write_script_in(&self.path(), name, text);
    }

    /// The records of living or dead children in the runtime directory.
    pub(crate) fn records(&self) -> Vec<PathBuf> {
        files_ending(&self.runtime(), ".json")
    }

    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        files_ending(&self.runtime(), ".sock")
    }

    pub(crate) fn assert_no_endpoint_left(&self) {
        assert_eq!(self.records(), Vec::<PathBuf>::new(), "a record was left");
        assert_eq!(self.sockets(), Vec::<PathBuf>::new(), "a socket was left");
    }

    /// `hermesctl` with this world's environment and no token in it.
    pub(crate) fn ctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hermesctl"));
        command.args(args);
        self.environment(&mut command);
        command
    }

    /// A cleared environment, with this world in it.
    pub(crate) fn environment(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.root().join("u"))
            .env("HERMES_HOME", self.path())
            .env("HERMES_RUNTIME_DIR", self.runtime())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }
}

/// Writes jobs.json of a home (a profile's, say) by rename.
pub(crate) fn write_jobs_in(home: &Path, text: &str) {
    let cron = home.join("cron");
    private_dir(&cron);
    let staged = cron.join(".jobs_it.tmp");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
    fs::rename(&staged, cron.join("jobs.json")).unwrap();
}

/// Writes a script into a home's `scripts/`.
pub(crate) fn write_script_in(home: &Path, name: &str, text: &str) {
    let scripts = home.join("scripts");
    private_dir(&scripts);
    fs::write(scripts.join(name), text).unwrap();
}

pub(crate) fn private_dir(path: &Path) {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).unwrap();
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("a file with a mode").permissions().mode() & 0o7777
}

pub(crate) fn files_ending(dir: &Path, end: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    found.retain(|path| path.to_string_lossy().ends_with(end));
    found.sort();
    found
}

// ---------------------------------------------------------------- jobs

/// A full interval job as the model writes it; `minutes` is its period.
pub(crate) fn job(id: &str, minutes: u64, script: &str, next_run_at: &str) -> Value {
    json!({
        "id": id, "name": id, "prompt": "", "skills": [], "skill": null, "model": null, "provider": null,
        "base_url": null, "script": script, "no_agent": true, "monitor_script": null, "monitor_url": null,
        "monitor_state": null, "context_from": null,
        "schedule": {"kind": "interval", "minutes": minutes, "display": format!("every {minutes}m")},
        "schedule_display": format!("every {minutes}m"),
        "repeat": {"times": null, "completed": 0},
        "enabled": true, "state": "scheduled", "paused_at": null, "paused_reason": null,
        "created_at": iso_from_now(-3600), "next_run_at": next_run_at,
        "last_run_at": null, "last_status": null, "last_error": null, "last_delivery_error": null,
        "last_delivery_unverified": null, "last_failure": null, "failure_streak": 0,
        "deliver": "local", "origin": null, "enabled_toolsets": null, "workdir": null
    })
}

/// An hourly job that has been due for a few seconds.
pub(crate) fn due(id: &str, script: &str) -> Value {
    job(id, 60, script, &iso_from_now(-5))
}

/// A file that somebody else has locked, until this is dropped.
pub(crate) fn locked(path: &Path) -> Flock<fs::File> {
    let file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).unwrap()
}

/// A time, so many seconds from now, as the model writes times.
pub(crate) fn iso_from_now(seconds: i64) -> String {
    let at = jiff::Timestamp::now().as_second() + seconds;
    let at = jiff::Timestamp::new(at, 123_456_000).unwrap();
    at.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

/// The instant of a time on disk.
pub(crate) fn instant(value: &Value) -> jiff::Timestamp {
    let text = value.as_str().unwrap_or_else(|| panic!("not a time: {value}"));
    text.parse().unwrap_or_else(|error| panic!("not a time with an offset: {text}: {error}"))
}

/// A script that says it has started (one line in `started`, its pid in `pid`) and waits for the file `release`.
pub(crate) const WAITING_SCRIPT: &str = r#"
echo "$HERMES_CRON_JOB_ID" >> "$HERMES_HOME/started"
echo $$ > "$HERMES_HOME/pid"
while [ ! -e "$HERMES_HOME/release" ]; do sleep 0.05; done
echo released
"#;

/// A home whose one job, due at once, runs until the file `release` appears.
pub(crate) fn home_with_waiting_job(id: &str) -> Home {
    let home = Home::new();
    home.script("wait.sh", WAITING_SCRIPT);
    home.write_jobs(&[due(id, "wait.sh")]);
    home
}

// ---------------------------------------------------------------- children

/// How to start a child.
#[derive(Clone, Default)]
pub(crate) struct Opts {
    profile: Option<String>,
    host: Option<String>,
    port: u16,
    env: Vec<(String, OsString)>,
}

impl Opts {
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// As the desktop does it: the child runs the cron ticker.
    pub(crate) fn desktop() -> Self {
        Self::default().env("HERMES_DESKTOP", "1")
    }

    pub(crate) fn profile(mut self, profile: &str) -> Self {
        self.profile = Some(profile.to_owned());
        self
    }

    pub(crate) fn host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    pub(crate) fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn command(&self, home: &Home) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hermes"));
        if let Some(profile) = &self.profile {
            command.args(["--profile", profile]);
        }
        let host = self.host.as_deref().unwrap_or("127.0.0.1");
        command.args(["serve", "--host", host, "--port", &self.port.to_string()]);
        home.environment(&mut command);
        command.env("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN).process_group(0);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command
    }
}

/// A running `hermes serve`.
pub(crate) struct Child {
    pub(crate) pid: u32,
    pub(crate) port: u16,
    home: Home,
    process: std::process::Child,
    stdout: Capture,
    stderr: Capture,
    exited: Option<ExitStatus>,
}

impl Child {
    /// Starts a child and waits for its two READY lines.
    pub(crate) fn spawn(home: &Home, opts: &Opts) -> Self {
        let mut process = opts.command(home).spawn().expect("hermes starts");
        let stdout = Capture::start(process.stdout.take().unwrap());
        let stderr = Capture::start(process.stderr.take().unwrap());
        let mut child = Self { pid: process.id(), port: 0, home: home.clone(), process, stdout, stderr, exited: None };
        let deadline = Instant::now() + SOON;
        while child.stdout.text().matches('\n').count() < 2 {
            let ended = child.try_wait();
            assert!(ended.is_none() && Instant::now() < deadline, "no READY (exit {ended:?}):\n{}", child.logs());
            thread::sleep(Duration::from_millis(2));
        }
        let text = child.stdout.text();
        let port = text.lines().next().and_then(|line| line.strip_prefix("HERMES_BACKEND_READY port="));
        child.port = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("no port in {text:?}"));
        assert_eq!(text, ready_lines(child.port), "the READY lines");
        child
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Everything the child printed, for a failure's message.
    pub(crate) fn logs(&self) -> String {
        format!("--- stdout\n{}--- stderr\n{}", self.stdout(), self.stderr())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if self.exited.is_none() {
            kill(Pid::from_raw(self.pid.cast_signed()), signal).expect("the child is there to be signalled");
        }
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = self.process.try_wait().expect("the child can be waited for");
        }
        self.exited
    }

    /// Waits for the end by itself.
    pub(crate) fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let until = Instant::now() + deadline;
        loop {
            if let Some(status) = self.try_wait() {
                self.stdout.settle();
                self.stderr.settle();
                return status;
            }
            assert!(Instant::now() < until, "the child did not end within {deadline:?}:\n{}", self.logs());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGTERM, and the status it ends with.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_exit(Duration::from_secs(30))
    }

    /// SIGKILL of the child alone: what it started lives on.
    pub(crate) fn kill_hard(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait_exit(SOON);
    }

    pub(crate) fn pid_arg(&self) -> String {
        self.pid.to_string()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The endpoint record, with its path.
    pub(crate) fn record(&self) -> (PathBuf, Value) {
        let records = self.home.records().into_iter().filter_map(|path| {
            let value: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            (value["pid"] == self.pid).then_some((path, value))
        });
        let found: Vec<_> = records.collect();
        assert_eq!(found.len(), 1, "one record of pid {} in {:?}", self.pid, self.home.records());
        found.into_iter().next().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        PathBuf::from(self.record().1["socket"].as_str().expect("a socket in the record"))
    }

    pub(crate) fn try_verdict(&self) -> io::Result<Value> {
        verdict_at(self.port)
    }

    /// The verdict over HTTP.
    pub(crate) fn verdict(&self) -> Value {
        self.try_verdict().unwrap_or_else(|error| panic!("no verdict: {error}\n{}", self.logs()))
    }

    pub(crate) fn wait_idle(&self) {
        self.wait_verdict("an idle verdict", |verdict| *verdict == idle());
    }

    /// Waits for `turn_in_flight` with exactly this detail.
    pub(crate) fn wait_busy(&self, detail: &str) {
        self.wait_verdict(&format!("a verdict busy with {detail}"), |verdict| *verdict == busy(detail));
    }

    pub(crate) fn wait_verdict(&self, what: &str, accept: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        let until = Instant::now() + SOON;
        while Instant::now() < until {
            last = self.verdict();
            if accept(&last) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("waited in vain for {what}; last {last}\n{}", self.logs());
    }

    /// Fails if any of so many probes in a row is not what it should be.
    pub(crate) fn holds(&self, what: &str, probes: usize, accept: impl Fn(&Value) -> bool) {
        for _ in 0..probes {
            let verdict = self.verdict();
            assert!(accept(&verdict), "{what}: {verdict}\n{}", self.logs());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// POST to the retirement route.
    pub(crate) fn retirement(&self, body: &str) -> Http {
        let head = format!(
            "POST /api/health/retirement HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nX-Hermes-Session-Token: {TOKEN}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.port,
            body.len()
        );
        raw_http(self.port, head.as_bytes()).expect("a reply to a retirement request")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.exited.is_none() && self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = killpg(Pid::from_raw(self.pid.cast_signed()), Signal::SIGKILL);
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        // Jobs run in sessions of their own: the home's drop finds them by their environment.
    }
}

pub(crate) fn ready_lines(port: u16) -> String {
    format!("HERMES_BACKEND_READY port={port}\nHERMES_DASHBOARD_READY port={port}\n")
}

pub(crate) fn idle() -> Value {
    json!({"ok": true, "idle": true, "reason": null})
}

pub(crate) fn busy(detail: &str) -> Value {
    json!({"ok": true, "idle": false, "reason": "turn_in_flight", "detail": detail})
}

/// Runs `hermes serve` where it must refuse to start, and returns how it did.
pub(crate) fn refused(home: &Home, opts: &Opts) -> Output {
    run(opts.command(home), "a child that must refuse to start")
}

/// A refusal is an error for people: not a crash, nothing on stdout, and the reason on stderr.
pub(crate) fn assert_clear_refusal(output: &Output, names: &str) {
    assert!(output.code != 0 && output.code != 101, "exit {}: {}", output.code, output.stderr);
    assert_eq!(output.stdout, "", "nothing goes to stdout");
    assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
    assert!(output.stderr.contains(names), "stderr does not name {names:?}: {}", output.stderr);
}

/// Probes without a pause until stopped; no probe may ever say idle.
pub(crate) struct NeverIdle {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<usize, String>>,
}

impl NeverIdle {
    pub(crate) fn watch(child: &Child) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (port, stopped) = (child.port, Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut probes = 0;
            while !stopped.load(Ordering::Acquire) {
                match verdict_at(port) {
                    Ok(verdict) if verdict["idle"] == true => return Err(format!("probe {probes}: {verdict}")),
                    Ok(_) => probes += 1,
                    Err(error) => return Err(format!("probe {probes}: {error}")),
                }
                thread::sleep(Duration::from_millis(2));
            }
            Ok(probes)
        });
        Self { stop, thread }
    }

    /// Ends it; panics if a probe said idle, or if there was none.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Release);
        let probes = self.thread.join().expect("the sampler ran").expect("never idle");
        assert!(probes > 0, "the sampler never got to probe");
    }
}

// ---------------------------------------------------------------- HTTP

/// One reply.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Http {
    /// A reply as `curl -i` prints it, interim replies skipped.
    pub(crate) fn parse(mut bytes: &[u8]) -> Self {
        loop {
            let end = bytes
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .unwrap_or_else(|| panic!("no reply head in {:?}", String::from_utf8_lossy(bytes)));
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut lines = head.split("\r\n");
            let status_line = lines.next().unwrap_or_default();
            let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
            let status: u16 = status.unwrap_or_else(|| panic!("no status in {status_line:?}"));
            bytes = &bytes[end + 4..];
            if status < 200 {
                continue;
            }
            let headers = lines
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect();
            return Self { status, headers, body: bytes.to_vec() };
        }
    }

    /// Several replies, one after the other, each with its length.
    pub(crate) fn parse_many(mut bytes: &[u8]) -> Vec<Self> {
        let mut replies = Vec::new();
        while !bytes.is_empty() {
            let mut reply = Self::parse(bytes);
            let length = reply.header("content-length").and_then(|length| length.parse().ok()).expect("a length");
            assert!(reply.body.len() >= length, "a body cut short: {reply:?}");
            bytes = &bytes[bytes.len() - reply.body.len() + length..];
            reply.body.truncate(length);
            replies.push(reply);
        }
        replies
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a body in UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON: {error}: {self:?}"))
    }
}

/// Asks a child with the real curl.
pub(crate) fn curl(child: &Child, path: &str, args: &[&str]) -> Http {
    Http::parse(&curl_output(child, &[(path, args)]))
}

/// Several requests by one curl: one start of a process for all of them.
pub(crate) fn curl_many(child: &Child, requests: &[(&str, &[&str])]) -> Vec<Http> {
    let replies = Http::parse_many(&curl_output(child, requests));
    assert_eq!(replies.len(), requests.len(), "one reply each: {replies:?}");
    replies
}

fn curl_output(child: &Child, requests: &[(&str, &[&str])]) -> Vec<u8> {
    let mut command = Command::new("curl");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).arg("-q");
    for (number, (path, args)) in requests.iter().enumerate() {
        if number > 0 {
            command.arg("--next");
        }
        command.args(["-sS", "-i", "--max-time", "5", "--noproxy", "*"]).args(*args);
        command.arg(format!("{}{path}", child.url()));
    }
    let output = command.stdin(Stdio::null()).output().expect("curl runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {requests:?}: {errors}\n{}", child.logs());
    output.stdout
}

/// Sends these bytes and reads until the server closes.
pub(crate) fn raw_http(port: u16, request: &[u8]) -> io::Result<Http> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    if !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        return Err(io::Error::other("closed without a reply"));
    }
    Ok(Http::parse(&bytes))
}

fn verdict_at(port: u16) -> io::Result<Value> {
    let request = format!(
        "GET /api/health/idle HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Hermes-Session-Token: {TOKEN}\r\n\
         Connection: close\r\n\r\n"
    );
    let reply = raw_http(port, request.as_bytes())?;
    if reply.status != 200 {
        return Err(io::Error::other(format!("{reply:?}")));
    }
    Ok(reply.json())
}

// ---------------------------------------------------------------- programs

/// What a finished program left.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON: {error}: {self:?}"))
    }
}

/// `hermesctl`, with no token in its environment.
pub(crate) fn hermesctl(home: &Home, args: &[&str]) -> Output {
    run(home.ctl(args), &format!("hermesctl {args:?}"))
}

/// Runs a program to its end, which must come in 30 s. Killed by a signal: code -1.
pub(crate) fn run(mut command: Command, what: &str) -> Output {
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut stdout = Capture::start(process.stdout.take().unwrap());
    let mut stderr = Capture::start(process.stderr.take().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        match process.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = process.kill();
                let _ = process.wait();
                panic!("{what} did not end within 30 s:\n{}{}", stdout.text(), stderr.text());
            }
        }
    };
    stdout.settle();
    stderr.settle();
    Output { code: status.code().unwrap_or(-1), stdout: stdout.text(), stderr: stderr.text() }
}

/// What comes out of a pipe, up to a limit; the rest is read and dropped.
pub(crate) struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Capture {
    pub(crate) fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(length @ 1..) = pipe.read(&mut chunk) {
                let mut kept = kept.lock().unwrap();
                let room = CAPTURE_LIMIT.saturating_sub(kept.len()).min(length);
                kept.extend_from_slice(&chunk[..room]);
            }
        });
        Self { bytes, reader }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    /// Waits a little for the end of the pipe (somebody else may hold it open).
    fn settle(&mut self) {
        let until = Instant::now() + Duration::from_secs(2);
        while !self.reader.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

// ---------------------------------------------------------------- processes and waiting

/// Polls until it holds; panics naming what never did.
pub(crate) fn wait_until(what: &str, deadline: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + deadline;
    while !holds() {
        assert!(Instant::now() < until, "waited {deadline:?} in vain for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A process that is not there, or is a zombie.
pub(crate) fn gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X') | None)
}

/// Field 22 of `/proc/PID/stat`, as `HERMES_PARENT_START_MARKER` has it.
pub(crate) fn start_marker(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let (_, rest) = stat.rsplit_once(") ").expect("a command in brackets");
    format!("linux:{}", rest.split(' ').nth(19).expect("field 22"))
}

pub(crate) fn kill_pid(pid: u32) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
}

/// Processes whose environment says that they belong under this root.
fn processes_under(root: &Path) -> Vec<i32> {
    let root = root.to_string_lossy();
    let marks = [format!("HERMES_HOME={root}/"), format!("HERMES_RUNTIME_DIR={root}/")];
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let own = std::process::id().cast_signed();
    let ours = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        *pid != own
            && environment
                .split(|byte| *byte == 0)
                .any(|entry| marks.iter().any(|mark| entry.starts_with(mark.as_bytes())))
    };
    pids.filter(ours).collect()
}

fn kill_everything_under(root: &Path) {
    for _ in 0..300 {
        let pids = processes_under(root);
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A suite that hangs leaves nothing behind either.
fn start_watchdog() {
    thread::spawn(|| {
        thread::sleep(SUITE_LIMIT);
        let roots = ROOTS.lock().map(|roots| roots.clone()).unwrap_or_default();
        eprintln!("the suite took longer than {SUITE_LIMIT:?}: given up, {} homes swept", roots.len());
        for root in roots {
            kill_everything_under(&root);
            let _ = fs::remove_dir_all(&root);
        }
        std::process::abort();
    });
}
