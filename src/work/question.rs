//! Questions to a person: open until answered, declined, timed out, or withdrawn by the asker's end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clock::Moment;
use crate::fence::Admission;
use crate::handler::millis;
use crate::ledger::{Guard, Ledgers};
use crate::protocol::{AnswerText, Event, Fault, FaultKind, LedgerKind, Question, QuestionKind};
use crate::secret::random_hex;

/// A question is at most so long, and so is an answer.
pub const MAX_TEXT: usize = 16 * 1024;

/// So many questions may be open.
pub const MAX_OPEN: usize = 256;

/// So many choices a question has.
const MAX_CHOICES: usize = 32;

/// So many answered ones are remembered, so that a second answer is told so.
const REMEMBERED: usize = 256;

/// The open questions of a child. Clones are handles to the same ones.
#[derive(Clone, Default)]
pub struct Questions {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By number, so that the oldest comes first.
    open: BTreeMap<u64, Open>,
    next: u64,
    /// The ids that were answered last.
    answered: Vec<String>,
}

struct Open {
    id: String,
    kind: QuestionKind,
    text: String,
    choices: Vec<String>,
    since: Moment,
    answer: oneshot::Sender<Option<AnswerText>>,
}

impl Questions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a question.
    ///
    /// # Errors
    /// It is too long, or too many are open.
    pub fn ask(
        &self,
        ledgers: &Ledgers,
        admission: &Admission,
        kind: QuestionKind,
        text: String,
        choices: Vec<String>,
        limit: Option<Duration>,
    ) -> Result<Asked, Fault> {
        let invalid = |message: String| Fault::new(FaultKind::Invalid, message);
        if text.trim().is_empty() || text.len() > MAX_TEXT {
            return Err(invalid(format!("a question has 1 to {MAX_TEXT} bytes; this one has {}", text.len())));
        }
        if choices.len() > MAX_CHOICES || choices.iter().any(|choice| choice.is_empty() || choice.len() > 256) {
            return Err(invalid(format!("a question has at most {MAX_CHOICES} choices of 1 to 256 bytes")));
        }
        let id = random_hex::<6>().map_err(|error| Fault::new(FaultKind::Unavailable, error.to_string()))?;
        let id = format!("srq-{id}");
        let mut state = self.state();
        if state.open.len() >= MAX_OPEN {
            return Err(Fault::new(FaultKind::TooMany, format!("{MAX_OPEN} questions are open: answer some first")));
        }
        let first_line: String = text.lines().next().unwrap_or_default().chars().take(80).collect();
        let guard = ledgers.enter(admission, LedgerKind::HumanInput, &id, &format!("{}: {first_line}", kind.name()));
        let (answer, answered) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        let since = ledgers.clock().now();
        state.open.insert(number, Open { id: id.clone(), kind, text, choices, since, answer });
        Ok(Asked { questions: self.clone(), number, id, answered, limit, stage: Stage::New, _guard: guard })
    }

    /// Every open question, oldest first.
    pub fn open(&self, ledgers: &Ledgers) -> Vec<Question> {
        let now = ledgers.clock().now();
        let shown = |open: &Open| Question {
            id: open.id.clone(),
            kind: open.kind,
            text: open.text.clone(),
            choices: open.choices.clone(),
            age_ms: millis(now.since(open.since)),
        };
        // A reply must fit into a frame, however many long ones are open.
        let mut room = crate::codec::MAX_FRAME / 2;
        let fits = |question: &Question| {
            let size = question.text.len() + question.choices.iter().map(String::len).sum::<usize>() + 256;
            room = room.saturating_sub(size);
            room > 0
        };
        self.state().open.values().map(shown).take_while(fits).collect()
    }

    /// Answers one; the first answer wins.
    ///
    /// # Errors
    /// It is not open (any more), or the answer is none of the choices.
    pub fn answer(&self, id: &str, answer: Option<AnswerText>) -> Result<(), Fault> {
        let mut state = self.state();
        let Some((&number, open)) = state.open.iter().find(|(_, open)| open.id == id) else {
            return Err(match state.answered.iter().any(|answered| answered == id) {
                true => Fault::new(FaultKind::Conflict, format!("{id} was answered already: the first answer counts")),
                false => Fault::new(FaultKind::NotFound, format!("no question {id} is open: see hermesctl prompts")),
            });
        };
        if let Some(text) = &answer {
            if text.expose().len() > MAX_TEXT {
                return Err(Fault::new(FaultKind::Invalid, format!("an answer has at most {MAX_TEXT} bytes")));
            }
            if !open.choices.is_empty() && !open.choices.iter().any(|choice| choice == text.expose()) {
                let message = format!("{id} takes one of: {}", open.choices.join(", "));
                return Err(Fault::new(FaultKind::Invalid, message));
            }
        }
        if let Some(open) = state.open.remove(&number) {
            state.answered.push(id.to_owned());
            let surplus = state.answered.len().saturating_sub(REMEMBERED);
            state.answered.drain(..surplus);
            // An asker that has gone meanwhile needs no answer.
            let _ = open.answer.send(answer);
        }
        Ok(())
    }
}

/// An open question, held by its asker: dropped, it is withdrawn.
pub struct Asked {
    questions: Questions,
    number: u64,
    id: String,
    answered: oneshot::Receiver<Option<AnswerText>>,
    limit: Option<Duration>,
    stage: Stage,
    _guard: Guard,
}

#[derive(PartialEq, Eq)]
enum Stage {
    New,
    Waiting,
    Over,
}

impl Asked {
    /// First that it is open, then the answer.
    ///
    /// # Errors
    /// Nobody answered in time.
    pub async fn next(&mut self) -> Result<Option<Event>, Fault> {
        match self.stage {
            Stage::New => {
                self.stage = Stage::Waiting;
                return Ok(Some(Event::Asked { id: self.id.clone() }));
            }
            Stage::Over => return Ok(None),
            Stage::Waiting => {}
        }
        let answer = match self.limit {
            None => (&mut self.answered).await,
            Some(limit) => match timeout(limit, &mut self.answered).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.stage = Stage::Over;
                    return Err(Fault::new(FaultKind::TimedOut, "nobody answered in time"));
                }
            },
        };
        self.stage = Stage::Over;
        Ok(Some(Event::Answered { answer: answer.unwrap_or(None) }))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.questions.state().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn ask(questions: &Questions, ledgers: &Ledgers, choices: &[&str]) -> Asked {
        let choices = choices.iter().map(|choice| (*choice).to_owned()).collect();
        let admission = ledgers.admit().unwrap();
        questions.ask(ledgers, &admission, QuestionKind::Clarify, "Which?".into(), choices, None).unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_first_answer_wins_and_the_second_is_told_so() {
        let (questions, ledgers) = (Questions::default(), Ledgers::new(Clock::manual()));
        let mut asked = ask(&questions, &ledgers, &["a", "b"]);
        let id = questions.open(&ledgers)[0].id.clone();
        assert!(id.len() == 16 && id.starts_with("srq-"));
        assert_eq!(asked.next().await.unwrap(), Some(Event::Asked { id: id.clone() }));
        let kind = |answer: &str| questions.answer(&id, Some(AnswerText::new(answer))).map_err(|fault| fault.kind);
        assert_eq!(kind("c"), Err(FaultKind::Invalid));
        assert_eq!(kind("b"), Ok(()));
        assert_eq!(kind("a"), Err(FaultKind::Conflict));
        assert_eq!(asked.next().await.unwrap(), Some(Event::Answered { answer: Some(AnswerText::new("b")) }));
        assert_eq!(questions.answer("srq-000000000000", None).unwrap_err().kind, FaultKind::NotFound);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_asker_that_goes_withdraws_its_question() {
        let (questions, ledgers) = (Questions::default(), Ledgers::new(Clock::manual()));
        let asked = ask(&questions, &ledgers, &[]);
        assert_eq!(ledgers.count(LedgerKind::HumanInput), Ok(1));
        drop(asked);
        assert!(questions.open(&ledgers).is_empty());
        assert_eq!(ledgers.count(LedgerKind::HumanInput), Ok(0));
    }
}
