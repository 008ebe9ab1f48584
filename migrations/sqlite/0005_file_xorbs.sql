-- The other xorbs of a file: without this, each answer of deduplication reads all references there are.
CREATE INDEX xorb_files_file ON xorb_files (file_id, xorb_id);
