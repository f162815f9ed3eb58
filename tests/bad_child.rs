//! A child that misbehaves on demand: `bad_child <how> serve …`. It takes the place of `hermes serve` in the runtime
//! directory, prints READY, and then does not do what a child should.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use hermes::codec;
use hermes::process::start_marker;
use hermes::protocol::{Answer, PROTOCOL, Reply, Request, Verdict, Welcome};
use hermes::runtime::{Endpoint, RuntimeDir};
use hermes::secret::Token;

fn main() {
    let mut args = std::env::args().skip(1);
    let how = args.next().unwrap_or_default();
    match how.as_str() {
        // `cargo test` starts examples with no word: there is nothing to do.
        "" => {}
        "exits-early" => std::process::exit(3),
        "wrong-ready" => {
            println!("HERMES_BACKEND_READY port=none");
            std::thread::sleep(Duration::from_secs(60));
        }
        how => serve(how),
    }
}

fn serve(how: &str) {
    if how == "never-stops" {
        use nix::sys::signal::{SigSet, Signal};
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.thread_block().unwrap();
    }
    let home = PathBuf::from(std::env::var_os("HERMES_HOME").expect("HERMES_HOME"));
    let dir = RuntimeDir::create(&RuntimeDir::locate(&|name| std::env::var_os(name))).unwrap();
    let names = dir.names(&home, hermes::runtime::Role::Backend).unwrap();
    let listener = UnixListener::bind(&names.socket).unwrap();
    std::fs::set_permissions(&names.socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = http.local_addr().unwrap().port();
    let pid = std::process::id();
    let endpoint = Endpoint {
        pid,
        start_marker: start_marker(pid).unwrap(),
        generation: "bad".to_owned(),
        profile: None,
        home: home.to_string_lossy().into_owned(),
        socket: names.socket,
        port: Some(port),
        token: Token::new(std::env::var("HERMES_DASHBOARD_SESSION_TOKEN").unwrap_or_default()),
        version: "bad".to_owned(),
        kind: None,
    };
    endpoint.write(&names.record).unwrap();
    println!("HERMES_BACKEND_READY port={port}\nHERMES_DASHBOARD_READY port={port}");
    let how = how.to_owned();
    for stream in listener.incoming().flatten() {
        let how = how.clone();
        std::thread::spawn(move || {
            let _ = converse(&how, stream);
        });
    }
}

fn converse(how: &str, mut stream: UnixStream) -> std::io::Result<()> {
    if how == "never-answers" {
        std::thread::sleep(Duration::from_secs(60));
    }
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut frame)?;
        let reply = match codec::decode::<Request>(&frame).map_err(std::io::Error::other)? {
            Request::Hello { .. } => Reply::Welcome(Welcome {
                protocol: PROTOCOL,
                version: "bad".to_owned(),
                pid: std::process::id(),
                profile: None,
            }),
            Request::Idle => match how {
                "half-a-frame" => {
                    // Says that seven bytes come, sends three, and goes.
                    stream.write_all(&[0, 0, 0, 7, 1, 2, 3])?;
                    return Ok(());
                }
                "garbage" => {
                    stream.write_all(&[0, 0, 0, 3, 0xff, 0xff, 0xff])?;
                    continue;
                }
                "huge" => {
                    stream.write_all(&u32::MAX.to_be_bytes())?;
                    continue;
                }
                "unknown-input" => Reply::Verdict(Verdict::InputProbeUnavailable),
                // Says idle to whoever asks; its fence will never agree.
                "lies" => Reply::Verdict(Verdict::Idle),
                _ => Reply::Verdict(Verdict::TurnProbeUnavailable),
            },
            _ => Reply::Committed { ok: false, next_due: None },
        };
        let bytes = codec::encode(&Answer { generation: "bad".to_owned(), reply }).map_err(std::io::Error::other)?;
        stream.write_all(&(bytes.len() as u32).to_be_bytes())?;
        stream.write_all(&bytes)?;
    }
}
