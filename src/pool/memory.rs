//! How much memory a child's process tree takes: its share of everything (PSS), or its resident set where that cannot be
//! read. Linux only; elsewhere nothing is known, and a budget holds nobody back.

use crate::work::group;

/// The bytes of a process and all that descend from it; `None` if that cannot be told.
pub fn of_tree(pid: u32) -> Option<u64> {
    let all = group::processes().ok()?.all;
    let (mut tree, mut next) = (vec![pid], 0);
    while let Some(parent) = tree.get(next).copied() {
        next += 1;
        tree.extend(all.iter().filter(|process| process.parent == parent).map(|process| process.pid));
    }
    // The root must be readable; what else has just gone takes nothing.
    let root = of_one(pid)?;
    Some(tree.into_iter().skip(1).filter_map(of_one).fold(root, u64::saturating_add))
}

fn of_one(pid: u32) -> Option<u64> {
    let read = |file: &str, key: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    read("smaps_rollup", "Pss:").or_else(|| read("status", "VmRSS:"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn we_take_some_and_nobody_takes_none() {
        assert!(of_tree(std::process::id()).unwrap() > 100_000);
        assert_eq!(of_tree(4_000_000), None);
    }
}
