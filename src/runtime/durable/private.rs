//! Files of the store that nothing but the store may have put there: the keys, and the files that
//! processes lock.
//!
//! The owner of a directory, or a group that may write to it, can put a link or a pipe in the place
//! of such a file. So none is opened through a link, none is truncated, and what was opened is
//! checked, not its name: it is a regular file and belongs to the user that runs this, or to root.
//! Root may also open what belongs to the owner of the directory, so that an administrator can run
//! commands on a store that a service account serves.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::parent;

/// Bytes of a private file that is read, at most. A key file of as many keys as there may be is
/// shorter by far.
const MAX_LEN: u64 = 1 << 20;

/// What every file here is opened with. Not to block: a pipe in its place would hold the process up
/// for ever.
const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The mode of a private file.
const OWNER_ONLY: u32 = 0o600;

/// The text of a file that only its owner may read and write.
///
/// # Errors
///
/// It is a link or no regular file, it belongs to another user, others have access to it, it is
/// longer than a MiB or no text, or it cannot be read.
pub(crate) fn read_private(path: &Path) -> io::Result<String> {
    let file = open_checked(path, OFlags::RDONLY)?;
    let mode = file.metadata()?.mode();
    if mode & 0o077 != 0 {
        return Err(refused(format!("other users can access it (mode {:03o}): chmod 600 it", mode & 0o777)));
    }
    let mut text = String::new();
    let len = file.take(MAX_LEN + 1).read_to_string(&mut text)?;
    if len as u64 > MAX_LEN { Err(ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

/// Opens the file that processes lock, which is made where there is none. Its bytes are left alone.
/// Others lose their access to it: who can open it can hold the lock.
///
/// # Errors
///
/// It is a link or no regular file, it belongs to another user, or it cannot be opened.
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    let file = open_checked(path, OFlags::RDWR.union(OFlags::CREATE))?;
    if file.metadata()?.mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    }
    Ok(file)
}

fn open_checked(path: &Path, flags: OFlags) -> io::Result<File> {
    let file = match open(path, flags | SAFELY, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        // FreeBSD says MLINK, the others say LOOP.
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

/// Whether a file of this owner is opened by this user.
fn is_trusted(owner: u32, user: u32, directory_owner: impl FnOnce() -> io::Result<u32>) -> io::Result<bool> {
    const ROOT: u32 = 0;
    Ok(owner == user || owner == ROOT || (user == ROOT && owner == directory_owner()?))
}

fn refused(reason: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, reason)
}

/// Whether this is a file as it lies in the directory, and not a directory or a link.
pub(super) fn is_plain(metadata: io::Result<Metadata>) -> bool {
    metadata.is_ok_and(|metadata| metadata.is_file())
}

#[cfg(test)]
mod tests;
