#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod error;
mod layout;
mod link;
mod links;
mod reply;
mod script;
mod settings;

pub use backend::RedisBackend;
pub use config::{Durability, RedisConfig};

/// The name of this backend in errors and reports.
const NAME: &str = "redis";
