//! `hermes`: the backend child.
use std::process::ExitCode;

fn main() -> ExitCode {
    hermes::cli::hermes::main()
}
