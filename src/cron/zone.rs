//! The zone that schedules are read in: `HERMES_TIMEZONE`, else `timezone` of the home's config.yaml, else the system's.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use jiff::tz::TimeZone;

/// Only the beginning of a configuration is looked at.
const MAX_CONFIG: u64 = 64 * 1024;

/// The zone of a home, looked up when a time is first written or read: finding it means reading through the system's
/// zones, which a child without jobs or turns has no need of.
#[derive(Debug, Clone)]
pub struct Zone {
    home: PathBuf,
    found: Arc<OnceLock<TimeZone>>,
}

impl Zone {
    /// The zone of a home; nothing is looked up.
    pub fn of(home: &Path) -> Self {
        Self { home: home.to_owned(), found: Arc::default() }
    }

    /// The zone.
    pub fn get(&self) -> &TimeZone {
        self.found.get_or_init(|| {
            let (zone, warning) = configured_zone(&self.home, std::env::var("HERMES_TIMEZONE").ok().as_deref());
            if let Some(warning) = warning {
                tracing::warn!(warning, "the configured time zone cannot be used");
            }
            zone
        })
    }
}

/// The zone, and what is wrong with the configured one if it cannot be used.
pub fn configured_zone(home: &Path, from_env: Option<&str>) -> (TimeZone, Option<String>) {
    let from_env = from_env.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let Some(name) = from_env.or_else(|| from_config(home)) else { return (TimeZone::system(), None) };
    match TimeZone::get(&name) {
        Ok(zone) => (zone, None),
        Err(error) => (TimeZone::system(), Some(format!("{name}: {error}"))),
    }
}

/// One scalar at the top level: a line of its own in any YAML that people write, so no YAML reader is needed for it.
fn from_config(home: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(home.join("config.yaml")).ok()?.take(MAX_CONFIG).read_to_string(&mut text).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("timezone:"))?;
    let value = value.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!value.is_empty() && value != "null").then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_comes_before_the_file_and_a_bad_zone_is_told() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("config.yaml"), "a: 1\ntimezone: \"Asia/Kolkata\" # here\n").unwrap();
        let name = |env| configured_zone(home.path(), env).0.iana_name().map(str::to_owned);
        assert_eq!(name(None).as_deref(), Some("Asia/Kolkata"));
        assert_eq!(name(Some("Europe/London")).as_deref(), Some("Europe/London"));
        assert!(configured_zone(home.path(), Some("Mars/Olympus")).1.is_some());
    }
}
