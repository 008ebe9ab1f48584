-- When a repository registered a file that the store had already. The time of the first registration tells when another
-- repository did.
ALTER TABLE file_repos ADD COLUMN since INTEGER; -- ms since 1970; NULL for that of the file
