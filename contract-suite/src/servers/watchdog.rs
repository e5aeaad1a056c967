//! What stops the servers when this program ends in any way, also by `kill -9`.
//!
//! A shell of its own process group reads the process groups of the servers from a pipe. It sees the end of the pipe when this program is
//! gone, kills what is left, and removes the data.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

const WATCH: &str = r#"
left=" "
while read -r verb group; do
  case $verb in
    watch) left="$left$group " ;;
    forget) case $left in *" $group "*) left="${left%% "$group" *} ${left#* "$group" }" ;; esac ;;
  esac
done
for group in $left; do kill -9 "-$group" 2>/dev/null; done
# A process that is dying may still make a file.
for try in 1 2 3 4 5; do rm -rf -- "$1" 2>/dev/null && exit 0; sleep 0.2; done
"#;

struct Watchdog {
    folder: PathBuf,
    input: Mutex<ChildStdin>,
    _shell: Child,
}

/// A static is never dropped: the pipe is closed by the end of the process.
static WATCHDOG: LazyLock<Result<Watchdog, String>> =
    LazyLock::new(|| Watchdog::start().map_err(|error| format!("the watchdog of the servers: {error}")));

impl Watchdog {
    fn start() -> std::io::Result<Watchdog> {
        let name =
            format!("coord-servers-{}-{:08x}", std::process::id(), crate::context::system_random() as u32);
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        // Servers that refuse to run as root run as another user, who must get to the data below.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711))?;
        let mut shell = shell(&folder)?;
        let input = shell.stdin.take().ok_or_else(|| std::io::Error::other("a shell without a pipe"))?;
        Ok(Watchdog { folder, input: Mutex::new(input), _shell: shell })
    }
}

fn shell(folder: &Path) -> std::io::Result<Child> {
    Command::new("sh")
        .args(["-c", WATCH, "watchdog"])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

fn watchdog() -> Result<&'static Watchdog, String> {
    WATCHDOG.as_ref().map_err(Clone::clone)
}

fn tell(verb: &str, group: u32) -> Result<(), String> {
    let mut input = watchdog()?.input.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(input, "{verb} {group}").and_then(|()| input.flush()).map_err(|error| error.to_string())
}

/// The folder of all servers of this program, removed when it ends.
pub(super) fn folder() -> Result<&'static Path, String> {
    Ok(&watchdog()?.folder)
}

/// Kills this process group when the program ends.
pub(super) fn watch(group: u32) -> Result<(), String> {
    tell("watch", group)
}

/// The process group has ended.
pub(super) fn forget(group: u32) {
    // A watchdog that is gone has nothing to forget.
    let _ = tell("forget", group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_pipe_kills_what_is_watched_and_removes_the_folder() {
        let folder =
            std::env::temp_dir().join(format!("coord-watchdog-{:016x}", crate::context::system_random()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("data"), "").unwrap();
        let sleeper = || Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let (mut kept, mut first, mut last) = (sleeper(), sleeper(), sleeper());
        let mut shell = shell(&folder).unwrap();
        let mut input = shell.stdin.take().unwrap();
        for (verb, process) in
            [("watch", &first), ("watch", &kept), ("forget", &kept), ("forget", &kept), ("watch", &last)]
        {
            writeln!(input, "{verb} {}", process.id()).unwrap();
        }
        assert!(first.try_wait().unwrap().is_none());
        drop(input);
        assert!(shell.wait().unwrap().success());
        // Killed processes end at once, so this does not wait for long.
        assert!(!first.wait().unwrap().success() && !last.wait().unwrap().success());
        assert!(kept.try_wait().unwrap().is_none(), "what was forgotten is left alone");
        kept.kill().unwrap();
        kept.wait().unwrap();
        assert!(!folder.exists());
    }
}
