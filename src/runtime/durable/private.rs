//! Files that only the store itself may create: the keys, and the files that processes lock.
//!
//! The owner of a directory, or a group that may write to it, can replace such a file by a link or
//! a pipe. So no link is followed, no file is truncated, and the checks are made on the opened
//! file, not on its name.
//!
//! The file must be a regular file that belongs to the user of this process, or to root. A process
//! of root may also open a file that belongs to the owner of the directory, and the files that it
//! creates belong to that owner. So an administrator can run commands on a store that a service
//! account serves.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::parent;

/// Maximum number of bytes of a private file. Keys and accounts are far shorter. The rest are
/// revocations of 37 bytes: a million in a month need half of this. An archive may have as much.
pub(crate) const MAX_PRIVATE_LEN: u64 = 64 << 20;

/// Flags for every open in this module. They include `NONBLOCK`, because the open of a pipe in the
/// place of the file would block the process forever.
const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The mode of a private file.
const OWNER_ONLY: u32 = 0o600;

/// Reads the text of a file that only its owner may access.
///
/// # Errors
///
/// The file is a link or not a regular file, belongs to another user, is accessible to other users,
/// is longer than [`MAX_PRIVATE_LEN`], is not UTF-8, or cannot be read.
pub(crate) fn read_private(path: &Path) -> io::Result<String> {
    let file = open_checked(path, OFlags::RDONLY)?;
    let mode = file.metadata()?.mode();
    if mode & 0o077 != 0 {
        return Err(refused(format!("other users can access it (mode {:03o}): chmod 600 it", mode & 0o777)));
    }
    let mut text = String::new();
    let len = file.take(MAX_PRIVATE_LEN + 1).read_to_string(&mut text)?;
    if len as u64 > MAX_PRIVATE_LEN { Err(ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

/// Opens a lock file; creates it if missing, and does not change its bytes. Removes the access of
/// other users, because a user that can open the file could hold the lock.
///
/// # Errors
///
/// The file is a link or not a regular file, belongs to another user, or cannot be opened.
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    let file = open_checked(path, OFlags::RDWR.union(OFlags::CREATE))?;
    give_to_owner_of_directory(&file, path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    }
    Ok(file)
}

fn open_checked(path: &Path, flags: OFlags) -> io::Result<File> {
    let file = match open(path, flags | SAFELY, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        // FreeBSD returns MLINK, the other systems LOOP.
        Err(Errno::LOOP | Errno::MLINK) => {
            return Err(refused("it is a symbolic link, which is not followed".to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file".to_owned()));
    }
    let (owner, user) = (metadata.uid(), geteuid().as_raw());
    if !is_trusted(owner, user, || Ok(parent(path)?.metadata()?.uid()))? {
        return Err(refused(format!("it belongs to user {owner}, and this process runs as user {user}")));
    }
    Ok(file)
}

/// Whether a process of `user` may use a file of `owner`.
fn is_trusted(owner: u32, user: u32, directory_owner: impl FnOnce() -> io::Result<u32>) -> io::Result<bool> {
    const ROOT: u32 = 0;
    Ok(owner == user || owner == ROOT || (user == ROOT && owner == directory_owner()?))
}

/// Gives a file that this process has created to the owner of its directory, if this is a process
/// of root. Otherwise a server with another user could not read what an administrator wrote.
pub(super) fn give_to_owner_of_directory(file: &File, path: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let directory = parent(path)?.metadata()?;
    let owner = (Uid::from_raw(directory.uid()), Gid::from_raw(directory.gid()));
    // Files of root are the common case, and stay as they are.
    if owner.0.is_root() {
        return Ok(());
    }
    match fchown(file, Some(owner.0), Some(owner.1)) {
        // Root of a container may lack the capability, and an NFS server may refuse it to root.
        Err(Errno::PERM) => Ok(()),
        changed => Ok(changed?),
    }
}

fn refused(reason: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, reason)
}

/// Whether this is the metadata of a regular file, not of a directory or a link.
pub(super) fn is_plain(metadata: io::Result<Metadata>) -> bool {
    metadata.is_ok_and(|metadata| metadata.is_file())
}

#[cfg(test)]
mod tests;
