//! Plans: TOML files of tasks, read and checked without touching any store.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use coord_core::Namespace;
use coord_core::board::{BoardError, Dep, Plan, Retry, TaskId, TaskSpec, limits};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::definition::Definition;
use crate::diagnose::{PlanError, Problems};
use crate::failure::Failure;
use crate::fields::{Fields, nearest};

/// The most tasks of one plan.
pub(crate) const TASKS: usize = 100_000;
/// The largest plan file, in bytes.
pub(crate) const FILE_BYTES: usize = 16 * 1_024 * 1_024;
/// The longest command: systems limit one argument to 128 KiB.
pub(crate) const RUN_BYTES: usize = 120 * 1_024;

const PLAN_FIELDS: &[&str] = &["name", "priority", "labels", "timeout", "env", "cwd", "retry"];
const TASK_FIELDS: &[&str] = &[
    "id",
    "title",
    "run",
    "deps",
    "priority",
    "labels",
    "timeout",
    "env",
    "cwd",
    "effect",
    "retry",
    "not_before",
];

/// A plan that has been read and found to be right.
#[derive(Debug)]
pub(crate) struct PlanFile {
    /// The board that it goes to, unless the command line names another one.
    pub(crate) board: Option<Namespace>,
    /// Its tasks, each after its dependencies.
    pub(crate) plan: Plan,
}

/// Reads and checks a plan; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<PlanFile, Failure> {
    let name = path.display().to_string();
    let cannot = |error: std::io::Error| {
        Failure::usage(format!("the plan {name} cannot be read: {error}"))
            .help("a plan is a TOML file of [[task]] tables; `coord --help` shows one")
    };
    let mut bytes = Vec::new();
    let most = FILE_BYTES as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        let file = std::fs::File::open(path).map_err(cannot)?;
        file.take(most).read_to_end(&mut bytes).map_err(cannot)?;
    }
    if bytes.len() > FILE_BYTES {
        return Err(Failure::usage(format!("the plan {name} is larger than {FILE_BYTES} bytes")));
    }
    let name = if path == Path::new("-") { "standard input".to_owned() } else { name };
    let (board, plan) = parse(&name, &bytes)?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    let board = board.or_else(|| stem.and_then(|stem| Namespace::new(stem).ok()));
    Ok(PlanFile { board, plan })
}

/// What the tasks of a plan have if they do not say otherwise.
#[derive(Debug, Default)]
struct Defaults {
    priority: i32,
    labels: Vec<String>,
    timeout_ms: Option<u64>,
    retry: Option<Retry>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
}

/// A task and where its parts are in the text.
#[derive(Debug)]
struct Located {
    spec: TaskSpec,
    id: Range<usize>,
    deps: Vec<Range<usize>>,
}

/// Reads and checks the text of a plan: the board it names, and its tasks.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<(Option<Namespace>, Plan), PlanError> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| PlanError::not_utf8(file, bytes, error.valid_up_to()))?;
    // An editor of another system ends lines with CR LF, and a shell does not: `set -e\r` is an illegal option. TOML lets a reader choose.
    let unix = text.replace("\r\n", "\n");
    let text = unix.as_str();
    let mut problems = Problems::new(file, text);
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            problems.push(error.span().unwrap_or(0..0), "the file", error.message(), None);
            return Err(problems.into_result().expect_err("a problem was just added"));
        }
    };
    let mut board = None;
    let mut defaults = Defaults::default();
    for (key, value) in &table {
        match key.get_ref().as_ref() {
            "plan" => (board, defaults) = plan_table(&mut problems, value),
            "task" => {}
            other => problems.push(
                key.span(),
                format!("`{other}`"),
                "unknown table or field",
                Some("a plan has one [plan] and many [[task]] tables".into()),
            ),
        }
    }
    let tasks = match table.get("task") {
        None => {
            problems.push(0..0, "the file", "there is no [[task]] in it", None);
            Vec::new()
        }
        Some(value) => tasks(&mut problems, value, &defaults),
    };
    check_ids(&mut problems, text, &tasks);
    check_effects(&mut problems, &tasks);
    let plan = if problems.is_empty() { order(&mut problems, tasks) } else { Plan::default() };
    problems.into_result()?;
    Ok((board, plan))
}

fn plan_table(problems: &mut Problems<'_>, value: &Spanned<DeValue<'_>>) -> (Option<Namespace>, Defaults) {
    let Some(table) = value.get_ref().as_table() else {
        problems.push(value.span(), "plan", "must be a table: [plan]", None);
        return (None, Defaults::default());
    };
    let mut fields = Fields::new(problems, table, value.span(), "[plan]");
    fields.only(PLAN_FIELDS);
    let board = fields.string("name").and_then(|(name, span)| match Namespace::new(&name) {
        Ok(_) if crate::store::is_reserved(&name) => {
            fields.problem(span, "name", "names that begin with `coord.` are coord's own", None);
            None
        }
        Ok(board) => Some(board),
        Err(error) => {
            fields.problem(span, "name", error.message(), None);
            None
        }
    });
    let defaults = Defaults {
        priority: fields.priority().unwrap_or(0),
        labels: fields.labels().unwrap_or_default(),
        timeout_ms: fields.timeout(),
        retry: fields.retry(),
        env: fields.env(),
        cwd: fields.cwd(),
    };
    (board, defaults)
}

fn tasks(problems: &mut Problems<'_>, value: &Spanned<DeValue<'_>>, defaults: &Defaults) -> Vec<Located> {
    let Some(array) = value.get_ref().as_array() else {
        problems.push(value.span(), "task", "must be an array of tables: [[task]], with two brackets", None);
        return Vec::new();
    };
    if array.len() > TASKS {
        problems.push(
            value.span(),
            "task",
            format!("{} tasks are too many: a plan has at most {TASKS}", array.len()),
            Some("split the plan, each part with a [plan] name of its own".into()),
        );
        return Vec::new();
    }
    array.iter().filter_map(|value| task(problems, value, defaults)).collect()
}

fn task(problems: &mut Problems<'_>, value: &Spanned<DeValue<'_>>, defaults: &Defaults) -> Option<Located> {
    let Some(table) = value.get_ref().as_table() else {
        problems.push(value.span(), "task", "must be a table", None);
        return None;
    };
    let owner = match table.get("id").and_then(|id| id.get_ref().as_str()) {
        Some(id) => format!("task {:?}", id.chars().take(80).collect::<String>()),
        None => "a task without id".into(),
    };
    let mut fields = Fields::new(problems, table, value.span(), &owner);
    fields.only(TASK_FIELDS);
    let id = fields.required("id").and_then(|(text, span)| match TaskId::new(&text) {
        Ok(id) => Some((id, span)),
        Err(error) => {
            fields.problem(span, "id", error.to_string(), None);
            None
        }
    });
    let title = match fields.string("title") {
        Some((title, span)) if title.len() > limits::TITLE_BYTES => {
            let (size, most) = (title.len(), limits::TITLE_BYTES);
            fields.problem(span, "title", format!("{size} bytes are too many: at most {most}"), None);
            None
        }
        Some((title, _)) => Some(title),
        None => None,
    };
    let run = fields.required("run").and_then(|(run, span)| {
        let problem = if run.trim().is_empty() {
            "is empty: it is the command that `sh -c` gets".to_owned()
        } else if run.contains('\0') {
            "contains a NUL character".into()
        } else if run.len() > RUN_BYTES {
            format!("{} bytes are too many: at most {RUN_BYTES}; put it in a script", run.len())
        } else {
            return Some(run);
        };
        fields.problem(span, "run", problem, None);
        None
    });
    let deps = fields.deps().unwrap_or_default();
    if deps.len() > limits::DEPENDENCIES {
        let (count, most) = (deps.len(), limits::DEPENDENCIES);
        let help = Some("let a task in between wait for a part of them".into());
        fields.problem(deps[most].1.clone(), "deps", format!("{count} are too many: at most {most}"), help);
    }
    let priority = fields.priority().unwrap_or(defaults.priority);
    let labels = fields.labels().unwrap_or_else(|| defaults.labels.clone());
    let timeout_ms = fields.timeout().or(defaults.timeout_ms);
    let retry = fields.retry().or(defaults.retry);
    let not_before = fields.time("not_before");
    let mut env = defaults.env.clone();
    env.extend(fields.env());
    let cwd = fields.cwd().or_else(|| defaults.cwd.clone());
    let effect = fields.effect();

    let (id, span) = id?;
    // A task whose command is wrong is still one that others may depend on.
    let definition = Definition { run: run.unwrap_or_default(), timeout_ms, env, cwd, effect };
    let payload = definition.to_payload();
    if payload.len() > limits::PAYLOAD_BYTES {
        let (size, most) = (payload.len(), limits::PAYLOAD_BYTES);
        let message = format!("run, env, cwd and effect are {size} bytes together, at most {most}");
        fields.problem(span.clone(), "env", message, None);
    }
    let mut spec = TaskSpec::new(id).title(title.unwrap_or_default()).priority(priority).payload(payload);
    for label in labels {
        spec = spec.label(label);
    }
    if let Some(retry) = retry {
        spec = spec.retry(retry);
    }
    if let Some(time) = not_before {
        spec = spec.not_before(time);
    }
    let mut spans = Vec::with_capacity(deps.len());
    for (dep, span) in deps {
        spec = spec.dep(dep);
        spans.push(span);
    }
    Some(Located { spec, id: span, deps: spans })
}

/// Ids are unique, and dependencies are tasks of the plan, named once.
fn check_ids(problems: &mut Problems<'_>, text: &str, tasks: &[Located]) {
    let mut first: BTreeMap<&str, &Located> = BTreeMap::new();
    for task in tasks {
        let id = task.spec.id.as_str();
        if let Some(earlier) = first.get(id) {
            let line = text[..earlier.id.start].bytes().filter(|byte| *byte == b'\n').count() + 1;
            let message = format!("duplicate: line {line} has a task of this id already");
            problems.push(task.id.clone(), format!("task {id:?}: id"), message, None);
        } else {
            first.insert(id, task);
        }
    }
    for task in tasks {
        let mut seen = std::collections::BTreeSet::new();
        for (dep, span) in task.spec.deps.iter().zip(&task.deps) {
            let dep = dep.id.as_str();
            let field = || format!("task {:?}: deps", task.spec.id.as_str());
            if !seen.insert(dep) {
                problems.push(span.clone(), field(), format!("{dep:?} is named twice"), None);
            } else if !first.contains_key(dep) {
                let near = if problems.wants_help() { nearest(dep, first.keys().copied()) } else { None };
                let help = near.map_or_else(
                    || "dependencies are ids of tasks of the same plan".into(),
                    |near| format!("did you mean {near:?}?"),
                );
                let shown: String = dep.chars().take(80).collect();
                problems.push(span.clone(), field(), format!("unknown dependency {shown:?}"), Some(help));
            }
        }
    }
}

/// Two tasks that are one action would do it once: the second one only replays the first.
fn check_effects(problems: &mut Problems<'_>, tasks: &[Located]) {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    for task in tasks {
        let Ok(Definition { effect: Some(effect), .. }) = Definition::from_payload(&task.spec.payload) else {
            continue;
        };
        let id = task.spec.id.as_str();
        if effect.key.is_empty() {
            continue;
        }
        match first.get(&effect.key) {
            Some(earlier) => problems.push(
                task.id.clone(),
                format!("task {id:?}: effect: key"),
                format!("the task {earlier:?} is the same action already, and only one of them would be run"),
                Some("give it a key of its own".into()),
            ),
            None => {
                first.insert(effect.key, id);
            }
        }
    }
}

/// Puts the tasks in dependency order, or names a cycle by its path and the lines of its tasks.
fn order(problems: &mut Problems<'_>, tasks: Vec<Located>) -> Plan {
    let places: BTreeMap<TaskId, (Vec<Dep>, Vec<Range<usize>>)> = tasks
        .iter()
        .map(|task| (task.spec.id.clone(), (task.spec.deps.clone(), task.deps.clone())))
        .collect();
    let starts: BTreeMap<TaskId, Range<usize>> =
        tasks.iter().map(|task| (task.spec.id.clone(), task.id.clone())).collect();
    let path = match Plan::new(tasks.into_iter().map(|task| task.spec)) {
        Ok(plan) => return plan,
        Err(BoardError::Cycle { path }) => path,
        Err(error) => {
            problems.push(0..0, "the plan", error.to_string(), None);
            return Plan::default();
        }
    };
    let Some(first) = path.first() else { return Plan::default() };
    // The dependency that is marked is the first step of the cycle.
    let span = path
        .get(1)
        .zip(places.get(first))
        .and_then(|(next, (deps, spans))| {
            deps.iter().position(|dep| dep.id == *next).and_then(|at| spans.get(at)).cloned()
        })
        .or_else(|| starts.get(first).cloned())
        .unwrap_or(0..0);
    let shown: Vec<String> = if path.len() > 20 {
        let ends = path[..10].iter().map(|id| format!("{id:?}"));
        ends.chain(["...".to_owned()])
            .chain(path[path.len() - 9..].iter().map(|id| format!("{id:?}")))
            .collect()
    } else {
        path.iter().map(|id| format!("{id:?}")).collect()
    };
    problems.push(
        span,
        format!("task {first:?}: deps"),
        format!("the tasks wait for each other in a cycle: {}", shown.join(" -> ")),
        Some("each task is followed by one that it depends on; take one of these dependencies away".into()),
    );
    Plan::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<(usize, String, String)> {
        let error = parse("p.toml", text.as_bytes()).unwrap_err();
        error.problems().iter().map(|p| (p.line, p.field.clone(), p.message.clone())).collect()
    }

    #[test]
    fn a_plan_is_read_whole() {
        let text = r#"
            [plan]
            name = "demo"
            timeout = "1m"
            labels = ["all"]
            env = { A = "1", B = "2" }
            retry = 2

            [[task]]
            id = "test"
            title = "Run the tests"
            run = "make test"
            deps = ["build"]
            priority = 0x10
            labels = []
            timeout = "1h 30m"
            env.B = "3"
            cwd = "sub"
            retry = { attempts = 5, backoff = "10m" }
            not_before = 2026-12-01T03:00:00Z
            effect = { key = "test/7", resource = "rig", uncertain_exit = [7, 0x1c] }

            [[task]]
            id = "build"
            priority = -3
            run = """
make
"""
        "#;
        let (board, plan) = parse("p.toml", text.as_bytes()).unwrap();
        assert_eq!(board.unwrap().as_str(), "demo");
        let [build, test] = plan.tasks() else { panic!("{plan:?}") };
        assert_eq!((build.id.as_str(), test.id.as_str()), ("build", "test"));
        assert_eq!((test.title.as_str(), test.priority, test.labels.len()), ("Run the tests", 16, 0));
        assert_eq!((build.labels.as_slice(), build.priority), (&["all".to_owned()][..], -3));
        let minutes = std::time::Duration::from_secs(600);
        assert_eq!(test.retry, Some(Retry::new(5).backoff(minutes, minutes)));
        assert_eq!(test.not_before.unwrap().to_string(), "2026-12-01T03:00:00.000000Z");
        assert_eq!((build.retry, build.not_before), (Some(Retry::new(2)), None));
        let definition = Definition::from_payload(&test.payload).unwrap();
        assert_eq!(
            definition.env.clone().into_iter().collect::<Vec<_>>(),
            [("A".into(), "1".into()), ("B".into(), "3".into())]
        );
        assert_eq!((definition.timeout_ms, definition.cwd.as_deref()), (Some(5_400_000), Some("sub")));
        let effect = definition.effect.unwrap();
        assert_eq!((effect.key.as_str(), effect.resource.as_deref()), ("test/7", Some("rig")));
        assert_eq!((effect.uncertain_exit, effect.abandon_exit), (vec![7, 28], Vec::new()));
        let definition = Definition::from_payload(&build.payload).unwrap();
        assert_eq!(definition.effect, None);
        assert_eq!((definition.run.as_str(), definition.timeout_ms), ("make\n", Some(60_000)));
    }

    #[test]
    fn every_problem_is_named_with_its_line_and_field() {
        let text = "\
[[task]]
id = 'build'
run = 'true'
dpes = []
timeout = '3 parsecs'

[[task]]
id = 'test'
run = ''
deps = ['biuld', 'build', 'build']
priority = 3000000000

[[task]]
id = 'build'
run = 'true'
env = { COORD_TASK = 'x', PORT = 80 }
effect = { key = '', resource = 7, uncertain_exit = [256], retry = true }

[[task]]
run = 'true'
retry = { backoff = 'long', max_backoff = '2y', times = 3 }

[[task]]
id = 'r'
run = 'true'
retry = 0
not_before = 'tomorrow'

[[task]]
id = 's'
run = 'true'
retry = { attempts = 2, backoff = '10s', max_backoff = '5s' }
";
        let found = problems(text);
        let expected = [
            (4, "task \"build\": dpes", "unknown field"),
            (5, "task \"build\": timeout", "is no duration"),
            (9, "task \"test\": run", "is empty"),
            (10, "task \"test\": deps", "unknown dependency \"biuld\""),
            (10, "task \"test\": deps", "\"build\" is named twice"),
            (11, "task \"test\": priority", "must be between"),
            (14, "task \"build\": id", "duplicate: line 2 "),
            (16, "task \"build\": env.COORD_TASK", "set by coord itself"),
            (16, "task \"build\": env.PORT", "must be a string, not integer"),
            (17, "task \"build\": effect: key", "is empty"),
            (17, "task \"build\": effect: resource", "must be a string"),
            (17, "task \"build\": effect: uncertain_exit", "exit codes, 0 to 255"),
            (17, "task \"build\": effect: retry", "unknown field"),
            (19, "a task without id: id", "is missing"),
            (21, "a task without id: retry: attempts", "is missing"),
            (21, "a task without id: retry: backoff", "is no duration"),
            (21, "a task without id: retry: max_backoff", "longer than a year"),
            (21, "a task without id: retry: times", "unknown field"),
            (26, "task \"r\": retry", "between 1 and"),
            (27, "task \"r\": not_before", "is no time"),
            (32, "task \"s\": retry: max_backoff", "is shorter than"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for ((line, field, message), (at, of, text)) in found.iter().zip(expected) {
            assert_eq!((*line, field.as_str()), (at, of), "{found:#?}");
            assert!(message.contains(text), "{message} / {text}");
        }
        let shown = parse("p.toml", text.as_bytes()).unwrap_err().to_string();
        assert!(shown.contains("error: p.toml:10:9: task \"test\": deps: unknown dependency"), "{shown}");
        assert!(shown.contains("10 | deps = ['biuld', 'build', 'build']\n   |         ^^^^^^^\n"), "{shown}");
        assert!(
            shown.contains("did you mean \"build\"?") && shown.contains("did you mean `deps`?"),
            "{shown}"
        );
    }

    #[test]
    fn one_key_is_one_action_of_a_plan() {
        let task = |id: &str, key: &str| {
            format!("[[task]]\nid = '{id}'\nrun = 'true'\neffect = {{ key = '{key}' }}\n")
        };
        let found = problems(&[task("a", "k"), task("b", "l"), task("c", "k")].concat());
        let [(line, field, message)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((*line, field.as_str()), (10, "task \"c\": effect: key"));
        assert!(message.contains("\"a\""), "{message}");
    }

    #[test]
    fn line_ends_of_another_system_do_not_reach_the_shell() {
        let text = b"[[task]]\r\nid = 'a'\r\nrun = \"\"\"\r\nset -e\r\nprintf 'x\\r\\n'\r\n\"\"\"\r\n";
        let (_, plan) = parse("p.toml", text).unwrap();
        let run = Definition::from_payload(&plan.tasks()[0].payload).unwrap().run;
        // What is written as an escape is meant.
        assert_eq!(run, "set -e\nprintf 'x\r\n'\n");
        let error = parse("p.toml", b"[[task]]\r\nid = 'a'\r\nrun = 1\r\n").unwrap_err();
        assert_eq!((error.problems()[0].line, error.problems()[0].column), (3, 7));
    }

    #[test]
    fn a_cycle_is_named_by_its_path() {
        let text = "\
[[task]]
id = 'a'
run = 'true'
deps = ['b']
[[task]]
id = 'b'
run = 'true'
deps = [
  'c',
]
[[task]]
id = 'c'
run = 'true'
deps = ['b']
";
        let found = problems(text);
        assert_eq!(found.len(), 1);
        let (line, field, message) = &found[0];
        assert_eq!((*line, field.as_str()), (9, "task \"b\": deps"));
        assert!(message.ends_with(r#"cycle: "b" -> "c" -> "b""#), "{message}");
    }

    #[test]
    fn what_is_no_plan_at_all_is_said_with_its_place() {
        for (text, line, part) in [
            (&b"[[task]\nid = 1"[..], 1, ""),
            (b"[task]\nid = 'a'\nrun = 'true'", 1, "[[task]]"),
            (b"", 1, "there is no [[task]]"),
            (b"[[task]]\nid = 'a'\nid = 'b'\nrun = 'true'", 3, "duplicate"),
            (b"[[task]]\nid = 'a'\nrun = '\xff'", 3, "byte 0xff at offset 25 is not UTF-8"),
            (b"[[tasks]]\nid = 'a'", 1, "unknown table"),
            (b"[plan]\nname = 'a b'\n[[task]]\nid = 'a'\nrun = 'a'", 2, "not ' '"),
        ] {
            let error = parse("p.toml", text).unwrap_err();
            let found = error.problems().iter().any(|p| p.line == line && p.message.contains(part));
            assert!(found, "{}: {error:#?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_plan_that_is_wrong_in_every_line_is_refused_in_bounded_time_and_space() {
        let text: String = (0..9_999)
            .map(|n| format!("[[task]]\nid = 'task-{n}'\nrun = 'true'\ndeps = ['tsak-{n}']\n"))
            .collect();
        let error = parse("p.toml", text.as_bytes()).unwrap_err();
        assert_eq!((error.problems()[0].line, error.problems().len()), (4, 100));
        assert!(error.to_string().ends_with("error: and 9979 more problems\n"), "{error}");
        let deep = format!("a = {}", "[".repeat(1_000_000));
        assert!(parse("p.toml", deep.as_bytes()).unwrap_err().to_string().len() < 1_000);
    }

    #[test]
    fn a_huge_title_is_refused_without_being_repeated() {
        let text = format!("[[task]]\nid = 'a'\nrun = 'true'\ntitle = '{}'\n", "t".repeat(600 * 1_024));
        let error = parse("p.toml", text.as_bytes()).unwrap_err();
        assert_eq!(error.problems()[0].line, 4);
        assert!(error.to_string().len() < 1_000 && error.to_string().contains("614400 bytes are too many"));
    }
}
