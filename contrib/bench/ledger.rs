//! The verdict over a crowded ledger beside an empty one: `cargo bench --bench ledger`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::hint::black_box;
use std::time::Instant;

use hermes::clock::Clock;
use hermes::ledger::Ledgers;
use hermes::proof::Proof;
use hermes::protocol::LedgerKind;

const ENTRIES: usize = 100_000;
const ROUNDS: usize = 200_000;

fn main() {
    for kind in LedgerKind::ENTRIES {
        let fill = |count: usize| {
            let ledgers = Ledgers::new(Clock::system());
            let admission = ledgers.admit().unwrap();
            let enter = |n| ledgers.enter(&admission, kind, &format!("{n:06}"), "bench");
            let guards: Vec<_> = (0..count).map(enter).collect();
            drop(admission);
            (Proof::new(ledgers), guards)
        };
        let [empty, one, crowded] = [0, 1, ENTRIES].map(|count| time(&fill(count).0));
        let name = kind.name();
        println!("{name:<12} empty {empty:>5.0} ns   one {one:>5.0} ns   {ENTRIES} entries {crowded:>5.0} ns");
    }
}

/// Nanoseconds a verdict, the best of five so that a disturbance does not count.
fn time(proof: &Proof) -> f64 {
    let round = || {
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            black_box(proof.verdict());
        }
        begin.elapsed().as_nanos() as f64 / ROUNDS as f64
    };
    (0..5).map(|_| round()).fold(f64::INFINITY, f64::min)
}
