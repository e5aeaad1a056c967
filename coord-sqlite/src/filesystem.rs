//! Whether a folder lies on a file system that several hosts can mount.
//!
//! The write-ahead log needs memory that all processes share, so all of them must run under one kernel. On a network file system (a
//! folder shared over the boundary of a virtual machine is one) SQLite would seem to work and lose data.

use std::path::Path;

use coord_core::BackendError;

use crate::error::config_error;

/// Refuses a folder on a file system that is not local.
pub(crate) fn refuse_network(folder: &Path) -> Result<(), BackendError> {
    match foreign_file_system(folder) {
        Ok(None) => Ok(()),
        Ok(Some(name)) => Err(config_error(format!(
            "{} lies on {name}, which other hosts can reach; SQLite needs a local file system, or several processes damage the file",
            folder.display()
        ))),
        Err(error) => {
            Err(config_error(format!("cannot tell which file system {} lies on", folder.display()))
                .with_source(error))
        }
    }
}

#[cfg(target_os = "linux")]
fn foreign_file_system(folder: &Path) -> std::io::Result<Option<String>> {
    let kind = rustix::fs::statfs(folder)?.f_type;
    // The kernel's numbers have 32 bits; the field is wider, and signed, on some systems.
    let magic = kind as u32;
    if magic != FUSE {
        return Ok(network_name(magic).map(str::to_owned));
    }
    let device = rustix::fs::stat(folder)?.st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let name = mount_type(&mounts, &device).unwrap_or("an unknown FUSE file system");
    Ok((!LOCAL_FUSE.contains(&name)).then(|| name.to_owned()))
}

/// Elsewhere the kinds have no stable numbers, so the file system is not checked.
#[cfg(not(target_os = "linux"))]
fn foreign_file_system(_folder: &Path) -> std::io::Result<Option<String>> {
    Ok(None)
}

/// FUSE, which stands for sshfs, S3, virtiofs and the shared folders of container desktops as well as for local disks.
#[cfg(target_os = "linux")]
const FUSE: u32 = 0x6573_5546;

/// The only FUSE file systems that are certainly local: block devices, and the overlay of containers without root.
#[cfg(target_os = "linux")]
const LOCAL_FUSE: [&str; 2] = ["fuseblk", "fuse.fuse-overlayfs"];

/// The network and cluster file systems by the numbers of `statfs(2)` and `linux/magic.h`.
#[cfg(target_os = "linux")]
fn network_name(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0x0000_517B | 0xFE53_4D42 | 0xFF53_4D42 => "SMB/CIFS",
        0x0102_1997 => "9p (a folder of another kernel)",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x00C3_6400 => "Ceph",
        0x0BD0_0BD0 => "Lustre",
        0x0000_564C => "NCP",
        0x7375_7245 => "Coda",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x4750_4653 => "GPFS",
        0xAAD7_AAEA => "PanFS",
        0x2003_0528 => "OrangeFS",
        0x1983_0326 => "BeeGFS",
        0x786F_4256 => "a VirtualBox shared folder",
        0xBACB_ACBC => "a VMware shared folder",
        0x7C7C_6673 => "a Parallels shared folder",
        _ => return None,
    })
}

/// The type of the mount of a device (`major:minor`) in the text of `/proc/self/mountinfo`.
#[cfg(target_os = "linux")]
fn mount_type<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let (mount, rest) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then(|| rest.split(' ').next())?
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_number_and_local_ones_are_not_among_them() {
        for magic in [0x6969, 0xFF53_4D42, 0x0102_1997, 0x00C3_6400, 0x0BD0_0BD0, 0x5346_414F] {
            assert!(network_name(magic).is_some(), "{magic:x}");
        }
        // ext4, xfs, btrfs, tmpfs, overlay, zfs, f2fs, ecryptfs
        for magic in
            [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1, 0xF2F5_2010, 0xF15F]
        {
            assert_eq!(network_name(magic), None, "{magic:x}");
        }
    }

    #[test]
    fn the_type_of_a_mount_is_found_by_its_device() {
        let mounts = "22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      40 22 0:51 / /mnt/s\\040s rw - fuse.sshfs host: rw\n\
                      41 22 0:52 / /mnt/v rw master:3 - virtiofs share rw\n\
                      42 22 8:1 / /mnt/n rw - fuseblk /dev/sda1 rw\n";
        assert_eq!(mount_type(mounts, "0:51"), Some("fuse.sshfs"));
        assert_eq!(mount_type(mounts, "0:52"), Some("virtiofs"));
        assert_eq!(mount_type(mounts, "8:1"), Some("fuseblk"));
        assert_eq!(mount_type(mounts, "0:5"), None);
    }

    #[test]
    fn the_temporary_folder_of_the_tests_is_local() {
        assert_eq!(foreign_file_system(&std::env::temp_dir()).unwrap(), None);
    }
}
