//! The harness of the toy store and of everything that is made of it.

use std::sync::Arc;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Bytes, Key, Version};

use super::toy::{Bend, Cell, Handle, Toy};
use crate::harness::{Control, ControlError, Harness, ServerControl};

type Open = fn(Handle) -> Arc<dyn Backend>;

/// A toy store, with a part bent or with something around each of its handles.
pub struct ToyHarness {
    toy: Arc<Toy>,
    bend: &'static Bend,
    open: Open,
    /// Whether each handle gets a store of its own.
    apart: bool,
}

impl ToyHarness {
    pub(crate) fn new(bend: &'static Bend) -> Self {
        ToyHarness { toy: Arc::default(), bend, open: |handle| Arc::new(handle), apart: false }
    }

    pub(crate) fn around(open: Open) -> Self {
        ToyHarness { open, ..ToyHarness::new(&super::toy::RIGHT) }
    }

    pub(crate) fn apart() -> Self {
        ToyHarness { apart: true, ..ToyHarness::new(&super::toy::RIGHT) }
    }
}

#[async_trait]
impl Harness for ToyHarness {
    fn name(&self) -> &str {
        super::toy::NAME
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let toy = if self.apart { Arc::default() } else { self.toy.clone() };
        Ok((self.open)(Handle::new(&toy, self.bend, namespace)))
    }

    fn server(&self) -> Option<&dyn ServerControl> {
        Some(self)
    }
}

#[async_trait]
impl ServerControl for ToyHarness {
    fn can(&self, control: Control) -> bool {
        matches!(control, Control::Foreign | Control::SetVersion)
    }

    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let kinds: [&'static [u8]; 3] = [b"not ours", b"", b"\xff\xfe"];
        let Some(kind) = kinds.get(variant) else { return Ok(false) };
        self.toy.with(namespace, |space| {
            space.cells.insert(key.clone(), Cell::Foreign(Bytes::from_static(kind)))
        });
        Ok(true)
    }

    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        Ok(self.toy.with(namespace, |space| match space.cells.get(key) {
            None => None,
            Some(Cell::Foreign(bytes)) => Some(bytes.to_vec()),
            Some(Cell::Ours(version, value)) => Some([version.to_string().as_bytes(), b" ", value].concat()),
        }))
    }

    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        self.toy.with(namespace, |space| space.cells.remove(key));
        Ok(())
    }

    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        self.toy.with(namespace, |space| match space.cells.get_mut(key) {
            Some(Cell::Ours(now, _)) => {
                *now = version;
                Ok(true)
            }
            _ => Err("the key is not there".into()),
        })
    }
}
