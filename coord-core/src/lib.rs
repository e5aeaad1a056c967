#![doc = include_str!("../README.md")]

mod backend;
pub mod board;
mod cas;
mod clock;
mod codec;
pub mod criteria;
pub mod effects;
mod error;
#[doc = include_str!("guide.md")]
#[doc = concat!("```\n# #![allow(dead_code, clippy::disallowed_methods)]\n", include_str!("../examples/file_backend.rs"), "\n```")]
pub mod guide {}
mod hold;
mod key;
pub mod layer;
mod panic;
mod recent;
mod snapshot;
mod text;
pub mod token;
mod txn;
pub mod url;

pub use async_trait::async_trait;
pub use bytes::Bytes;

pub use backend::Backend;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use error::{BackendError, ErrorKind, Operation};
pub use key::{Key, Namespace, Prefix, limits};
pub use snapshot::{Entry, KeyRange, KeySet, Snapshot, Version};
pub use token::{OperationId, RequestId, Token};
pub use txn::{Assert, Mutation, Txn, TxnOutcome};
