//! The verbs of [`HubRenameIndex`](super::HubRenameIndex), one text for every database.

/// Implements [`HubRenameIndex`](super::HubRenameIndex) for the index of a database. The place of
/// use has also [`hub_verbs`](super::hub_verbs), with its imports.
macro_rules! hub_rename_verbs {
    ($index:ty, $database:ty) => {
        use crate::index::hub::{HubRenameIndex, HubRepoAt};

        impl HubRenameIndex for $index {
            fn find_hub_repo_at(
                &self,
                kind: RepoKind,
                namespace: String,
                name: String,
                reference: String,
            ) -> BoxFuture<'_, Result<Option<HubRepoAt>, IndexError>> {
                let find = query(sql::FIND_AT).bind(kind.number()).bind(lower_name(&namespace, &name)).bind(reference);
                async move { self.read("find a Hub repository and a commit").find(find).await }.boxed()
            }

            fn find_stored_hub_repo(&self, storage_name: String) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let find = query(sql::FIND_STORED).bind(storage_name).bind(false);
                async move { self.read("find a Hub repository").find(find).await }.boxed()
            }

            fn has_storage_name(&self, storage_name: String) -> BoxFuture<'_, Result<bool, IndexError>> {
                let find = query(sql::FIND_STORAGE_NAME).bind(storage_name);
                async move { Ok(self.read("find a storage name").find::<i64>(find).await?.is_some()) }.boxed()
            }

            fn list_renamed_hub_repos(
                &self,
                kind: RepoKind,
                namespace: String,
                name: String,
                shown: ShownRepos,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
                let (of, hidden_of) = sql::shown(shown);
                let list = query(sql::LIST_RENAMED).bind(kind.number()).bind(lower_name(&namespace, &name));
                let list = list.bind(i64::from(limit)).bind(of).bind(hidden_of);
                async move { self.read("list renamed Hub repositories").all(list).await }.boxed()
            }

            fn list_unrecorded_renames(
                &self,
                kind: RepoKind,
                namespace: String,
                name: String,
                is_deleted: bool,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
                let list = query(sql::LIST_RENAMED_UNRECORDED).bind(kind.number()).bind(lower_name(&namespace, &name));
                let list = list.bind(i64::from(limit)).bind(is_deleted);
                async move { self.read("list renames without a record").all(list).await }.boxed()
            }

            fn is_hub_repo_recorded(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>> {
                let find = query(sql::FIND_RECORDED).bind(repo);
                async move { Ok(self.read("find a Hub repository").find::<i64>(find).await?.is_some()) }.boxed()
            }

            fn rename_hub_repo(&self, renamed: HubRepo) -> BoxFuture<'_, Result<bool, IndexError>> {
                async move {
                    let mut held = self.writing("rename a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    let lower_name = renamed.lower_name();
                    keep_former_name(&mut tx, renamed.storage_name, lower_name.clone()).await?;
                    let rename = query(sql::RENAME).bind(renamed.id).bind(renamed.name).bind(lower_name);
                    if tx.execute(rename).await? != 1 {
                        return Ok(false);
                    }
                    tx.execute(query(sql::COUNT_CHANGE).bind(renamed.id)).await?;
                    tx.commit().await?;
                    Ok(true)
                }
                .boxed()
            }

            fn list_former_names(&self, repo: i64, limit: u32) -> BoxFuture<'_, Result<Vec<String>, IndexError>> {
                let list = query(sql::LIST_FORMER_NAMES).bind(repo).bind(i64::from(limit));
                async move { self.read("list the former names of a Hub repository").all(list).await }.boxed()
            }

            fn set_former_names(&self, repo: i64, names: Vec<String>) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let mut held = self.writing("set the former names of a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    tx.execute(query(sql::CLEAR_FORMER_NAMES).bind(repo)).await?;
                    for name in names {
                        tx.execute(query(sql::SET_FORMER_NAME).bind(repo).bind(name)).await?;
                    }
                    tx.commit().await
                }
                .boxed()
            }
        }

        /// Makes the present name of a repository a former one, unless it is this one. This one is
        /// no former name any more.
        async fn keep_former_name(tx: &mut Tx<'_>, storage_name: String, lower_name: String) -> Result<(), IndexError> {
            let keep = query(sql::KEEP_FORMER_NAME).bind(storage_name.clone()).bind(lower_name.clone());
            tx.execute(keep).await?;
            tx.execute(query(sql::DROP_FORMER_NAME).bind(storage_name).bind(lower_name)).await.map(drop)
        }
    };
}
pub(in crate::index) use hub_rename_verbs;
