//! The loop of every verb: snapshot, judge, transaction.
