use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use super::*;
use crate::process;
use crate::secret::Token;

fn dir() -> (tempfile::TempDir, RuntimeDir) {
    let temp = tempfile::tempdir().unwrap();
    let dir = RuntimeDir::create(&temp.path().join("run")).unwrap();
    (temp, dir)
}

fn endpoint(pid: u32, marker: &str, names: &Names) -> Endpoint {
    Endpoint {
        pid,
        start_marker: marker.into(),
        generation: "g".into(),
        profile: None,
        home: "/h".into(),
        socket: names.socket.clone(),
        port: Some(1),
        token: Token::new("secret"),
        version: "0".into(),
        kind: None,
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn the_directory_is_found_by_one_rule() {
    let find = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        RuntimeDir::locate(&move |name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.into()))
    };
    assert_eq!(find(&[("HERMES_RUNTIME_DIR", "/a"), ("XDG_RUNTIME_DIR", "/b")]), Path::new("/a"));
    assert_eq!(find(&[("HERMES_RUNTIME_DIR", ""), ("XDG_RUNTIME_DIR", "/b")]), Path::new("/b/hermes"));
    assert!(find(&[]).starts_with("/tmp"));
}

#[test]
fn a_directory_that_is_not_ours_alone_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    RuntimeDir::create(&path).unwrap();
    assert_eq!(mode(&path), 0o700);
    for open in [0o755, 0o770, 0o707, 0o1777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
        assert!(matches!(RuntimeDir::create(&path), Err(DirError::Unsafe { .. })), "{open:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let link = temp.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for spelled in [link.clone(), link.join(""), link.join("."), link.join("./")] {
        assert!(RuntimeDir::create(&spelled).unwrap_err().to_string().contains("symbolic link"), "{spelled:?}");
        assert!(RuntimeDir::open(&spelled).unwrap_err().to_string().contains("symbolic link"), "{spelled:?}");
    }
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(RuntimeDir::create(&file).is_err());
    assert!(matches!(RuntimeDir::open(&temp.path().join("none")), Err(DirError::Missing(_))));
}

#[test]
fn a_path_over_the_limit_is_told_with_both_numbers() {
    let temp = tempfile::tempdir().unwrap();
    let deep = temp.path().join("d".repeat(100));
    let error = RuntimeDir::create(&deep).unwrap().names(temp.path(), Role::Backend).unwrap_err().to_string();
    assert!(error.contains("107") && error.contains("bytes"), "{error}");
}

#[test]
fn a_record_is_ours_alone_and_hides_its_token() {
    let (temp, dir) = dir();
    let names = dir.names(temp.path(), Role::Backend).unwrap();
    let own = std::process::id();
    let written = endpoint(own, &process::start_marker(own).unwrap(), &names);
    written.write(&names.record).unwrap();
    assert_eq!(mode(&names.record), 0o600);
    assert_eq!(Endpoint::read(&names.record).unwrap(), written);
    assert!(!format!("{written:?}").contains("secret"));
    fs::set_permissions(&names.record, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Endpoint::read(&names.record), Err(RecordError::Unsafe(_))));
}

#[test]
fn the_dead_are_swept_and_the_living_and_the_locked_are_not() {
    let (temp, dir) = dir();
    let names = dir.names(temp.path(), Role::Backend).unwrap();
    let _socket = UnixListener::bind(&names.socket).unwrap();
    let own = std::process::id();
    endpoint(own, &process::start_marker(own).unwrap(), &names).write(&names.record).unwrap();
    assert!(matches!(dir.endpoints().as_slice(), [Found::Live(_)]));
    endpoint(own, "linux:0", &names).write(&names.record).unwrap();
    let lock = Lock::take(&names.lock).unwrap();
    assert!(dir.endpoints().is_empty() && names.record.exists(), "somebody is starting here");
    drop(lock);
    assert!(dir.endpoints().is_empty() && !names.record.exists() && !names.socket.exists());
    fs::write(&names.record, "{").unwrap();
    fs::set_permissions(&names.record, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(dir.endpoints().as_slice(), [Found::Bad(RecordError::Unreadable(..))]));
}

#[test]
fn one_lock_a_name() {
    let (temp, dir) = dir();
    let names = dir.names(temp.path(), Role::Backend).unwrap();
    let held = Lock::take(&names.lock).unwrap();
    assert!(matches!(Lock::take(&names.lock), Err(LockError::Held)));
    drop(held);
    assert!(Lock::take(&names.lock).is_ok());
}
