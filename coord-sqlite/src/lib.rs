#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("coord-sqlite tells files apart by device and inode, which only Unix has");

mod backend;
mod config;
mod connection;
mod error;
mod filesystem;
mod location;
mod pool;
mod queue;
mod read;
mod schema;
mod write;

pub use backend::SqliteBackend;
pub use config::{Durability, SqliteConfig};

/// The name of this backend in errors and reports.
const NAME: &str = "sqlite";
