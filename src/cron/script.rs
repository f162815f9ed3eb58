//! What a script job may run, with what, and in which environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::work::spawn::Program;

/// A script job as jobs.json has it.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// The job.
    pub job_id: &'a str,
    /// The path as given.
    pub path: &'a str,
    /// The job's working folder, if it has one.
    pub workdir: Option<&'a str>,
    /// The job's interpreter, if it has one.
    pub interpreter: Option<&'a str>,
}

impl Script<'_> {
    /// The program that runs it, or the sentence that becomes the job's error.
    ///
    /// # Errors
    /// The script lies outside, is missing, or cannot be run.
    pub fn program(&self, home: &Path) -> Result<Program, String> {
        let script = self.resolve(home)?;
        let folder = self.folder(&script);
        let path = self.interpreter(&script)?;
        let env = environment(home, self.job_id);
        Ok(Program { path, args: vec![script.into_os_string()], folder, env })
    }

    /// The real path, symlinks resolved, which must stay inside `scripts/`.
    fn resolve(&self, home: &Path) -> Result<PathBuf, String> {
        let given = self.path.trim();
        if given.contains('\0') {
            return Err(format!("Blocked: script path holds a NUL byte: '{}'", given.escape_debug()));
        }
        let scripts = home.join("scripts");
        let asked = scripts.join(expand_home(given));
        let Ok(scripts) = scripts.canonicalize() else {
            return Err(format!(
                "Script not found: {}. Cron scripts are looked up only in this profile's folder ({}), which does not exist.",
                asked.display(),
                scripts.display()
            ));
        };
        let blocked = || {
            format!("Blocked: script path resolves outside the scripts directory ({}): '{given}'", scripts.display())
        };
        let Ok(real) = asked.canonicalize() else {
            // What does not exist cannot be resolved; where its text leads is enough to call it an escape.
            let escapes = Path::new(given).components().any(|part| part == std::path::Component::ParentDir)
                || (asked.is_absolute() && !asked.starts_with(&scripts) && !asked.starts_with(home.join("scripts")));
            return Err(match escapes {
                true => blocked(),
                false => format!(
                    "Script not found: {}. Cron scripts are looked up only in this profile's folder ({}).",
                    asked.display(),
                    scripts.display()
                ),
            });
        };
        if !real.starts_with(&scripts) {
            return Err(blocked());
        }
        if !real.is_file() {
            return Err(format!("Script is not a regular file: {}", real.display()));
        }
        Ok(real)
    }

    /// `.sh` and `.bash` by bash, everything else by the job's interpreter or python3; the shebang is not used.
    fn interpreter(&self, script: &Path) -> Result<PathBuf, String> {
        if matches!(script.extension().and_then(OsStr::to_str), Some("sh" | "bash")) {
            return Ok(on_path("bash").unwrap_or_else(|| PathBuf::from("/bin/bash")));
        }
        let Some(given) = self.interpreter.map(str::trim).filter(|given| !given.is_empty()) else {
            return on_path("python3").ok_or_else(|| "python3 is not on PATH; set the job's interpreter".to_owned());
        };
        let path = expand_home(given);
        if !path.is_absolute() {
            return Err(format!("interpreter must be an absolute path: '{given}'"));
        }
        match is_executable(&path) {
            true => Ok(path),
            false => Err(format!("interpreter is not an executable file: '{given}'")),
        }
    }

    fn folder(&self, script: &Path) -> PathBuf {
        let own = script.parent().unwrap_or(Path::new("/")).to_owned();
        match self.workdir.map(PathBuf::from) {
            Some(folder) if folder.is_dir() => folder,
            Some(folder) => {
                tracing::warn!(job = self.job_id, folder = %folder.display(), "workdir is gone; running in the script's folder");
                own
            }
            None => own,
        }
    }
}

fn expand_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// The program of a name on PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The child's own environment less what is secret, plus what a job is told. The same whoever triggers the run.
pub fn environment(home: &Path, job_id: &str) -> Vec<(OsString, OsString)> {
    let mut env: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_secret(name)).collect();
    env.retain(|(name, _)| name != "HERMES_HOME");
    env.push(("HERMES_HOME".into(), home.as_os_str().to_owned()));
    env.push(("HERMES_CRON_JOB_ID".into(), job_id.into()));
    env
}

/// Names that bear credentials, ours first; a job that needs one reads it from a file of its own.
pub fn is_secret(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_uppercase();
    let ours = ["HERMES_DASHBOARD_SESSION_TOKEN", "HERMES_CONTROL_TOKEN", "HERMES_PARENT_NONCE"];
    let endings =
        ["_TOKEN", "_API_KEY", "_SECRET", "_SECRET_KEY", "_ACCESS_KEY", "_PASSWORD", "_PASSWD", "_CREDENTIALS"];
    ours.contains(&name.as_str()) || endings.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("scripts")).unwrap();
        fs::write(home.path().join("scripts/a.sh"), "true").unwrap();
        home
    }

    fn program(home: &Path, path: &str, interpreter: Option<&str>) -> Result<Program, String> {
        Script { job_id: "j", path, workdir: None, interpreter }.program(home)
    }

    #[test]
    fn a_script_runs_by_its_ending() {
        let home = home();
        assert!(program(home.path(), "a.sh", Some("/nowhere")).unwrap().path.ends_with("bash"));
        fs::write(home.path().join("scripts/b"), "").unwrap();
        assert!(program(home.path(), "b", Some("/bin/sh")).unwrap().path.ends_with("sh"));
        assert!(program(home.path(), "b", Some("sh")).unwrap_err().contains("absolute"));
    }

    #[test]
    fn a_script_never_leaves_its_folder() {
        let home = home();
        std::os::unix::fs::symlink("/bin/sh", home.path().join("scripts/link.sh")).unwrap();
        for bad in ["../x.sh", "/bin/sh", "link.sh", "../../etc/passwd", "a\0.sh"] {
            assert!(program(home.path(), bad, None).unwrap_err().starts_with("Blocked: "), "{bad}");
        }
        assert!(program(home.path(), "none.sh", None).unwrap_err().starts_with("Script not found: "));
        assert!(program(home.path(), ".", None).unwrap_err().starts_with("Script is not"));
    }

    #[test]
    fn secrets_are_not_inherited() {
        for secret in ["HERMES_CONTROL_TOKEN", "OPENAI_API_KEY", "github_token", "DB_PASSWORD"] {
            assert!(is_secret(OsStr::new(secret)), "{secret}");
        }
        assert!(!is_secret(OsStr::new("PATH")));
    }
}
