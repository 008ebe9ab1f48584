//! The verbs of [`HubDeletionIndex`](super::HubDeletionIndex), one text for every database.

/// Implements [`HubDeletionIndex`](super::HubDeletionIndex) for the index of a database. The place
/// of use has also [`hub_verbs`](super::hub_verbs), with its imports.
macro_rules! hub_deletion_verbs {
    ($index:ty, $database:ty) => {
        use std::time::Instant;

        use crate::index::hub::HubDeletionIndex;
        use crate::index::register::STEP_TIME;

        impl HubDeletionIndex for $index {
            fn delete_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>> {
                async move {
                    let mut held = self.writing("delete a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    if tx.execute(query(sql::DELETE).bind(repo)).await? != 1 {
                        return Ok(false);
                    }
                    tx.execute(query(sql::CLEAR_REFS).bind(repo)).await?;
                    tx.commit().await?;
                    Ok(true)
                }
                .boxed()
            }

            fn find_deleted_hub_repo(
                &self,
                kind: RepoKind,
                namespace: String,
                name: String,
            ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let find = query(sql::FIND).bind(kind.number()).bind(lower_name(&namespace, &name)).bind(true);
                async move { self.read("find a deleted Hub repository").find(find).await }.boxed()
            }

            fn find_deleted_stored_hub_repo(
                &self,
                storage_name: String,
            ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let find = query(sql::FIND_STORED).bind(storage_name).bind(true);
                async move { self.read("find a deleted Hub repository").find(find).await }.boxed()
            }

            fn next_deleted_hub_repo(&self, after: i64) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let next = query(sql::NEXT_DELETED).bind(after);
                async move { self.read("find a deleted Hub repository").find(next).await }.boxed()
            }

            fn drop_hub_rows(&self, repo: i64) -> BoxFuture<'_, Result<bool, IndexError>> {
                async move {
                    let mut held = self.writing("drop rows of a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    let began = Instant::now();
                    let mut is_more = false;
                    'step: for (statement, count) in sql::DROP_SOME {
                        while tx.execute(query(statement).bind(repo).bind(count)).await? > 0 {
                            is_more = began.elapsed() >= STEP_TIME;
                            if is_more {
                                break 'step;
                            }
                        }
                    }
                    tx.commit().await?;
                    Ok(is_more)
                }
                .boxed()
            }

            fn drop_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    self.delete_hub_repo(repo).await?;
                    while self.drop_hub_rows(repo).await? {}
                    let drop = query(sql::DROP_REPO).bind(repo);
                    self.write("drop a Hub repository").execute(drop).await.map(std::mem::drop)
                }
                .boxed()
            }
        }
    };
}
pub(in crate::index) use hub_deletion_verbs;
