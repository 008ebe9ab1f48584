-- The newest repositories first. The places of pages are the times and names of repositories that were shown, because their
-- numbers would tell how many others there are. Names have the same order on each machine.
ALTER TABLE hub_repos ALTER COLUMN lower_name TYPE text COLLATE "C";
CREATE INDEX hub_repos_by_creation ON hub_repos (kind, created_at, lower_name);
