//! A hundred watchers on one child that flips a thousand times a second: `cargo bench --bench watchers`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hermes::codec;
use hermes::protocol::{Answer, Event, PROTOCOL, Reply, Request, Verdict};
use hermes::secret::Token;

const WATCHERS: usize = 100;
const FLIPS_A_SECOND: u32 = 1000;
const SECONDS: u32 = 5;

fn main() {
    let home = tempfile::tempdir().unwrap();
    let runtime = home.path().join("r");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hermes"));
    command.args(["serve", "--port", "0"]).env("HERMES_HOME", home.path()).env("HERMES_RUNTIME_DIR", &runtime);
    command.env("HERMES_DASHBOARD_SESSION_TOKEN", "t").env("HERMES_LOG", "warn").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let socket = std::fs::read_dir(&runtime).unwrap().map(|entry| entry.unwrap().path());
    let socket = socket.into_iter().find(|path| path.extension().is_some_and(|end| end == "sock")).unwrap();
    let connect = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        send(&mut stream, &Request::Hello { protocol: PROTOCOL, token: Token::new("t") });
        receive(&mut stream);
        stream
    };

    let (events, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let (mut stream, events, over) = (connect(), Arc::clone(&events), Arc::clone(&over));
            send(&mut stream, &Request::Watch);
            std::thread::spawn(move || {
                loop {
                    let Reply::Event(Event::Verdict(verdict)) = receive(&mut stream) else { panic!("no verdict") };
                    events.fetch_add(1, Ordering::Relaxed);
                    if over.load(Ordering::SeqCst) && verdict.detail() == Some("hold:last") {
                        return;
                    }
                    assert!(verdict == Verdict::Idle || verdict.idle() == Some(false));
                }
            })
        })
        .collect();

    let mut flipper = connect();
    let (before, begun) = (cpu(child.id()), Instant::now());
    for flip in 1..=FLIPS_A_SECOND * SECONDS / 2 {
        send(&mut flipper, &Request::Hold { who: "flip".into(), why: "bench".into() });
        let Reply::Held { number } = receive(&mut flipper) else { panic!("not held") };
        pace(begun, 2 * flip - 1);
        send(&mut flipper, &Request::Release { number });
        receive(&mut flipper);
        pace(begun, 2 * flip);
    }
    let (used, elapsed) = (cpu(child.id()) - before, begun.elapsed().as_secs_f64());
    over.store(true, Ordering::SeqCst);
    send(&mut flipper, &Request::Hold { who: "last".into(), why: "bench".into() });
    receive(&mut flipper);
    watchers.into_iter().for_each(|watcher| watcher.join().unwrap());
    println!(
        "{WATCHERS} watchers, {:.0} flips/s: the child used {:.1} % of one core; {} events passed on; every watcher ended with the last verdict",
        f64::from(FLIPS_A_SECOND * SECONDS) / elapsed,
        100.0 * used / elapsed,
        events.load(Ordering::Relaxed)
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

fn pace(begun: Instant, flip: u32) {
    let due = begun + Duration::from_secs(1) * flip / FLIPS_A_SECOND;
    if let Some(left) = due.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}

/// Seconds of processor time so far; a tick is a hundredth of a second on Linux.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn send(stream: &mut UnixStream, request: &Request) {
    let bytes = codec::encode(request).unwrap();
    let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&bytes);
    stream.write_all(&frame).unwrap();
}

fn receive(stream: &mut UnixStream) -> Reply {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    codec::decode::<Answer>(&frame).unwrap().reply
}
