//! The keys of several servers, sealed in their database with the master key that all of them have.
//! The first start takes over the file `keys` of its data directory, if there is one.
//!
//! A change is one transaction, so a crash leaves the keys before or after it. Running servers see
//! it within half a second.

use std::fmt;

use crate::cli::store::StoreLocation;

#[cfg(feature = "s3")]
mod built {
    use std::sync::{Arc, Mutex, PoisonError};

    use anyhow::{Context, Result, bail};
    use tokio::runtime::Handle;

    use super::{StoreLocation, fmt};
    use crate::cli::remote;
    use crate::cli::store::{StoreIndex, describe_database, open_database};
    use crate::config::DatabaseUrl;
    use crate::http::{KeySource, Keys};
    use crate::index::postgres::{PostgresIndex, SealedKeys};
    use crate::runtime::telemetry::chain;
    use crate::service::access::{KeyRing, MasterKey, open_ring, seal_ring};

    #[derive(Debug)]
    pub(in crate::cli) struct SharedKeys {
        url: DatabaseUrl,
        key: MasterKey,
    }

    impl SharedKeys {
        /// The keys of the store at this location; `None` if they are in the data directory.
        pub(in crate::cli) fn of(location: &StoreLocation) -> Option<Self> {
            let (url, s3) = (location.database.clone()?, location.s3.as_ref()?);
            Some(Self { url, key: MasterKey::new(s3.master_key.expose()) })
        }

        pub(in crate::cli) fn read(&self) -> Result<Option<KeyRing>> {
            let found = remote::run(async {
                let index = self.connect().await?;
                let found = index.changed_keys(None).await;
                index.close().await;
                Ok(found?)
            })?;
            found.map(|SealedKeys { sealed, .. }| Ok(open_ring(&self.key, &sealed)?)).transpose()
        }

        /// Only a start creates the keys, because it may take over those of a data directory.
        pub(in crate::cli) fn change(
            &self,
            make: impl FnOnce(Option<KeyRing>) -> Result<KeyRing> + Send,
        ) -> Result<KeyRing> {
            let make = |ring: Option<KeyRing>| {
                make(Some(ring.with_context(|| format!("no keys in {self}: start zorb serve once"))?))
            };
            remote::run(async {
                let index = self.connect().await?;
                let changed = self.change_in(&index, make).await;
                index.close().await;
                changed
            })
        }

        /// Writes the keys of a new store into its index, which is the one at the location.
        pub(in crate::cli) async fn write(&self, ring: KeyRing, index: &StoreIndex) -> Result<()> {
            let StoreIndex::Postgres(index) = index else { bail!("the index of {self} is not in PostgreSQL") };
            self.change_in(index, |_| Ok(ring)).await.map(drop)
        }

        async fn change_in(
            &self,
            index: &PostgresIndex,
            make: impl FnOnce(Option<KeyRing>) -> Result<KeyRing> + Send,
        ) -> Result<KeyRing> {
            let mut made = None;
            let make = |sealed: Option<Vec<u8>>| {
                let ring = make(sealed.map(|sealed| open_ring(&self.key, &sealed)).transpose()?)?;
                let sealed = seal_ring(&self.key, &ring, rand::random());
                made = Some(ring);
                anyhow::Ok(sealed)
            };
            index.change_keys(make).await??;
            made.context("the keys were not changed")
        }

        async fn connect(&self) -> Result<PostgresIndex> {
            let StoreIndex::Postgres(index) = open_database(&self.url).await? else {
                bail!("the index of {self} is not in PostgreSQL")
            };
            Ok(index)
        }

        /// Reads the keys for a server. If there are none yet, the old ones of its data directory
        /// are taken over, or new ones are created.
        pub(in crate::cli) async fn open(self, old: Option<KeyRing>, index: &StoreIndex) -> Result<Keys> {
            let StoreIndex::Postgres(index) = index else { bail!("the index of {self} is not in PostgreSQL") };
            if index.changed_keys(None).await?.is_none() {
                let is_taken_over = old.is_some();
                let make = |ring: Option<KeyRing>| Ok(ring.or(old).unwrap_or_else(|| KeyRing::new(rand::random())));
                self.change_in(index, make).await?;
                if is_taken_over {
                    tracing::info!("the keys and accounts of the data directory are in the database from now on");
                }
            }
            let SealedKeys { version, sealed } = index.changed_keys(None).await?.context("the keys were removed")?;
            let ring = open_ring(&self.key, &sealed)?;
            let (index, runtime) = (index.clone(), Handle::current());
            Ok(Keys::new(ring, Arc::new(Source { key: self.key, index, runtime, seen: Mutex::new(version) })))
        }
    }

    impl fmt::Display for SharedKeys {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the PostgreSQL {}", describe_database(&self.url))
        }
    }

    /// The keys in the database, and the version that was read last.
    #[derive(Debug)]
    struct Source {
        key: MasterKey,
        index: PostgresIndex,
        runtime: Handle,
        seen: Mutex<u64>,
    }

    impl KeySource for Source {
        fn changed(&self) -> Option<KeyRing> {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let SealedKeys { version, sealed } = match self.runtime.block_on(self.index.changed_keys(Some(*seen))) {
                Ok(changed) => changed?,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "cannot read the keys; keeping the previous ones");
                    return None;
                }
            };
            match open_ring(&self.key, &sealed) {
                Ok(ring) => {
                    *seen = version;
                    Some(ring)
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "cannot read the keys; keeping the previous ones");
                    None
                }
            }
        }
    }
}

#[cfg(not(feature = "s3"))]
mod built {
    use anyhow::Result;

    use super::{StoreLocation, fmt};
    use crate::cli::store::StoreIndex;
    use crate::http::Keys;
    use crate::service::access::KeyRing;

    /// Keys in a database, which this program cannot have.
    #[derive(Debug)]
    pub(in crate::cli) enum SharedKeys {}

    #[expect(clippy::unused_async, reason = "as in a program with S3")]
    impl SharedKeys {
        pub(in crate::cli) const fn of(_: &StoreLocation) -> Option<Self> {
            None
        }

        pub(in crate::cli) fn read(&self) -> Result<Option<KeyRing>> {
            match *self {}
        }

        pub(in crate::cli) fn change(
            &self,
            _: impl FnOnce(Option<KeyRing>) -> Result<KeyRing> + Send,
        ) -> Result<KeyRing> {
            match *self {}
        }

        pub(in crate::cli) async fn open(self, _: Option<KeyRing>, _: &StoreIndex) -> Result<Keys> {
            match self {}
        }

        pub(in crate::cli) async fn write(&self, _: KeyRing, _: &StoreIndex) -> Result<()> {
            match *self {}
        }
    }

    impl fmt::Display for SharedKeys {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }
}

pub(in crate::cli) use self::built::SharedKeys;
