//! Two doors, one handler: every verb asked over both gives the same answer.

use std::collections::BTreeSet;
use std::time::Duration;

use hermes::client::{Client, ClientError};
use hermes::door::http::view;
use hermes::protocol::{Event, Permit, Reply, Request, Token, Verdict};
use hermes::verb::{RETIREMENT, VERBS};
use serde_json::{Value, json};

use crate::support::{Child, Home, Opts, TOKEN, curl, home_with_waiting_job};

/// A child asked over both doors.
struct Both {
    child: Child,
    runtime: tokio::runtime::Runtime,
    client: Client,
    asked: BTreeSet<&'static str>,
}

impl Both {
    fn new(home: &Home) -> Self {
        let child = Child::spawn(home, &Opts::desktop());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (socket, token) = (child.socket(), Token::new(TOKEN));
        let client = runtime.block_on(Client::connect(&socket, &token, Duration::from_secs(5))).unwrap();
        Self { child, runtime, client, asked: BTreeSet::new() }
    }

    /// Asks the socket and returns what HTTP would say to the same answer.
    fn socket(&mut self, request: &Request) -> (u16, Value) {
        self.asked.insert(request.verb().name);
        let answer = self.runtime.block_on(self.client.call(request));
        let (status, body) = match answer {
            Ok(reply) => view::reply(&reply, self.client.generation()),
            Err(ClientError::Fault(fault)) => view::fault(&fault),
            Err(other) => panic!("{other}"),
        };
        (status.as_u16(), masked(serde_json::from_str(&body).unwrap()))
    }

    fn http(&self, path: &str, body: Option<Value>) -> (u16, Value) {
        let token = format!("X-Hermes-Session-Token: {TOKEN}");
        let body = body.map(|body| body.to_string());
        let mut args = vec!["-H", token.as_str()];
        if let Some(body) = &body {
            args.extend(["-X", "POST", "-d", body]);
        }
        let reply = curl(&self.child, path, &args);
        (reply.status, masked(reply.json()))
    }

    fn same(&mut self, request: Request, path: &str, body: Option<Value>) -> Value {
        let (socket, http) = (self.socket(&request), self.http(path, body));
        assert_eq!(socket, http, "{request:?}");
        socket.1
    }

    fn retire(&mut self, request: Request, body: Value) -> Value {
        self.same(request, RETIREMENT, Some(body))
    }
}

/// Ages and fresh permits differ from one question to the next by their nature.
fn masked(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                match key.as_str() {
                    "age_ms" | "since_ms" | "expires_in_ms" if inner.is_u64() => *inner = json!("some"),
                    "token" => *inner = json!("a permit"),
                    _ => *inner = masked(inner.take()),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| *inner = masked(inner.take())),
        _ => {}
    }
    value
}

fn prepare(id: &str) -> Request {
    Request::Prepare { request_id: Some(id.into()), tied: false }
}

#[test]
fn every_verb_says_the_same_over_both_doors() {
    let home = home_with_waiting_job("job");
    let mut both = Both::new(&home);
    both.child.wait_busy("cron:job");

    both.same(Request::Health, "/api/health", None);
    let busy = both.same(Request::Idle, "/api/health/idle", None);
    assert_eq!(busy["detail"], "cron:job");
    let ledgers = both.same(Request::Ledgers { after: None, limit: 100 }, "/api/health/ledgers?limit=100", None);
    assert_eq!(ledgers["entries"][0]["id"], "job");
    let refused = both.retire(prepare("a"), json!({"action": "prepare", "request_id": "a"}));
    assert_eq!((&refused["ok"], &refused["holders"][0]["id"]), (&json!(false), &json!("job")));

    home.touch("release");
    both.child.wait_idle();
    both.same(Request::Idle, "/api/health/idle", None);
    let granted = both.retire(prepare("b"), json!({"action": "prepare", "request_id": "b"}));
    assert_eq!(granted["ok"], true, "the same request id gets the same permit over either door");
    let foreign = both.retire(prepare("c"), json!({"action": "prepare", "request_id": "c"}));
    assert_eq!(foreign["ok"], false);

    let wrong = || Permit::new("x");
    both.retire(Request::Commit { permit: wrong() }, json!({"action": "commit", "token": "x"}));
    both.retire(Request::Cancel { permit: wrong() }, json!({"action": "cancel", "token": "x"}));
    let bad = both.retire(prepare(""), json!({"action": "prepare", "request_id": ""}));
    assert!(bad["detail"].as_str().unwrap().contains("request_id"));

    both.same(Request::Sessions, "/api/sessions", None);
    both.same(Request::Turn { turn: 1, wait: false }, "/api/turns/1", None);
    both.same(Request::Log { session: "s".into(), after: 0, limit: 50 }, "/api/sessions/s", None);
    both.same(Request::Interrupt { session: "s".into() }, "/api/sessions/s/interrupt", Some(json!({})));
    let submit = Request::Submit { session: "s".into(), prompt: "p".into() };
    both.same(submit, "/api/sessions/s/prompts", Some(json!({"prompt": "p"})));
    let delegate = Request::Delegate { session: "s".into(), prompt: "p".into(), detached: false };
    both.same(delegate, "/api/sessions/s/delegations", Some(json!({"prompt": "p"})));
    both.same(Request::Questions, "/api/prompts", None);
    let unknown = Request::Answer { id: "srq-x".into(), answer: None };
    both.same(unknown, "/api/prompts/srq-x", Some(json!({"decline": true})));

    streams_agree(&mut both);
    // A hold over HTTP is a stream: tests/it/retire.rs has both.
    let only_socket = ["adopt", "ask", "hello", "hold", "release", "release-hold", "retire-when-idle"].into_iter();
    let asked: BTreeSet<&str> = both.asked.iter().copied().chain(only_socket).collect();
    // A pool has one door.
    let of_a_pool = ["open", "close", "pool", "watch-pool", "pool-limit", "touch"];
    let all: BTreeSet<&str> =
        VERBS.iter().filter(|verb| !of_a_pool.contains(&verb.name)).map(|verb| verb.name).collect();
    assert_eq!(asked, all, "a verb is not in this test");
}

/// The first event of a subscription is the verdict as it is, over either door.
fn streams_agree(both: &mut Both) {
    both.asked.insert("watch");
    let Both { runtime, client, child, .. } = both;
    let event = runtime.block_on(async {
        client.subscribe(&Request::Watch).await.unwrap();
        client.event().await.unwrap()
    });
    assert_eq!(event, Event::Verdict(Verdict::Idle));
    let token = format!("X-Hermes-Session-Token: {TOKEN}");
    let url = format!("http://127.0.0.1:{}/api/health/idle/events", child.port);
    let out = std::process::Command::new("curl").args(["-sN", "--max-time", "1", "-H", &token, &url]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text, "data: {\"ok\":true,\"idle\":true,\"reason\":null}\n\n");
}

#[test]
fn a_token_that_may_only_look_is_told_the_same_over_both_doors() {
    let home = Home::new();
    let child = Child::spawn(&home, &Opts::plain().env("HERMES_CONTROL_TOKEN", "control"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connect = |token: &str| {
        let token = Token::new(token);
        let socket = child.socket();
        runtime.block_on(async move { Client::connect(&socket, &token, Duration::from_secs(5)).await })
    };
    let mut looker = connect(TOKEN).unwrap();
    assert!(matches!(runtime.block_on(looker.call(&Request::Idle)), Ok(Reply::Verdict(Verdict::Idle))));
    let Err(ClientError::Fault(fault)) = runtime.block_on(looker.call(&prepare("a"))) else { panic!("not refused") };
    let header = format!("X-Hermes-Session-Token: {TOKEN}");
    let reply = curl(&child, RETIREMENT, &["-H", &header, "-X", "POST", "-d", "{\"action\":\"prepare\"}"]);
    assert_eq!((reply.status, &reply.json()["detail"]), (403, &json!(fault.message)));
    let mut owner = connect("control").unwrap();
    assert!(matches!(runtime.block_on(owner.call(&prepare("a"))), Ok(Reply::Prepared { .. })));
    assert!(matches!(connect("wrong"), Err(ClientError::Unauthorized)));
}
