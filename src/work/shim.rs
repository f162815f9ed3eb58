//! The gate before exec. `hermes` starts itself as a shim, which leads a session of its own and then waits for a word on its
//! standard input. Only when the run is on record on disk does it come, and the shim becomes the program. If the child dies
//! before that, the input ends without it and nothing ever ran.
//!
//! The word names the file that the program reads, and is empty if there is none.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

/// The hidden first argument that turns `hermes` into a shim.
pub const VERB: &str = "__shim";

/// No path holds it.
pub const END_OF_WORD: u8 = 0;

/// Exit code of a shim that was never let through.
pub const NEVER_RAN: i32 = 125;

/// A word is a path, and none is longer.
const MAX_WORD: usize = 4096;

/// Waits at the gate and becomes `command`. Returns only if that failed, with the exit code.
pub fn main(mut command: impl Iterator<Item = OsString>) -> i32 {
    if let Err(error) = nix::unistd::setsid() {
        eprintln!("hermes: cannot lead a session: {error}");
        return NEVER_RAN;
    }
    let (Some(word), Some(program)) = (word(), command.next()) else { return NEVER_RAN };
    if let Err(error) = take_input(Path::new(OsStr::from_bytes(&word))) {
        eprintln!("hermes: cannot read what {} is told: {error}", program.to_string_lossy());
        return NEVER_RAN;
    }
    let error = std::process::Command::new(&program).args(command).exec();
    eprintln!("hermes: cannot run {}: {error}", program.to_string_lossy());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

fn word() -> Option<Vec<u8>> {
    let (mut word, mut byte) = (Vec::new(), [0]);
    while word.len() <= MAX_WORD {
        match nix::unistd::read(io::stdin(), &mut byte) {
            Ok(1) if byte == [END_OF_WORD] => return Some(word),
            Ok(1) => word.extend_from_slice(&byte),
            _ => return None,
        }
    }
    None
}

fn take_input(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let file = File::open(path)?;
    std::fs::remove_file(path)?;
    Ok(nix::unistd::dup2_stdin(file)?)
}
