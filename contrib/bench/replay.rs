//! Ten days of a busy desktop under four policies, in virtual time: `cargo bench --bench replay`.
//!
//! What happens (who opens what and when, turns, cron jobs, background dials, residents that hang) is drawn once from a seed and
//! is the same for every policy. Three of them are a desktop's usual ones; the fourth is the pool's own coordinator, driven
//! by the events that a real driver would give it. `HERMES_REPLAY_SEED` sets the seed.
//!
//! The pool's own policy must end no work, and let nobody's time run out while a slot could have been free.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "replay/desktop.rs"]
mod desktop;
#[path = "replay/pool.rs"]
mod pool;
#[path = "replay/script.rs"]
mod script;
#[path = "replay/tally.rs"]
mod tally;

use desktop::{Desktop, Policy};
use script::Script;

fn main() {
    let seed = std::env::var("HERMES_REPLAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x5eed);
    println!("seed {seed}; ten days; times are of foreground openings, in seconds");
    let mut sound = true;
    for (profiles, cap) in [(17, 3), (60, 3), (60, 16)] {
        let script = Script::draw(seed, profiles);
        println!("\n{profiles} profiles, {cap} slots, {} openings by a person, {} jobs", script.opens(), script.jobs());
        println!("{}", tally::HEAD);
        for policy in [Policy::Freshness, Policy::ProbeThenStop, Policy::SerialPrepare] {
            println!("{}", Desktop::new(policy, cap, &script).run().row(policy.name()));
        }
        let ours = pool::Pool::new(cap, &script).run();
        sound &= ours.is_sound();
        println!("{}", ours.row("the pool's own"));
    }
    println!(
        "\nThe first three run no job of a profile that is not up: their slots are free for that. The pool runs every one."
    );
    if !sound {
        eprintln!("the pool's own policy ended work, or let a time run out that it could have kept");
        std::process::exit(1);
    }
}
