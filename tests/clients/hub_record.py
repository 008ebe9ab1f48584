"""Records what each version of `huggingface_hub` sends in a short session, and what matters of the responses.

    python3 tests/clients/hub_record.py target/release/zorb [VERSION[:HF_XET]...]

The recordings are `tests/it/hub/exchanges/VERSION.json`, which `tests/it/hub/exchanges.rs` replays. Versions are those of
`hub.py all` if not given. Record again when the session below changes, when a version is added, or when a response is meant to
change. Two recordings of one version are equal, so that `git diff` shows what has changed.

The session runs without hf_xet, and with the newest version also with it. It creates a repository, uploads a card and a file of
300 000 bytes, lists and downloads both, asks for what does not exist, deletes a file and the repository.

A recording has no token, host or commit id. Where one was, there is a name in braces: `{server}`, `{token}`, `{commit-1}`,
`{upload-1}`. The replay takes the values of commits and uploads from the responses. An asterisk is any value.

| field | meaning |
| --- | --- |
| `headers` | the headers of responses that are compared; what a recorded response does not have must be absent |
| `sessions[].hf_xet` | the version of hf_xet, or null |
| `exchanges[].upload` | not an exchange: hf_xet uploads this file; its requests to the CAS API are not recorded |
| `request.body` | the body as it was sent |
| `request.file`, `response.file` | the body is this file of the session |
| `response.keys` | the keys of the JSON body, those of nested objects with their path; `[]` is each element of an array |
| `response.values` | some values in the JSON body, by their JSON pointers |
"""

import json
import pathlib
import re
import sys
import tempfile
import threading

import hub

REPO = "me/exchanges"
CARD = b"---\nlicense: mit\n---\n# A model\n"
EXCHANGES = pathlib.Path(__file__).parents[1] / "it/hub/exchanges"

# A recording is read by people, too.
MAX_LEN = 40_000
WIDTH = 120

# Other headers of requests change nothing in a response.
REQUEST_HEADERS = [
    "accept",
    "accept-encoding",
    "authorization",
    "content-encoding",
    "content-type",
    "if-match",
    "if-none-match",
    "if-range",
    "range",
    "transfer-encoding",
]

RESPONSE_HEADERS = [
    # Other headers contain its value, so its name must be known first.
    "x-repo-commit",
    "accept-ranges",
    "content-encoding",
    "content-range",
    "content-type",
    "etag",
    "link",
    "location",
    "retry-after",
    "www-authenticate",
    "x-error-code",
    "x-error-message",
    "x-linked-etag",
    "x-linked-size",
    "x-xet-access-token",
    "x-xet-cas-url",
    "x-xet-hash",
    "x-xet-token-expiration",
]

# Of these only the presence is recorded.
ANY_VALUE = ["x-error-message", "x-xet-access-token", "x-xet-token-expiration"]

# The requests of hf_xet that are not for the API of the Hub.
CAS_PATH = re.compile(r"/(v1|v2|xorbs?|shards?|chunks?|reconstructions?)(/|$|\?)")
SHARD_PATH = re.compile(r"(/v[12])?/shards?(/|$|\?)")

# Keys of JSON values that differ in each session, and what they are.
CHANGING_KEYS = {"sha": "commit", "commitOid": "commit", "targetCommit": "commit", "href": "upload"}

# Keys of JSON values that decide what clients do next.
CONSTANT_KEYS = ["path", "private", "rfilename", "shouldIgnore", "transfer", "uploadMode", "xetEnabled", "xetHash"]


def main(binary, *versions):
    for version in versions or hub.MATRIX:
        client = hub.Client(*version.split(":"), script=__file__)
        name, hf_xet = version.split(":")
        sessions = [record(binary, client, None)]
        if version == hub.MATRIX[0]:
            sessions.append(record(binary, client, hf_xet))
        recording = {"client": f"huggingface_hub {name}", "headers": RESPONSE_HEADERS, "sessions": sessions}
        text = written(recording) + "\n"
        check_text(text)
        EXCHANGES.mkdir(exist_ok=True)
        (EXCHANGES / f"{name}.json").write_text(text)
        counts = [len(session["exchanges"]) for session in sessions]
        print(f"hub: huggingface_hub {name}: {counts} exchanges, {len(text)} bytes", flush=True)


def record(binary, client, hf_xet):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        files = {"README.md": CARD, "weights.bin": weights()}
        hub.write(scratch / "in", files)
        with hub.Server(binary, scratch / "data", "token") as server:
            token = server.user_token("me")
            with Recorder(server.url, token, files) as recorder:
                arguments = {"directory": str(scratch / "in"), "to": str(scratch / "out")}
                client.run(recorder.url, "session", token, hf_xet is not None, **arguments)
        hub.compare(scratch / "out", files)
        assert not recorder.failures, recorder.failures
        has_upload = {"upload": "weights.bin"} in recorder.exchanges
        assert has_upload == (hf_xet is not None), "hf_xet has uploaded the file, or the client without it has not"
        return {"hf_xet": hf_xet, "exchanges": recorder.exchanges}


def weights():
    """Bytes that a replay in another language can make as well."""
    state, contents = 1, bytearray()
    for _ in range(300_000):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        contents.append(state >> 56)
    return bytes(contents)


class Recorder(hub.Proxy):
    """A proxy that records the exchanges of the Hub."""

    def __init__(self, url, token, files):
        super().__init__(url)
        self.files, self.exchanges, self.failures, self.lock = files, [], [], threading.Lock()
        # The values that differ in each session, with their names.
        self.names = {self.url: "{server}", token: "{token}"}
        self.counts = dict.fromkeys(CHANGING_KEYS.values(), 0)

    def record(self, asked, body, response, contents):
        with self.lock:
            try:
                if CAS_PATH.match(asked.path):
                    self.record_upload(asked, response)
                else:
                    self.exchanges.append(self.exchange(asked, body, response, contents))
            except Exception as error:
                self.failures.append(f"{asked.command} {asked.path}: {error!r}")
        return contents

    def record_upload(self, asked, response):
        if asked.command == "POST" and SHARD_PATH.match(asked.path):
            assert response.status == 200, response.status
            self.exchanges.append({"upload": "weights.bin"})

    def exchange(self, asked, body, response, contents):
        headers = {name: asked.headers[name] for name in REQUEST_HEADERS if name in asked.headers}
        request = {"method": asked.command, "path": self.named(asked.path)}
        request["headers"] = {name: self.named(value) for name, value in headers.items()}
        if file := self.file_of(body):
            request["file"] = file
        elif body:
            request["body"] = self.named(body.decode())
        return {"request": request, "response": self.response(asked, response, contents)}

    def response(self, asked, response, contents):
        kept = {name: response.getheader(name) for name in RESPONSE_HEADERS if response.getheader(name) is not None}
        if commit := kept.get("x-repo-commit"):
            self.name(commit, "commit")
        kept = {name: "*" if name in ANY_VALUE else self.named(value) for name, value in kept.items()}
        recorded = {"status": response.status, "headers": kept}
        if file := self.file_of(contents):
            recorded["file"] = file
        elif contents:
            assert "json" in kept["content-type"], "a body that is neither a file nor JSON"
            recorded |= self.json(json.loads(contents))
        return recorded

    def json(self, value):
        keys, values = set(), {}

        def walk(value, path, pointer):
            if isinstance(value, dict):
                for key, inner in value.items():
                    below = f"{path}.{key}" if path else key
                    keys.add(below)
                    if key in CHANGING_KEYS:
                        values[f"{pointer}/{key}"] = self.name(inner, CHANGING_KEYS[key])
                    elif key in CONSTANT_KEYS:
                        values[f"{pointer}/{key}"] = inner
                    walk(inner, below, f"{pointer}/{key}")
            elif isinstance(value, list):
                for index, inner in enumerate(value):
                    walk(inner, f"{path}[]", f"{pointer}/{index}")

        walk(value, "", "")
        return {"keys": sorted(keys)} | ({"values": values} if values else {})

    def file_of(self, contents):
        return next((name for name, of_file in self.files.items() if of_file == contents), None)

    def name(self, value, kind):
        # Clients request a path, which is the URL of an upload without the server.
        value = value.removeprefix(self.url)
        if value not in self.names:
            self.counts[kind] += 1
            self.names[value] = f"{{{kind}-{self.counts[kind]}}}"
        return self.names[value]

    def named(self, text):
        for value, name in self.names.items():
            text = text.replace(value, name)
        return text


def check_text(text):
    """What a recording must not have."""
    assert len(text) <= MAX_LEN, f"the recording has {len(text)} bytes"
    for fault in r"127\.0\.0\.1", "localhost", "zorb_", re.escape(tempfile.gettempdir()), re.escape(str(pathlib.Path.home())):
        found = re.search(f".*{fault}.*", text)
        assert not found, found


def written(value, indent=""):
    """JSON; what fits into a line is one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) < WIDTH or not isinstance(value, (dict, list)):
        return line
    below = indent + "  "
    if isinstance(value, list):
        parts, brackets, inner = [written(inner, below) for inner in value], "[]", value
    else:
        parts, brackets = [f"{json.dumps(key)}: {written(inner, below)}" for key, inner in value.items()], "{}"
        inner = value.values()
    # The keys of a response and the headers fill their lines.
    width = 0 if "path" in value or any(isinstance(part, (dict, list)) for part in inner) else WIDTH
    lines = [parts[0]]
    for part in parts[1:]:
        lines[-1] += ","
        if len(below) + len(lines[-1]) + len(part) + 2 > width:
            lines.append(part)
        else:
            lines[-1] += f" {part}"
    return f"\n{below}".join([brackets[0], *lines]) + f"\n{indent}{brackets[1]}"


# From here on, in a process of one of the versions.


def session(directory, to):
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils import EntryNotFoundError, RevisionNotFoundError

    api = HfApi()
    api.create_repo(REPO, private=True)
    for path in "README.md", "weights.bin":
        api.upload_file(repo_id=REPO, path_or_fileobj=f"{directory}/{path}", path_in_repo=path, commit_message=f"add {path}")
    paths = {".gitattributes", "README.md", "weights.bin"}
    assert set(api.list_repo_files(REPO)) == paths
    assert {sibling.rfilename for sibling in api.model_info(REPO, files_metadata=True).siblings} == paths
    assert {item.path for item in api.list_repo_tree(REPO, recursive=True)} == paths
    assert {item.path for item in api.get_paths_info(REPO, ["README.md", "weights.bin", "absent"])} == paths - {".gitattributes"}
    for path in "README.md", "weights.bin":
        hf_hub_download(REPO, path, local_dir=to)
    for error, path, revision in (EntryNotFoundError, "absent", None), (RevisionNotFoundError, "README.md", "absent"):
        try:
            hf_hub_download(REPO, path, revision=revision)
            raise AssertionError(f"{path} of {revision} was found")
        except error:
            pass
    api.delete_file("README.md", repo_id=REPO, commit_message="delete README.md")
    api.delete_repo(REPO)
    assert not api.repo_exists(REPO)


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        hub.run_verb([session], sys.argv[2], *json.loads(sys.argv[3]))
    else:
        main(*sys.argv[1:])
