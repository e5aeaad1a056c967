//! The file at the path: where it really lies, and whether it is still the same one.
//!
//! Nothing here, nor anywhere in this crate, opens the database file other than through SQLite. POSIX locks belong to the process, and
//! closing any descriptor of a file drops all of them, so a mere look into the file would unlock it under the feet of
//! the connections that this process has on it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use coord_core::BackendError;

use crate::error::config_error;
use crate::filesystem::refuse_network;

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The file that is at a path now.
    pub(crate) fn at(path: &Path) -> io::Result<Identity> {
        fs::metadata(path).map(|metadata| Identity { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// What is at the path before SQLite looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// A file without a byte, which a store may be made of.
    Empty,
    /// A file with something in it.
    Something,
}

/// The real path of the file, all symbolic links resolved. Creates the folders that are missing, durably.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, BackendError> {
    let Some(name) = path.file_name() else {
        return Err(config_error(format!("{} names a folder, not a file", path.display())));
    };
    let failed =
        |what: &str, error: io::Error| config_error(format!("{}: {what}", path.display())).with_source(error);
    match fs::canonicalize(path) {
        Ok(real) => {
            refuse_network(real.parent().unwrap_or(&real))?;
            refuse_names(&real)?;
            Ok(real)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Without a link there may be a file by now, which another process has just made: it has the same real path.
            if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
                return Err(failed("is a symbolic link to nothing", error));
            }
            let parent = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            let existing = parent.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
            refuse_network(existing)?;
            create_folders(parent).map_err(|error| failed("its folder cannot be created", error))?;
            let real =
                fs::canonicalize(parent).map_err(|error| failed("its folder cannot be reached", error))?;
            Ok(real.join(name))
        }
        Err(error) => Err(failed("cannot be reached", error)),
    }
}

/// Creates the missing folders of a path. Each is on the disk before it is used: a store that is durable in a folder that is not would
/// be lost with it.
fn create_folders(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        folder.ancestors().take_while(|folder| *folder != Path::new("") && !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            Ok(()) => {}
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) => return Err(error),
        }
        let parent = match folder.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Refuses a file that has several names. Only looked at when a handle is opened: a name that comes later, of a backup say, must not
/// stop those who work.
fn refuse_names(path: &Path) -> Result<(), BackendError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() && metadata.nlink() > 1 => Err(config_error(format!(
            "{} has {} names (hard links); the log lies beside a name, so processes that use another one would damage the file",
            path.display(),
            metadata.nlink()
        ))),
        _ => Ok(()),
    }
}

/// Looks at what is at the real path, and refuses what is no plain file.
pub(crate) fn look(path: &Path) -> Result<Found, BackendError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => {
            return Err(config_error(format!("{}: cannot be reached", path.display())).with_source(error));
        }
    };
    if metadata.is_dir() {
        return Err(config_error(format!("{} is a folder, not a file", path.display())));
    }
    if !metadata.is_file() {
        return Err(config_error(format!("{} is not a plain file", path.display())));
    }
    Ok(if metadata.len() == 0 { Found::Empty } else { Found::Something })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::ErrorKind;

    #[test]
    fn missing_folders_are_created_and_links_are_resolved() {
        let folder = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(folder.path()).unwrap();
        let real = resolve(&base.join("a/b/c.db")).unwrap();
        assert_eq!(real, base.join("a/b/c.db"));
        assert!(base.join("a/b").is_dir() && !real.exists());
        fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, base.join("link.db")).unwrap();
        assert_eq!(resolve(&base.join("link.db")).unwrap(), real);
        assert_eq!(look(&real).unwrap(), Found::Empty);
        assert_eq!(look(&base.join("none")).unwrap(), Found::Nothing);
    }

    #[test]
    fn what_is_no_plain_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path();
        std::os::unix::fs::symlink(base.join("nothing"), base.join("dangling")).unwrap();
        fs::write(base.join("file"), "x").unwrap();
        for (path, says) in [
            (base.join("dangling"), "symbolic link"),
            (base.join("file/x.db"), "cannot be reached"),
            (base.join(".."), "names a folder"),
            (PathBuf::from("/"), "names a folder"),
        ] {
            let error = resolve(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.message().contains(says), "{error}");
        }
        assert!(look(base).unwrap_err().message().contains("is a folder"));
        assert!(look(Path::new("/dev/null")).unwrap_err().message().contains("not a plain file"));
        fs::hard_link(base.join("file"), base.join("other")).unwrap();
        assert!(resolve(&base.join("file")).unwrap_err().message().contains("2 names"));
        assert!(look(&base.join("file")).is_ok());
    }
}
