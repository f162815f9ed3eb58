//! What a child costs, as ratios measured in one run: `cargo bench --bench ratios`.
//!
//! Every figure has its yardstick beside it, measured in turn with it, so that a slow machine slows both. The echoes are
//! processes of their own, as a child is, and for the probes all share one core: what it costs to wake another core is the
//! machine's, and many times what a probe costs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hermes::codec;
use hermes::protocol::{Answer, PROTOCOL, Reply, Request};
use hermes::secret::Token;

const TOKEN: &str = "bench";

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, echo, address, asked, answered] = &args[..]
        && echo == "echo"
    {
        return be_echo(address, asked.parse().unwrap(), answered.parse().unwrap());
    }
    let home = tempfile::tempdir().unwrap();
    let runtime = home.path().join("r");
    let (mut child, port) = start(home.path(), &runtime);
    let socket = std::fs::read_dir(&runtime)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .unwrap();

    println!("{:<34} {:>10} {:>12} {:>7}  yardstick is", "", "ours", "yardstick", "ratio");
    on_one_core(child.id(), || {
        probe_socket(&socket);
        probe_http(port);
    });
    start_up(home.path());
    command_line(&runtime);
    resident(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
}

fn hermes() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hermes"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn serve(home: &Path, runtime: &Path) -> Command {
    let mut command = hermes();
    command.args(["serve", "--port", "0"]).env("HERMES_HOME", home.join("h")).env("HERMES_RUNTIME_DIR", runtime);
    command.env("HERMES_DASHBOARD_SESSION_TOKEN", TOKEN).env("HERMES_DESKTOP", "1").stdout(Stdio::piped());
    command
}

fn start(home: &Path, runtime: &Path) -> (Child, u16) {
    let mut child = serve(home, runtime).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().strip_prefix("HERMES_BACKEND_READY port=").unwrap().parse().unwrap();
    (child, port)
}

/// Both in turn, so that drift hits both; the medians in microseconds.
fn in_turn(rounds: usize, mut ours: impl FnMut(), mut yardstick: impl FnMut()) -> (f64, f64) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        a.push(timed(&mut ours));
        b.push(timed(&mut yardstick));
    }
    (median(a), median(b))
}

fn timed(run: &mut impl FnMut()) -> Duration {
    let begin = Instant::now();
    run();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn row(what: &str, (ours, yardstick): (f64, f64), is: &str) {
    println!("{what:<34} {ours:>8.1}us {yardstick:>10.1}us {:>6.2}x  {is}", ours / yardstick);
}

fn framed(request: &Request) -> Vec<u8> {
    let bytes = codec::encode(request).unwrap();
    let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&bytes);
    frame
}

fn exchange(stream: &mut (impl Read + Write), request: &[u8], answer: &mut [u8]) {
    stream.write_all(request).unwrap();
    stream.read_exact(answer).unwrap();
}

fn probe_socket(path: &Path) {
    let mut ours = UnixStream::connect(path).unwrap();
    ours.write_all(&framed(&Request::Hello { protocol: PROTOCOL, token: Token::new(TOKEN) })).unwrap();
    read_frame(&mut ours);
    let request = framed(&Request::Idle);
    ours.write_all(&request).unwrap();
    let answer = read_frame(&mut ours);
    assert!(matches!(codec::decode::<Answer>(&answer).unwrap().reply, Reply::Verdict(_)));
    let size = answer.len() + 4;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("echo");
    let mut echo = Echo::start(path.to_str().unwrap(), request.len(), size);
    assert_eq!(echo.said(), path.to_str().unwrap());
    let mut bare = UnixStream::connect(path).unwrap();

    let (mut a, mut b) = (vec![0; size], vec![0; size]);
    let times = in_turn(20_000, || exchange(&mut ours, &request, &mut a), || exchange(&mut bare, &request, &mut b));
    row("probe over the socket", times, "a bare blocking echo, same socket kind and sizes");
}

fn read_frame(stream: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}

/// A process that does nothing but echo.
struct Echo(Child);

impl Echo {
    fn start(address: &str, asked: usize, answered: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["echo", address, &asked.to_string(), &answered.to_string()]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Where it listens.
    fn said(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn be_echo(address: &str, asked: usize, answered: usize) {
    if address.starts_with('/') {
        let listener = UnixListener::bind(address).unwrap();
        println!("{address}");
        return echo(listener.accept().unwrap().0, asked, answered);
    }
    let listener = TcpListener::bind(address).unwrap();
    println!("{}", listener.local_addr().unwrap());
    let stream = listener.accept().unwrap().0;
    stream.set_nodelay(true).unwrap();
    echo(stream, asked, answered);
}

/// Runs on one core, with the child and with all that is started meanwhile.
#[cfg(target_os = "linux")]
fn on_one_core(child: u32, run: impl FnOnce()) {
    use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
    use nix::unistd::Pid;

    let (own, child) = (Pid::from_raw(0), Pid::from_raw(i32::try_from(child).unwrap()));
    let all = sched_getaffinity(own).unwrap();
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(own, &one).unwrap();
    sched_setaffinity(child, &one).unwrap();
    run();
    sched_setaffinity(own, &all).unwrap();
}

#[cfg(not(target_os = "linux"))]
fn on_one_core(_: u32, run: impl FnOnce()) {
    run();
}

fn echo(mut stream: impl Read + Write, asked: usize, answered: usize) {
    let (mut request, answer) = (vec![0; asked], vec![0; answered]);
    while stream.read_exact(&mut request).is_ok() && stream.write_all(&answer).is_ok() {}
}

fn probe_http(port: u16) {
    let request =
        format!("GET /api/health/idle HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Hermes-Session-Token: {TOKEN}\r\n\r\n");
    let mut ours = TcpStream::connect(("127.0.0.1", port)).unwrap();
    ours.set_nodelay(true).unwrap();
    ours.write_all(request.as_bytes()).unwrap();
    let mut first = [0; 4096];
    let size = ours.read(&mut first).unwrap();

    let mut echo = Echo::start("127.0.0.1:0", request.len(), size);
    let mut bare = TcpStream::connect(echo.said()).unwrap();
    bare.set_nodelay(true).unwrap();

    let (mut a, mut b) = (vec![0; size], vec![0; size]);
    let request = request.as_bytes();
    let times = in_turn(20_000, || exchange(&mut ours, request, &mut a), || exchange(&mut bare, request, &mut b));
    row("probe over HTTP, keep-alive", times, "a bare TCP echo of the same sizes");
}

fn start_up(home: &Path) {
    let runtime = home.join("s");
    let ours = || {
        let (mut child, _) = start(&home.join("s-home"), &runtime);
        child.kill().unwrap();
        child.wait().unwrap();
    };
    row("spawn to READY (and reaped)", in_turn(40, ours, run_true), "`true`, spawned and reaped the same way");
}

fn run_true() {
    let mut child =
        Command::new("true").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
}

fn command_line(runtime: &Path) {
    let ours = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hermesctl"));
        command.args(["idle", "-q"]).env_clear().env("HERMES_RUNTIME_DIR", runtime).env("HOME", "/nonexistent");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success());
    };
    row("hermesctl idle", in_turn(60, ours, run_true), "`true`, spawned and reaped the same way");
}

fn resident(pid: u32) {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let figure = |name: &str| -> f64 {
        let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    println!("resident {:.1} MB, PSS {:.1} MB, {threads} thread(s)", figure("Rss:"), figure("Pss:"));
}
