-- What a repository claims of a sha256 is its own: where it contradicts what another one has claimed of the same file, neither
-- refuses the other, and reading the file decides between them.

-- The unverified claim of this repository, where it is another one than that in `files`. With it, `has_claimed` says that
-- the repository has an unverified claim: this one, or else the one in `files`. It is 0 when the file was read.
ALTER TABLE file_repos ADD COLUMN claim BLOB CHECK (claim IS NULL OR length(claim) = 32);

UPDATE file_repos SET has_claimed = 0
WHERE has_claimed = 1 AND (SELECT sha256_state FROM files WHERE files.id = file_id) != 1;

-- What a repository finds by its own claim.
CREATE INDEX file_repos_claim ON file_repos (claim, repo) WHERE claim IS NOT NULL;

-- What the background verification has still to read, repository by repository.
CREATE INDEX file_repos_unverified ON file_repos (repo, file_id) WHERE has_claimed = 1;
