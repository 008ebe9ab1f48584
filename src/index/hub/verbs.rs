//! The SQL of [`HubIndex`](super::HubIndex), one text for every database: parameters are `$1` and
//! so on, and each statement is in the common part of the dialects.

use super::{HubBlob, HubCommit, HubRef, HubRepo, HubTree};
use crate::git::ObjectId;
use crate::index::decode::by_name;

by_name!(HubRepo { id, kind, namespace, name, storage_name, is_private, created, updated });
by_name!(HubRef { name, target });
by_name!(HubTree { id, entries });
by_name!(HubCommit { id, tree, parent, at, author, message });
by_name!(HubBlob { id, len, sha256, file });

pub(in crate::index) const CREATE: &str = "INSERT INTO hub_repos \
     (kind, namespace, name, lower_name, storage_name, is_private, created_at, updated_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING RETURNING id";

pub(in crate::index) const FIND: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE kind = $1 AND lower_name = $2";

pub(in crate::index) const LIST: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE kind = $1 AND id < $2 ORDER BY id DESC LIMIT $3";

pub(in crate::index) const FIND_REF: &str = "SELECT target FROM hub_refs WHERE repo_id = $1 AND name = $2";

pub(in crate::index) const LIST_REFS: &str =
    "SELECT name, target FROM hub_refs WHERE repo_id = $1 AND name > $2 ORDER BY name LIMIT $3";

pub(in crate::index) const FIND_COMMIT: &str = "SELECT oid AS id, tree, parent, at, author, message FROM hub_commits \
     WHERE repo_id = $1 AND oid = $2";

pub(in crate::index) const FIND_TREE: &str = "SELECT entries FROM hub_trees WHERE repo_id = $1 AND oid = $2";

pub(in crate::index) const FIND_BLOBS: &str = "SELECT oid AS id, len, sha256, file FROM hub_blobs WHERE repo_id = ";

pub(in crate::index) const ADD_TREES: (&str, &str) = (
    "INSERT INTO hub_trees (repo_id, oid, since, entries) ",
    " ON CONFLICT (repo_id, oid) DO UPDATE SET since = excluded.since",
);

pub(in crate::index) const ADD_BLOBS: (&str, &str) = (
    "INSERT INTO hub_blobs (repo_id, oid, since, len, sha256, file) ",
    " ON CONFLICT (repo_id, oid) DO UPDATE SET since = excluded.since, len = excluded.len, \
     sha256 = excluded.sha256, file = excluded.file",
);

pub(in crate::index) const ADD_COMMIT: &str = "INSERT INTO hub_commits (repo_id, oid, tree, parent, at, author, message) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";

pub(in crate::index) const MOVE_REF: &str =
    "UPDATE hub_refs SET target = $3 WHERE repo_id = $1 AND name = $2 AND target = $4";

pub(in crate::index) const TOUCH: &str = "UPDATE hub_repos SET updated_at = $2 WHERE id = $1";

pub(in crate::index) const ADD_REF: &str = "INSERT INTO hub_refs (repo_id, name, target) \
     SELECT repo_id, $3, oid FROM hub_commits WHERE repo_id = $1 AND oid = $2 ON CONFLICT DO NOTHING";

pub(in crate::index) const DELETE_REF: &str = "DELETE FROM hub_refs WHERE repo_id = $1 AND name = $2";

pub(in crate::index) const LIST_COMMITS: &str = "SELECT oid AS id, tree, parent, at, author, message \
     FROM hub_commits WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT $3";

pub(in crate::index) const LIST_TREES: &str =
    "SELECT oid AS id, entries FROM hub_trees WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT $3";

pub(in crate::index) const LIST_BLOBS: &str =
    "SELECT oid AS id, len, sha256, file FROM hub_blobs WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT $3";

pub(in crate::index) const RESTORE: &str = "INSERT INTO hub_repos \
     (kind, namespace, name, lower_name, storage_name, is_private, created_at, updated_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (storage_name) \
     DO UPDATE SET created_at = excluded.created_at, updated_at = excluded.updated_at RETURNING id";

pub(in crate::index) const CLEAR_REFS: &str = "DELETE FROM hub_refs WHERE repo_id = $1";

pub(in crate::index) const SET_REFS: (&str, &str) = ("INSERT INTO hub_refs (repo_id, name, target) ", "");

pub(in crate::index) const DISCARD: [&str; 4] = [
    "DELETE FROM hub_repos WHERE NOT EXISTS (SELECT 1 FROM hub_refs WHERE repo_id = id)",
    "DELETE FROM hub_commits WHERE repo_id NOT IN (SELECT id FROM hub_repos)",
    "DELETE FROM hub_trees WHERE repo_id NOT IN (SELECT id FROM hub_repos)",
    "DELETE FROM hub_blobs WHERE repo_id NOT IN (SELECT id FROM hub_repos)",
];

/// Objects that one transaction adds: an insert takes some 10 µs each.
pub(in crate::index) const BATCH_COUNT: usize = 1000;

/// Object ids in one statement.
pub(in crate::index) const FIND_COUNT: usize = 500;

/// The bytes of an id, as a parameter.
pub(in crate::index) fn id_bytes(id: ObjectId) -> Vec<u8> {
    id.as_bytes().to_vec()
}

/// The bytes of the id after which a page begins. The empty string is before every id.
pub(in crate::index) fn after_id(after: Option<ObjectId>) -> Vec<u8> {
    after.map(id_bytes).unwrap_or_default()
}

/// Rows that have no column for these: the commit of a repository.
pub(in crate::index) struct CommitColumns {
    pub(in crate::index) parent: Option<Vec<u8>>,
    pub(in crate::index) at: i64,
}

impl CommitColumns {
    pub(in crate::index) fn of(commit: &HubCommit) -> Self {
        Self { parent: commit.parent.map(id_bytes), at: commit.at.as_millis().cast_signed() }
    }
}

/// The bytes of a tree and its id, as parameters.
pub(in crate::index) fn tree_columns(tree: &HubTree) -> (Vec<u8>, Vec<u8>) {
    (id_bytes(tree.id), tree.entries.clone())
}

/// Implements [`HubIndex`](super::HubIndex) for the index of a database. The place of use has the
/// modules `tx` and `bulk`.
macro_rules! hub_verbs {
    ($index:ty, $database:ty) => {
        use futures_util::FutureExt;
        use futures_util::future::BoxFuture;
        use sqlx::{QueryBuilder, query};

        use super::bulk::insert_rows;
        use super::millis;
        use super::tx::Tx;
        use crate::git::ObjectId;
        use crate::index::error::IndexError;
        use crate::index::hub::verbs as sql;
        use crate::index::hub::{
            HubBlob, HubCommit, HubIndex, HubRef, HubRepo, HubTree, NewHubRepo, RepoKind, lower_name,
        };
        use crate::runtime::clock::Timestamp;

        impl HubIndex for $index {
            fn create_hub_repo(
                &self,
                repo: NewHubRepo,
                first: HubCommit,
                trees: Vec<HubTree>,
                blobs: Vec<HubBlob>,
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
                let find = query(sql::FIND).bind(kind.number()).bind(lower_name(&namespace, &name));
                async move { self.read("find a Hub repository").find(find).await }.boxed()
            }

            fn list_hub_repos(
                &self,
                kind: RepoKind,
                before: i64,
                limit: u32,
            ) -> BoxFuture<'_, Result<Vec<HubRepo>, IndexError>> {
                let list = query(sql::LIST).bind(kind.number()).bind(before).bind(i64::from(limit));
                async move { self.read("list Hub repositories").all(list).await }.boxed()
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

            fn find_hub_tree(&self, repo: i64, id: ObjectId) -> BoxFuture<'_, Result<Option<Vec<u8>>, IndexError>> {
                let find = query(sql::FIND_TREE).bind(repo).bind(sql::id_bytes(id));
                async move { self.read("read a directory").find(find).await }.boxed()
            }

            fn find_hub_blobs(&self, repo: i64, ids: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<HubBlob>, IndexError>> {
                async move {
                    let mut found = Vec::with_capacity(ids.len());
                    for some in ids.chunks(sql::FIND_COUNT) {
                        let mut find = QueryBuilder::<$database>::new(sql::FIND_BLOBS);
                        find.push_bind(repo).push(" AND oid IN (");
                        let mut list = find.separated(", ");
                        for id in some {
                            list.push_bind(sql::id_bytes(*id));
                        }
                        find.push(")");
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
                    let count = trees.len().max(blobs.len());
                    for start in (0..count).step_by(sql::BATCH_COUNT) {
                        let end = start + sql::BATCH_COUNT;
                        let trees = trees.get(start.min(trees.len())..end.min(trees.len())).unwrap_or_default();
                        let blobs = blobs.get(start.min(blobs.len())..end.min(blobs.len())).unwrap_or_default();
                        let mut held = self.writing("add directories and files").await?;
                        let mut tx = held.begin().await?;
                        add_objects(&mut tx, repo, trees, blobs, now).await?;
                        tx.commit().await?;
                    }
                    Ok(())
                }
                .boxed()
            }

            fn move_hub_ref(
                &self,
                repo: i64,
                name: String,
                commit: HubCommit,
            ) -> BoxFuture<'_, Result<bool, IndexError>> {
                async move {
                    let mut held = self.writing("move a branch").await?;
                    let mut tx = held.begin().await?;
                    let advance = query(sql::MOVE_REF).bind(repo).bind(name).bind(sql::id_bytes(commit.id));
                    if tx.execute(advance.bind(commit.parent.map(sql::id_bytes))).await? != 1 {
                        return Ok(false);
                    }
                    add_commit(&mut tx, repo, &commit).await?;
                    tx.execute(query(sql::TOUCH).bind(repo).bind(millis(commit.at))).await?;
                    tx.commit().await?;
                    Ok(true)
                }
                .boxed()
            }

            fn create_hub_ref(&self, repo: i64, new: HubRef) -> BoxFuture<'_, Result<bool, IndexError>> {
                let create = query(sql::ADD_REF).bind(repo).bind(sql::id_bytes(new.target)).bind(new.name);
                async move { Ok(self.write("create a branch or tag").execute(create).await? == 1) }.boxed()
            }

            fn delete_hub_ref(&self, repo: i64, name: String) -> BoxFuture<'_, Result<bool, IndexError>> {
                let delete = query(sql::DELETE_REF).bind(repo).bind(name);
                async move { Ok(self.write("delete a branch or tag").execute(delete).await? == 1) }.boxed()
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
                    let lower_name = lower_name(&copy.namespace, &copy.name);
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
                    insert_rows(&mut tx, sql::SET_REFS, &refs, |columns, HubRef { name, target }| {
                        columns.push_bind(repo).push_bind(name.clone()).push_bind(sql::id_bytes(*target));
                    })
                    .await?;
                    tx.commit().await
                }
                .boxed()
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

        async fn add_objects(
            tx: &mut Tx<'_>,
            repo: i64,
            trees: &[HubTree],
            blobs: &[HubBlob],
            now: Timestamp,
        ) -> Result<(), IndexError> {
            insert_rows(tx, sql::ADD_TREES, trees, |columns, tree| {
                let (id, entries) = sql::tree_columns(tree);
                columns.push_bind(repo).push_bind(id).push_bind(millis(now)).push_bind(entries);
            })
            .await?;
            insert_rows(tx, sql::ADD_BLOBS, blobs, |columns, blob| {
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
    };
}
pub(in crate::index) use hub_verbs;
