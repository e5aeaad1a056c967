#![doc = include_str!("../README.md")]

mod backend;
mod call;
mod config;
mod connection;
mod error;
mod read;
mod schema;
#[cfg(feature = "tls")]
mod tls;
mod write;

pub use backend::PostgresBackend;
pub use config::{Durability, PostgresConfig, SslMode};

/// The name of this backend in errors and reports.
const NAME: &str = "postgres";
