//! contrib/vectors.json: the bytes of every message, for us and for every other implementation of the protocol.
//!
//! One row of [`messages`] is one vector; a new variant needs a row, or `no_variant_is_without_a_vector` names it.
//! `HERMES_BLESS=1` rewrites the file.

use std::collections::BTreeSet;

use hermes::codec::{self, CodecError, MAX_FRAME, MAX_HELLO};
use hermes::protocol::*;
use hermes::secret::hex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToBackend,
    FromBackend,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::ToBackend => "to_backend",
            Self::FromBackend => "from_backend",
        }
    }

    fn of(name: &Value) -> Self {
        match name.as_str() {
            Some("to_backend") => Self::ToBackend,
            Some("from_backend") => Self::FromBackend,
            _ => panic!("no direction: {name}"),
        }
    }
}

struct Vector {
    name: String,
    direction: Direction,
    /// As JSON text: the fields stand in the order of their bytes.
    value: String,
    hex: String,
}

/// One message of every kind, and what is at the edges of the format.
fn messages() -> Vec<Vector> {
    let mut vectors = Vec::new();
    requests(&mut |name, message| {
        vectors.push(vector(format!("Request::{name}"), Direction::ToBackend, &message));
    });
    answers(&mut |name, reply| {
        let answer = Answer { generation: "ab".into(), reply };
        vectors.push(vector(format!("Answer::{name}"), Direction::FromBackend, &answer));
    });
    vectors
}

fn vector(name: String, direction: Direction, message: &impl Serialize) -> Vector {
    let bytes = codec::encode(message).unwrap();
    Vector { name, direction, value: serde_json::to_string(message).unwrap(), hex: hex(&bytes) }
}

fn requests(request: &mut dyn FnMut(&str, Request)) {
    request("Hello", Request::Hello { protocol: PROTOCOL, token: Token::new("tok") });
    request("Health", Request::Health);
    request("Idle", Request::Idle);
    request("Ledgers", Request::Ledgers { after: Some(300), limit: 100 });
    request("Prepare", Request::Prepare { request_id: Some("r1".into()), tied: true });
    request("Commit", Request::Commit { permit: Permit::new("perm") });
    request("Cancel", Request::Cancel { permit: Permit::new("perm") });
    request("Watch", Request::Watch);
    request("RetireWhenIdle", Request::RetireWhenIdle { deadline_ms: Some(70_000), request_id: None });
    request("Adopt", Request::Adopt { pid: 4711, start_marker: "linux:9".into() });
    request("Hold", Request::Hold { who: "me".into(), why: "w".into() });
    request("Release", Request::Release { number: 9 });
    let ask = |kind, choices, timeout_ms| Request::Ask { kind, text: "q".into(), choices, timeout_ms };
    request("Ask", ask(QuestionKind::Approval, vec!["a".into()], Some(1)));
    request("Questions", Request::Questions);
    request("Answer", Request::Answer { id: "srq-1".into(), answer: Some(AnswerText::new("a")) });
    request("ReleaseProcess", Request::ReleaseProcess { pid: 4711 });
    request("Submit", Request::Submit { session: "s".into(), prompt: "p".into() });
    request("Turn", Request::Turn { turn: 7, wait: true });
    request("Sessions", Request::Sessions);
    request("Interrupt", Request::Interrupt { session: "s".into() });
    request("Log", Request::Log { session: "s".into(), after: 0, limit: 50 });
    request("Delegate", Request::Delegate { session: "s".into(), prompt: "p".into(), detached: false });
    request("Open", Request::Open { profile: "p".into(), background: true, timeout_ms: Some(30_000) });
    request("Close", Request::Close { profile: "p".into() });
    request("Pool", Request::Pool);
    request("WatchPool", Request::WatchPool);
    request("PoolLimit", Request::PoolLimit { max: Some(3), memory_budget: None });
    request("Touch", Request::Touch { profile: "p".into() });

    // What else a field can be: nothing, empty, many, and every kind of question.
    request("Ledgers from the first", Request::Ledgers { after: None, limit: 1 });
    request("Prepare without an id", Request::Prepare { request_id: None, tied: false });
    request("Ask Clarify", ask(QuestionKind::Clarify, vec![], None));
    request("Ask Sudo", ask(QuestionKind::Sudo, vec!["a".into(), String::new(), "ä€😀".into()], None));
    request("Ask Secret", ask(QuestionKind::Secret, vec![], None));
    request("Answer declined", Request::Answer { id: "srq-1".into(), answer: None });
    request("Submit nothing", Request::Submit { session: String::new(), prompt: String::new() });
    // 2^53 - 1 is the largest that every reader of JSON can hold exactly.
    for number in [250, 251, 65_535, 65_536, 4_294_967_295, 4_294_967_296, 9_007_199_254_740_991] {
        request(&format!("Release {number}"), Request::Release { number });
    }
    request("Adopt the last pid", Request::Adopt { pid: u32::MAX, start_marker: String::new() });
    for length in [250, 251] {
        request(&format!("Interrupt {length} bytes"), Request::Interrupt { session: "x".repeat(length) });
    }
}

fn answers(answer: &mut dyn FnMut(&str, Reply)) {
    for kind in FAULTS {
        answer(&format!("Fault {kind:?}"), Reply::Fault(Fault::new(kind, "why")));
    }
    let welcome = |profile| Welcome { protocol: PROTOCOL, version: "0".into(), pid: 4711, profile };
    answer("Welcome", Reply::Welcome(welcome(Some("p".into()))));
    answer("Welcome without a profile", Reply::Welcome(welcome(None)));
    answer("Health", Reply::Health(Health { version: "0".into() }));
    for verdict in verdicts() {
        answer(&format!("Verdict {verdict:?}"), Reply::Verdict(verdict));
    }
    answer("Ledgers", Reply::Ledgers(report()));
    answer("Prepared", Reply::Prepared { permit: Permit::new("perm"), expires_in_ms: Some(30_000) });
    answer("Prepared and committed", Reply::Prepared { permit: Permit::new("perm"), expires_in_ms: None });
    answer("Refused", Reply::Refused(refusal()));
    let retiring = Refusal { verdict: Verdict::Idle, retiring: true, since_ms: None, holders: vec![], more: 0 };
    answer("Refused for another retirement", Reply::Refused(retiring));
    answer("Committed", Reply::Committed { ok: true, next_due: Some("2026-12-01T00:00:00+00:00".into()) });
    answer("Committed in vain", Reply::Committed { ok: false, next_due: None });
    answer("Cancelled", Reply::Cancelled { ok: false });
    answer("Event Verdict", Reply::Event(Event::Verdict(Verdict::Idle)));
    answer("Event Waiting", Reply::Event(Event::Waiting(refusal())));
    answer("Event Prepared", Reply::Event(Event::Prepared { permit: Permit::new("perm"), expires_in_ms: 1 }));
    answer("Event Held", Reply::Event(Event::Held { number: 9 }));
    answer("Event Asked", Reply::Event(Event::Asked { id: "srq-1".into() }));
    answer("Event Answered", Reply::Event(Event::Answered { answer: Some(AnswerText::new("a")) }));
    answer("Event Answered with nothing", Reply::Event(Event::Answered { answer: None }));
    answer("Adopted", Reply::Adopted);
    answer("Held", Reply::Held { number: 9 });
    answer("Released", Reply::Released { ok: true });
    let question = |kind, choices| Question { id: "srq-1".into(), kind, text: "q".into(), choices, age_ms: 1 };
    let questions = QUESTIONS.map(|kind| question(kind, vec!["a".into(), "b".into()]));
    answer("Questions", Reply::Questions(questions.to_vec()));
    answer("Questions, none", Reply::Questions(vec![]));
    answer("Answered", Reply::Answered);
    answer("ProcessReleased", Reply::ProcessReleased { command: "c".into() });
    answer("Submitted", Reply::Submitted { turn: 7, ahead: 0 });
    for state in TurnState::ALL {
        answer(&format!("Turn {state:?}"), Reply::Turn(turn(state)));
    }
    let session = |running| SessionReport { session: "s".into(), running, queued: 1, last: 7 };
    answer("Sessions", Reply::Sessions(vec![session(None), session(Some(7))]));
    answer("Interrupting", Reply::Interrupting { turn: 7 });
    answer("Log", Reply::Log(vec![turn(TurnState::Done), turn(TurnState::Queued)]));
    answer("Closed", Reply::Closed);
    answer("Pool", Reply::Pool(pool()));
    answer("Pool, empty", Reply::Pool(PoolReport::default()));
    answer("Touched", Reply::Touched { ok: true });
    answer("Event Pool", Reply::Event(Event::Pool(PoolReport::default())));
    answer("Event Opened", Reply::Event(Event::Opened(opened())));
}

const CLASSES: [Class; 3] = [Class::Foreground, Class::Due, Class::Background];

const STATES: [SlotState; 4] = [SlotState::Starting, SlotState::Ready, SlotState::Retiring, SlotState::Stopping];

fn pool() -> PoolReport {
    let entry = LedgerEntry { number: 9, ledger: LedgerKind::Cron, id: "j".into(), why: "w".into(), age_ms: 2 };
    let slot = |(state, class): (SlotState, Class)| PoolSlot {
        profile: "p".into(),
        class,
        state,
        pid: (state != SlotState::Starting).then_some(4711),
        verdict: Verdict::TurnInFlight { detail: Some("cron:j".into()) },
        holders: vec![entry.clone()],
        more: 1,
        age_ms: 2,
        unused_ms: 1,
        memory: (state == SlotState::Ready).then_some(5_000_000),
    };
    let waiter = |class| PoolWaiter { ticket: Some(7), profile: "q".into(), class, waited_ms: 3 };
    PoolReport {
        max: 3,
        memory_budget: Some(2_147_483_648),
        draining: false,
        slots: STATES.into_iter().zip(CLASSES.into_iter().cycle()).map(slot).collect(),
        queue: CLASSES
            .into_iter()
            .map(waiter)
            .chain([PoolWaiter { ticket: None, ..waiter(Class::Background) }])
            .collect(),
        due: vec![PoolDue { profile: "r".into(), at: "t".into() }],
    }
}

fn opened() -> Opened {
    Opened {
        pid: 4711,
        start_marker: "linux:9".into(),
        generation: "ab".into(),
        profile: Some("p".into()),
        home: "/h".into(),
        socket: "/r/p.sock".into(),
        port: Some(8080),
        version: "0".into(),
    }
}

const FAULTS: [FaultKind; 11] = [
    FaultKind::Unauthorized,
    FaultKind::Forbidden,
    FaultKind::ProtocolMismatch,
    FaultKind::UnknownRequest,
    FaultKind::Invalid,
    FaultKind::Retiring,
    FaultKind::TooMany,
    FaultKind::NotFound,
    FaultKind::Conflict,
    FaultKind::Unavailable,
    FaultKind::TimedOut,
];

const QUESTIONS: [QuestionKind; 4] =
    [QuestionKind::Approval, QuestionKind::Clarify, QuestionKind::Sudo, QuestionKind::Secret];

fn verdicts() -> [Verdict; 6] {
    [
        Verdict::Idle,
        Verdict::TurnInFlight { detail: Some("cron:a".into()) },
        Verdict::TurnInFlight { detail: None },
        Verdict::AwaitingHumanInput,
        Verdict::TurnProbeUnavailable,
        Verdict::InputProbeUnavailable,
    ]
}

fn ledgers() -> impl Iterator<Item = LedgerKind> {
    std::iter::once(LedgerKind::Admission).chain(LedgerKind::ENTRIES)
}

fn refusal() -> Refusal {
    let holders = ledgers().map(|ledger| Holder { ledger, id: "a".into(), age_ms: 1 }).collect();
    let verdict = Verdict::TurnInFlight { detail: None };
    Refusal { verdict, retiring: false, since_ms: Some(1), holders, more: 2 }
}

fn report() -> LedgerReport {
    let entry = |ledger| LedgerEntry { number: 9, ledger, id: "h".into(), why: "w".into(), age_ms: 2 };
    LedgerReport {
        verdict: Verdict::TurnInFlight { detail: Some("hold:h".into()) },
        ledgers: ledgers()
            .map(|ledger| LedgerSummary { ledger, entries: (ledger != LedgerKind::Cron).then_some(1) })
            .collect(),
        entries: vec![entry(LedgerKind::Hold)],
        next: Some(9),
        ticker: TickerReport {
            running: true,
            next_due: None,
            last_error: Some("e".into()),
            bad_jobs: vec!["b: why".into()],
        },
    }
}

fn turn(state: TurnState) -> TurnReport {
    let begun = (state != TurnState::Queued).then(|| "b".to_owned());
    TurnReport {
        turn: 7,
        session: "s".into(),
        state,
        prompt: "p".into(),
        reply: (state == TurnState::Done).then(|| "r".to_owned()),
        error: (state == TurnState::Failed).then(|| "e".to_owned()),
        queued_at: "q".into(),
        started_at: begun,
        ended_at: state.ended().then(|| "e".to_owned()),
    }
}

use Direction::{FromBackend, ToBackend};

/// Bytes that decode, and that no encoder writes: a number in more bytes than it needs.
const LENIENT: [(&str, Direction, &str); 5] = [
    ("a variant in three bytes", ToBackend, "fb0200"),
    ("a number in nine bytes", ToBackend, "0bfd0900000000000000"),
    ("a length in three bytes", ToBackend, "13fb010073"),
    ("a verdict in three bytes", FromBackend, "02616203fb0000"),
    ("a reply in five bytes", FromBackend, "026162fc0300000000"),
];

/// Bytes that are no message, each for a reason of its own.
const REFUSED: [(&str, Direction, &str); 42] = [
    ("nothing at all", ToBackend, ""),
    ("a byte behind the message", ToBackend, "0200"),
    ("a second message behind the message", ToBackend, "0202"),
    ("a variant that nobody knows", ToBackend, "c8"),
    ("the largest variant there can be", ToBackend, "fcffffffff"),
    ("a variant of 64 bits", ToBackend, "fd0200000000000000"),
    ("a number of 128 bits", ToBackend, "0bfe09000000000000000000000000000000"),
    ("a reserved number", ToBackend, "0bff09"),
    ("a number of 64 bits where 32 are meant", ToBackend, "09fd6712000000000000076c696e75783a39"),
    ("a number cut short", ToBackend, "0bfb09"),
    ("a number that does not begin", ToBackend, "0b"),
    ("a text cut short", ToBackend, "130573"),
    ("a length just past the end", ToBackend, "13027361ff"),
    ("a length that no memory holds", ToBackend, "13fdffffffffffffffff73"),
    ("a length of 2^63", ToBackend, "13fd000000000000008073"),
    ("a length of 4 GiB", ToBackend, "13fd000000000100000073"),
    ("a byte that begins no UTF-8", ToBackend, "1301ff"),
    ("UTF-8 cut short", ToBackend, "1302e282"),
    ("UTF-8 in more bytes than it needs", ToBackend, "1302c080"),
    ("half a surrogate pair", ToBackend, "1303eda080"),
    ("a code point past the last", ToBackend, "1304f4908080"),
    ("a bool that is neither", ToBackend, "110702"),
    ("an option that is neither", ToBackend, "0302"),
    ("an option without its value", ToBackend, "0301"),
    ("a list of more than there is", ToBackend, "0c000171050161"),
    ("a kind of question that nobody knows", ToBackend, "0c0401710000"),
    ("an answer instead of a request", ToBackend, "0261620a"),
    ("nothing at all from a backend", FromBackend, ""),
    ("a generation and no reply", FromBackend, "026162"),
    ("a reply that nobody knows", FromBackend, "026162c8"),
    ("a verdict that nobody knows", FromBackend, "0261620305"),
    ("an idle verdict and more", FromBackend, "026162030000"),
    ("a list that no memory holds", FromBackend, "0261620dfdffffffffffffffff"),
    ("a reply of 64 bits", FromBackend, "026162fd030000000000000000"),
    ("a verdict of 64 bits", FromBackend, "02616203fd0000000000000000"),
    ("a pid of 64 bits", FromBackend, "02616201010130fd671200000000000000"),
    (
        "a port of 32 bits",
        FromBackend,
        "0261620907fb6712076c696e75783a39026162010170022f68092f722f702e736f636b01fc901f00000130",
    ),
    ("a profile that is neither", FromBackend, "02616201010130fb671202"),
    ("a flag that is neither", FromBackend, "0261620c02"),
    ("a version that is no UTF-8", FromBackend, "0261620201ff"),
    ("a generation that is no UTF-8", FromBackend, "01ff0300"),
    ("a generation longer than its message", FromBackend, "0561620300"),
];

/// Headers of frames that are refused before a byte of their payload has come.
fn headers() -> Vec<(&'static str, usize, String)> {
    let header = |length: usize| hex(&u32::try_from(length).unwrap().to_be_bytes());
    vec![
        ("a first frame longer than it may be", MAX_HELLO, header(MAX_HELLO + 1)),
        ("a frame longer than it may be", MAX_FRAME, header(MAX_FRAME + 1)),
        ("the longest that a header can say", MAX_FRAME, header(u32::MAX as usize)),
    ]
}

fn file() -> String {
    let text = |text: &str| serde_json::to_string(text).unwrap();
    let list = |rows: Vec<String>| format!("[\n    {}\n  ]", rows.join(",\n    "));
    let messages = messages().into_iter().map(|vector| {
        let (name, direction) = (text(&vector.name), vector.direction.name());
        format!(r#"{{"name": {name}, "direction": "{direction}", "value": {}, "hex": "{}"}}"#, vector.value, vector.hex)
    });
    let lenient = LENIENT.iter().map(|(name, direction, hex)| {
        let value = decoded(*direction, &unhex(hex)).unwrap().0;
        let (name, direction) = (text(name), direction.name());
        format!(r#"{{"name": {name}, "direction": "{direction}", "value": {value}, "hex": "{hex}"}}"#)
    });
    let refused = REFUSED.iter().map(|(name, direction, hex)| {
        format!(r#"{{"name": {}, "direction": "{}", "hex": "{hex}"}}"#, text(name), direction.name())
    });
    let headers = headers()
        .into_iter()
        .map(|(name, limit, hex)| format!(r#"{{"name": {}, "limit": {limit}, "hex": "{hex}"}}"#, text(name)));
    format!(
        "{{\n  \"protocol\": {PROTOCOL},\n  \"messages\": {},\n  \"lenient\": {},\n  \"refused\": {},\n  \"refused_headers\": {}\n}}\n",
        list(messages.collect()),
        list(lenient.collect()),
        list(refused.collect()),
        list(headers.collect()),
    )
}

fn on_disk() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/vectors.json")).unwrap_or_default()
}

fn section(name: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(&on_disk()).expect("contrib/vectors.json is JSON");
    file[name].as_array().expect("a list").clone()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// The message of these bytes as JSON, and its bytes again.
fn decoded(direction: Direction, bytes: &[u8]) -> Result<(Value, Vec<u8>), CodecError> {
    fn read<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<(Value, Vec<u8>), CodecError> {
        let message: T = codec::decode(bytes)?;
        Ok((serde_json::to_value(&message).unwrap(), codec::encode(&message)?.to_vec()))
    }
    match direction {
        Direction::ToBackend => read::<Request>(bytes),
        Direction::FromBackend => read::<Answer>(bytes),
    }
}

/// The bytes of a message that is given as JSON.
fn encoded(direction: Direction, value: Value) -> Vec<u8> {
    match direction {
        Direction::ToBackend => codec::encode(&serde_json::from_value::<Request>(value).unwrap()),
        Direction::FromBackend => codec::encode(&serde_json::from_value::<Answer>(value).unwrap()),
    }
    .unwrap()
    .to_vec()
}

#[test]
fn the_bytes_of_every_message_are_the_golden_ones() {
    let now = file();
    if std::env::var_os("HERMES_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/vectors.json"), &now).unwrap();
    }
    let then = on_disk();
    let changed: Vec<_> = then.lines().filter(|line| !now.lines().any(|other| other == *line)).collect();
    assert_eq!(changed, Vec::<&str>::new(), "a message's bytes changed: append, never change");
    assert!(then == now, "contrib/vectors.json is stale: HERMES_BLESS=1 cargo test --test it vectors");
}

#[test]
fn the_file_reads_back_both_ways() {
    for vector in section("messages") {
        let (direction, bytes) = (Direction::of(&vector["direction"]), unhex(vector["hex"].as_str().unwrap()));
        let (value, again) = decoded(direction, &bytes).unwrap_or_else(|error| panic!("{vector}: {error}"));
        assert_eq!((&value, &again), (&vector["value"], &bytes), "{vector}");
        assert_eq!(encoded(direction, value), bytes, "{vector}");
    }
    for vector in section("lenient") {
        let (direction, bytes) = (Direction::of(&vector["direction"]), unhex(vector["hex"].as_str().unwrap()));
        let (value, again) = decoded(direction, &bytes).unwrap_or_else(|error| panic!("{vector}: {error}"));
        assert_eq!(value, vector["value"], "{vector}");
        assert!(again.len() < bytes.len(), "{vector}");
    }
}

#[test]
fn what_is_to_be_refused_is_refused() {
    use tokio_util::codec::Decoder;
    for vector in section("refused") {
        let bytes = unhex(vector["hex"].as_str().unwrap());
        assert!(decoded(Direction::of(&vector["direction"]), &bytes).is_err(), "{vector}");
    }
    for vector in section("refused_headers") {
        let limit = usize::try_from(vector["limit"].as_u64().unwrap()).unwrap();
        let mut header = bytes::BytesMut::from(&unhex(vector["hex"].as_str().unwrap())[..]);
        assert!(codec::frames(limit).decode(&mut header).is_err(), "{vector}");
    }
}

#[test]
fn no_variant_is_without_a_vector() {
    let mut shown = BTreeSet::new();
    messages().iter().for_each(|vector| variants("", &serde_json::from_str(&vector.value).unwrap(), &mut shown));
    // Each enum, and the fields that it stands in.
    let known = [
        ("", names::<Request>()),
        ("reply", names::<Reply>()),
        ("Event", names::<Event>()),
        ("Verdict", names::<Verdict>()),
        ("kind", names::<FaultKind>()),
        ("kind", names::<QuestionKind>()),
        ("ledger", names::<LedgerKind>()),
        ("state", names::<TurnState>()),
        ("class", names::<Class>()),
        ("state", names::<SlotState>()),
    ];
    let all = known.into_iter().flat_map(|(field, names)| names.into_iter().map(move |name| (field.to_owned(), name)));
    let missing: Vec<_> = all.filter(|place| !shown.contains(place)).collect();
    assert_eq!(missing, Vec::<(String, String)>::new(), "add a row to requests() or answers()");
}

/// Every field of a value with every variant or key that stands in it.
fn variants(field: &str, value: &Value, shown: &mut BTreeSet<(String, String)>) {
    match value {
        Value::String(name) => {
            shown.insert((field.to_owned(), name.clone()));
        }
        Value::Array(list) => list.iter().for_each(|inner| variants(field, inner, shown)),
        Value::Object(map) => map.iter().for_each(|(key, inner)| {
            shown.insert((field.to_owned(), key.clone()));
            variants(key, inner, shown);
        }),
        _ => {}
    }
}

/// The variants of an enum, as serde itself names them to whoever gives one that does not exist.
fn names<T: DeserializeOwned>() -> Vec<String> {
    let error = serde_json::from_str::<T>("\"no such variant\"").err().expect("no such variant").to_string();
    let names: Vec<_> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(names.len() > 2, "{error}");
    names
}

fn documentation() -> &'static str {
    include_str!("../../contrib/PROTOCOL.md")
}

/// A line that says who sends what has its bytes in these columns, and so has one that goes on with it.
const BYTES: std::ops::Range<usize> = 13..54;

#[test]
fn the_conversation_in_the_documentation_is_the_real_one() {
    let spoken = documentation().lines().filter(|line| {
        ["    you      ", "    backend  ", "                           "].iter().any(|start| line.starts_with(start))
    });
    let text: String = spoken.map(|line| line.get(BYTES).unwrap_or_default()).collect();
    let shown: String = text.split_whitespace().take_while(|word| word.len() == 2).collect();
    let welcome = Welcome { protocol: PROTOCOL, version: "0.1.0".into(), pid: 27_692, profile: Some("work".into()) };
    let answer = |reply| codec::encode(&Answer { generation: "ab".into(), reply }).unwrap();
    let payloads = [
        codec::encode(&Request::Hello { protocol: PROTOCOL, token: Token::new("tok") }).unwrap(),
        codec::encode(&Request::Idle).unwrap(),
        answer(Reply::Welcome(welcome)),
        answer(Reply::Verdict(Verdict::Idle)),
    ];
    let frame = |payload: &bytes::Bytes| hex(&u32::try_from(payload.len()).unwrap().to_be_bytes()) + &hex(payload);
    assert_eq!(shown, payloads.iter().map(frame).collect::<String>());
}

#[test]
fn the_documentation_has_every_message_with_its_number_and_its_bytes() {
    let rows: Vec<Vec<&str>> = documentation().lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    let messages = messages();
    let mut missing = Vec::new();
    for (kind, prefix, names) in [
        ("request", "Request::", names::<Request>()),
        ("reply", "Answer::", names::<Reply>()),
        ("event", "Answer::Event ", names::<Event>()),
    ] {
        // The table begins at the row that names the kind, and ends at a line that is none of it.
        let table = rows.iter().skip_while(|row| row.get(1..3) != Some(&["#", kind])).take_while(|row| row.len() > 2);
        let table: Vec<_> = table.collect();
        for (number, name) in names.iter().enumerate() {
            let row = table.iter().find(|row| row[1] == number.to_string() && row[2] == format!("`{name}`"));
            let example = row.and_then(|row| row.iter().rev().nth(1)).map(|cell| cell.trim_matches('`'));
            let first = messages.iter().find(|vector| vector.name.starts_with(&format!("{prefix}{name}")));
            let elsewhere = ["in vectors.json", "see below"];
            if !example.is_some_and(|hex| elsewhere.contains(&hex) || first.is_some_and(|first| first.hex == hex)) {
                missing.push(format!("{kind} {number} {name} {}", first.map_or("", |first| &first.hex)));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new(), "contrib/PROTOCOL.md lacks these rows, or has other bytes for them");
}
