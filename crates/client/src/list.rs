//! Lists the files and xorbs of a server, a page at a time.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use xet_format::XorbHash;
use xet_format::shard::Sha256;

use super::error::RequestError;
use super::server::Server;
use super::watch::Watch;
use super::wire::{FilesPage, ListedFile, ListedXorb, XorbsPage};

/// An entry of a list of a server: a file or a xorb.
pub trait Listed: Sized + sealed::Sealed {
    /// A page of the list, as the server sends it.
    type Page: DeserializeOwned + Into<Listing<Self>>;
    /// The path of the list on the server.
    const PATH: &'static str;
    /// The hash of the entry as the server writes it.
    fn hash(&self) -> &str;
    /// Whether the string fields except the hash are valid. Callers print them to a terminal, so a
    /// server must not be able to send control characters.
    fn is_valid(&self) -> bool;
}

impl Listed for ListedFile {
    type Page = FilesPage;
    const PATH: &'static str = "v1/files";

    fn hash(&self) -> &str {
        &self.hash
    }

    fn is_valid(&self) -> bool {
        self.sha256.as_deref().is_none_or(|sha256| sha256.parse::<Sha256>().is_ok())
    }
}

impl Listed for ListedXorb {
    type Page = XorbsPage;
    const PATH: &'static str = "v1/xorbs";

    fn hash(&self) -> &str {
        &self.hash
    }

    fn is_valid(&self) -> bool {
        true
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::ListedFile {}
    impl Sealed for super::ListedXorb {}
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<E> {
    /// The entries.
    pub entries: Vec<E>,
    /// The `after` of the next page; `None` for the last one.
    pub next: Option<String>,
}

impl From<FilesPage> for Listing<ListedFile> {
    fn from(page: FilesPage) -> Self {
        Self { entries: page.files, next: page.next }
    }
}

impl From<XorbsPage> for Listing<ListedXorb> {
    fn from(page: XorbsPage) -> Self {
        Self { entries: page.xorbs, next: page.next }
    }
}

impl Server {
    /// The page of a list that begins after the entry `after`, or at the start of the list.
    ///
    /// # Errors
    ///
    /// The request fails, or the page is invalid.
    pub async fn list<E: Listed>(
        &self,
        after: Option<String>,
        watch: &Arc<dyn Watch>,
    ) -> Result<Listing<E>, RequestError> {
        let path = match &after {
            None => E::PATH.to_owned(),
            Some(after) => format!("{}?after={after}", E::PATH),
        };
        let Listing { entries, next }: Listing<E> = self.get_json::<E::Page>(&path, watch).await?.into();
        // Hashes of files have the same text form. They must ascend, because a list whose pages go
        // back would never end.
        let parse = |hash: &str| hash.parse::<XorbHash>().ok().map(|hash| *hash.as_bytes());
        let mut last = after.as_deref().and_then(parse);
        for entry in &entries {
            let hash = parse(entry.hash());
            if hash.is_none() || hash <= last || !entry.is_valid() {
                return Err(self.invalid_response("its list is damaged or unordered"));
            }
            last = hash;
        }
        let is_next_valid = next.as_deref().is_none_or(|next| !entries.is_empty() && parse(next) == last);
        if !is_next_valid {
            return Err(self.invalid_response("the field `next` of its list is not the hash of the last entry"));
        }
        Ok(Listing { entries, next })
    }
}
