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
    let path = data_dir.join(FILE_NAME);
    let shown = path.display();
    match fs::read_to_string(&path) {
        Ok(text) => KeyRing::parse(&text).with_context(|| format!("the key file {shown} is damaged")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let ring = KeyRing::new(rand::random());
            write(&path, &ring).with_context(|| format!("cannot write the key file {shown}"))?;
            Ok(ring)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read the key file {shown}")),
    }
}

fn write(path: &Path, ring: &KeyRing) -> std::io::Result<()> {
    let mut file = TempFile::create_beside(path)?;
    file.restrict_to_owner()?;
    file.write(ring.to_file_text().expose().as_bytes())?;
    file.publish(path)
}
