//! The verbs of [`HubSweepIndex`](super::HubSweepIndex), one text for every database.

/// Implements [`HubSweepIndex`](super::HubSweepIndex) for the index of a database. The place of use
/// has also [`hub_verbs`](super::hub_verbs) and [`hub_deletion_verbs`](super::hub_deletion_verbs),
/// with their imports.
macro_rules! hub_sweep_verbs {
    ($index:ty, $database:ty) => {
        use crate::format::FileHash;
        use crate::index::hub::{HubGenerations, HubObject, HubSweepIndex, UnneededCommit, UnneededFile};

        impl HubSweepIndex for $index {
            fn next_unswept_hub_repo(
                &self,
                after: i64,
                before: Timestamp,
                now: Timestamp,
            ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let next = query(sql::NEXT_UNSWEPT).bind(after).bind(millis(before)).bind(millis(now));
                async move { self.read("find a Hub repository to sweep").find(next).await }.boxed()
            }

            fn hub_generations(&self, repo: i64) -> BoxFuture<'_, Result<Option<HubGenerations>, IndexError>> {
                let find = query(sql::GENERATIONS).bind(repo);
                async move { self.read("find a Hub repository").find(find).await }.boxed()
            }

            fn set_hub_repo_swept(
                &self,
                repo: i64,
                began: Timestamp,
                generation: i64,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                let set = query(sql::SET_SWEPT).bind(repo).bind(millis(began)).bind(generation);
                async move { self.write("note the sweep of a Hub repository").execute(set).await.map(drop) }.boxed()
            }

            fn list_unneeded_commits(
                &self,
                repo: i64,
                after: Option<ObjectId>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<UnneededCommit>, IndexError>> {
                let list = query(sql::LIST_UNNEEDED_COMMITS).bind(repo).bind(sql::after_id(after));
                let list = list.bind(i64::from(limit));
                async move { self.read("list unneeded commits").all(list).await }.boxed()
            }

            fn set_unneeded_commits(
                &self,
                repo: i64,
                commits: Vec<ObjectId>,
                since: Option<Timestamp>,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                let ids = commits.into_iter().map(sql::id_bytes).collect();
                async move { self.set_unneeded(repo, ids, since, &sql::UNNEEDED_COMMITS).await }.boxed()
            }

            fn list_unneeded_files(
                &self,
                repo: i64,
                after: Option<FileHash>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<UnneededFile>, IndexError>> {
                let after = after.map(|file| file.as_bytes().to_vec()).unwrap_or_default();
                let list = query(sql::LIST_UNNEEDED_FILES).bind(repo).bind(after).bind(i64::from(limit));
                async move { self.read("list unneeded files").all(list).await }.boxed()
            }

            fn file_unneeded_since(
                &self,
                repo: i64,
                file: FileHash,
            ) -> BoxFuture<'_, Result<Option<Timestamp>, IndexError>> {
                let find = query(sql::FIND_UNNEEDED_FILE).bind(repo).bind(file.as_bytes().to_vec());
                async move { self.read("find an unneeded file").find(find).await }.boxed()
            }

            fn renew_unneeded_files(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
                let renew = query(sql::RENEW_UNNEEDED_FILES).bind(millis(now));
                async move { self.write("renew the lists of unneeded files").execute(renew).await.map(drop) }.boxed()
            }

            fn set_unneeded_files(
                &self,
                repo: i64,
                files: Vec<FileHash>,
                since: Option<Timestamp>,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                let ids = files.into_iter().map(|file| file.as_bytes().to_vec()).collect();
                async move { self.set_unneeded(repo, ids, since, &sql::UNNEEDED_FILES).await }.boxed()
            }

            fn hub_repos_with_unneeded_files(&self) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
                let list = query(sql::LIST_WITH_UNNEEDED_FILES);
                async move { self.read("list Hub repositories with unneeded files").all(list).await }.boxed()
            }

            fn drop_hub_commits(&self, repo: i64, commits: Vec<ObjectId>) -> BoxFuture<'_, Result<(), IndexError>> {
                let ids: Vec<Vec<u8>> = commits.into_iter().map(sql::id_bytes).collect();
                async move {
                    for some in ids.chunks(sql::FIND_COUNT) {
                        let mut held = self.writing("delete commits").await?;
                        let mut tx = held.begin().await?;
                        delete_ids(&mut tx, sql::DROP_COMMITS, repo, some).await?;
                        delete_ids(&mut tx, sql::UNNEEDED_COMMITS.remove, repo, some).await?;
                        tx.execute(query(sql::SET_UNSWEPT).bind(repo)).await?;
                        tx.commit().await?;
                    }
                    Ok(())
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
                let ids: Vec<Vec<u8>> = ids.into_iter().map(sql::id_bytes).collect();
                let (statement, count) = sql::drop_objects(object);
                async move {
                    let mut left = ids.chunks(count).peekable();
                    while left.peek().is_some() {
                        let mut held = self.writing("delete objects of a Hub repository").await?;
                        let mut tx = held.begin().await?;
                        let began = Instant::now();
                        for some in left.by_ref() {
                            delete_ids(&mut tx, statement, repo, some).await?;
                            if began.elapsed() >= STEP_TIME {
                                break;
                            }
                        }
                        tx.commit().await?;
                    }
                    Ok(())
                }
                .boxed()
            }
        }

        impl $index {
            /// Adds ids to a list since this time, or removes them from it, in steps.
            async fn set_unneeded(
                &self,
                repo: i64,
                ids: Vec<Vec<u8>>,
                since: Option<Timestamp>,
                list: &sql::UnneededList,
            ) -> Result<(), IndexError> {
                for some in ids.chunks(sql::FIND_COUNT) {
                    let mut held = self.writing(list.op).await?;
                    let mut tx = held.begin().await?;
                    match since {
                        Some(since) => {
                            // Nothing would delete the rows of a repository that is deleted by now.
                            if tx.find::<HubGenerations>(query(sql::GENERATIONS).bind(repo)).await?.is_none() {
                                return Ok(());
                            }
                            insert_rows(&mut tx, list.add, some, |columns, id| {
                                columns.push_bind(repo).push_bind(id.clone()).push_bind(millis(since));
                            })
                            .await?;
                        }
                        None => delete_ids(&mut tx, list.remove, repo, some).await?,
                    }
                    tx.commit().await?;
                }
                Ok(())
            }
        }

        /// Deletes the rows of a repository with these ids. `head` ends before its number, and
        /// `tail` before the ids.
        async fn delete_ids(
            tx: &mut Tx<'_>,
            (head, tail): (&'static str, &'static str),
            repo: i64,
            ids: &[Vec<u8>],
        ) -> Result<(), IndexError> {
            let mut delete = QueryBuilder::<$database>::new(head);
            delete.push_bind(repo).push(tail);
            let mut list = delete.separated(", ");
            for id in ids {
                list.push_bind(id.clone());
            }
            delete.push(")");
            tx.execute(delete.build()).await.map(drop)
        }
    };
}
pub(in crate::index) use hub_sweep_verbs;
