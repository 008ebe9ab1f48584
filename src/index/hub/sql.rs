//! The SQL of [`HubIndex`](super::HubIndex), one text for every database: parameters are `$1` and
//! so on, and each statement is in the common part of the dialects. `LIMIT +$3`, because SQLite
//! prepares a statement again each time if a parameter alone is its limit.

use std::collections::BTreeMap;

use super::{
    HubBlob, HubCommit, HubGenerations, HubObject, HubRef, HubRepo, HubTree, ShownRepos, UnneededCommit, UnneededFile,
};
use crate::git::ObjectId;
use crate::index::decode::by_name;

by_name!(HubRepo { id, kind, namespace, name, storage_name, is_private, created, updated });
by_name!(HubRef { name, target });
by_name!(HubTree { id, entries });
by_name!(HubCommit { id, tree, parent, at, author, message });
by_name!(HubBlob { id, len, sha256, file });
by_name!(HubGenerations { current, swept });
by_name!(UnneededCommit { id, since });
by_name!(UnneededFile { file, since });

pub(in crate::index) const CREATE: &str = "INSERT INTO hub_repos \
     (kind, namespace, name, lower_name, storage_name, is_private, created_at, updated_at, is_recorded) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $7, TRUE) ON CONFLICT DO NOTHING RETURNING id";

pub(in crate::index) const FIND: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE kind = $1 AND lower_name = $2 AND is_deleted = $3";

pub(in crate::index) const FIND_AT: &str = "SELECT h.id, kind, namespace, h.name, storage_name, is_private, \
     created_at AS created, updated_at AS updated, c.oid AS head, tree, parent, at, author, message FROM hub_repos AS h \
     LEFT JOIN hub_refs AS r ON r.repo_id = h.id AND r.name = $3 \
     LEFT JOIN hub_commits AS c ON c.repo_id = h.id AND c.oid = r.target \
     WHERE kind = $1 AND lower_name = $2 AND NOT is_deleted";

pub(in crate::index) const FIND_STORED: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE storage_name = $1 AND is_deleted = $2";

pub(in crate::index) const FIND_STORAGE_NAME: &str = "SELECT id FROM hub_repos WHERE storage_name = $1";

/// `$4` and `$5` from [`shown`].
pub(in crate::index) const LIST_RENAMED: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE NOT is_deleted \
     AND id IN (SELECT repo_id FROM hub_former_names WHERE kind = $1 AND lower_name = $2) AND $4 IN ('*', 'in ' || namespace, storage_name) \
     AND ($5 = '*' OR NOT is_private OR replace($5, '/' || substr(lower_name, 1, length(namespace)) || '/', '') <> $5) \
     ORDER BY created_at DESC, id DESC LIMIT +$3";

pub(in crate::index) const LIST_RENAMED_UNRECORDED: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE is_deleted = $4 AND NOT is_recorded \
     AND id IN (SELECT repo_id FROM hub_former_names WHERE kind = $1 AND lower_name = $2) ORDER BY id LIMIT +$3";

pub(in crate::index) const FIND_RECORDED: &str = "SELECT id FROM hub_repos WHERE id = $1 AND is_recorded";

/// The present name becomes a former one, if it is not `$2`.
pub(in crate::index) const KEEP_FORMER_NAME: &str = "INSERT INTO hub_former_names (kind, lower_name, repo_id) \
     SELECT kind, lower_name, id FROM hub_repos WHERE storage_name = $1 AND lower_name <> $2 \
     ON CONFLICT DO NOTHING";

pub(in crate::index) const DROP_FORMER_NAME: &str = "DELETE FROM hub_former_names \
     WHERE repo_id = (SELECT id FROM hub_repos WHERE storage_name = $1) AND lower_name = $2";

pub(in crate::index) const RENAME: &str = "UPDATE hub_repos SET name = $2, lower_name = $3, is_recorded = FALSE \
     WHERE id = $1 AND NOT is_deleted AND NOT EXISTS \
     (SELECT 1 FROM hub_repos AS other WHERE other.kind = hub_repos.kind AND other.lower_name = $3 AND other.id <> $1)";

pub(in crate::index) const LIST_FORMER_NAMES: &str =
    "SELECT lower_name FROM hub_former_names WHERE repo_id = $1 ORDER BY lower_name LIMIT +$2";

pub(in crate::index) const CLEAR_FORMER_NAMES: &str = "DELETE FROM hub_former_names WHERE repo_id = $1";

pub(in crate::index) const SET_FORMER_NAME: &str = "INSERT INTO hub_former_names (kind, lower_name, repo_id) \
     SELECT kind, $2, id FROM hub_repos WHERE id = $1 ON CONFLICT DO NOTHING";

pub(in crate::index) const LIST: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE kind = $1 AND id < $2 AND NOT is_deleted ORDER BY id DESC LIMIT +$3";

pub(in crate::index) const LIST_OF_NAMESPACE: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE kind = $1 AND id < $2 AND NOT is_deleted AND lower_name LIKE $4 ESCAPE '!' ORDER BY id DESC LIMIT +$3";

/// `$4` and `$5` from [`shown`].
pub(in crate::index) const LIST_CREATED_SHOWN: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE kind = $1 AND (created_at, lower_name) < ($2, $3) AND NOT is_deleted AND $4 IN ('*', 'in ' || namespace, storage_name) \
     AND ($5 = '*' OR NOT is_private OR replace($5, '/' || substr(lower_name, 1, length(namespace)) || '/', '') <> $5) \
     ORDER BY created_at DESC, lower_name DESC LIMIT +$6";

pub(in crate::index) const LIST_CHANGED_SHOWN: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE kind = $1 AND (updated_at, lower_name) < ($2, $3) AND NOT is_deleted AND $4 IN ('*', 'in ' || namespace, storage_name) \
     AND ($5 = '*' OR NOT is_private OR replace($5, '/' || substr(lower_name, 1, length(namespace)) || '/', '') <> $5) \
     ORDER BY updated_at DESC, lower_name DESC LIMIT +$6";

pub(in crate::index) const FIND_UNRECORDED: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE NOT is_recorded AND NOT is_deleted LIMIT 1";

pub(in crate::index) const NEXT_DELETED: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos WHERE is_deleted AND id > $1 ORDER BY id LIMIT 1";

pub(in crate::index) const SET_RECORDED: &str = "UPDATE hub_repos SET is_recorded = TRUE WHERE id = $1";

pub(in crate::index) const SET_PRIVATE: &str = "UPDATE hub_repos SET is_private = $2 WHERE id = $1";

pub(in crate::index) const DELETE: &str =
    "UPDATE hub_repos SET is_deleted = TRUE, is_recorded = FALSE WHERE id = $1 AND NOT is_deleted";

/// Deletes up to `$2` rows of a repository, found by this column.
macro_rules! drop_some {
    ($table:literal, $id:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE repo_id = $1 AND ",
            $id,
            " IN (SELECT ",
            $id,
            " FROM ",
            $table,
            " WHERE repo_id = $1 LIMIT +$2)"
        )
    };
}

/// Each deletes some of the rows of a repository that is deleted, and how many. A directory may
/// have thousands of pages.
pub(in crate::index) const DROP_SOME: [(&str, i64); 6] = [
    (drop_some!("hub_former_names", "lower_name"), 64),
    (drop_some!("hub_commits", "oid"), 64),
    (drop_some!("hub_trees", "oid"), 1),
    (drop_some!("hub_blobs", "oid"), 64),
    (drop_some!("hub_unneeded_commits", "oid"), 64),
    (drop_some!("hub_unneeded_files", "file"), 64),
];

pub(in crate::index) const DROP_REPO: &str = "DELETE FROM hub_repos WHERE id = $1";

pub(in crate::index) const FIND_REF: &str = "SELECT target FROM hub_refs WHERE repo_id = $1 AND name = $2";

pub(in crate::index) const LIST_REFS: &str =
    "SELECT name, target FROM hub_refs WHERE repo_id = $1 AND name > $2 ORDER BY name LIMIT +$3";

pub(in crate::index) const FIND_COMMIT: &str = "SELECT oid AS id, tree, parent, at, author, message FROM hub_commits \
     WHERE repo_id = $1 AND oid = $2";

/// A commit and its ancestors. Not sorted: SQLite sorts long messages in a temporary file.
pub(in crate::index) const LIST_HISTORY: &str = "WITH RECURSIVE history (id, tree, parent, at, author, message, place) AS \
     (SELECT oid, tree, parent, at, author, message, 1 FROM hub_commits WHERE repo_id = $1 AND oid = $2 \
     UNION ALL SELECT c.oid, c.tree, c.parent, c.at, c.author, c.message, place + 1 FROM history \
     JOIN hub_commits AS c ON c.repo_id = $1 AND c.oid = history.parent WHERE place < $3) \
     SELECT id, tree, parent, at, author, message FROM history";

pub(in crate::index) const FIND_HEAD: &str = "SELECT oid AS id, tree, parent, at, author, message FROM hub_refs AS r \
     JOIN hub_commits AS c ON c.repo_id = r.repo_id AND oid = target WHERE r.repo_id = $1 AND r.name = $2";

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

pub(in crate::index) const TOUCH: &str =
    "UPDATE hub_repos SET updated_at = $2, generation = generation + 1 WHERE id = $1";

/// Counts a change of the repository.
pub(in crate::index) const COUNT_CHANGE: &str = "UPDATE hub_repos SET generation = generation + 1 WHERE id = $1";

pub(in crate::index) const ADD_REF: &str = "INSERT INTO hub_refs (repo_id, name, target) \
     SELECT repo_id, $3, oid FROM hub_commits WHERE repo_id = $1 AND oid = $2 ON CONFLICT DO NOTHING";

pub(in crate::index) const DELETE_REF: &str = "DELETE FROM hub_refs WHERE repo_id = $1 AND name = $2 AND target = $3";

pub(in crate::index) const PUT_REF: &str = "INSERT INTO hub_refs (repo_id, name, target) VALUES ($1, $2, $3) \
     ON CONFLICT (repo_id, name) DO UPDATE SET target = excluded.target";

pub(in crate::index) const DROP_REF: &str = "DELETE FROM hub_refs WHERE repo_id = $1 AND name = $2";

pub(in crate::index) const LIST_COMMITS: &str = "SELECT oid AS id, tree, parent, at, author, message \
     FROM hub_commits WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT +$3";

pub(in crate::index) const LIST_TREES: &str =
    "SELECT oid AS id, entries FROM hub_trees WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT +$3";

pub(in crate::index) const LIST_BLOBS: &str =
    "SELECT oid AS id, len, sha256, file FROM hub_blobs WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT +$3";

pub(in crate::index) const NEXT_UNSWEPT: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE id > $1 AND (swept_at < $2 OR swept_at > $3) AND NOT is_deleted ORDER BY id LIMIT 1";

pub(in crate::index) const GENERATIONS: &str =
    "SELECT generation AS current, swept_generation AS swept FROM hub_repos WHERE id = $1 AND NOT is_deleted";

pub(in crate::index) const SET_SWEPT: &str = "UPDATE hub_repos SET swept_at = $2, swept_generation = $3 WHERE id = $1";

pub(in crate::index) const SET_UNSWEPT: &str = "UPDATE hub_repos SET swept_generation = -1 WHERE id = $1";

/// The list of unneeded commits, or that of unneeded files.
pub(in crate::index) struct UnneededList {
    /// The name of a change of it.
    pub(in crate::index) op: &'static str,
    /// As of `insert_rows`.
    pub(in crate::index) add: (&'static str, &'static str),
    /// A deletion: what comes before the number of the repository, and before the ids.
    pub(in crate::index) remove: (&'static str, &'static str),
}

pub(in crate::index) const UNNEEDED_COMMITS: UnneededList = UnneededList {
    op: "list unneeded commits",
    add: (
        "INSERT INTO hub_unneeded_commits (repo_id, oid, since) ",
        " ON CONFLICT (repo_id, oid) DO UPDATE SET since = excluded.since",
    ),
    remove: ("DELETE FROM hub_unneeded_commits WHERE repo_id = ", " AND oid IN ("),
};

pub(in crate::index) const UNNEEDED_FILES: UnneededList = UnneededList {
    op: "list unneeded files",
    add: (
        "INSERT INTO hub_unneeded_files (repo_id, file, since) ",
        " ON CONFLICT (repo_id, file) DO UPDATE SET since = excluded.since",
    ),
    remove: ("DELETE FROM hub_unneeded_files WHERE repo_id = ", " AND file IN ("),
};

pub(in crate::index) const LIST_UNNEEDED_COMMITS: &str =
    "SELECT oid AS id, since FROM hub_unneeded_commits WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT +$3";

pub(in crate::index) const LIST_UNNEEDED_FILES: &str =
    "SELECT file, since FROM hub_unneeded_files WHERE repo_id = $1 AND file > $2 ORDER BY file LIMIT +$3";

pub(in crate::index) const FIND_UNNEEDED_FILE: &str =
    "SELECT since FROM hub_unneeded_files WHERE repo_id = $1 AND file = $2";

pub(in crate::index) const RENEW_UNNEEDED_FILES: &str = "UPDATE hub_unneeded_files SET since = $1";

pub(in crate::index) const LIST_WITH_UNNEEDED_FILES: &str = "SELECT id, kind, namespace, name, storage_name, is_private, \
     created_at AS created, updated_at AS updated FROM hub_repos \
     WHERE NOT is_deleted AND EXISTS (SELECT 1 FROM hub_unneeded_files WHERE repo_id = id)";

/// As [`UnneededList::remove`].
pub(in crate::index) const DROP_COMMITS: (&str, &str) = ("DELETE FROM hub_commits WHERE repo_id = ", " AND oid IN (");

/// The ids of objects of a kind.
pub(in crate::index) const fn list_ids(object: HubObject) -> &'static str {
    match object {
        HubObject::Tree => "SELECT oid FROM hub_trees WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT +$3",
        HubObject::Blob => "SELECT oid FROM hub_blobs WHERE repo_id = $1 AND oid > $2 ORDER BY oid LIMIT +$3",
    }
}

/// Deletes objects of a kind, as [`UnneededList::remove`], and how many at once. A directory may
/// have thousands of pages.
pub(in crate::index) const fn drop_objects(object: HubObject) -> ((&'static str, &'static str), usize) {
    match object {
        HubObject::Tree => (("DELETE FROM hub_trees WHERE repo_id = ", " AND oid IN ("), 1),
        HubObject::Blob => (("DELETE FROM hub_blobs WHERE repo_id = ", " AND oid IN ("), 64),
    }
}

pub(in crate::index) const RESTORE: &str = "INSERT INTO hub_repos \
     (kind, namespace, name, lower_name, storage_name, is_private, created_at, updated_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (storage_name) \
     DO UPDATE SET name = excluded.name, lower_name = excluded.lower_name, created_at = excluded.created_at, \
     updated_at = excluded.updated_at, is_private = excluded.is_private RETURNING id";

pub(in crate::index) const CLEAR_REFS: &str = "DELETE FROM hub_refs WHERE repo_id = $1";

pub(in crate::index) const SET_REFS: (&str, &str) = ("INSERT INTO hub_refs (repo_id, name, target) ", "");

/// Repositories without a branch or tag: their restore was interrupted. Their rows go first,
/// because usage is counted by them.
macro_rules! of_unrestored {
    ($table:literal, $repo:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE ",
            $repo,
            " IN (SELECT id FROM hub_repos WHERE NOT is_deleted \
             AND NOT EXISTS (SELECT 1 FROM hub_refs WHERE repo_id = hub_repos.id))"
        )
    };
}

pub(in crate::index) const DISCARD: [&str; 7] = [
    of_unrestored!("hub_commits", "repo_id"),
    of_unrestored!("hub_trees", "repo_id"),
    of_unrestored!("hub_blobs", "repo_id"),
    of_unrestored!("hub_unneeded_commits", "repo_id"),
    of_unrestored!("hub_unneeded_files", "repo_id"),
    of_unrestored!("hub_former_names", "repo_id"),
    of_unrestored!("hub_repos", "id"),
];

/// Objects that one transaction adds: an insert takes some 10 µs each.
pub(in crate::index) const BATCH_COUNT: usize = 1000;

/// Bytes of directories that one transaction adds, unless the first one alone is longer. A commit
/// can have a hundred times as many, and other writers would wait.
const BATCH_LEN: usize = 4 << 20;

/// How many of these directories the next transaction adds.
pub(in crate::index) fn batch_count(trees: &[HubTree]) -> usize {
    let mut len = 0;
    let fits = |tree: &&HubTree| {
        len += tree.entries.len();
        len <= BATCH_LEN
    };
    let count = trees.iter().take(BATCH_COUNT).take_while(fits).count();
    count.max(1).min(trees.len())
}

/// Object ids in one statement.
pub(in crate::index) const FIND_COUNT: usize = 500;

/// The pattern of the names in a namespace, in which `_` and `%` would stand for others.
pub(in crate::index) fn names_of(namespace: &str) -> String {
    let lower = namespace.to_ascii_lowercase();
    format!("{}/%", lower.replace('!', "!!").replace('%', "!%").replace('_', "!_"))
}

/// The namespace of all that are shown, behind `in` and a space, which no name has, or the storage
/// name; then the namespaces whose hidden repositories are, each between slashes. `*` is all.
pub(in crate::index) fn shown(repos: ShownRepos) -> (String, String) {
    let all = || "*".to_owned();
    match repos {
        ShownRepos::All => (all(), all()),
        ShownRepos::Of(namespace) => (format!("in {namespace}"), all()),
        ShownRepos::One(storage_name) => (storage_name, all()),
        ShownRepos::PublicAndOf(namespaces) => (all(), format!("/{}/", namespaces.join("/").to_ascii_lowercase())),
    }
}

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

/// These directories or files, each once. Two directories of a commit may be equal, and PostgreSQL
/// refuses an `INSERT … ON CONFLICT DO UPDATE` with two rows of one key.
pub(in crate::index) fn each_once<T>(objects: &[T], id: impl Fn(&T) -> ObjectId) -> Vec<&T> {
    let by_id: BTreeMap<[u8; 20], &T> = objects.iter().map(|object| (*id(object).as_bytes(), object)).collect();
    by_id.into_values().collect()
}

/// The bytes of a tree and its id, as parameters.
pub(in crate::index) fn tree_columns(tree: &HubTree) -> (Vec<u8>, Vec<u8>) {
    (id_bytes(tree.id), tree.entries.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_adds_directories_of_a_limited_count_and_length() {
        let trees = |lens: &[usize]| -> Vec<HubTree> {
            let tree = |len: &usize| HubTree { id: ObjectId::from_bytes([0; 20]), entries: vec![0; *len] };
            lens.iter().map(tree).collect()
        };
        assert_eq!(batch_count(&[]), 0);
        assert_eq!(batch_count(&trees(&[1; 2500])), BATCH_COUNT);
        assert_eq!(batch_count(&trees(&[BATCH_LEN / 2; 3])), 2);
        assert_eq!(batch_count(&trees(&[BATCH_LEN + 1, 1])), 1, "a longer one alone");
    }
}
