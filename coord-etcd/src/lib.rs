#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod error;
mod request;
mod tries;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;

/// The name of the backend in errors.
pub(crate) const NAME: &str = "etcd";
