//! Stored histories. `x@a.1` is the first version of incarnation `a`; see `History` for the form.

use contract_suite::history::Rule;

/// Two transactions that assert both keys and write one each.
pub(crate) const WRITE_SKEW: &str = "
    9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
    9 3..4 read x@a.1=x0 y@a.1=y0
    0 5..8 txn x@a.1 y@a.1 : x=a -> applied
    1 6..9 txn x@a.1 y@a.1 : y=b -> applied";

/// Bad histories that one rule alone finds: red, and green without it.
pub(crate) const NEEDED: &[(Rule, &str, &str)] = &[
    (Rule::Complete, "a key left out of a snapshot", "0 1..2 read x@?"),
    (
        Rule::Shape,
        "an unsorted listing",
        "0 1..2 txn a@- b@- : a=1 b=2 -> applied
         0 3..4 list * limit=5 -> b a",
    ),
    (
        Rule::Shape,
        "a listing with a duplicate",
        "0 1..2 txn a@- : a=1 -> applied
         0 3..4 list * limit=5 -> a a",
    ),
    (
        Rule::Shape,
        "a listing above its limit",
        "0 1..2 txn a@- b@- : a=1 b=2 -> applied
         0 3..4 list * limit=1 -> a b",
    ),
    (
        Rule::Shape,
        "a listing with what it should start after",
        "0 1..2 txn a@- b@- : a=1 b=2 -> applied
         0 3..4 list * after=a limit=5 -> a b",
    ),
    (
        Rule::Shape,
        "a listing with another prefix's key",
        "0 1..2 txn a@- b@- : a=1 b=2 -> applied
         0 3..4 list a* limit=5 -> a b",
    ),
    (
        Rule::Provenance,
        "aborted read",
        "0 1..2 txn x@- y@b.7 : x=ghost -> rejected
         1 3..4 read x@a.1=ghost",
    ),
    (
        Rule::Provenance,
        "what was refused is read",
        "0 1..2 txn x@- : x=ghost -> refused
         1 3..4 read x@a.1=ghost",
    ),
    (Rule::Provenance, "a value from nowhere", "0 1..2 read x@a.1=nobody"),
    (
        Rule::Successor,
        "a version that moved by two",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 : x=2 -> applied
         0 7..8 read x@a.3=2",
    ),
    (
        Rule::Successor,
        "a version that did not move",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 : x=2 -> applied
         0 7..8 read x@a.1=2",
    ),
    (
        Rule::Successor,
        "a creation at count 2",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.2=1",
    ),
    (
        Rule::Once,
        "an unknown creation that happened twice",
        "0 1..? txn x@- : x=u -> unknown
         1 2..3 read x@a.1=u
         2 4..8 txn x@a.1 : x~ -> applied
         1 5..6 read x@b.1=u",
    ),
    (
        Rule::Fresh,
        "a version that is used again after delete",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 : x~ -> applied
         0 7..8 txn x@- : x=2 -> applied
         0 9..10 read x@a.1=2",
    ),
    (
        Rule::Made,
        "an assert on a version that never was",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.2 : x=2 -> applied",
    ),
    (
        Rule::WriteWrite,
        "writes of two transactions in two orders",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..8 txn x@a.1 y@a.2 : x=a y=a -> applied
         1 6..9 txn x@a.2 y@a.1 : x=b y=b -> applied",
    ),
    (
        Rule::WriteRead,
        "fractured read",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..8 txn x@a.1 y@a.1 : x=a y=a -> applied
         1 6..7 read x@a.2=a y@a.1=y0",
    ),
    (
        Rule::WriteRead,
        "a read of what is written later",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         1 5..6 read x@a.2=a
         0 7..8 txn x@a.1 : x=a -> applied",
    ),
    (
        Rule::ReadWrite,
        "lost update",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..8 txn x@a.1 : x=a -> applied
         1 6..9 txn x@a.1 : x=b -> applied",
    ),
    (
        Rule::ReadWrite,
        "fractured read, by its other edge",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..8 txn x@a.1 y@a.1 : x=a y=a -> applied
         1 6..7 read x@a.1=x0 y@a.2=a",
    ),
    (Rule::AssertOnly, "write skew", WRITE_SKEW),
    (
        Rule::AssertOnly,
        "write skew on absent keys",
        "0 1..4 txn x@- y@- : x=a -> applied
         1 2..5 txn x@- y@- : y=b -> applied",
    ),
    (
        Rule::AssertOnly,
        "a pure check of what is no longer so",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..6 txn x@a.1 : x=a -> applied
         1 7..8 txn x@a.1 : -> applied",
    ),
    (
        Rule::RealTime,
        "stale read",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..6 txn x@a.1 : x=a -> applied
         1 7..8 read x@a.1=x0",
    ),
    (
        Rule::RealTime,
        "snapshots that go back in time",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..20 txn x@a.1 : x=a -> applied
         1 6..7 read x@a.2=a
         2 8..9 read x@a.1=x0",
    ),
    (
        Rule::Absent,
        "a created key that is not seen",
        "0 1..2 txn x@- : x=1 -> applied
         1 3..4 read x@-",
    ),
    (
        Rule::Absent,
        "a listing that lags behind",
        "0 1..2 txn x@- y@- : x=1 y=1 -> applied
         1 3..4 list * limit=10 -> x",
    ),
    (
        Rule::Absent,
        "a page that ends too early",
        "0 1..2 txn x@- y@- : x=1 y=1 -> applied
         1 3..4 list * limit=1 -> y",
    ),
    (
        Rule::Absent,
        "a deletion that was answered rejected",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 y@b.1 : x~ -> rejected
         1 7..8 read x@-",
    ),
    (
        Rule::Lives,
        "two creations of one key",
        "0 1..4 txn x@- : x=1 -> applied
         1 2..5 txn x@- : x=2 -> applied",
    ),
    (
        Rule::Listed,
        "a deleted key that is still listed",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 : x~ -> applied
         1 7..8 list * limit=10 -> x",
    ),
    (Rule::Listed, "a key that nobody created is listed", "1 7..8 list * limit=10 -> placeholder"),
    (
        Rule::Listed,
        "a rejected creation leaves a trace",
        "0 1..2 txn x@- y@b.1 : x=1 -> rejected
         1 3..4 list * limit=10 -> x",
    ),
    (
        Rule::Rejected,
        "rejected although all asserts held",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 : x=2 -> rejected",
    ),
    (
        Rule::Rejected,
        "two racers that both lose",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..8 txn x@a.1 : x=a -> rejected
         1 6..9 txn x@a.1 : x=b -> rejected",
    ),
    (Rule::Rejected, "applied, answered rejected, and never seen", "0 1..2 txn x@- : x=1 -> rejected"),
    (
        Rule::Unknown,
        "half of an unknown transaction",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..? txn x@a.1 y@a.1 : x=a y=a -> unknown
         1 6..7 read x@a.2=a y@a.1=y0",
    ),
    (
        Rule::Unknown,
        "an unknown transaction that happened before it was called",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         1 5..6 read x@a.2=a
         0 7..? txn x@a.1 : x=a -> unknown",
    ),
];

/// Other bad histories, which several rules find.
pub(crate) const BAD: &[(&str, &str)] = &[
    (
        "long fork: two readers see two writes in two orders",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..20 txn x@a.1 : x=a -> applied
         1 6..21 txn y@a.1 : y=b -> applied
         2 7..22 read x@a.2=a y@a.1=y0
         3 8..23 read x@a.1=x0 y@a.2=b",
    ),
    (
        "a reader sees the second of two writes, but not the first",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..6 txn x@a.1 : x=a -> applied
         0 7..8 txn y@a.1 : y=b -> applied
         1 5..9 read x@a.1=x0 y@a.2=b",
    ),
    (
        "write skew of three",
        "9 1..2 txn x@- y@- z@- : x=x0 y=y0 z=z0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0 z@a.1=z0
         0 5..10 txn x@a.1 y@a.1 : x=a -> applied
         1 6..11 txn y@a.1 z@a.1 : y=b -> applied
         2 7..12 txn z@a.1 x@a.1 : z=c -> applied",
    ),
    (
        "a listing of two instants: a marker that moved is seen nowhere",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..20 txn x@a.1 y@- : x~ y=2 -> applied
         1 6..19 list * limit=10 ->",
    ),
    (
        "a listing of two instants: a marker that moved is seen twice",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..20 txn x@a.1 y@- : x~ y=2 -> applied
         1 6..19 list * limit=10 -> x y",
    ),
    (
        "an unknown deletion is seen, then not",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         1 5..? txn x@a.1 : x~ -> unknown
         0 7..8 read x@-
         0 9..10 read x@a.1=1",
    ),
    (
        "one unknown deletion cannot explain the end of two lives",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         1 5..? txn x@a.1 : x~ -> unknown
         0 7..8 txn x@- : x=2 -> applied
         0 9..10 read x@b.1=2
         2 11..12 read x@-",
    ),
    (
        "an assert on a version of an earlier life holds",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 : x~ -> applied
         0 7..8 txn x@- : x=2 -> applied
         0 9..10 read x@b.1=2
         1 11..12 txn x@a.1 : x=3 -> applied",
    ),
    (
        "an assert on the version of another key holds",
        "0 1..2 txn x@- y@- : x=1 y=1 -> applied
         0 3..4 read x@a.1=1 y@b.1=1
         1 5..6 txn x@b.1 : x=2 -> applied",
    ),
    (
        "absent in the middle of a life",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         1 5..6 read x@-
         0 7..8 read x@a.1=1",
    ),
    (
        "contradictory asserts hold",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 x@- : x=2 -> applied",
    ),
    (
        "a racer wins a creation and its absence is asserted after it",
        "0 1..2 txn x@- : x=1 -> applied
         1 3..4 txn x@- y@- : y=1 -> applied",
    ),
    (
        "two rejections that explain each other with one absence too few",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         1 5..20 txn x@a.1 : x~ -> applied
         2 6..7 txn x@a.1 : -> rejected
         3 8..9 txn x@- : -> rejected",
    ),
];

/// Right histories that look odd.
pub(crate) const GOOD: &[(&str, &str)] = &[
    ("nothing", ""),
    (
        "a race with one winner",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..8 txn x@a.1 : x=a -> applied
         1 6..9 txn x@a.1 : x=b -> rejected
         2 7..10 read x@a.1=x0
         3 7..11 read x@a.2=a",
    ),
    (
        "an unknown write that lands late",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..? txn x@a.1 : x=a -> unknown
         1 6..7 read x@a.1=x0
         1 8..9 read x@a.2=a",
    ),
    (
        "an unknown write that is only seen by what it rejects",
        "9 1..2 txn x@- : x=x0 -> applied
         9 3..4 read x@a.1=x0
         0 5..? txn x@a.1 : x=a -> unknown
         1 6..7 txn x@a.1 : x=b -> rejected",
    ),
    (
        "an unknown deletion that is seen by an absence",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         1 5..? txn x@a.1 : x~ -> unknown
         0 7..8 read x@a.1=1
         0 9..10 read x@-
         0 11..12 txn x@- : x=2 -> applied
         0 13..14 read x@b.1=2",
    ),
    (
        "one of two unknown deletions has happened, and the other key tells which",
        "0 1..2 txn x@- y@- : x=1 y=1 -> applied
         0 3..4 read x@a.1=1 y@a.1=1
         1 5..? txn x@a.1 : x~ -> unknown
         2 6..? txn x@a.1 y@a.1 : x~ y~ -> unknown
         0 7..8 read x@- y@a.1=1",
    ),
    (
        "an unknown creation that is only listed",
        "0 1..? txn x@- : x=1 -> unknown
         1 2..3 list * limit=10 ->
         1 4..5 list * limit=10 -> x",
    ),
    (
        "unknown ones that never happened",
        "0 1..? txn x@- : x=1 -> unknown
         1 2..3 read x@-
         1 4..5 txn x@- : x=2 -> applied
         1 6..7 read x@a.1=2
         2 8..? txn x@a.1 : x~ -> unknown
         1 9..10 read x@a.1=2",
    ),
    (
        "lives one after the other, absences in between",
        "0 1..2 read x@-
         0 3..4 txn x@- : x=1 -> applied
         0 5..6 read x@a.1=1
         1 7..12 txn x@a.1 : x~ -> applied
         2 8..13 txn x@- : x=2 -> applied
         3 9..14 read x@-
         4 10..11 txn x@- : x=3 -> rejected
         0 15..16 read x@b.1=2",
    ),
    (
        "pages",
        "0 1..2 txn a@- b@- c@- : a=1 b=1 c=1 -> applied
         1 3..4 list * limit=2 -> a b
         1 5..6 list * after=b limit=2 -> c
         1 7..8 list d* limit=2 ->",
    ),
    (
        "a rejection by one assert of several, whichever",
        "9 1..2 txn x@- y@- : x=x0 y=y0 -> applied
         9 3..4 read x@a.1=x0 y@a.1=y0
         0 5..10 txn x@a.1 : x=a -> applied
         1 6..11 txn y@a.1 : y=b -> applied
         2 7..12 txn x@a.1 y@a.1 : -> rejected
         3 8..13 read x@a.1=x0 y@a.2=b",
    ),
    (
        "asserting one version twice",
        "0 1..2 txn x@- x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 x@a.1 : x=2 -> applied",
    ),
    (
        "contradictory asserts are rejected",
        "0 1..2 txn x@- : x=1 -> applied
         0 3..4 read x@a.1=1
         0 5..6 txn x@a.1 x@- : x=2 -> rejected",
    ),
];
