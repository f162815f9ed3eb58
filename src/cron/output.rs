//! What a run leaves behind: one Markdown file, and one line of history.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;

/// So many output files a job keeps.
pub const KEPT: usize = 50;

/// The history is turned over at this size; one older file is kept.
const MAX_HISTORY: u64 = 1024 * 1024;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Exit 0; what it printed.
    Printed(String),
    /// Exit 0 and nothing to show, and why.
    Silent(&'static str),
    /// It failed; the error.
    Failed(String),
}

/// Who ran, and when.
#[derive(Debug, Clone)]
pub struct Head<'a> {
    /// The job's id, a plain file name.
    pub id: &'a str,
    /// The job's name.
    pub name: &'a str,
    /// How it runs, as a person reads it.
    pub mode: &'a str,
    /// When it ended.
    pub at: Timestamp,
}

/// Writes `output/<id>/<time>.md` (0600, atomically) and prunes the oldest.
///
/// # Errors
/// Those of the file system.
pub fn write(cron: &Path, head: &Head<'_>, zone: &TimeZone, verdict: &Verdict) -> io::Result<()> {
    let folder = cron.join("output").join(head.id);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let time = head.at.to_zoned(zone.clone());
    let mut text = format!(
        "# Cron Job: {}\n\n**Job ID:** {}\n**Run Time:** {}\n**Mode:** {}\n",
        head.name,
        head.id,
        time.strftime("%Y-%m-%d %H:%M:%S"),
        head.mode
    );
    match verdict {
        Verdict::Printed(stdout) => text.push_str(&format!("\n---\n\n{stdout}\n")),
        Verdict::Silent(why) => text.push_str(&format!("**Status:** silent ({why})\n")),
        Verdict::Failed(error) => text.push_str(&format!("**Status:** script failed\n\n{error}\n")),
    }
    let stem = time.strftime("%Y-%m-%d_%H-%M-%S").to_string();
    replace(&folder.join(format!("{stem}.md")), text.as_bytes())?;
    prune(&folder)
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    fs::rename(&temporary, path)
}

fn prune(folder: &Path) -> io::Result<()> {
    let is_output = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut files: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_output).collect();
    // The names are times, so their order is that of age.
    files.sort();
    let surplus = files.len().saturating_sub(KEPT);
    files.into_iter().take(surplus).try_for_each(fs::remove_file)
}

/// One run, for `history.jsonl`.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// The job.
    pub id: &'a str,
    /// When it was due (ISO 8601).
    pub scheduled_for: Option<&'a str>,
    /// When it began (ISO 8601).
    pub started_at: &'a str,
    /// When it ended (ISO 8601).
    pub ended_at: &'a str,
    /// `ok`, `error` or `interrupted`.
    pub status: &'a str,
    /// The exit code, where there was one.
    pub exit_code: Option<i32>,
}

/// Appends one line.
///
/// # Errors
/// Those of the file system.
pub fn remember(cron: &Path, line: &Line<'_>) -> io::Result<()> {
    let path = cron.join("history.jsonl");
    if fs::metadata(&path).is_ok_and(|meta| meta.len() > MAX_HISTORY) {
        fs::rename(&path, cron.join("history.jsonl.1"))?;
    }
    let mut text = json!({
        "id": line.id,
        "scheduled_for": line.scheduled_for,
        "started_at": line.started_at,
        "ended_at": line.ended_at,
        "status": line.status,
        "exit_code": line.exit_code,
    })
    .to_string();
    text.push('\n');
    // One write of one line: appends of several processes do not mix.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_796_000_000 + second).unwrap()
    }

    #[test]
    fn the_oldest_outputs_go() {
        let cron = tempfile::tempdir().unwrap();
        for second in 0..(KEPT as i64 + 3) {
            let head = Head { id: "j", name: "Job", mode: "no_agent (script)", at: at(second) };
            write(cron.path(), &head, &TimeZone::UTC, &Verdict::Printed("hi".into())).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(cron.path().join("output/j"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), KEPT);
        let oldest = at(3).to_zoned(TimeZone::UTC).strftime("%Y-%m-%d_%H-%M-%S.md").to_string();
        assert_eq!(names[0], oldest);
    }

    #[test]
    fn the_file_says_what_came_of_it() {
        let cron = tempfile::tempdir().unwrap();
        let head = Head { id: "j", name: "Job", mode: "no_agent (script)", at: at(0) };
        write(cron.path(), &head, &TimeZone::UTC, &Verdict::Failed("Script exited with code 3".into())).unwrap();
        let file = fs::read_dir(cron.path().join("output/j")).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("# Cron Job: Job\n\n**Job ID:** j\n**Run Time:** "));
        assert!(text.ends_with("**Status:** script failed\n\nScript exited with code 3\n"));
    }
}
