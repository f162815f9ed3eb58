//! When the jobs of profiles that are not up are due. Their files say it; they are read again when they change, and when a
//! profile's child has gone. Nothing is polled. Accepted prompts that no child has run are due at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::child::{Nursery, profiles};
use crate::clock::Clock;
use crate::cron::claim::ALIVE;
use crate::cron::store::Store;
use crate::cron::zone::Zone;
use crate::folder_watch::{FolderWatch, LOOK_AGAIN, Names};
use crate::work::journal::Journal;

/// The next due instants of each profile that is not up and has one.
pub type NextDue = BTreeMap<Arc<str>, BTreeSet<Timestamp>>;

/// So many of a profile are known, the soonest.
const INSTANTS: usize = 64;

/// Follows the job files of everybody who is not in `up`, and tells what they say.
pub async fn follow(nursery: Nursery, mut up: watch::Receiver<BTreeSet<Arc<str>>>, told: mpsc::Sender<NextDue>) {
    let mut prompts = Prompts { matter: nursery.has_agent(), ..Prompts::default() };
    loop {
        let awake = up.borrow_and_update().clone();
        let asleep: Vec<(Arc<str>, PathBuf)> = profiles(&nursery.root)
            .into_iter()
            .filter(|profile| !awake.contains(profile.as_str()))
            .map(|profile| (Arc::from(profile.as_str()), nursery.home(&profile)))
            .collect();
        // Watched before they are read, so that nothing is missed in between.
        let folders = watched(&nursery.root, &asleep);
        let mut watch = FolderWatch::over(&folders);
        let Ok((next, known)) = spawn_blocking(move || (look(&asleep, &mut prompts), prompts)).await else { return };
        prompts = known;
        if told.send(next).await.is_err() {
            return;
        }
        let changed = async {
            match &mut watch {
                Ok(watch) => watch.changed().await,
                // One of the folders went while we looked.
                Err(_) => sleep(LOOK_AGAIN).await,
            }
        };
        tokio::select! {
            () = changed => {}
            changed = up.changed() => if changed.is_err() { return },
        }
    }
}

/// jobs.json in every `cron` folder; where there is none, the home, for the folder; and whatever becomes a profile.
fn watched(root: &Path, asleep: &[(Arc<str>, PathBuf)]) -> Vec<(PathBuf, Names)> {
    let own = root.join("profiles");
    let mut folders = match own.is_dir() {
        true => vec![(own, Names::All)],
        false => vec![(root.to_owned(), Names::of(&[&own]))],
    };
    for (_, home) in asleep {
        let cron = home.join("cron");
        match cron.is_dir() {
            true => folders.extend(Store::new(cron).watched()),
            false if home.is_dir() => folders.push((home.clone(), Names::of(&[&cron]))),
            false => {}
        }
    }
    folders
}

/// Blocking. A file that cannot be read is nobody's business but its own backend's, which says so when it is up.
fn look(asleep: &[(Arc<str>, PathBuf)], prompts: &mut Prompts) -> NextDue {
    let now = Clock::system().wall();
    let jobs = |home: &PathBuf| {
        let store = Store::new(home.join("cron"));
        store.stamp()?;
        Some(store.look(now, Zone::of(home).get(), ALIVE).ok()?.plan.instants)
    };
    let due = asleep.iter().map(|(profile, home)| {
        let instants = jobs(home).unwrap_or_default().into_iter().chain(prompts.since(home));
        (Arc::clone(profile), instants.collect::<BTreeSet<_>>().into_iter().take(INSTANTS).collect::<BTreeSet<_>>())
    });
    due.filter(|(_, instants)| !instants.is_empty()).collect()
}

/// Homes in whose journals accepted prompts wait, as far as known.
#[derive(Default)]
struct Prompts {
    /// There is an agent to run them.
    matter: bool,
    /// A journal that has not changed is not read again.
    known: BTreeMap<PathBuf, (Timestamp, bool)>,
}

impl Prompts {
    /// Blocking. Since when, at the latest, prompts wait in this home.
    fn since(&mut self, home: &Path) -> Option<Timestamp> {
        let journal = Journal::of(home);
        let changed = self.matter.then(|| journal.changed()).flatten()?;
        let known = self.known.get(home).filter(|(then, _)| *then == changed);
        let waits = known.map_or_else(|| journal.waits(), |(_, waits)| *waits);
        self.known.insert(home.to_owned(), (changed, waits));
        waits.then_some(changed)
    }
}
