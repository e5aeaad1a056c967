//! `coord history`.

use coord_core::board::{Event, State, TaskId, Verb};
use serde_json::{Value, json};

use crate::args::HistoryArgs;
use crate::definition::Ended;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};

/// `coord history`.
pub(crate) async fn run(args: &HistoryArgs) -> Result<u8, Failure> {
    let id = TaskId::new(&args.id)?;
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let history = opened.board.history(&id).await?;
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(),
            "id": id.as_str(),
            "events": history.events.iter().map(event_json).collect::<Vec<_>>(),
            "dropped": history.dropped,
            "damaged": history.damaged,
        })),
        Format::Text => {
            if history.damaged {
                output::line(
                    "what happened before is not known: its record was damaged, or there was none yet",
                );
            }
            if history.dropped > 0 {
                output::line(&format!(
                    "{} before these are not kept",
                    output::count(history.dropped, "event")
                ));
            }
            for event in &history.events {
                output::line(&format!("{}  {}", event.at, output::clean(&told(event))));
            }
        }
    }
    Ok(exit::OK)
}

fn event_json(event: &Event) -> Value {
    let name =
        |agent: &Option<coord_core::board::AgentId>| agent.as_ref().map(|agent| agent.as_str().to_owned());
    json!({
        "at": event.at.to_string(),
        "verb": event.verb.as_str(),
        "state": event.state.as_str(),
        "by": name(&event.by),
        "from": name(&event.from),
        "fence": event.fence,
        "attempts": event.attempts,
        "text": event.text,
    })
}

/// An event in words.
fn told(event: &Event) -> String {
    let by = event.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let attempt = event.attempts;
    let what = match (event.verb, &event.from) {
        (Verb::Add, _) => "added".to_owned(),
        (Verb::SetDeps, _) => "dependencies changed".to_owned(),
        (Verb::Claim, Some(from)) if event.state == State::Claimed => {
            format!("taken over{by} from {from}, fence {}, attempt {attempt}", event.fence)
        }
        (Verb::Claim, _) if event.state == State::Claimed => {
            format!("claimed{by}, fence {}, attempt {attempt}", event.fence)
        }
        // The claim that found no attempt left.
        (Verb::Claim, _) => format!("{}, found{by}", event.state),
        (Verb::Release, _) => format!("given back{by}"),
        (Verb::Complete, _) => format!("done{by}, attempt {attempt}"),
        (Verb::Fail, _) if event.state == State::Open => {
            format!("attempt {attempt} failed{by}, is tried again")
        }
        (Verb::Fail, _) => format!("failed{by}, attempt {attempt}"),
        (Verb::Cancel, Some(from)) => format!("cancelled, was held by {from}"),
        (Verb::Cancel, None) => "cancelled".to_owned(),
        (Verb::Reopen, _) => "opened again".to_owned(),
        (Verb::Revoke, Some(from)) => format!("taken from {from} by an operator"),
        (Verb::Archive, _) => "a dependency was archived".to_owned(),
        (Verb::Skip, _) => "skipped: it can never run".to_owned(),
        (verb, _) => format!("{verb}{by}"),
    };
    // What commands end with is kept as a document.
    let outcome = coord_core::board::Outcome::truncated(&event.text);
    let text = Ended::from_outcome(&outcome).map_or_else(|| event.text.clone(), |ended| ended.to_string());
    if text.is_empty() { what } else { format!("{what}: {text}") }
}
