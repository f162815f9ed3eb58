//! `hermesctl`: a person's tool for backends.
use std::process::ExitCode;

fn main() -> ExitCode {
    hermes::cli::hermesctl::main()
}
