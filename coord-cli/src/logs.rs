//! The output of tasks, kept in files of bounded size: the beginning as it comes, and the end.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use coord_core::board::TaskId;
use sha2::{Digest, Sha256};

/// How much of the beginning is kept, in bytes.
const HEAD_BYTES: usize = 512 * 1_024;
/// How much of the end is kept, in bytes.
const TAIL_BYTES: usize = 512 * 1_024;
/// How many attempts of a task are kept.
const ATTEMPTS: usize = 3;
/// The most bytes that are read to show the last lines.
const SHOWN_BYTES: u64 = 16 * 1_024;

/// The folder with the output of one board's tasks: a folder for each task, a file for each attempt, named by its fence.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
}

impl Logs {
    /// The logs in this folder.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Logs { folder }
    }

    /// The file of an attempt.
    pub(crate) fn path(&self, task: &TaskId, fence: u64) -> PathBuf {
        self.folder.join(file_name(task)).join(format!("{fence}.log"))
    }

    /// The file of the last attempt that has one.
    pub(crate) fn latest(&self, task: &TaskId) -> Option<PathBuf> {
        let folder = self.folder.join(file_name(task));
        fences(&folder).into_iter().max().map(|fence| folder.join(format!("{fence}.log")))
    }

    /// Begins the log of an attempt. Of the attempts before, the last two are kept.
    pub(crate) fn create(&self, task: &TaskId, fence: u64) -> io::Result<Log> {
        let folder = self.folder.join(file_name(task));
        fs::create_dir_all(&folder)?;
        let mut before = fences(&folder);
        before.sort_unstable();
        let kept = before.len().saturating_sub(ATTEMPTS - 1);
        for old in &before[..kept] {
            // Another worker may have been faster.
            let _ = fs::remove_file(folder.join(format!("{old}.log")));
        }
        let file = File::create(self.path(task, fence))?;
        Ok(Log { file, written: 0, tail: VecDeque::new(), dropped: 0 })
    }

    /// Writes to the end of the log of an attempt, which may have none yet.
    pub(crate) fn append(&self, task: &TaskId, fence: u64, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(task, fence);
        if !path.exists() {
            let mut log = self.create(task, fence)?;
            log.write(bytes)?;
            return log.finish();
        }
        File::options().append(true).open(path)?.write_all(bytes)
    }
}

fn fences(folder: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".log")?.parse().ok()).collect()
}

/// A name for a file that is different for different tasks: readable, without separators, of bounded length.
fn file_name(task: &TaskId) -> String {
    let mut name = String::new();
    for byte in task.as_str().bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => name.push(char::from(byte)),
            b'.' if !name.is_empty() => name.push('.'),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    if name.len() <= 120 {
        return name;
    }
    let digest = Sha256::digest(task.as_str().as_bytes());
    name.truncate(80);
    // `~` is in no short name, so a long one never equals it.
    name.push('~');
    for byte in &digest[..16] {
        name.push_str(&format!("{byte:02x}"));
    }
    name
}

/// The log of one attempt while it is written.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    written: usize,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Log {
    /// Keeps what a command said.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let head = bytes.len().min(HEAD_BYTES.saturating_sub(self.written));
        self.file.write_all(&bytes[..head])?;
        self.written += head;
        let rest = &bytes[head..];
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
        self.dropped += over as u64;
        Ok(())
    }

    /// Writes the end.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.dropped > 0 {
            writeln!(self.file, "\n[... {} bytes are left out here ...]", self.dropped)?;
        }
        let (front, back) = self.tail.as_slices();
        self.file.write_all(front)?;
        self.file.write_all(back)?;
        self.file.flush()
    }
}

/// The last lines of a log, and whether there are more.
pub(crate) fn last_lines(path: &Path, count: usize) -> io::Result<(Vec<String>, bool)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(SHOWN_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(count);
    Ok((lines[first..].iter().map(|line| (*line).to_owned()).collect(), first > 0 || start > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn names_of_files_are_safe_and_distinct() {
        assert_eq!(file_name(&id("build.x-1")), "build.x-1");
        let names = [".", "..", "a/b", "a%2fb", "a b", "é", "a"].map(|text| file_name(&id(text)));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| !name.starts_with('.') && !name.contains('/')));
        let (a, b) = ("é".repeat(100), format!("{}e!", "é".repeat(99)));
        assert_ne!(file_name(&id(&a)), file_name(&id(&b)));
        assert!(file_name(&id(&a)).len() <= 120);
    }

    #[test]
    fn a_long_output_keeps_its_beginning_and_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Logs::new(folder.path().to_owned());
        let mut log = logs.create(&id("t"), 7).unwrap();
        log.write(b"first\n").unwrap();
        for _ in 0..400 {
            log.write(&[b'x'; 10_000]).unwrap();
        }
        log.write(b"\nlast\n").unwrap();
        log.finish().unwrap();
        let path = logs.latest(&id("t")).unwrap();
        assert_eq!(path, logs.path(&id("t"), 7));
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"first\n") && bytes.ends_with(b"\nlast\n"));
        assert!(bytes.len() < HEAD_BYTES + TAIL_BYTES + 100, "{}", bytes.len());
        let (lines, more) = last_lines(&path, 1).unwrap();
        assert_eq!((lines, more), (vec!["last".to_owned()], true));
    }

    #[test]
    fn old_attempts_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Logs::new(folder.path().to_owned());
        for fence in 1..=12 {
            logs.create(&id("t"), fence).unwrap().finish().unwrap();
        }
        let mut left = fences(&folder.path().join("t"));
        left.sort_unstable();
        assert_eq!(left, [10, 11, 12]);
    }
}
