//! The examples, run as tests: they check what they show.

#[path = "../examples/charge_card/main.rs"]
mod charge_card;

#[test]
fn every_order_is_charged_once() {
    charge_card::main().expect("the example runs to its end");
}
