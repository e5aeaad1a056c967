//! The checker of recorded histories is itself held to stored histories, to the need of each of its rules, and to an oracle that
//! tries all orders.

#[path = "history/fixtures.rs"]
mod fixtures;
#[path = "history/oracle.rs"]
mod oracle;
#[path = "history/simulate.rs"]
mod simulate;

use contract_suite::history::{History, Rule, Rules, check, check_by};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

fn parse(name: &str, text: &str) -> History {
    text.parse().unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn bad_histories_are_red() {
    for (name, text) in fixtures::BAD {
        let history = parse(name, text);
        assert!(check(&history).is_err(), "{name}: taken for good\n{history}");
    }
    for (rule, name, text) in fixtures::NEEDED {
        let history = parse(name, text);
        assert!(check(&history).is_err(), "{name} ({rule:?}): taken for good\n{history}");
    }
}

#[test]
fn good_histories_are_green() {
    for (name, text) in fixtures::GOOD {
        if let Err(violation) = check(&parse(name, text)) {
            panic!("{name}: {violation}");
        }
    }
}

#[test]
fn each_rule_left_out_turns_a_bad_history_green() {
    for rule in Rule::ALL {
        let needing: Vec<_> = fixtures::NEEDED.iter().filter(|(needed, ..)| needed == rule).collect();
        assert!(!needing.is_empty(), "no history needs {rule:?}");
        for (_, name, text) in needing {
            let history = parse(name, text);
            assert!(check(&history).is_err(), "{name}: taken for good by all rules");
            if let Err(violation) = check_by(&history, Rules::ALL.without(*rule)) {
                panic!("{name}: still red without {rule:?}: {violation}");
            }
        }
    }
}

/// The stored histories have a few lines, so the oracle can try every order of each.
#[test]
fn the_oracle_agrees_on_the_stored_histories() {
    // It does not look at the shape of listings and at the completeness of snapshots in ways that an order could explain.
    for (name, text) in fixtures::GOOD {
        assert!(oracle::explains(&parse(name, text)), "{name}");
    }
    for (name, text) in fixtures::BAD.iter().copied().chain(fixtures::NEEDED.iter().map(|(_, n, t)| (*n, *t)))
    {
        assert!(!oracle::explains(&parse(name, text)), "{name}");
    }
}

#[test]
fn a_cycle_is_shown_as_a_list_of_events() {
    let violation = check(&parse("skew", fixtures::WRITE_SKEW)).unwrap_err();
    assert_eq!(violation.cycle.len(), 2, "{violation}");
    let text = violation.to_string();
    assert!(text.contains("saw y@a.1, before the next replaced it"), "{text}");
    assert!(text.contains("1 6..9 txn x@a.1 y@a.1 : y=b -> applied"), "{text}");
}

#[test]
fn what_cannot_be_judged_is_red() {
    for (name, text) in [
        ("a write that asserts nothing", "0 1..2 txn : x=1 -> applied"),
        ("a value put twice", "0 1..2 txn x@- : x=1 -> applied\n0 3..4 txn x@- : x=1 -> rejected"),
    ] {
        let text = check(&parse(name, text)).unwrap_err().to_string();
        assert!(text.contains("cannot be judged"), "{name}: {text}");
    }
}

/// Histories of a right store, cut short, and the same ones after one answer was changed: the checker says of every one what the
/// oracle says that tries all orders. A failure prints its seed.
#[test]
fn the_checker_agrees_with_an_oracle_that_tries_all_orders() {
    const SEEDS: u64 = 6_000;
    let (mut red, mut green) = (0, 0);
    for seed in 0..SEEDS {
        let mut rng = StdRng::seed_from_u64(seed);
        let right = simulate::run(&mut rng);
        if let Err(violation) = check(&right) {
            panic!("seed {seed}: a right history is red: {violation}\n{right}");
        }
        let changed = simulate::change(&right, &mut rng);
        let (verdict, explained) = (check(&changed), oracle::explains(&changed));
        assert_eq!(verdict.is_ok(), explained, "seed {seed}: {verdict:?}\n{changed}");
        match verdict {
            Ok(()) => green += 1,
            Err(_) => red += 1,
        }
    }
    assert!(
        red > SEEDS / 10 && green > SEEDS / 10,
        "{red} red, {green} green: too few of one to prove anything"
    );
}
