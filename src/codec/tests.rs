use proptest::prelude::*;

use super::*;
use crate::protocol::*;

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,24}"
}

fn maybe<T: std::fmt::Debug + Clone>(inner: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::of(inner)
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        (any::<u32>(), text()).prop_map(|(protocol, token)| Request::Hello { protocol, token: Token::new(token) }),
        Just(Request::Health),
        Just(Request::Idle),
        (maybe(any::<u64>()), any::<u32>()).prop_map(|(after, limit)| Request::Ledgers { after, limit }),
        (maybe(text()), any::<bool>()).prop_map(|(request_id, tied)| Request::Prepare { request_id, tied }),
        text().prop_map(|permit| Request::Commit { permit: Permit::new(permit) }),
        text().prop_map(|permit| Request::Cancel { permit: Permit::new(permit) }),
        Just(Request::Watch),
        (maybe(any::<u64>()), maybe(text()))
            .prop_map(|(deadline_ms, request_id)| Request::RetireWhenIdle { deadline_ms, request_id }),
        (any::<u32>(), text()).prop_map(|(pid, start_marker)| Request::Adopt { pid, start_marker }),
        (text(), text()).prop_map(|(who, why)| Request::Hold { who, why }),
        any::<u64>().prop_map(|number| Request::Release { number }),
        (question_kinds(), text(), prop::collection::vec(text(), 0..3), maybe(any::<u64>()))
            .prop_map(|(kind, text, choices, timeout_ms)| Request::Ask { kind, text, choices, timeout_ms }),
        Just(Request::Questions),
        (text(), maybe(text())).prop_map(|(id, answer)| Request::Answer { id, answer: answer.map(AnswerText::new) }),
        any::<u32>().prop_map(|pid| Request::ReleaseProcess { pid }),
        (text(), text()).prop_map(|(session, prompt)| Request::Submit { session, prompt }),
        (any::<u64>(), any::<bool>()).prop_map(|(turn, wait)| Request::Turn { turn, wait }),
        Just(Request::Sessions),
        text().prop_map(|session| Request::Interrupt { session }),
        (text(), any::<u64>(), any::<u32>()).prop_map(|(session, after, limit)| Request::Log { session, after, limit }),
        (text(), text(), any::<bool>()).prop_map(|(session, prompt, detached)| Request::Delegate {
            session,
            prompt,
            detached
        }),
    ]
}

fn question_kinds() -> impl Strategy<Value = QuestionKind> {
    prop::sample::select(&QUESTIONS[..])
}

const QUESTIONS: [QuestionKind; 4] =
    [QuestionKind::Approval, QuestionKind::Clarify, QuestionKind::Sudo, QuestionKind::Secret];

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Idle),
        maybe(text()).prop_map(|detail| Verdict::TurnInFlight { detail }),
        Just(Verdict::AwaitingHumanInput),
        Just(Verdict::TurnProbeUnavailable),
        Just(Verdict::InputProbeUnavailable),
    ]
}

fn kinds() -> impl Strategy<Value = LedgerKind> {
    prop::sample::select(&LedgerKind::ENTRIES[..])
}

fn refusals() -> impl Strategy<Value = Refusal> {
    let holders = prop::collection::vec(
        (kinds(), text(), any::<u64>()).prop_map(|(ledger, id, age_ms)| Holder { ledger, id, age_ms }),
        0..4,
    );
    (verdicts(), any::<bool>(), maybe(any::<u64>()), holders, any::<u64>())
        .prop_map(|(verdict, retiring, since_ms, holders, more)| Refusal { verdict, retiring, since_ms, holders, more })
}

fn faults() -> impl Strategy<Value = Fault> {
    (prop::sample::select(&FAULTS[..]), text()).prop_map(|(kind, message)| Fault { kind, message })
}

fn reports() -> impl Strategy<Value = LedgerReport> {
    let summary = (kinds(), maybe(any::<u64>())).prop_map(|(ledger, entries)| LedgerSummary { ledger, entries });
    let entry = (any::<u64>(), kinds(), text(), text(), any::<u64>())
        .prop_map(|(number, ledger, id, why, age_ms)| LedgerEntry { number, ledger, id, why, age_ms });
    let ticker = (any::<bool>(), maybe(text()), maybe(text()), prop::collection::vec(text(), 0..3))
        .prop_map(|(running, next_due, last_error, bad_jobs)| TickerReport { running, next_due, last_error, bad_jobs });
    let lists = (prop::collection::vec(summary, 0..4), prop::collection::vec(entry, 0..4));
    (verdicts(), lists, maybe(any::<u64>()), ticker).prop_map(|(verdict, (ledgers, entries), next, ticker)| {
        LedgerReport { verdict, ledgers, entries, next, ticker }
    })
}

fn turns() -> impl Strategy<Value = TurnReport> {
    let state = prop::sample::select(&TurnState::ALL[..]);
    let texts = (text(), text(), maybe(text()), maybe(text()));
    (any::<u64>(), state, texts, text(), maybe(text()), maybe(text())).prop_map(
        |(turn, state, (session, prompt, reply, error), queued_at, started_at, ended_at)| TurnReport {
            turn,
            session,
            state,
            prompt,
            reply,
            error,
            queued_at,
            started_at,
            ended_at,
        },
    )
}

fn replies() -> impl Strategy<Value = Reply> {
    let event = prop_oneof![
        verdicts().prop_map(Event::Verdict),
        refusals().prop_map(Event::Waiting),
        (text(), any::<u64>())
            .prop_map(|(permit, expires_in_ms)| Event::Prepared { permit: Permit::new(permit), expires_in_ms }),
        any::<u64>().prop_map(|number| Event::Held { number }),
        text().prop_map(|id| Event::Asked { id }),
        maybe(text()).prop_map(|answer| Event::Answered { answer: answer.map(AnswerText::new) }),
    ];
    prop_oneof![
        faults().prop_map(Reply::Fault),
        (any::<u32>(), text(), any::<u32>(), maybe(text())).prop_map(|(protocol, version, pid, profile)| {
            Reply::Welcome(Welcome { protocol, version, pid, profile })
        }),
        text().prop_map(|version| Reply::Health(Health { version })),
        verdicts().prop_map(Reply::Verdict),
        reports().prop_map(Reply::Ledgers),
        (text(), maybe(any::<u64>()))
            .prop_map(|(permit, expires_in_ms)| Reply::Prepared { permit: Permit::new(permit), expires_in_ms }),
        refusals().prop_map(Reply::Refused),
        (any::<bool>(), maybe(text())).prop_map(|(ok, next_due)| Reply::Committed { ok, next_due }),
        any::<bool>().prop_map(|ok| Reply::Cancelled { ok }),
        event.prop_map(Reply::Event),
        Just(Reply::Adopted),
        any::<u64>().prop_map(|number| Reply::Held { number }),
        any::<bool>().prop_map(|ok| Reply::Released { ok }),
        prop::collection::vec(
            (text(), question_kinds(), text(), prop::collection::vec(text(), 0..3), any::<u64>())
                .prop_map(|(id, kind, text, choices, age_ms)| Question { id, kind, text, choices, age_ms }),
            0..3
        )
        .prop_map(Reply::Questions),
        Just(Reply::Answered),
        text().prop_map(|command| Reply::ProcessReleased { command }),
        (any::<u64>(), any::<u32>()).prop_map(|(turn, ahead)| Reply::Submitted { turn, ahead }),
        turns().prop_map(Reply::Turn),
        prop::collection::vec(
            (text(), maybe(any::<u64>()), any::<u32>(), any::<u64>())
                .prop_map(|(session, running, queued, last)| SessionReport { session, running, queued, last }),
            0..3
        )
        .prop_map(Reply::Sessions),
        any::<u64>().prop_map(|turn| Reply::Interrupting { turn }),
        prop::collection::vec(turns(), 0..3).prop_map(Reply::Log),
    ]
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

proptest! {
    #[test]
    fn every_request_comes_back_as_it_went(request in requests()) {
        prop_assert_eq!(decode::<Request>(&encode(&request).unwrap()).unwrap(), request);
    }

    #[test]
    fn every_answer_comes_back_as_it_went(generation in text(), reply in replies()) {
        let answer = Answer { generation, reply };
        prop_assert_eq!(decode::<Answer>(&encode(&answer).unwrap()).unwrap(), answer);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Answer>(&bytes);
        let _ = peek_hello_protocol(&bytes);
    }

    #[test]
    fn a_message_that_is_cut_or_followed_by_more_is_none(request in requests(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&request).unwrap();
        let mut longer = bytes.to_vec();
        longer.push(0);
        prop_assert_eq!(decode::<Request>(&longer), Err(CodecError::Trailing(1)));
        prop_assert!(decode::<Request>(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

#[test]
fn a_length_that_no_frame_can_hold_is_refused_and_not_allocated() {
    // Hello { protocol: 1, token: a string of so many bytes }, with three bytes behind it.
    for length in [u64::MAX, 1 << 63, 1 << 32, MAX_FRAME as u64 + 1, 4] {
        for head in [vec![0_u8, 1], vec![5], vec![4, 1]] {
            let mut bytes = head;
            bytes.push(253);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(b"abc");
            assert!(decode::<Request>(&bytes).is_err(), "{length}");
        }
        // Answer { generation, Verdict... } with a list of so many holders.
        let mut bytes = vec![0, 6, 0, 0, 0, 253];
        bytes.extend_from_slice(&length.to_le_bytes());
        assert!(decode::<Answer>(&bytes).is_err(), "{length}");
    }
}

#[test]
fn a_body_under_another_variants_number_is_no_message() {
    let commit = encode(&Request::Commit { permit: Permit::new("p") }).unwrap();
    for variant in [0_u8, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 16, 200, 251, 255] {
        let mut bytes = commit.to_vec();
        bytes[0] = variant;
        assert!(decode::<Request>(&bytes).is_err(), "{variant}");
    }
    let answer = encode(&Answer { generation: "g".into(), reply: Reply::Adopted }).unwrap();
    assert!(decode::<Request>(&answer).is_err());
}

#[test]
fn what_is_wrong_with_a_message_is_said_in_plain_words() {
    for (bytes, why) in [
        (&[200_u8][..], "something in it is of no known kind"),
        (&[], "the message ends in the middle"),
        (&[5, 2, 0xff, 0xff], "a text in it is not UTF-8"),
        (&[4, 0, 2], "a flag in it is neither true nor false"),
        (&[9, 253, 0, 0, 0, 0, 0, 0, 0, 1], "a number in it is too large for its place"),
        (&[2, 2, 2], "2 bytes follow the message"),
    ] {
        assert_eq!(decode::<Request>(bytes).unwrap_err().to_string(), why, "{bytes:?}");
    }
}

#[test]
fn the_protocol_number_can_be_read_from_a_hello_of_any_time() {
    let hello = encode(&Request::Hello { protocol: 7, token: Token::new("t") }).unwrap();
    assert_eq!(peek_hello_protocol(&hello), Some(7));
    assert_eq!(peek_hello_protocol(&[0, 251, 0, 1, 9, 9, 9]), Some(256));
    assert_eq!(peek_hello_protocol(&[2]), None);
}

#[test]
fn a_frame_is_refused_by_its_header_alone() {
    use tokio_util::codec::Decoder;
    let mut at_limit = bytes::BytesMut::from(&(MAX_HELLO as u32).to_be_bytes()[..]);
    assert!(frames(MAX_HELLO).decode(&mut at_limit).unwrap().is_none());
    for length in [MAX_HELLO as u32 + 1, u32::MAX] {
        let mut header = bytes::BytesMut::from(&length.to_be_bytes()[..]);
        assert!(frames(MAX_HELLO).decode(&mut header).is_err(), "{length}");
    }
    let long = Request::Commit { permit: Permit::new("x".repeat(MAX_FRAME)) };
    assert!(matches!(encode(&long), Err(CodecError::TooLong(_))));
}

/// `cargo test --release -- --ignored random_bytes` runs for 30 s.
#[test]
#[ignore = "runs for 30 s"]
fn random_bytes_neither_panic_nor_allocate_beyond_a_frame() {
    let clock = crate::clock::Clock::system();
    let begin = clock.now();
    let (mut seed, mut rounds) = (0x9e37_79b9_7f4a_7c15_u64, 0_u64);
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) * 1024
    };
    let before = resident();
    while clock.now().since(begin).as_secs() < 30 {
        let length = (next() % 96) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        if let Some(first) = bytes.first_mut() {
            *first %= 12;
        }
        let _ = (decode::<Request>(&bytes), decode::<Answer>(&bytes));
        rounds += 1;
    }
    println!("{rounds} rounds, {} bytes more resident at the peak", resident().saturating_sub(before));
    assert!(resident().saturating_sub(before) < 4 * MAX_FRAME);
}
