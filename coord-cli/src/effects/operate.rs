//! `coord effect`: looking at actions, deciding what nobody knows, retention.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    ActionKey, ActionStatus, EffectError, ListFilter, Note, PurgeRequest, ReconcileReport, Reconciler,
    ReconcilerOptions, Replay, Resolution, ResourceId, limits,
};
use coord_core::{Clock, SystemClock};
use serde_json::json;

use super::args::{
    EffectCommand, EffectLsArgs, EffectStoreArgs, ForgetArgs, KeyArgs, PurgeArgs, ReconcileArgs, ResolveArgs,
};
use super::kept::Kept;
use super::probe::CommandProbe;
use super::shown::{action_json, evidence_json, facts, result_json, table, transition_json};
use crate::control::Signals;
use crate::failure::{Failure, chain, exit};
use crate::output::{self, Format};
use crate::store::Effects;

/// `coord effect`.
pub(crate) async fn run(command: &EffectCommand) -> Result<u8, Failure> {
    match command {
        EffectCommand::Ls(args) => ls(args).await,
        EffectCommand::Show(args) => show_one(args).await,
        EffectCommand::History(args) => history(args).await,
        EffectCommand::Reconcile(args) => reconcile(args).await,
        EffectCommand::Resolve(args) => resolve(args).await,
        EffectCommand::Purge(args) => purge(args).await,
        EffectCommand::Forget(args) => forget(args).await,
    }
}

pub(crate) fn format(command: &EffectCommand) -> Format {
    match command {
        EffectCommand::Ls(args) => args.store.format,
        EffectCommand::Show(args) | EffectCommand::History(args) => args.store.format,
        EffectCommand::Reconcile(args) => args.store.format,
        EffectCommand::Resolve(args) => args.store.format,
        EffectCommand::Purge(args) => args.store.format,
        EffectCommand::Forget(args) => args.store.format,
    }
}

async fn open(args: &EffectStoreArgs) -> Result<Effects, Failure> {
    args.store().existing_effects(&args.namespace).await
}

async fn ls(args: &EffectLsArgs) -> Result<u8, Failure> {
    let effects = open(&args.store).await?;
    let mut filter = match (args.open, args.uncertain, args.overdue) {
        (true, _, _) => ListFilter::default(),
        (_, true, _) => ListFilter::overdue(Duration::ZERO),
        (_, _, Some(age)) => ListFilter::overdue(age),
        _ => ListFilter::all(),
    };
    filter = filter.after(args.after.as_deref().map(key).transpose()?);
    let mut actions: Vec<ActionStatus> = Vec::new();
    let mut damaged: Vec<ActionKey> = Vec::new();
    let mut more = false;
    loop {
        let page = effects.list(&filter).await?;
        damaged.extend(page.damaged);
        actions.extend(page.actions);
        if actions.len() > args.limit {
            actions.truncate(args.limit);
            more = true;
        }
        match page.next {
            Some(next) if !more => filter = filter.after(Some(next)),
            _ => break,
        }
    }
    let next = actions.last().filter(|_| more).map(|status| status.action.key.as_str());
    match args.store.format {
        Format::Json => output::json(&json!({
            "namespace": args.store.namespace.as_str(),
            "actions": actions.iter().map(action_json).collect::<Vec<_>>(), "more": more, "next": next,
            "damaged": names(&damaged),
        })),
        Format::Text => {
            output::text(&table(&actions));
            let more = next.map(|next| format!(", and more: `--after {next}` goes on")).unwrap_or_default();
            let count = output::count(actions.len() as u64, "action");
            output::line(&output::clean(&format!("{count}{more}")));
        }
    }
    Ok(note_damaged(&damaged))
}

/// Says which actions cannot be read. Who asked for all has not got all then.
fn note_damaged(damaged: &[ActionKey]) -> u8 {
    for key in damaged {
        output::note(&output::clean(&format!(
            "error: the records of {key} cannot be read; `coord effect show {key}` says why"
        )));
    }
    if damaged.is_empty() { exit::OK } else { exit::FAILED }
}

fn names(keys: &[ActionKey]) -> Vec<&str> {
    keys.iter().map(ActionKey::as_str).collect()
}

fn key(text: &str) -> Result<ActionKey, Failure> {
    ActionKey::new(text).map_err(|error| Failure::from(error).context("KEY"))
}

fn unknown(key: ActionKey) -> Failure {
    EffectError::NeverAcquired { key }.into()
}

async fn get(effects: &Effects, name: &str) -> Result<ActionStatus, Failure> {
    let key = key(name)?;
    effects.get(&key).await?.ok_or_else(|| unknown(key))
}

async fn show_one(args: &KeyArgs) -> Result<u8, Failure> {
    let effects = open(&args.store).await?;
    let status = get(&effects, &args.key).await?;
    match args.store.format {
        Format::Json => {
            let mut document = action_json(&status);
            document["result"] = result_json(status.replay.as_ref());
            output::json(&document);
        }
        Format::Text => {
            output::text(&facts(&status));
            if let Some(Replay::Result(result)) = &status.replay {
                let kept = Kept::decode(result);
                output::line(&format!("exit code {}, and this output:", kept.exit));
                for stream in [&kept.stderr, &kept.stdout] {
                    for line in String::from_utf8_lossy(stream).lines() {
                        output::line(&format!("  {}", output::clean_line(line)));
                    }
                }
            }
        }
    }
    Ok(exit::OK)
}

async fn history(args: &KeyArgs) -> Result<u8, Failure> {
    let effects = open(&args.store).await?;
    let key = key(&args.key)?;
    let history = effects.history(&key).await?.ok_or_else(|| unknown(key))?;
    match args.store.format {
        Format::Json => {
            let mut document = action_json(&history.status);
            document["transitions"] = history.transitions.iter().map(transition_json).collect();
            document["dropped_transitions"] = history.dropped.into();
            document["evidence"] = history.evidence.iter().map(evidence_json).collect();
            output::json(&document);
        }
        Format::Text => {
            if history.dropped > 0 {
                output::line(&format!(
                    "({} are no longer kept)",
                    output::count(history.dropped, "earlier line")
                ));
            }
            for transition in &history.transitions {
                let note = match transition.note.as_str() {
                    "" => String::new(),
                    note => format!(": {note}"),
                };
                output::line(&output::clean(&format!(
                    "{}  {:<17} fence {:<4} by {}{note}",
                    transition.at,
                    transition.kind.as_str(),
                    transition.fence,
                    transition.agent
                )));
            }
            for evidence in &history.evidence {
                let what = format!("late result of fence {}, {} bytes", evidence.fence, evidence.len);
                output::line(&format!("{}  {what}", evidence.at));
                if let Some(result) = &evidence.result {
                    let kept = Kept::decode(result);
                    for line in String::from_utf8_lossy(&kept.stdout).lines() {
                        output::line(&format!("  {}", output::clean_line(line)));
                    }
                }
            }
        }
    }
    Ok(exit::OK)
}

fn read_result(path: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    // One byte more than is kept shows that it is too much.
    let most = limits::RESULT_BYTES as u64 + 1;
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|error| Failure::usage(format!("--result {}: {error}", path.display())))?;
    if bytes.len() > limits::RESULT_BYTES {
        return Err(Failure::usage(format!(
            "--result {}: more than {} bytes",
            path.display(),
            limits::RESULT_BYTES
        )));
    }
    Ok(bytes)
}

async fn resolve(args: &ResolveArgs) -> Result<u8, Failure> {
    let evidence = Note::new(&args.evidence).map_err(|error| Failure::from(error).context("--evidence"))?;
    if evidence.as_str().trim().is_empty() {
        return Err(Failure::usage("--evidence: say what was found; a ruling is for ever"));
    }
    let resolution = if args.applied {
        Resolution::Applied(read_result(args.result.as_deref())?.into())
    } else if args.not_applied {
        Resolution::NotApplied
    } else {
        Resolution::AllowRetry { reason: evidence.clone() }
    };
    let evidence = if args.allow_retry { Note::default() } else { evidence };
    let effects = open(&args.store).await?;
    let status = get(&effects, &args.key).await?;
    let episode = match (args.episode, &status.uncertain) {
        (Some(episode), _) => episode,
        (None, Some(uncertain)) => uncertain.episode,
        (None, None) => return Err(EffectError::NotUncertain { state: status.state }.into()),
    };
    let ruled = effects.resolve(&status.action, episode, &resolution, &evidence).await?;
    let word = ruled.ruling.as_str();
    match args.store.format {
        Format::Json => output::json(&json!({
            "key": args.key, "ruling": ruled.ruling, "at": ruled.at.to_string(), "yours": ruled.yours,
        })),
        Format::Text if ruled.yours => {
            output::line(&output::clean(&format!("{}: {word}", args.key)));
            let retryable = !matches!(resolution, Resolution::Applied(_));
            if let Some(until) = status.hold_until.filter(|_| retryable) {
                output::line(&format!(
                    "it can be run once the hold of the last attempt has ended, at {until}"
                ));
            }
        }
        Format::Text => {
            output::line(&output::clean(&format!(
                "{}: it was ruled at {} already: {word}",
                args.key, ruled.at
            )));
        }
    }
    // The first ruling counts. Whoever wanted another one did not get it.
    Ok(if ruled.ruling == resolution.kind() { exit::OK } else { exit::FAILED })
}

async fn reconcile(args: &ReconcileArgs) -> Result<u8, Failure> {
    let effects = open(&args.store).await?;
    let options = ReconcilerOptions::default()
        .settle(args.settle)
        .probe_limit(args.timeout)
        .claim_ttl(args.timeout.saturating_mul(2).saturating_add(Duration::from_secs(30)))
        .interval(args.every.unwrap_or(Duration::from_secs(5)));
    let probe = CommandProbe::new(args.probe.clone())?;
    let reconciler = Reconciler::new(effects, Arc::new(probe), options)?;
    if let Some(every) = args.every {
        return reconcile_on(args, &reconciler, every).await;
    }
    let report = reconciler.run_once().await?;
    match args.store.format {
        Format::Json => output::json(&json!({
            "listed": report.listed, "applied": report.applied, "not_applied": report.not_applied,
            "unknown": report.unknown, "not_yet": report.not_yet, "elsewhere": report.elsewhere,
            "failed": report.failed, "damaged": report.damaged,
        })),
        Format::Text => output::line(&pass_text(&report, args.settle)),
    }
    Ok(if report.failed + report.damaged > 0 { exit::FAILED } else { exit::OK })
}

/// Passes until a signal. What was ruled is said as it happens, and all of it at the end.
async fn reconcile_on(args: &ReconcileArgs, reconciler: &Reconciler, every: Duration) -> Result<u8, Failure> {
    let mut signals = Signals::new()?;
    let clock = SystemClock::new();
    let (mut passes, mut applied, mut not_applied, mut failed) = (0_u64, 0_u64, 0_u64, 0_u64);
    loop {
        let pass = tokio::select! {
            biased;
            () = signals.next() => break,
            pass = reconciler.run_once() => pass,
        };
        passes += 1;
        match pass {
            Ok(report) => {
                applied += report.applied as u64;
                not_applied += report.not_applied as u64;
                failed += report.failed as u64;
                if report.applied + report.not_applied + report.unknown + report.failed > 0 {
                    output::note(&pass_text(&report, args.settle));
                }
            }
            Err(error) => {
                failed += 1;
                output::note(&format!("trouble: {}", chain(&error)));
            }
        }
        tokio::select! {
            biased;
            () = signals.next() => break,
            () = clock.sleep(every) => {}
        }
    }
    match args.store.format {
        Format::Json => output::json(&json!({
            "passes": passes, "applied": applied, "not_applied": not_applied, "failed": failed,
        })),
        Format::Text => {
            let passes = if passes == 1 { "1 pass".to_owned() } else { format!("{passes} passes") };
            output::line(&format!("{passes}: {applied} applied, {not_applied} not applied, {failed} failed"));
        }
    }
    Ok(exit::OK)
}

fn pass_text(report: &ReconcileReport, settle: Duration) -> String {
    let damaged = match report.damaged {
        0 => String::new(),
        damaged => format!(", {damaged} cannot be read"),
    };
    format!(
        "{} for at least {}: {} applied, {} not applied, {} unknown, {} too early, {} looked into elsewhere or just before, \
         {} failed{damaged}",
        output::count(report.listed as u64, "uncertain action"),
        humantime::format_duration(settle),
        report.applied,
        report.not_applied,
        report.unknown,
        report.not_yet,
        report.elsewhere,
        report.failed
    )
}

async fn purge(args: &PurgeArgs) -> Result<u8, Failure> {
    let effects = open(&args.store).await?;
    let mut request = PurgeRequest::older_than(args.older_than);
    let (mut examined, mut purged) = (0_u64, 0_u64);
    let mut damaged = Vec::new();
    loop {
        let report = effects.purge(&request).await?;
        damaged.extend(report.damaged);
        examined += report.examined as u64;
        purged += report.purged as u64;
        match report.next {
            Some(next) => request = request.after(Some(next)),
            None => break,
        }
    }
    match args.store.format {
        Format::Json => output::json(&json!({
            "examined": examined, "purged": purged, "damaged": names(&damaged),
        })),
        Format::Text => {
            output::line(&format!("{} examined, {purged} purged", output::count(examined, "result")))
        }
    }
    Ok(note_damaged(&damaged))
}

async fn forget(args: &ForgetArgs) -> Result<u8, Failure> {
    let keys = args.keys.iter().map(|name| key(name)).collect::<Result<Vec<_>, _>>()?;
    let resource = args.resource.as_ref().map(ResourceId::new).transpose();
    let resource = resource.map_err(|error| Failure::from(error).context("--resource"))?;
    let effects = open(&args.store).await?;
    let (mut results, mut lines, mut code) = (Vec::new(), Vec::new(), exit::OK);
    let mut note = |name: &str, result: Result<(), EffectError>| match result {
        Ok(()) => {
            results.push(json!({ "name": name, "result": "forgotten" }));
            lines.push(format!("{name}: forgotten"));
        }
        Err(error) => {
            let failure = Failure::from(error);
            code = code.max(failure.code());
            results.push(json!({ "name": name, "error": failure.message() }));
            output::note(&format!("error: {}", output::clean(&format!("{name}: {}", failure.message()))));
        }
    };
    for key in &keys {
        note(key.as_str(), effects.forget(key).await);
    }
    if let Some(resource) = &resource {
        note(resource.as_str(), effects.forget_resource(resource).await);
    }
    let forgotten = !lines.is_empty();
    match args.store.format {
        Format::Json => output::json(&json!({ "forgotten": results })),
        Format::Text => lines.iter().for_each(|line| output::line(&output::clean(line))),
    }
    // Bad arguments mean that nothing was changed.
    Ok(if code == exit::USAGE && forgotten { exit::FAILED } else { code })
}
