//! Rules of the source tree that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

const MOST_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a folder, with its path from the package's root.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

/// Lines that are not wholly a comment, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Where one of these words stands in code of `src/`, outside one file.
fn named_outside(file: &str, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources("src") {
        if path == Path::new(file) {
            continue;
        }
        for (number, line) in code(&text) {
            if words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    found
}

const NOTHING: [String; 0] = [];

#[test]
fn no_source_file_is_too_long() {
    let long: Vec<String> = sources("src")
        .iter()
        .filter(|(_, text)| text.lines().count() > MOST_LINES)
        .map(|(path, text)| format!("{}: {} lines", path.display(), text.lines().count()))
        .collect();
    assert_eq!(long, NOTHING);
}

#[test]
fn only_the_codec_names_bincode() {
    assert_eq!(named_outside("src/codec.rs", &["bincode"]), NOTHING);
}

#[test]
fn only_the_clock_asks_for_the_time() {
    let words = ["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now"];
    assert_eq!(named_outside("src/clock.rs", &words), NOTHING);
}

#[test]
fn wire_types_use_no_serde_attribute_that_the_codec_cannot_decode() {
    let mut text = fs::read_to_string(root().join("src/protocol.rs")).expect("src/protocol.rs");
    sources("src/protocol").iter().for_each(|(_, more)| text.push_str(more));
    let text: String = code(&text).map(|(_, line)| format!("{line}\n")).collect();
    let mut forbidden = Vec::new();
    for attribute in text.split("serde(").skip(1) {
        let attribute = attribute.split(']').next().unwrap_or_default();
        if ["tag", "untagged", "flatten", "skip"].iter().any(|word| attribute.contains(word)) {
            forbidden.push(attribute.to_owned());
        }
    }
    assert_eq!(forbidden, NOTHING);
}

#[test]
fn what_decides_knows_no_runtime_and_no_clock_of_its_own() {
    let pure = ["attempts", "coordinator", "room", "queue", "slot", "crash", "marks", "event", "view"];
    let mut pure: Vec<PathBuf> = pure.iter().map(|name| PathBuf::from(format!("src/pool/{name}.rs"))).collect();
    pure.extend(["src/backoff.rs", "src/fence.rs", "src/verdict.rs", "src/cron/plan.rs"].map(PathBuf::from));
    let mut found = Vec::new();
    for path in pure {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let words = ["tokio", "Clock", "std::fs", "std::env"];
        let named = code(&text).filter(|(_, line)| words.iter().any(|word| line.contains(word)));
        found.extend(named.map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim())));
    }
    assert_eq!(found, NOTHING);
}

#[test]
fn no_module_is_named_for_what_it_is_not() {
    let vague = ["util", "utils", "helper", "helpers", "manager", "misc", "common"];
    let mut found = Vec::new();
    for (path, text) in sources("src") {
        let named = |part: &str| vague.contains(&part);
        let parts = path.with_extension("");
        if parts.components().any(|part| part.as_os_str().to_str().is_some_and(named)) {
            found.push(path.display().to_string());
        }
        for (number, line) in code(&text) {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).skip_while(|word| *word != "mod");
            if words.nth(1).is_some_and(named) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert_eq!(found, NOTHING);
}

#[test]
fn every_file_of_these_tests_is_declared() {
    let main = fs::read_to_string(root().join("tests/it/main.rs")).unwrap();
    let forgotten: Vec<String> = sources("tests/it")
        .iter()
        .filter(|(path, _)| path.parent() == Some(Path::new("tests/it")))
        .filter_map(|(path, _)| path.file_stem()?.to_str().map(str::to_owned))
        .filter(|name| name != "main" && !main.lines().any(|line| line.trim() == format!("mod {name};")))
        .collect();
    assert_eq!(forgotten, NOTHING);
}

#[test]
fn the_binaries_are_thin() {
    for (path, text) in sources("src/bin") {
        assert!(text.lines().count() <= 80, "{}: parse, run, exit code", path.display());
    }
}
