//! A command that looks whether an action was done.

use std::process::Stdio;

use coord_core::async_trait;
use coord_core::effects::{Finding, Inquiry, Probe, ProbeError, limits};
use tokio::io::AsyncReadExt as _;

use super::command::{KillOnDrop, find_program};
use crate::failure::Failure;
use crate::process::Group;

/// The exit code of a probe that says: not done, and never will be. Not 1, nor anything else that a program ends with that fails without meaning
/// to say something: that would be believed, and the action done again.
const NOT_APPLIED: i32 = 10;

/// A probe that is a command.
#[derive(Debug)]
pub(super) struct CommandProbe {
    argv: Vec<String>,
}

impl CommandProbe {
    pub(super) fn new(argv: Vec<String>) -> Result<Self, Failure> {
        find_program(argv.first().map(String::as_str).unwrap_or_default()).map_err(Failure::usage)?;
        Ok(CommandProbe { argv })
    }
}

#[async_trait]
impl Probe for CommandProbe {
    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
        let [program, args @ ..] = self.argv.as_slice() else { return Ok(Finding::Unknown) };
        let mut child = tokio::process::Command::new(program)
            .args(args)
            .env("COORD_KEY", inquiry.action.key.as_str())
            .env("COORD_RESOURCE", inquiry.action.resource.as_str())
            .env("COORD_FENCE", inquiry.fence.to_string())
            .env("COORD_SEALING_FENCE", inquiry.sealing_fence().to_string())
            .env("COORD_DOWNSTREAM_KEY", &inquiry.downstream_key)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        // Whoever gives up waiting drops this, and what the probe has started goes with it.
        let _group =
            child.id().and_then(|id| i32::try_from(id).ok()).and_then(Group::from_raw).map(KillOnDrop);
        let mut result = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(limits::RESULT_BYTES as u64 + 1).read_to_end(&mut result).await?;
        }
        if result.len() > limits::RESULT_BYTES {
            return Err(format!("the probe printed more than {} bytes", limits::RESULT_BYTES).into());
        }
        let status = child.wait().await?;
        // Only its name is kept in the history: its arguments may hold what is not for everybody.
        let shown = program;
        Ok(match status.code() {
            Some(0) => Finding::applied(result, format!("the probe `{shown}` found it done")),
            Some(NOT_APPLIED) => {
                let said = String::from_utf8_lossy(&result);
                Finding::not_applied(format!("the probe `{shown}` found it not done: {}", said.trim()))
            }
            _ => Finding::Unknown,
        })
    }
}
