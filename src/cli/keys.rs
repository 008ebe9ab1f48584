//! The keys that sign, in the data folder: made at the first start, kept over restarts, readable by their owner only.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;

use crate::runtime::durable::TempFile;
use crate::service::access::KeyRing;

/// Name of the key file in the data folder.
const FILE_NAME: &str = "keys";

/// Reads the key ring of a data folder, and makes one where there is none.
pub(super) fn open(data_dir: &Path) -> anyhow::Result<KeyRing> {
    if let Some(ring) = read(data_dir)? {
        return Ok(ring);
    }
    let ring = KeyRing::new(rand::random());
    write(data_dir, &ring)?;
    Ok(ring)
}

/// Reads the key ring of a data folder; `None` where there is none.
pub(super) fn read(data_dir: &Path) -> anyhow::Result<Option<KeyRing>> {
    let path = data_dir.join(FILE_NAME);
    let shown = path.display();
    match fs::read_to_string(&path) {
        Ok(text) => KeyRing::parse(&text).map(Some).with_context(|| format!("the key file {shown} is damaged")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read the key file {shown}")),
    }
}

/// Gives a data folder this key ring.
pub(super) fn write(data_dir: &Path, ring: &KeyRing) -> anyhow::Result<()> {
    let path = data_dir.join(FILE_NAME);
    let publish = || -> std::io::Result<()> {
        let mut file = TempFile::create_beside(&path)?;
        file.restrict_to_owner()?;
        file.write(ring.to_file_text().expose().as_bytes())?;
        file.publish(&path)
    };
    publish().with_context(|| format!("cannot write the key file {}", path.display()))
}
