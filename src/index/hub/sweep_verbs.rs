//! The verbs of [`HubSweepIndex`](super::HubSweepIndex), one text for every database.

/// Implements [`HubSweepIndex`](super::HubSweepIndex) for the index of a database. The place of use
/// has also [`hub_verbs`](super::hub_verbs), with its imports.
macro_rules! hub_sweep_verbs {
    ($index:ty, $database:ty) => {
        use std::time::Instant;

        use crate::index::hub::{HubGarbage, HubObject, HubSweepIndex};

        impl HubSweepIndex for $index {
            fn delete_hub_repo(&self, repo: i64, record: Option<u64>) -> BoxFuture<'_, Result<bool, IndexError>> {
                async move {
                    let mut held = self.writing("delete a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    if tx.execute(query(sql::DELETE).bind(repo)).await? != 1 {
                        return Ok(false);
                    }
                    tx.execute(query(sql::CLEAR_REFS).bind(repo)).await?;
                    mark_record_applied(&mut tx, record).await?;
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

            fn next_deleted_hub_repo(&self, after: i64) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let next = query(sql::NEXT_DELETED).bind(after);
                async move { self.read("find a deleted Hub repository").find(next).await }.boxed()
            }

            fn drop_hub_repo(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    self.delete_hub_repo(repo, None).await?;
                    for statement in sql::DROP_SOME {
                        while self.drop_some(repo, statement).await? {}
                    }
                    let drop = query(sql::DROP_REPO).bind(repo);
                    self.write("drop a Hub repository").execute(drop).await.map(std::mem::drop)
                }
                .boxed()
            }

            fn next_unswept_hub_repo(
                &self,
                after: i64,
                before: Timestamp,
            ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let next = query(sql::NEXT_UNSWEPT).bind(after).bind(millis(before));
                async move { self.read("find a Hub repository to sweep").find(next).await }.boxed()
            }

            fn set_hub_repo_swept(&self, repo: i64, began: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
                let set = query(sql::SET_SWEPT).bind(repo).bind(millis(began));
                async move { self.write("note the sweep of a Hub repository").execute(set).await.map(drop) }.boxed()
            }

            fn hub_generation(&self, repo: i64) -> BoxFuture<'_, Result<Option<i64>, IndexError>> {
                let find = query(sql::GENERATION).bind(repo);
                async move { self.read("find a Hub repository").find(find).await }.boxed()
            }

            fn list_hub_garbage(
                &self,
                repo: i64,
                after: Option<ObjectId>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubGarbage>, IndexError>> {
                let list = query(sql::LIST_GARBAGE).bind(repo).bind(sql::after_id(after)).bind(i64::from(limit));
                async move { self.read("list unneeded commits").all(list).await }.boxed()
            }

            fn set_hub_unneeded(
                &self,
                repo: i64,
                commits: Vec<ObjectId>,
                since: Option<Timestamp>,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let mut held = self.writing("list commits as unneeded").await?;
                    let mut tx = held.begin().await?;
                    match since {
                        Some(since) => {
                            insert_rows(&mut tx, sql::ADD_GARBAGE, &commits, |columns, id| {
                                columns.push_bind(repo).push_bind(sql::id_bytes(*id)).push_bind(millis(since));
                            })
                            .await?;
                        }
                        None => delete_ids(&mut tx, sql::FORGET_GARBAGE, repo, &commits).await?,
                    }
                    tx.commit().await
                }
                .boxed()
            }

            fn drop_hub_commits(&self, repo: i64, commits: Vec<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let mut held = self.writing("delete commits").await?;
                    let mut tx = held.begin().await?;
                    delete_ids(&mut tx, sql::DROP_COMMITS, repo, &commits).await?;
                    delete_ids(&mut tx, sql::FORGET_GARBAGE, repo, &commits).await?;
                    tx.commit().await
                }
                .boxed()
            }

            fn list_hub_ids(
                &self,
                repo: i64,
                object: HubObject,
                after: Option<ObjectId>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<ObjectId>, IndexError>> {
                let list = query(sql::list_ids(object)).bind(repo).bind(sql::after_id(after)).bind(i64::from(limit));
                async move { self.read("list objects of a Hub repository").all(list).await }.boxed()
            }

            fn drop_hub_objects(
                &self,
                repo: i64,
                object: HubObject,
                ids: Vec<ObjectId>,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let mut held = self.writing("delete objects of a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    delete_ids(&mut tx, sql::drop_objects(object), repo, &ids).await?;
                    tx.commit().await
                }
                .boxed()
            }
        }

        impl $index {
            /// A step of a statement of [`sql::DROP_SOME`]. Returns whether there may be more rows.
            async fn drop_some(&self, repo: i64, statement: &'static str) -> Result<bool, IndexError> {
                let mut held = self.writing("drop rows of a Hub repository").await?;
                let mut tx = held.begin().await?;
                let began = Instant::now();
                let is_more = loop {
                    let dropped = tx.execute(query(statement).bind(repo).bind(sql::DROP_COUNT)).await?;
                    if dropped == 0 || began.elapsed() >= sql::STEP_TIME {
                        break dropped > 0;
                    }
                };
                tx.commit().await?;
                Ok(is_more)
            }
        }

        /// Deletes the rows of a repository with these ids. `statement` ends before its number.
        async fn delete_ids(
            tx: &mut Tx<'_>,
            statement: &'static str,
            repo: i64,
            ids: &[ObjectId],
        ) -> Result<(), IndexError> {
            for some in ids.chunks(sql::FIND_COUNT) {
                let mut delete = QueryBuilder::<$database>::new(statement);
                delete.push_bind(repo);
                push_ids(&mut delete, some);
                tx.execute(delete.build()).await?;
            }
            Ok(())
        }
    };
}
pub(in crate::index) use hub_sweep_verbs;
