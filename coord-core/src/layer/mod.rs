//! Wrappers around a [`Backend`](crate::Backend) that are backends themselves: for counting and tracing, and for tests.
