//! Peers that mean harm, or are broken: refused or cut off, while everybody else is served.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{Child, Home, Opts, TOKEN, curl, hermesctl, wait_until};

/// From a frame's first byte to its last there are 5 s, for `Hello` 2; the rest is slack.
const CUT: Duration = Duration::from_secs(8);

struct Target {
    home: Home,
    child: Child,
    fds: usize,
}

impl Target {
    fn new() -> Self {
        let home = Home::new();
        let child = Child::spawn(&home, &Opts::desktop());
        child.wait_idle();
        assert_eq!(hermesctl(&home, &["idle", "--via", "socket"]).code, 0);
        let mut target = Self { home, child, fds: usize::MAX };
        // The baseline is what it settles on once those clients are gone.
        let mut same = 0;
        wait_until("a steady number of descriptors", CUT, || {
            let now = target.open_fds();
            same = if now == target.fds { same + 1 } else { 0 };
            target.fds = now;
            same >= 10
        });
        target
    }

    fn open_fds(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.pid)).map(Iterator::count).unwrap_or_default()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.child.socket()).expect("the socket listens");
        stream.set_read_timeout(Some(CUT)).unwrap();
        stream.set_write_timeout(Some(CUT)).unwrap();
        stream
    }

    /// After whatever was done to it: it answers, over both doors, and has let go of every connection.
    #[track_caller]
    fn is_well(&self) {
        for via in ["socket", "http"] {
            let output = hermesctl(&self.home, &["idle", "--via", via]);
            assert_eq!(output.code, 0, "{via}: {output:?}\n{}", self.child.logs());
        }
        wait_until("the descriptors are back at their baseline", CUT * 2, || self.open_fds() <= self.fds);
        assert!(!self.child.stderr().contains("panicked"), "{}", self.child.stderr());
    }
}

/// Sends what it can: the other end may have closed already.
fn send(stream: &mut impl Write, bytes: &[u8]) {
    let _ = stream.write_all(bytes).and_then(|()| stream.flush());
}

/// Reads until the other end closes; panics if it does not in time.
#[track_caller]
fn closed(stream: &mut impl Read) -> Vec<u8> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let until = Instant::now() + CUT;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return bytes,
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("not closed within {CUT:?}; so far {bytes:?}")
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return bytes,
        }
        assert!(Instant::now() < until, "not closed within {CUT:?}");
    }
}

/// The largest this process has ever been, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("VmPeak");
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// Bytes that are the same in every run.
fn noise(mut seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    for _ in 0..length {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.push(seed.to_le_bytes()[0]);
    }
    bytes
}

#[test]
fn a_frame_of_four_gigabytes_is_closed_without_allocating() {
    let target = Target::new();
    let before = peak_kib(target.child.pid);
    for _ in 0..20 {
        let mut stream = target.connect();
        send(&mut stream, &u32::MAX.to_be_bytes());
        closed(&mut stream);
    }
    let grown = peak_kib(target.child.pid) - before;
    assert!(grown < 2 << 20, "grew by {grown} KiB");
    target.is_well();
}

#[test]
fn a_frame_over_the_limit_before_hello_is_closed_at_once() {
    let target = Target::new();
    for length in [4 * 1024 + 1, 1 << 20, (1 << 20) + 1, 1 << 31] {
        let mut stream = target.connect();
        send(&mut stream, &u32::to_be_bytes(length));
        closed(&mut stream);
    }
    target.is_well();
}

#[test]
fn a_truncated_frame_is_let_go() {
    let target = Target::new();
    for sent in [0, 1, 3, 4, 5, 50] {
        let mut stream = target.connect();
        let mut frame = 100_u32.to_be_bytes().to_vec();
        frame.extend_from_slice(&noise(7, 100));
        send(&mut stream, &frame[..sent]);
        drop(stream);
    }
    target.is_well();
}

#[test]
fn an_empty_frame_is_closed() {
    let target = Target::new();
    let mut stream = target.connect();
    send(&mut stream, &0_u32.to_be_bytes());
    closed(&mut stream);
    target.is_well();
}

#[test]
fn random_garbage_is_closed() {
    let target = Target::new();
    for seed in 1..=50 {
        let mut stream = target.connect();
        send(&mut stream, &noise(seed, 64 * 1024));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        closed(&mut stream);
    }
    target.is_well();
}

#[test]
fn a_well_framed_garbage_hello_gets_no_verdict() {
    let target = Target::new();
    for seed in 1..=50 {
        let mut stream = target.connect();
        let body = noise(seed, 64);
        send(&mut stream, &64_u32.to_be_bytes());
        send(&mut stream, &body);
        let answer = closed(&mut stream);
        assert!(!String::from_utf8_lossy(&answer).contains(TOKEN));
        assert!(answer.len() < 4096, "a refusal is short: {}", answer.len());
    }
    target.is_well();
}

#[test]
fn one_byte_and_then_silence_is_cut_off() {
    let target = Target::new();
    let mut stream = target.connect();
    send(&mut stream, &[0]);
    // Meanwhile others are served.
    assert_eq!(hermesctl(&target.home, &["idle", "--via", "socket"]).code, 0);
    closed(&mut stream);
    target.is_well();
}

#[test]
fn a_connection_that_never_says_hello_is_cut_off() {
    let target = Target::new();
    let mut stream = target.connect();
    closed(&mut stream);
    target.is_well();
}

#[test]
fn a_hello_in_drips_is_cut_off() {
    let target = Target::new();
    let mut stream = target.connect();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    send(&mut stream, &100_u32.to_be_bytes());
    // A byte every tenth of a second would take ten seconds.
    let (mut cut, until, mut byte) = (false, Instant::now() + CUT, [0]);
    while !cut && Instant::now() < until {
        cut = stream.write_all(&[0]).is_err();
        match stream.read(&mut byte) {
            Ok(1) => {}
            Ok(_) => cut = true,
            Err(error) => {
                cut |= !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
            }
        }
    }
    assert!(cut, "not cut off within {CUT:?}");
    target.is_well();
}

#[test]
fn three_hundred_silent_connections_cost_nobody_else_the_service() {
    let target = Target::new();
    let mut streams: Vec<UnixStream> = (0..300).map(|_| target.connect()).collect();
    assert_eq!(hermesctl(&target.home, &["idle", "--via", "http"]).code, 0, "the other door is open meanwhile");
    for stream in &mut streams {
        closed(stream);
    }
    drop(streams);
    target.is_well();
}

#[test]
fn waves_of_connections_leave_nothing_behind() {
    let target = Target::new();
    for _ in 0..10 {
        let streams: Vec<UnixStream> = (0..100).map(|_| target.connect()).collect();
        drop(streams);
    }
    target.is_well();
}

// ---------------------------------------------------------------- HTTP

/// Longer than any sensible deadline for a head or a body.
const HTTP_CUT: Duration = Duration::from_secs(35);

#[test]
fn half_a_request_is_cut_off_by_a_deadline_while_others_are_served() {
    let target = Target::new();
    let connect = |bytes: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", target.child.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        send(&mut stream, bytes.as_bytes());
        stream
    };
    let head = "GET /api/health/idle HTTP/1.1\r\nHost: 127";
    let body = format!(
        "POST /api/health/retirement HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Hermes-Session-Token: {TOKEN}\r\n\
         Content-Length: 100\r\n\r\n{{\"action\""
    );
    let mut held = [(connect(head), false), (connect(&body), false)];
    for _ in 0..10 {
        assert_eq!(curl(&target.child, "/api/health", &[]).status, 200);
        assert_eq!(hermesctl(&target.home, &["idle", "--via", "socket"]).code, 0);
    }
    wait_until("the end of half requests", HTTP_CUT, || {
        for (stream, done) in &mut held {
            let mut chunk = [0; 1024];
            let still = |error: &std::io::Error| {
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
            };
            *done |= match stream.read(&mut chunk) {
                Ok(length) => length == 0,
                Err(error) => !still(&error),
            };
        }
        held.iter().all(|(_, done)| *done)
    });
    drop(held);
    target.is_well();
}

#[test]
fn a_body_over_64_kib_is_413_and_one_of_64_kib_is_read() {
    let target = Target::new();
    let token = format!("X-Hermes-Session-Token: {TOKEN}");
    let file = target.home.root().join("body");
    let at = format!("@{}", file.display());
    let post = |length: usize, extra: &[&str]| {
        let action = r#"{"action":"nope"}"#;
        fs::write(&file, format!("{action}{}", " ".repeat(length - action.len()))).unwrap();
        let mut args = vec!["-H", token.as_str(), "--data-binary", at.as_str()];
        args.extend_from_slice(extra);
        curl(&target.child, "/api/health/retirement", &args)
    };
    for length in [65 * 1024 + 1, 64 * 1024 + 1] {
        let reply = post(length, &[]);
        assert_eq!(reply.status, 413, "{length}: {reply:?}");
        assert!(reply.json()["detail"].is_string(), "{reply:?}");
    }
    let reply = post(64 * 1024 + 1, &["-H", "Transfer-Encoding: chunked"]);
    assert_eq!(reply.status, 413, "no length was announced: {reply:?}");
    let reply = post(64 * 1024, &[]);
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (400, r#"{"detail":"action must be prepare, commit, or cancel"}"#)
    );
    target.is_well();
}

#[test]
fn garbage_on_the_http_port_is_closed() {
    let target = Target::new();
    for seed in 1..=20 {
        let mut stream = TcpStream::connect(("127.0.0.1", target.child.port)).unwrap();
        stream.set_read_timeout(Some(CUT)).unwrap();
        send(&mut stream, &noise(seed, 16 * 1024));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = String::from_utf8_lossy(&closed(&mut stream)).into_owned();
        assert!(!answer.contains("\"idle\"") && !answer.contains(" 500 "), "{answer}");
    }
    target.is_well();
}

#[test]
fn a_head_that_never_ends_is_refused() {
    let target = Target::new();
    let mut stream = TcpStream::connect(("127.0.0.1", target.child.port)).unwrap();
    stream.set_read_timeout(Some(CUT)).unwrap();
    stream.set_write_timeout(Some(CUT)).unwrap();
    send(&mut stream, b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    // 4 MiB of headers.
    send(&mut stream, "X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(70_000).as_bytes());
    let answer = String::from_utf8_lossy(&closed(&mut stream)).into_owned();
    assert!(!answer.contains("\"ok\":true"), "{answer}");
    target.is_well();
}

#[test]
fn many_clients_at_once_all_get_an_answer() {
    let target = Target::new();
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(target.child.verdict()["idle"], true);
                }
            });
        }
    });
    target.is_well();
}

#[test]
fn whoever_finds_no_connection_left_is_always_told_so() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::plain());
    let held: Vec<_> = (0..256).map(|_| crate::retire::Peer::connect(&child)).collect();
    for _ in 0..20 {
        let refused = hermesctl(&home, &["idle"]);
        assert!(refused.code == 1 && refused.stderr.contains("too many connections"), "{refused:?}");
    }
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    assert_eq!(curl(&child, "/api/health/idle", &["-H", &header]).status, 200, "the other door is open");
    drop(held);
    wait_until("a connection to be free", Duration::from_secs(20), || hermesctl(&home, &["idle"]).code == 0);
}
