//! Who a process is: a pid alone may be somebody else's tomorrow.

/// What tells this process from a later one of the same pid: `linux:<field 22 of /proc/PID/stat>`, elsewhere
/// `ps:<start time>`. `None` if there is no such process.
pub fn start_marker(pid: u32) -> Option<String> {
    #[cfg(target_os = "linux")]
    return crate::work::group::look_up(pid).map(|process| format!("linux:{}", process.started));
    #[cfg(not(target_os = "linux"))]
    {
        let shown = std::process::Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output().ok()?;
        let text = String::from_utf8(shown.stdout).ok()?;
        Some(text.trim()).filter(|text| !text.is_empty()).map(|text| format!("ps:{text}"))
    }
}

/// Whether the process with this pid and marker lives. A zombie is gone.
pub fn alive(pid: u32, marker: &str) -> bool {
    let zombie = crate::work::group::look_up(pid).is_some_and(|process| process.zombie);
    !zombie && start_marker(pid).as_deref() == Some(marker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_live_and_another_start_of_our_pid_does_not() {
        let own = std::process::id();
        let marker = start_marker(own).unwrap();
        assert!(alive(own, &marker));
        assert!(!alive(own, "linux:0"));
    }

    #[test]
    fn a_zombie_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let marker = start_marker(pid).unwrap();
        let deadline = crate::clock::Clock::system();
        let begin = deadline.now();
        while alive(pid, &marker) {
            assert!(deadline.now().since(begin).as_secs() < 5);
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
