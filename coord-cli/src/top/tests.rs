//! The screen and the keys of `coord top`, without a terminal: crafted boards, key presses, and what is seen then.

mod keys;
mod screens;

use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{AgentId, Dep, LeaseInfo, Outcome, Rule, State, Task, TaskId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Change, Listing, Mode, Model, Tab};
use super::text;
use super::update::{Action, Event, update};
use super::view::render;

/// The time of the store when a crafted board is listed: 1,000 s.
const NOW: i64 = 1_000;

fn time(second: i64) -> Timestamp {
    Timestamp::from_micros(second * 1_000_000).unwrap()
}

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

fn task(name: &str, state: State, deps: &[&str]) -> Task {
    let mut task = Task::new(id(name));
    task.state = state;
    task.deps = deps.iter().map(|dep| id(dep).into()).collect();
    task.touched = time(NOW - 30);
    task
}

fn claimed(name: &str, owner: &str, fence: u64, until: Option<i64>) -> Task {
    let mut task = task(name, State::Claimed, &[]);
    task.owner = Some(AgentId::new(owner).unwrap());
    task.fence = fence;
    task.lease = Some(LeaseInfo { fence, until: until.map(time) });
    task
}

fn failed(name: &str) -> Task {
    let mut task = task(name, State::Failed, &[]);
    task.outcome = Some(Outcome::new(r#"{"exit":3,"ms":1200,"host":"h"}"#).unwrap());
    task
}

/// One of each kind.
fn mixed() -> Vec<Task> {
    let mut later = task("later", State::Open, &[]);
    later.not_before = Some(time(NOW + 100));
    vec![
        claimed("build", "host:7", 4, Some(NOW + 25)),
        claimed("pack", "host:8", 2, Some(NOW - 5)),
        claimed("watch", "host:7", 9, None),
        task("lint", State::Open, &[]),
        later,
        task("test", State::Open, &["build", "pack"]),
        task("deploy", State::Open, &["compile"]),
        task("announce", State::Open, &["deploy"]),
        failed("compile"),
        task("old", State::Cancelled, &[]),
        task("done", State::Done, &[]),
    ]
}

fn list(model: &mut Model, tasks: Vec<Task>, second: u64) {
    let at = Duration::from_secs(second);
    let time = time(NOW + i64::try_from(second).unwrap());
    let listing = Listing { tasks, time, at, took: Duration::from_millis(12), whole: true };
    assert_eq!(update(model, Event::Listed(Box::new(listing)), at), None);
}

fn model(tasks: Vec<Task>) -> Model {
    let mut model = Model::new("demo", "sqlite:x.db", false);
    list(&mut model, tasks, 0);
    model
}

fn press(model: &mut Model, code: KeyCode) -> Option<Action> {
    let at = model.at;
    update(model, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), at)
}

fn key(model: &mut Model, key: char) -> Option<Action> {
    press(model, KeyCode::Char(key))
}

fn control(model: &mut Model, key: char) -> Option<Action> {
    let at = model.at;
    update(model, Event::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL)), at)
}

fn keys(model: &mut Model, keys: &str) {
    for one in keys.chars() {
        assert_eq!(key(model, one), None, "{one}");
    }
}

fn selected(model: &Model) -> Option<&str> {
    model.selected().map(|(task, _)| task.id.as_str())
}

/// What is seen on a screen of this size.
fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let at = model.at;
    update(model, Event::Resized(width, height), at);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            let area = frame.area();
            render(model, area, frame.buffer_mut());
        })
        .unwrap();
    text::lines(terminal.backend().buffer())
}

fn wide(model: &mut Model) -> String {
    screen(model, 120, 24).join("\n")
}
