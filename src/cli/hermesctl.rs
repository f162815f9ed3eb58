//! The command line of `hermesctl`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::answer::Answer;
use super::ask::Ask;
use super::cron::Cron;
use super::failure::Failure;
use super::hold::{Held, Hold};
use super::idle::Idle;
use super::ledger::Ledger;
use super::list::List;
use super::open::{Close, Open};
use super::pool::Pool;
use super::prompts::Prompts;
use super::release::Release;
use super::retire::Retire;
use super::sessions::{Interrupt, Log, Sessions};
use super::submit::{Delegate, Submit};
use super::target::Target;
use crate::error::Exit;

/// Ask backends whether they are idle, and stop the ones that have proved it.
#[derive(Debug, Parser)]
#[command(name = "hermesctl", version, disable_help_subcommand = true)]
pub struct Hermesctl {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Idle(Idle),
    List(List),
    Ledger(Ledger),
    Retire(Retire),
    Hold(Hold),
    Ask(Ask),
    Prompts(Prompts),
    Answer(Answer),
    Release(Release),
    Cron(Cron),
    Submit(Submit),
    Delegate(Delegate),
    Sessions(Sessions),
    Interrupt(Interrupt),
    Log(Log),
    Open(Open),
    Close(Close),
    Pool(Pool),
}

impl Verb {
    fn is_quiet(&self) -> bool {
        matches!(self, Self::Idle(idle) if idle.is_quiet())
    }

    /// The exit code.
    async fn run(self, target: &Target) -> Result<u8, Failure> {
        let exit = match self {
            Self::Idle(idle) => idle.run(target).await?,
            Self::List(list) => list.run()?,
            Self::Ledger(ledger) => ledger.run(target).await?,
            Self::Retire(retire) => retire.run(target).await?,
            Self::Ask(ask) => return ask.run(target).await,
            Self::Prompts(prompts) => prompts.run(target).await?,
            Self::Answer(answer) => answer.run(target).await?,
            Self::Release(release) => release.run(target).await?,
            Self::Cron(cron) => cron.run(target)?,
            Self::Submit(submit) => submit.run(target).await?,
            Self::Delegate(delegate) => delegate.run(target).await?,
            Self::Sessions(sessions) => sessions.run(target).await?,
            Self::Interrupt(interrupt) => interrupt.run(target).await?,
            Self::Log(log) => log.run(target).await?,
            Self::Open(open) => open.run(target).await?,
            Self::Close(close) => close.run(target).await?,
            Self::Pool(pool) => pool.run(target).await?,
            Self::Hold(hold) => match hold.run(target).await? {
                Held::Exit(exit) => exit,
                Held::Code(code) => return Ok(code),
            },
        };
        Ok(exit.code())
    }
}

/// Parses, runs, and says how it went.
pub fn main() -> ExitCode {
    let hermesctl = match Hermesctl::try_parse() {
        Ok(hermesctl) => hermesctl,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.code()));
        }
    };
    let quiet = hermesctl.verb.is_quiet();
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Indeterminate, error.to_string()))
        .and_then(|runtime| runtime.block_on(hermesctl.verb.run(&hermesctl.target)));
    ExitCode::from(outcome.unwrap_or_else(|failure| {
        if !quiet {
            eprintln!("hermesctl: {}", failure.message);
        }
        failure.exit.code()
    }))
}
