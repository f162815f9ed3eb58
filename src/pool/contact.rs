//! Talking to a child: what it says of itself, and the steps of its retirement. Whatever goes wrong here is "unknown".

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::backoff::doubled;
use crate::client::{Client, ClientError, unexpected};
use crate::protocol::{Event, LedgerEntry, Permit, Reply, Request, Verdict};
use crate::runtime::Endpoint;

/// A child that does not say how it stands within this is taken for unknown.
const PROBE_DEADLINE: Duration = Duration::from_millis(250);

/// A step of retirement may take so long, each time that it is tried.
const STEP_DEADLINE: Duration = Duration::from_secs(1);

/// So often a commit whose reply is lost is asked for again: it is for ever, and the same every time.
const COMMIT_TRIES: u32 = 3;

/// So many holders are named.
const NAMED: u32 = 4;

/// Between two tries to reach a child that does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a child says of itself.
#[derive(Debug, Clone)]
pub struct Word {
    /// Its verdict.
    pub verdict: Verdict,
    /// Its oldest holders.
    pub holders: Vec<LedgerEntry>,
    /// How many more there are.
    pub more: u64,
}

impl Word {
    /// Nothing was said, or nothing that can be understood.
    pub fn unknown() -> Self {
        Self { verdict: Verdict::TurnProbeUnavailable, holders: Vec::new(), more: 0 }
    }

    fn bare(verdict: Verdict) -> Self {
        Self { verdict, ..Self::unknown() }
    }
}

/// The right to commit, on the connection that it came over: dropped, it is given back.
pub struct Prepared {
    client: Client,
    permit: Permit,
}

/// Asks a child how it stands.
pub async fn probe(endpoint: &Endpoint) -> Word {
    let request = Request::Ledgers { after: None, limit: NAMED };
    let answer = Client::ask(&endpoint.socket, &endpoint.token, &request, PROBE_DEADLINE).await;
    match answer {
        Ok((client, Reply::Ledgers(report))) if client.generation() == endpoint.generation => {
            let all: u64 = report.ledgers.iter().filter_map(|line| line.entries).sum();
            let more = all.saturating_sub(report.entries.len() as u64);
            Word { verdict: report.verdict, holders: report.entries, more }
        }
        _ => Word::unknown(),
    }
}

/// Tells every change of a child's verdict, for as long as anybody listens.
pub async fn listen(endpoint: Endpoint, words: mpsc::Sender<Word>) {
    let mut failures = 0;
    loop {
        if let Ok(mut client) = Client::connect(&endpoint.socket, &endpoint.token, STEP_DEADLINE).await
            && client.generation() == endpoint.generation
            && client.subscribe(&Request::Watch).await.is_ok()
        {
            while let Ok(Event::Verdict(verdict)) = client.event().await {
                failures = 0;
                // That it is idle is passed on at once; who holds it is worth a question.
                let word = match verdict {
                    Verdict::Idle => Word::bare(verdict),
                    verdict => match probe(&endpoint).await {
                        word if word.verdict.idle().is_some() => word,
                        _ => Word::bare(verdict),
                    },
                };
                if words.send(word).await.is_err() {
                    return;
                }
            }
        }
        if words.send(Word::unknown()).await.is_err() {
            return;
        }
        failures += 1;
        sleep(doubled(FIRST_PAUSE, failures, LONGEST_PAUSE)).await;
    }
}

/// Asks for a permit. A lost reply costs nothing: the permit goes with its connection.
///
/// # Errors
/// There is none, and how the child stands.
pub async fn prepare(endpoint: &Endpoint) -> Result<Prepared, Word> {
    let request = Request::Prepare { request_id: Some(format!("pool-{}", std::process::id())), tied: true };
    match Client::ask(&endpoint.socket, &endpoint.token, &request, STEP_DEADLINE).await {
        Ok((client, Reply::Prepared { permit, .. })) if client.generation() == endpoint.generation => {
            Ok(Prepared { client, permit })
        }
        Ok((_, Reply::Refused(refusal))) => match probe(endpoint).await {
            // Idle by now, and yet it was refused: another's permit is in the way.
            word if word.verdict == Verdict::Idle => Err(Word::bare(match refusal.verdict {
                Verdict::Idle => Verdict::TurnProbeUnavailable,
                verdict => verdict,
            })),
            word => Err(word),
        },
        _ => Err(Word::unknown()),
    }
}

/// Makes the permit final.
///
/// # Errors
/// It is not, as far as we know.
pub async fn commit(endpoint: &Endpoint, prepared: Prepared) -> Result<(), Word> {
    let Prepared { mut client, permit } = prepared;
    let request = Request::Commit { permit };
    let mut reply = client.call(&request).await;
    for _ in 1..COMMIT_TRIES {
        if !matches!(reply, Err(ClientError::ShortReply | ClientError::Io(_) | ClientError::TimedOut(_))) {
            break;
        }
        let again = Client::ask(&endpoint.socket, &endpoint.token, &request, STEP_DEADLINE).await;
        reply = again.map(|(_, reply)| reply);
    }
    match reply {
        Ok(Reply::Committed { ok: true, .. }) => Ok(()),
        _ => Err(probe(endpoint).await),
    }
}

/// Becomes the owner of a child whose pool died.
///
/// # Errors
/// It is not to be had now, and why.
pub async fn adopt(endpoint: &Endpoint, pid: u32, start_marker: &str) -> Result<(), String> {
    let request = Request::Adopt { pid, start_marker: start_marker.to_owned() };
    match Client::ask(&endpoint.socket, &endpoint.token, &request, STEP_DEADLINE).await {
        Ok((client, Reply::Adopted)) if client.generation() == endpoint.generation => Ok(()),
        Ok((_, Reply::Adopted)) => Err("another process answers at its socket".to_owned()),
        Ok((_, other)) => Err(format!("it answers {}", unexpected(&other))),
        Err(error) => Err(error.to_string()),
    }
}
