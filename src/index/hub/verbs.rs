//! The verbs of [`HubIndex`](super::HubIndex), one text for every database.

/// Implements [`HubIndex`](super::HubIndex) for the index of a database. The place of use has the
/// modules `tx` and `bulk`.
macro_rules! hub_verbs {
    ($index:ty, $database:ty) => {
        use futures_util::FutureExt;
        use futures_util::future::BoxFuture;
        use sqlx::query::Query;
        use sqlx::{Database, QueryBuilder, query};

        use super::bulk::insert_rows;
        use super::millis;
        use super::records::mark_record_applied;
        use super::tx::Tx;
        use crate::git::ObjectId;
        use crate::index::error::IndexError;
        use crate::index::hub::sql;
        use crate::index::hub::{
            HubBlob, HubCommit, HubIndex, HubRef, HubRepo, HubTree, NewHubRepo, RepoKind, RepoOrder, RepoPlace,
            ShownRepos, lower_name,
        };
        use crate::runtime::clock::Timestamp;

        impl HubIndex for $index {
            fn create_hub_repo(
                &self,
                repo: NewHubRepo,
                first: HubCommit,
                trees: Vec<HubTree>,
                blobs: Vec<HubBlob>,
                record: u64,
            ) -> BoxFuture<'_, Result<Option<i64>, IndexError>> {
                async move {
                    let mut held = self.writing("create a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    let lower_name = lower_name(&repo.namespace, &repo.name);
                    let create = query(sql::CREATE).bind(repo.kind.number()).bind(repo.namespace).bind(repo.name);
                    let create = create.bind(lower_name).bind(repo.storage_name).bind(repo.is_private);
                    let Some(id) = tx.find::<i64>(create.bind(millis(first.at))).await? else { return Ok(None) };
                    add_objects(&mut tx, id, &trees, &blobs, first.at).await?;
                    add_commit(&mut tx, id, &first).await?;
                    let main = query(sql::ADD_REF).bind(id).bind(sql::id_bytes(first.id)).bind("refs/heads/main");
                    tx.execute(main).await?;
                    mark_record_applied(&mut tx, Some(record)).await?;
                    tx.commit().await?;
                    Ok(Some(id))
                }
                .boxed()
            }

            fn find_hub_repo(
                &self,
                kind: RepoKind,
                namespace: String,
                name: String,
            ) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                let find = query(sql::FIND).bind(kind.number()).bind(lower_name(&namespace, &name)).bind(false);
                async move { self.read("find a Hub repository").find(find).await }.boxed()
            }

            fn list_hub_repos(
                &self,
                kind: RepoKind,
                namespace: Option<String>,
                before: i64,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
                let statement = if namespace.is_some() { sql::LIST_OF_NAMESPACE } else { sql::LIST };
                let mut list = query(statement).bind(kind.number()).bind(before).bind(i64::from(limit));
                if let Some(namespace) = namespace {
                    list = list.bind(sql::names_of(&namespace));
                }
                async move { self.read("list Hub repositories").all(list).await }.boxed()
            }

            fn list_shown_hub_repos(
                &self,
                kind: RepoKind,
                shown: ShownRepos,
                place: RepoPlace,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
                let statement = match place.order {
                    RepoOrder::Created => sql::LIST_CREATED_SHOWN,
                    RepoOrder::Changed => sql::LIST_CHANGED_SHOWN,
                };
                let (of, hidden_of) = sql::shown(shown);
                let list = query(statement).bind(kind.number()).bind(millis(place.at)).bind(place.lower_name);
                let list = list.bind(of).bind(hidden_of).bind(i64::from(limit));
                async move { self.read("list the Hub repositories that are shown").all(list).await }.boxed()
            }

            fn find_hub_ref(&self, repo: i64, name: String) -> BoxFuture<'_, Result<Option<ObjectId>, IndexError>> {
                let find = query(sql::FIND_REF).bind(repo).bind(name);
                async move { self.read("find a branch").find(find).await }.boxed()
            }

            fn list_hub_refs(
                &self,
                repo: i64,
                after: String,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubRef>, IndexError>> {
                let list = query(sql::LIST_REFS).bind(repo).bind(after).bind(i64::from(limit));
                async move { self.read("list branches and tags").all(list).await }.boxed()
            }

            fn find_hub_commit(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<HubCommit>, IndexError>> {
                let find = query(sql::FIND_COMMIT).bind(repo).bind(sql::id_bytes(id));
                async move { self.read("find a commit").find(find).await }.boxed()
            }

            fn list_hub_history(
                &self,
                repo: i64,
                from: ObjectId,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>> {
                let list = query(sql::LIST_HISTORY).bind(repo).bind(sql::id_bytes(from)).bind(i64::from(limit));
                async move { self.read("read the history of a commit").all(list).await }.boxed()
            }

            fn find_hub_head(&self, repo: i64, name: String) -> BoxFuture<'_, Result<Option<HubCommit>, IndexError>> {
                let find = query(sql::FIND_HEAD).bind(repo).bind(name);
                async move { self.read("find the commit of a branch or tag").find(find).await }.boxed()
            }

            fn find_hub_tree(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<Vec<u8>>, IndexError>> {
                let find = query(sql::FIND_TREE).bind(repo).bind(sql::id_bytes(id));
                async move { self.read("read a directory").find(find).await }.boxed()
            }

            fn find_hub_blobs(&self, repo: i64, ids: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>> {
                async move {
                    let mut found = Vec::with_capacity(ids.len());
                    for some in ids.chunks(sql::FIND_COUNT) {
                        let mut find = QueryBuilder::<$database>::new(sql::FIND_BLOBS);
                        find.push_bind(repo);
                        push_ids(&mut find, some);
                        found.extend(self.read("find files of a repository").all::<HubBlob>(find.build()).await?);
                    }
                    Ok(found)
                }
                .boxed()
            }

            fn add_hub_objects(
                &self,
                repo: i64,
                trees: Vec<HubTree>,
                blobs: Vec<HubBlob>,
                now: Timestamp,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let (mut trees, mut blobs) = (trees.as_slice(), blobs.as_slice());
                    while !trees.is_empty() || !blobs.is_empty() {
                        let (some_trees, other_trees) = trees.split_at(sql::batch_count(trees));
                        let (some_blobs, other_blobs) = blobs.split_at(blobs.len().min(sql::BATCH_COUNT));
                        (trees, blobs) = (other_trees, other_blobs);
                        let mut held = self.writing("add directories and files").await?;
                        let mut tx = held.begin().await?;
                        add_objects(&mut tx, repo, some_trees, some_blobs, now).await?;
                        tx.execute(query(sql::COUNT_CHANGE).bind(repo)).await?;
                        tx.commit().await?;
                    }
                    Ok(())
                }
                .boxed()
            }

            fn move_hub_ref(
                &self,
                repo: i64,
                from: HubRef,
                commit: HubCommit,
                record: u64,
            ) -> BoxFuture<'_, Result<bool, IndexError>> {
                async move {
                    let mut held = self.writing("move a branch").await?;
                    let mut tx = held.begin().await?;
                    let advance = query(sql::MOVE_REF).bind(repo).bind(from.name).bind(sql::id_bytes(commit.id));
                    if tx.execute(advance.bind(sql::id_bytes(from.target))).await? != 1 {
                        return Ok(false);
                    }
                    add_commit(&mut tx, repo, &commit).await?;
                    tx.execute(query(sql::TOUCH).bind(repo).bind(millis(commit.at))).await?;
                    mark_record_applied(&mut tx, Some(record)).await?;
                    tx.commit().await?;
                    Ok(true)
                }
                .boxed()
            }

            fn create_hub_ref(&self, repo: i64, new: HubRef, record: u64) -> BoxFuture<'_, Result<bool, IndexError>> {
                let create = query(sql::ADD_REF).bind(repo).bind(sql::id_bytes(new.target)).bind(new.name);
                async move { self.change_hub("create a branch or tag", repo, create, record).await }.boxed()
            }

            fn delete_hub_ref(&self, repo: i64, old: HubRef, record: u64) -> BoxFuture<'_, Result<bool, IndexError>> {
                let delete = query(sql::DELETE_REF).bind(repo).bind(old.name).bind(sql::id_bytes(old.target));
                async move { self.change_hub("delete a branch or tag", repo, delete, record).await }.boxed()
            }

            fn set_hub_repo_private(
                &self,
                repo: i64,
                is_private: bool,
                record: u64,
            ) -> BoxFuture<'_, Result<bool, IndexError>> {
                let set = query(sql::SET_PRIVATE).bind(repo).bind(is_private);
                async move { self.change_hub("change a Hub repository", repo, set, record).await }.boxed()
            }

            fn list_hub_commits(
                &self,
                repo: i64,
                after: Option<ObjectId>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubCommit>, IndexError>> {
                let list = query(sql::LIST_COMMITS).bind(repo).bind(sql::after_id(after)).bind(i64::from(limit));
                async move { self.read("list commits").all(list).await }.boxed()
            }

            fn list_hub_trees(
                &self,
                repo: i64,
                after: Option<ObjectId>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubTree>, IndexError>> {
                let list = query(sql::LIST_TREES).bind(repo).bind(sql::after_id(after)).bind(i64::from(limit));
                async move { self.read("list directories").all(list).await }.boxed()
            }

            fn list_hub_blobs(
                &self,
                repo: i64,
                after: Option<ObjectId>,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>> {
                let list = query(sql::LIST_BLOBS).bind(repo).bind(sql::after_id(after)).bind(i64::from(limit));
                async move { self.read("list files of a repository").all(list).await }.boxed()
            }

            fn restore_hub_repo(&self, copy: HubRepo) -> BoxFuture<'_, Result<i64, IndexError>> {
                async move {
                    let mut held = self.writing("restore a Hub repository").await?;
                    let mut tx = held.begin().await?;
                    let lower_name = copy.lower_name();
                    keep_former_name(&mut tx, copy.storage_name.clone(), lower_name.clone()).await?;
                    let restore = query(sql::RESTORE).bind(copy.kind.number()).bind(copy.namespace).bind(copy.name);
                    let restore = restore.bind(lower_name).bind(copy.storage_name).bind(copy.is_private);
                    let id = tx.one(restore.bind(millis(copy.created)).bind(millis(copy.updated))).await?;
                    tx.commit().await?;
                    Ok(id)
                }
                .boxed()
            }

            fn add_hub_commits(&self, repo: i64, commits: Vec<HubCommit>) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    for some in commits.chunks(sql::BATCH_COUNT) {
                        let mut held = self.writing("add commits").await?;
                        let mut tx = held.begin().await?;
                        for commit in some {
                            add_commit(&mut tx, repo, commit).await?;
                        }
                        tx.execute(query(sql::COUNT_CHANGE).bind(repo)).await?;
                        tx.commit().await?;
                    }
                    Ok(())
                }
                .boxed()
            }

            fn set_hub_refs(&self, repo: i64, refs: Vec<HubRef>) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let mut held = self.writing("restore branches and tags").await?;
                    let mut tx = held.begin().await?;
                    tx.execute(query(sql::CLEAR_REFS).bind(repo)).await?;
                    tx.execute(query(sql::COUNT_CHANGE).bind(repo)).await?;
                    insert_rows(&mut tx, sql::SET_REFS, &refs, |columns, HubRef { name, target }| {
                        columns.push_bind(repo).push_bind(name.clone()).push_bind(sql::id_bytes(*target));
                    })
                    .await?;
                    tx.commit().await
                }
                .boxed()
            }

            fn put_hub_ref(
                &self,
                repo: i64,
                name: String,
                target: Option<ObjectId>,
            ) -> BoxFuture<'_, Result<(), IndexError>> {
                let put = match target {
                    Some(target) => query(sql::PUT_REF).bind(repo).bind(name).bind(sql::id_bytes(target)),
                    None => query(sql::DROP_REF).bind(repo).bind(name),
                };
                async move {
                    let mut held = self.writing("replay a branch or tag").await?;
                    let mut tx = held.begin().await?;
                    tx.execute(put).await?;
                    tx.execute(query(sql::COUNT_CHANGE).bind(repo)).await?;
                    tx.commit().await
                }
                .boxed()
            }

            fn find_unrecorded_hub_repo(&self) -> BoxFuture<'_, Result<Option<HubRepo>, IndexError>> {
                async move { self.read("find a Hub repository").find(query(sql::FIND_UNRECORDED)).await }.boxed()
            }

            fn set_hub_repo_recorded(&self, repo: i64) -> BoxFuture<'_, Result<(), IndexError>> {
                let set = query(sql::SET_RECORDED).bind(repo);
                async move { self.write("note the records of a Hub repository").execute(set).await.map(drop) }.boxed()
            }

            fn discard_hub_repos(&self) -> BoxFuture<'_, Result<(), IndexError>> {
                async move {
                    let mut held = self.writing("discard parts of Hub repositories").await?;
                    let mut tx = held.begin().await?;
                    for statement in sql::DISCARD {
                        tx.execute(query(statement)).await?;
                    }
                    tx.commit().await
                }
                .boxed()
            }
        }

        impl $index {
            /// A change of one row, with the number of its record. `false` if no row fits.
            async fn change_hub(
                &self,
                op: &'static str,
                repo: i64,
                change: Query<'_, $database, <$database as Database>::Arguments>,
                record: u64,
            ) -> Result<bool, IndexError> {
                let mut held = self.writing(op).await?;
                let mut tx = held.begin().await?;
                if tx.execute(change).await? != 1 {
                    return Ok(false);
                }
                tx.execute(query(sql::COUNT_CHANGE).bind(repo)).await?;
                mark_record_applied(&mut tx, Some(record)).await?;
                tx.commit().await?;
                Ok(true)
            }
        }

        async fn add_objects(
            tx: &mut Tx<'_>,
            repo: i64,
            trees: &[HubTree],
            blobs: &[HubBlob],
            now: Timestamp,
        ) -> Result<(), IndexError> {
            let trees = sql::each_once(trees, |tree| tree.id);
            insert_rows(tx, sql::ADD_TREES, &trees, |columns, tree| {
                let (id, entries) = sql::tree_columns(tree);
                columns.push_bind(repo).push_bind(id).push_bind(millis(now)).push_bind(entries);
            })
            .await?;
            let blobs = sql::each_once(blobs, |blob| blob.id);
            insert_rows(tx, sql::ADD_BLOBS, &blobs, |columns, blob| {
                columns.push_bind(repo).push_bind(sql::id_bytes(blob.id)).push_bind(millis(now));
                columns.push_bind(blob.len.cast_signed());
                columns.push_bind(blob.sha256.map(|sha256| sha256.as_digest().to_vec()));
                columns.push_bind(blob.file.as_bytes().to_vec());
            })
            .await
        }

        async fn add_commit(tx: &mut Tx<'_>, repo: i64, commit: &HubCommit) -> Result<(), IndexError> {
            let sql::CommitColumns { parent, at } = sql::CommitColumns::of(commit);
            let add = query(sql::ADD_COMMIT).bind(repo).bind(sql::id_bytes(commit.id));
            let add = add.bind(sql::id_bytes(commit.tree)).bind(parent).bind(at);
            tx.execute(add.bind(commit.author.clone()).bind(commit.message.clone())).await.map(drop)
        }

        /// Adds the condition that the id is one of these.
        fn push_ids(query: &mut QueryBuilder<$database>, ids: &[ObjectId]) {
            query.push(" AND oid IN (");
            let mut list = query.separated(", ");
            for id in ids {
                list.push_bind(sql::id_bytes(*id));
            }
            query.push(")");
        }
    };
}
pub(in crate::index) use hub_verbs;
