//! How actions are shown: tables for people, documents for programs.

use coord_core::effects::{ActionState, ActionStatus, Evidence, Replay, Transition};
use serde_json::{Value, json};

use super::kept::Kept;
use crate::output;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An action as a document.
pub(super) fn action_json(status: &ActionStatus) -> Value {
    let uncertain = status.uncertain.as_ref().map(|uncertain| {
        json!({
            "episode": uncertain.episode.to_string(), "since": uncertain.since.to_string(),
            "reason": uncertain.reason.as_str(),
            "reconciling_until": uncertain.reconciling_until.map(|until| until.to_string()),
        })
    });
    let completed = status.completed.as_ref().map(|completed| {
        json!({
            "at": completed.at.to_string(), "bytes": completed.len, "sha256": hex(&completed.digest),
            "kept": completed.kept, "maybe_twice": completed.maybe_twice,
        })
    });
    json!({
        "key": status.action.key.as_str(), "resource": status.action.resource.as_str(),
        "state": status.state, "since": status.since.to_string(), "agent": status.agent.as_str(),
        "fence": status.fence, "hold_until": status.hold_until.map(|until| until.to_string()),
        "attempts": status.attempts, "uncertain": uncertain, "completed": completed,
        "maybe_applied": status.maybe_applied, "evidence": status.evidence,
        "downstream_key": status.downstream_key,
    })
}

/// The kept result as a document.
pub(super) fn result_json(replay: Option<&Replay>) -> Value {
    match replay {
        Some(Replay::Result(result)) => {
            let kept = Kept::decode(result);
            json!({
                "exit": kept.exit, "stdout": String::from_utf8_lossy(&kept.stdout),
                "stderr": String::from_utf8_lossy(&kept.stderr),
            })
        }
        _ => Value::Null,
    }
}

pub(super) fn transition_json(transition: &Transition) -> Value {
    json!({
        "at": transition.at.to_string(), "kind": transition.kind, "agent": transition.agent.as_str(),
        "fence": transition.fence, "note": transition.note.as_str(),
    })
}

pub(super) fn evidence_json(evidence: &Evidence) -> Value {
    json!({
        "fence": evidence.fence, "at": evidence.at.to_string(), "bytes": evidence.len,
        "sha256": hex(&evidence.digest),
        "result": evidence.result.as_ref().map(|result| result_json(Some(&Replay::Result(result.clone())))),
    })
}

fn style(state: ActionState) -> console::Style {
    match state {
        ActionState::Completed => console::Style::new().green(),
        ActionState::InFlight => console::Style::new().cyan(),
        ActionState::Idle => console::Style::new().dim(),
        _ => console::Style::new().red(),
    }
}

/// What is to be said of an action besides its state and key.
fn remark(status: &ActionStatus) -> String {
    let mut facts = vec![format!("since {}", status.since)];
    if status.action.resource.as_str() != status.action.key.as_str() {
        facts.push(format!("on {}", status.action.resource));
    }
    facts.push(format!("by {} (fence {})", status.agent, status.fence));
    if let Some(uncertain) = &status.uncertain {
        facts.push(uncertain.reason.to_string());
    }
    if status.completed.as_ref().is_some_and(|completed| completed.maybe_twice) {
        facts.push("maybe done twice".to_owned());
    }
    facts.join("; ")
}

/// A line for each action.
pub(super) fn table(actions: &[ActionStatus]) -> String {
    let width = actions.iter().map(|status| output::width(status.action.key.as_str())).max();
    let width = width.unwrap_or(0).clamp(2, 50);
    let mut text = String::new();
    for status in actions {
        let state = style(status.state).apply_to(output::pad(status.state.as_str(), 9));
        let key = output::pad(status.action.key.as_str(), width);
        text.push_str(format!("{state} {key}  {}", output::fit(&remark(status), 140)).trim_end());
        text.push('\n');
    }
    text
}

/// Everything that is known of an action.
pub(super) fn facts(status: &ActionStatus) -> String {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("{name:<12} {}", output::clean(&value)));
        }
    };
    fact("key", status.action.key.to_string());
    fact("resource", status.action.resource.to_string());
    fact("state", format!("{} since {}", status.state, status.since));
    if let Some(uncertain) = &status.uncertain {
        fact("why", uncertain.reason.to_string());
        fact("episode", uncertain.episode.to_string());
        if let Some(until) = uncertain.reconciling_until {
            fact("looked into", format!("until {until}"));
        }
    }
    fact("last tried by", format!("{} (fence {})", status.agent, status.fence));
    if let Some(until) = status.hold_until {
        fact("hold", format!("until {until}"));
    }
    fact("attempts", status.attempts.to_string());
    if status.maybe_applied {
        fact("beware", "an earlier attempt may have been done".to_owned());
    }
    if let Some(completed) = &status.completed {
        let kept = if completed.kept { "" } else { ", no longer kept" };
        fact("result", format!("{} bytes{kept}, sha256 {}", completed.len, hex(&completed.digest)));
        if completed.maybe_twice {
            fact("beware", "it may have been done more than once; its history shows why".to_owned());
        }
    }
    if status.evidence > 0 {
        fact("evidence", format!("{}; its history shows it", output::count(status.evidence, "late result")));
    }
    fact("downstream key", status.downstream_key.clone());
    lines.push(String::new());
    lines.join("\n")
}
