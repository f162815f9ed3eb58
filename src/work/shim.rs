//! The gate before exec. `hermes` starts itself as a shim, which leads a session of its own and then waits for one byte
//! on its standard input. Only when the run is on record on disk does the byte come, and the shim becomes the program. If
//! the child dies before that, the input ends without a byte and nothing ever ran.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;

/// The hidden first argument that turns `hermes` into a shim.
pub const VERB: &str = "__shim";

/// Exit code of a shim that was never let through.
pub const NEVER_RAN: i32 = 125;

/// Waits at the gate and becomes `command`. Returns only if that failed, with the exit code.
pub fn main(mut command: impl Iterator<Item = OsString>) -> i32 {
    if let Err(error) = nix::unistd::setsid() {
        eprintln!("hermes: cannot lead a session: {error}");
        return NEVER_RAN;
    }
    // One byte and no more: what follows on standard input belongs to the program.
    let mut gate = [0_u8; 1];
    match unbuffered_stdin().read(&mut gate) {
        Ok(1) => {}
        _ => return NEVER_RAN,
    }
    let Some(program) = command.next() else { return NEVER_RAN };
    let error = std::process::Command::new(&program).args(command).exec();
    eprintln!("hermes: cannot run {}: {error}", program.to_string_lossy());
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}

fn unbuffered_stdin() -> impl Read {
    struct Stdin;
    impl Read for Stdin {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            nix::unistd::read(io::stdin(), buf).map_err(io::Error::from)
        }
    }
    Stdin
}
