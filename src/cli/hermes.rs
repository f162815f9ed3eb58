//! The command line of `hermes`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::demo;
use super::failure::Failure;
use super::log;
use super::size;
use crate::error::Exit;
use crate::pool;
use crate::serve::settings::{Options, Settings, home};
use crate::serve::{self, ServeError};
use crate::span;
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
        turn_timeout: Option<Duration>,
    },
    /// Keep the backends of many profiles: at most so many at once, each stopped only when it has proved that it is idle.
    Pool {
        /// So many backends at most.
        #[arg(long, visible_alias = "max-children", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1024))]
        max: u32,
        /// So much memory at most, of all backends and what they started (512M, 2G).
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        memory_budget: Option<u64>,
        /// An idle backend that nobody has used for so long is retired.
        #[arg(long, value_name = "DUR", default_value = "10m", value_parser = span::parse)]
        idle_stop: Duration,
        /// When the pool is told to stop, busy backends may finish for so long.
        #[arg(long, value_name = "DUR", default_value = "60s", value_parser = span::parse)]
        drain: Duration,
        /// The agent of every backend: as for serve.
        #[arg(long, value_name = "COMMAND")]
        agent_command: Option<String>,
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
    log::to_stderr();
    match hermes.verb {
        Verb::Serve { host, port, agent_command, turn_timeout } => {
            serve(Options { profile: hermes.profile, host, port, agent_command, turn_limit: turn_timeout })
        }
        Verb::Pool { .. } if hermes.profile.is_some() => {
            fail(&ServeError::Usage("a pool keeps all profiles: leave --profile away".to_owned()))
        }
        Verb::Pool { max, memory_budget, idle_stop, drain, agent_command } => {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            let budget = memory_budget.filter(|bytes| *bytes > 0);
            let limits = pool::Settings { max, budget, idle_stop, ..pool::Settings::default() };
            finish(|| {
                let home = home(&|name| std::env::var_os(name))?;
                run(pool::run(pool::Options { home, limits, drain, agent_command }))
            })
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
    finish(|| run(serve::run(Settings::new(options, &|name| std::env::var_os(name))?)))
}

fn run(life: impl Future<Output = Result<(), ServeError>>) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ServeError::Internal(error.to_string()))?;
    let result = runtime.block_on(life);
    // What still blocks a helper thread must not hold up the exit.
    runtime.shutdown_background();
    result
}

fn finish(life: impl FnOnce() -> Result<(), ServeError>) -> ExitCode {
    match life() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &ServeError) -> ExitCode {
    eprintln!("hermes: {error}");
    ExitCode::from(error.exit_code())
}

fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
