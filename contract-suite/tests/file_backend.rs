//! The suite on the backend that the guide of `coord-core` shows: the example of a stranger's backend, in a stranger's test target.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use contract_suite::{Harness, Options, Subject};
use coord_core::{Backend, BackendError, Namespace};

#[allow(dead_code, missing_docs, unreachable_pub, reason = "the example is a whole program")]
#[path = "../../coord-core/examples/file_backend.rs"]
mod file_backend;

/// Where the several processes of a clause find the folder.
const FOLDER: &str = "COORD_FILE_BACKEND_FOLDER";

struct FileHarness {
    folder: std::path::PathBuf,
}

#[async_trait]
impl Harness for FileHarness {
    fn name(&self) -> &str {
        "file"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Ok(Arc::new(file_backend::FileBackend::open(&self.folder, &Namespace::new(namespace)?)))
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        vec![(FOLDER.to_owned(), self.folder.display().to_string())]
    }
}

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return contract_suite::main(FileHarness { folder: folder.into() });
    }
    // In memory where there is such a folder: the example waits for the disk with every transaction, and the suite makes many.
    let folder =
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder");
    let harness = FileHarness { folder: folder.path().to_owned() };
    // It writes the whole file with every transaction, so that a board of ten thousand tasks is slow by design.
    let options = Options { timeout: Duration::from_secs(900), ..Options::default() };
    contract_suite::main_with(Subject::new(Arc::new(harness)), options)
}
