//! The command line of `hermes`.

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::demo;
use super::failure::Failure;
use super::span;
use crate::error::Exit;
use crate::serve::settings::{Options, Settings};
use crate::serve::{self, ServeError};
use crate::work::shim;

/// A backend child that proves it is idle.
#[derive(Debug, Parser)]
#[command(name = "hermes", version, disable_help_subcommand = true)]
pub struct Hermes {
    /// Serve the profile of this name: its home is $HERMES_HOME/profiles/NAME.
    #[arg(long, short, global = true, value_name = "NAME")]
    profile: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run one backend child until it is told to go.
    Serve {
        /// A loopback address to listen on.
        #[arg(long, default_value = "127.0.0.1")]
        host: String,
        /// The port to listen on; 0 takes any free one.
        #[arg(long, default_value_t = 9119)]
        port: u16,
        /// The agent: run once a turn, the prompt on its standard input. Split like a shell, never run by one.
        #[arg(long, value_name = "COMMAND")]
        agent_command: Option<String>,
        /// The longest that a turn may take (500ms, 3s, 2m); no limit by default.
        #[arg(long, value_name = "DUR", value_parser = span::parse)]
        turn_timeout: Option<std::time::Duration>,
    },
    /// Show what this is about: three real children, one of them with a running cron job, asked over both doors.
    Demo,
}

/// Parses, runs, and says how it went.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.next_if(|first| first == shim::VERB).is_some() {
        return exit(shim::main(args));
    }
    let hermes = match Hermes::try_parse() {
        Ok(hermes) => hermes,
        Err(error) => {
            let _ = error.print();
            return exit(error.exit_code());
        }
    };
    log_to_stderr();
    match hermes.verb {
        Verb::Serve { host, port, agent_command, turn_timeout } => {
            serve(Options { profile: hermes.profile, host, port, agent_command, turn_limit: turn_timeout })
        }
        Verb::Demo => demo(),
    }
}

fn demo() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let shown = runtime
        .map_err(|error| Failure::new(Exit::Indeterminate, error.to_string()))
        .and_then(|runtime| runtime.block_on(demo::run()));
    match shown {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(failure) => {
            eprintln!("hermes: {}", failure.message);
            ExitCode::from(failure.exit.code())
        }
    }
}

fn serve(options: Options) -> ExitCode {
    let run = || {
        let settings = Settings::new(options, &|name| std::env::var_os(name))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ServeError::Internal(error.to_string()))?;
        let result = runtime.block_on(serve::run(settings));
        // What still blocks a helper thread must not hold up the exit.
        runtime.shutdown_background();
        result
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hermes: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Everything but READY goes to stderr. `HERMES_LOG` is off, error, warn, info, debug or trace.
fn log_to_stderr() {
    let level = std::env::var("HERMES_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level.unwrap_or(tracing::level_filters::LevelFilter::INFO))
        .init();
}
