//! Plans and boards as graphs: for Graphviz, for Mermaid, and as JSON.

use std::fmt::Write as _;

use coord_core::board::{Dep, Plan, Rule, Task, TaskId};
use serde_json::{Value, json};

use crate::standing::Standing;

/// The most characters of a label.
const LABEL: usize = 60;

/// Tasks and what they wait for.
#[derive(Debug)]
pub(crate) struct Graph {
    name: String,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    id: TaskId,
    title: String,
    deps: Vec<Dep>,
    standing: Option<Standing>,
}

impl Graph {
    /// The graph of a plan.
    pub(crate) fn of_plan(name: &str, plan: &Plan) -> Self {
        let node = |task: &coord_core::board::TaskSpec| Node {
            id: task.id.clone(),
            title: task.title.clone(),
            deps: task.deps.clone(),
            standing: None,
        };
        Graph { name: name.to_owned(), nodes: plan.tasks().iter().map(node).collect() }
    }

    /// The graph of a board; the standings are those of the tasks.
    pub(crate) fn of_board(name: &str, tasks: &[Task], standings: &[Standing]) -> Self {
        let node = |(task, standing): (&Task, &Standing)| Node {
            id: task.id.clone(),
            title: task.title.clone(),
            deps: task.deps.clone(),
            standing: Some(*standing),
        };
        Graph { name: name.to_owned(), nodes: tasks.iter().zip(standings).map(node).collect() }
    }

    /// For Graphviz.
    pub(crate) fn dot(&self) -> String {
        let mut text = format!(
            "digraph {} {{\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fillcolor=white];\n",
            dot_quote(&self.name)
        );
        for node in &self.nodes {
            let mut label = node.id.as_str().to_owned();
            if !node.title.is_empty() {
                let title: String = node.title.chars().take(LABEL).collect();
                label = format!("{label}\n{title}");
            }
            let fill = node.standing.map(|standing| format!(", fillcolor={}", color(standing)));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "  {} [label={}{}];",
                dot_quote(node.id.as_str()),
                dot_quote(&label),
                fill.unwrap_or_default()
            );
        }
        for node in &self.nodes {
            for dep in &node.deps {
                let style = match dep.rule {
                    Rule::Done => String::new(),
                    rule => format!(" [label={}, style=dashed]", dot_quote(rule.as_str())),
                };
                let (from, to) = (dot_quote(dep.id.as_str()), dot_quote(node.id.as_str()));
                let _ = writeln!(text, "  {from} -> {to}{style};");
            }
        }
        text.push_str("}\n");
        text
    }

    /// For Mermaid. Its identifiers are plain words, so the nodes are numbered.
    pub(crate) fn mermaid(&self) -> String {
        let mut text = "flowchart LR\n".to_owned();
        let numbers: std::collections::BTreeMap<&TaskId, usize> =
            self.nodes.iter().enumerate().map(|(number, node)| (&node.id, number)).collect();
        for (at, node) in self.nodes.iter().enumerate() {
            let class = node.standing.map(|standing| format!(":::{}", standing.as_str())).unwrap_or_default();
            let _ = writeln!(text, "  t{at}[\"{}\"]{class}", mermaid_escape(node.id.as_str()));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (rule, dep) in node.deps.iter().filter_map(|dep| Some((dep.rule, numbers.get(&dep.id)?))) {
                let arrow = match rule {
                    Rule::Done => "-->".to_owned(),
                    rule => format!("-.->|{rule}|"),
                };
                let _ = writeln!(text, "  t{dep} {arrow} t{at}");
            }
        }
        for standing in Standing::ALL {
            if self.nodes.iter().any(|node| node.standing == Some(standing)) {
                let _ = writeln!(text, "  classDef {} fill:{};", standing.as_str(), color(standing));
            }
        }
        text
    }

    /// Nodes and edges.
    pub(crate) fn json(&self) -> Value {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| {
                json!({
                    "id": node.id.as_str(), "title": node.title, "standing": node.standing.map(Standing::as_str),
                })
            })
            .collect();
        let edges: Vec<Value> = self
            .nodes
            .iter()
            .flat_map(|node| {
                node.deps.iter().map(|dep| {
                    let mut edge = json!({ "from": dep.id.as_str(), "to": node.id.as_str() });
                    if dep.rule != Rule::Done {
                        edge["rule"] = dep.rule.as_str().into();
                    }
                    edge
                })
            })
            .collect();
        json!({ "board": self.name, "nodes": nodes, "edges": edges })
    }
}

fn color(standing: Standing) -> &'static str {
    match standing {
        Standing::Done => "palegreen",
        Standing::Running => "lightblue",
        Standing::Ready => "white",
        Standing::Waiting => "lightgray",
        Standing::Blocked => "mistyrose",
        Standing::Failed | Standing::Unknown => "tomato",
        Standing::Cancelled => "orange",
        Standing::Skipped => "gainsboro",
    }
}

/// A text in quotes, as Graphviz reads it. Line ends become its `\n`.
fn dot_quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push('\u{fffd}'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A text inside the quotes of a Mermaid label: everything that could end it, or that Markdown or HTML would read, by its number.
fn mermaid_escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '"' | '#' | '&' | '<' | '>' | '`' | '*' | '_' | '[' | ']' | '{' | '}' | '\\' | ';' => {
                let _ = write!(escaped, "#{};", u32::from(c));
            }
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::board::TaskSpec;

    #[test]
    fn strange_ids_stay_inside_their_quotes() {
        let odd = TaskId::new("a\"];\nb\\").unwrap();
        let plan = Plan::new([
            TaskSpec::new(odd.clone()),
            TaskSpec::new(TaskId::new("end").unwrap()).dep(odd).title("The \"end\""),
        ])
        .unwrap();
        let graph = Graph::of_plan("p", &plan);
        let dot = graph.dot();
        assert!(dot.contains(r#"  "a\"];\nb\\" [label="a\"];\nb\\"];"#), "{dot}");
        assert!(dot.contains(r#"  "a\"];\nb\\" -> "end";"#), "{dot}");
        assert!(dot.contains(r#"[label="end\nThe \"end\""]"#), "{dot}");
        let mermaid = graph.mermaid();
        assert_eq!(
            mermaid,
            "flowchart LR\n  t0[\"a#34;#93;#59;\u{fffd}b#92;\"]\n  t1[\"end\"]\n  t0 --> t1\n"
        );
        assert_eq!(graph.json()["edges"][0]["to"], "end");
    }
}
