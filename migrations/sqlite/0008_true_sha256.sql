-- A claim that was found false is replaced by what the file has, which is as good as verified. Of older ones only the false
-- sha256 was kept; they count as not made, so that the next claim is looked at.
UPDATE files SET sha256 = NULL, sha256_state = 0 WHERE sha256_state = 3;
