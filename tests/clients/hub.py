"""The stock `huggingface_hub` and `hf`, unmodified, against a server with the routes of the Hub.

    python3 tests/clients/hub.py target/release/zorb [VERSION[:HF_XET]...]

Each version gets a virtual environment below target/hub/, and each of its runs a process and a cache of its own. Every byte
that comes back is compared. Without versions: 2.4.0 with hf_xet 1.8.0, and 0.30.2 with hf_xet 1.1.10.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

# The newest versions, and the oldest that know Xet.
VERSIONS = ["2.4.0:1.8.0", "0.30.2:1.1.10"]

REPO = "me/model"


def main(binary, *versions):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    for version in versions or VERSIONS:
        python = environment(*version.split(":"))
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            for auth in "token", "off":
                with Server(binary, directory / auth, auth) as server:
                    check(server, python, directory / f"files-{auth}", rng)
            print(f"hub: huggingface_hub {version}: passed", flush=True)


def environment(version, hf_xet="1.8.0"):
    """The Python of a virtual environment with these versions."""
    directory = pathlib.Path("target/hub").absolute() / f"{version}-{hf_xet}"
    python = directory / "bin/python"
    if not (directory / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        packages = [f"huggingface_hub=={version}", f"hf_xet=={hf_xet}"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (directory / "complete").touch()
    return python


class Server:
    """A server process with the routes of the Hub."""

    def __init__(self, binary, directory, auth):
        self.binary, self.directory, self.auth = binary, directory, auth

    def __enter__(self):
        command = [self.binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", self.directory, "--auth", self.auth]
        environment = dict(os.environ, ZORB_LOG="error")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        self.url = re.match(r"zorb listening on (https?://\S+)", line).group(1)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        code = self.process.wait()
        assert code == 0, f"the server ended with {code}"

    def token(self, scope, repo="*"):
        if self.auth == "off":
            return "any"
        command = [self.binary, "token", "issue", "--data-dir", self.directory, "--scope", scope, "--repo", repo]
        return subprocess.check_output([*command, "--subject", "me"], text=True).strip()

    def user_token(self, name):
        """A token of a user, who also writes the organization `team`."""
        if self.auth == "off":
            return "any"

        def zorb(*arguments):
            return subprocess.check_output([self.binary, *arguments, "--data-dir", self.directory], text=True).strip()

        zorb("user", "add", name)
        zorb("org", "add", "team", "--member", f"{name}:write")
        return zorb("user", "token", name, "--scope", "write")

    def get(self, path, token, **headers):
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}", **headers})
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()


def check(server, python, directory, rng):
    files = {
        "README.md": b"---\nlicense: mit\n---\n# A model\n",
        "config.json": b'{"model_type": "bert"}\n',
        "empty.txt": b"",
        "model.safetensors": rng.randbytes(3 << 20),
        "sub/odd n\u00e4me+%41.txt": b"a name that must be encoded\n",
        "sub/deep/weights.bin": rng.randbytes(70_000),
        "sub/long.txt": b"text that is longer than what a commit takes\n" * 30_000,
    }
    for number in range(40):
        files[f"many/{number:03}.txt"] = b"%d\n" % number
    write(directory / "in", files)

    def run(verb, token, **arguments):
        return client(python, server, verb, token, directory=str(directory), **arguments)

    writer, reader = server.user_token("me"), server.token("read", f"models/{REPO}")
    head = run("push", writer)
    # The same again makes no commit.
    assert run("push", writer) == head
    for xet in "0", "1":
        run("pull", reader, to=f"out-{xet}", revision="main", HF_HUB_DISABLE_XET=xet)
        compare(directory / f"out-{xet}", {**files, ".gitattributes": None})
    # A client without hf_xet sends large files as a whole.
    whole = {"whole.bin": rng.randbytes(9 << 20), "sub/zeros.bin": bytes(2 << 20), "sub/small.bin": b"\0\1"}
    write(directory / "whole", whole)
    run("push_whole", writer, HF_HUB_DISABLE_XET="1")
    compare(directory / "out-whole", {**files, **whole, ".gitattributes": None})
    run("inspect", reader, head=head, sizes={path: len(contents) for path, contents in files.items()})
    run("change", writer, head=head)
    changed = {path: contents for path, contents in files.items() if path != "config.json" and "many/" not in path}
    changed["renamed.bin"] = files["sub/deep/weights.bin"]
    changed["README.md"] = b"# Another model\n"
    run("pull", reader, to="changed", revision="main")
    compare(directory / "changed", {**changed, ".gitattributes": None})
    # History keeps its files.
    run("pull", reader, to="before", revision=head)
    compare(directory / "before", {**files, ".gitattributes": None})
    check_reads(server, reader, files["model.safetensors"])
    run("end", writer)
    if server.auth == "token":
        foreign = server.token("write", "models/me/other")
        for path in f"/api/models/{REPO}", f"/api/models/{REPO}/tree/main", f"/{REPO}/resolve/main/config.json":
            hidden, missing = (server.get(where, foreign) for where in (path, path.replace("me/model", "me/absent")))
            assert hidden[0] == missing[0] == 404 and hidden[2] == missing[2], (hidden, missing)
            assert hidden[1]["X-Error-Code"] == "RepoNotFound"
        run("refused", reader, foreign=foreign)


def check_reads(server, token, contents):
    """What curl, wget and range readers do."""
    path = f"/{REPO}/resolve/main/model.safetensors"
    status, headers, body = server.get(path, token)
    digest = hashlib.sha256(contents).hexdigest()
    assert (status, body, headers["ETag"]) == (200, contents, f'"{digest}"'), (status, headers)
    assert headers["X-Linked-Size"] == str(len(contents)) and len(headers["X-Repo-Commit"]) == 40
    status, headers, body = server.get(path, token, Range="bytes=1000000-", **{"If-Range": f'"{digest}"'})
    assert (status, body) == (206, contents[1_000_000:])
    assert headers["Content-Range"] == f"bytes 1000000-{len(contents) - 1}/{len(contents)}"
    assert server.get(path, token, Range=f"bytes={len(contents)}-")[0] == 416
    assert server.get(path, token, **{"If-None-Match": f'"{digest}"'})[0] == 304
    status, headers, body = server.get(f"/{REPO}/resolve/main/absent.bin", token)
    assert status == 404 and headers["X-Error-Code"] == "EntryNotFound" and len(headers["X-Repo-Commit"]) == 40


def write(directory, files):
    for path, contents in files.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(contents)


def compare(directory, expected):
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    for path, contents in expected.items():
        assert contents is None or found[path] == contents, f"{path} differs"


def client(python, server, verb, token, **arguments):
    """What a process of this version says, with an empty cache."""
    with tempfile.TemporaryDirectory() as home:
        environment = dict(
            os.environ,
            HF_ENDPOINT=server.url,
            HF_HOME=home,
            HF_TOKEN=token,
            HF_HUB_DISABLE_TELEMETRY="1",
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            NO_PROXY="127.0.0.1",
        )
        environment.update((name, arguments.pop(name)) for name in list(arguments) if name.startswith("HF_"))
        command = [python, __file__, "--client", verb, json.dumps({**arguments, "auth": server.auth})]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            sys.exit(f"{verb} failed:\n{done.stdout}\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])


# From here on, in a process of one of the versions.


def push(directory, auth):
    from huggingface_hub import HfApi

    api = HfApi()
    who = api.whoami()
    organizations = [organization["name"] for organization in who["orgs"]]
    assert (who["name"], organizations) == (("me", ["team"]) if auth == "token" else ("anonymous", [])), who
    if auth == "token":
        api.create_repo("team/model", private=True, exist_ok=True)
        api.upload_file(repo_id="team/model", path_or_fileobj=b"of the team\n", path_in_repo="a.txt")
        assert {model.id for model in api.list_models(author="team")} == {"team/model"}
    api.create_repo(REPO, exist_ok=True)
    info = api.upload_folder(repo_id=REPO, folder_path=f"{directory}/in", commit_message="all files")
    return info.oid


def pull(directory, auth, to, revision):
    from huggingface_hub import snapshot_download

    snapshot_download(REPO, revision=revision, local_dir=f"{directory}/{to}", max_workers=4)


def push_whole(directory, auth):
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi()
    api.create_branch(REPO, branch="whole")

    def upload():
        return api.upload_folder(
            repo_id=REPO, folder_path=f"{directory}/whole", revision="whole", commit_message="without hf_xet"
        )

    head = upload().oid
    assert upload().oid == head, "the same again made a commit"
    snapshot_download(REPO, revision="whole", local_dir=f"{directory}/out-whole")
    api.delete_branch(REPO, branch="whole")


def inspect(directory, auth, head, sizes):
    from huggingface_hub import HfApi, HfFileSystem, hf_hub_download
    from huggingface_hub.utils import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi()
    info = api.model_info(REPO, files_metadata=True)
    assert info.sha == head
    assert info.card_data.license == "mit" and info.tags == ["license:mit"], (info.card_data, info.tags)
    listed = {sibling.rfilename: sibling.size for sibling in info.siblings}
    listed.pop(".gitattributes")
    assert listed == sizes, (listed, sizes)
    assert set(api.list_repo_files(REPO)) == {*sizes, ".gitattributes"}
    tree = list(api.list_repo_tree(REPO, recursive=True))
    assert {item.path for item in tree} == {*sizes, ".gitattributes", "many", "sub", "sub/deep"}
    assert [item.path for item in api.list_repo_tree(REPO, "sub")] == ["sub/deep", "sub/long.txt", "sub/odd näme+%41.txt"]
    paths = api.get_paths_info(REPO, ["sub", "sub/odd näme+%41.txt", "absent"], expand=True)
    assert sorted(item.path for item in paths) == ["sub", "sub/odd näme+%41.txt"]
    assert {(item.last_commit.oid, item.last_commit.title) for item in paths} == {(head, "all files")}
    last = {item.path: item.last_commit.title for item in api.list_repo_tree(REPO, expand=True)}
    assert (last["README.md"], last[".gitattributes"]) == ("all files", "initial commit"), last
    assert [commit.title for commit in api.list_repo_commits(REPO)] == ["all files", "initial commit"]
    assert [branch.name for branch in api.list_repo_refs(REPO).branches] == ["main"]
    assert api.file_exists(REPO, "config.json") and not api.file_exists(REPO, "absent")
    assert api.repo_exists(REPO) and not api.repo_exists("me/absent")
    assert [model.id for model in api.list_models(author="me", search="MOD")] == [REPO]
    tagged = list(api.list_models(filter="license:mit", sort="last_modified", full=True))
    assert [(model.id, model.tags, model.sha) for model in tagged] == [(REPO, ["license:mit"], head)], tagged
    assert list(api.list_models(filter=["license:mit", "absent"])) == []
    if hasattr(api, "list_user_repos"):
        stored = list(api.list_user_repos(None if auth == "token" else "me"))
        # Without authentication all is stored for `*`.
        assert [(repo.id, repo.storage > 3 << 20) for repo in stored] == [(REPO, auth == "token")], stored
    with open(hf_hub_download(REPO, "config.json", revision=head), "rb") as file:
        assert json.load(file) == {"model_type": "bert"}
    for error, arguments in [
        (EntryNotFoundError, (REPO, "absent")),
        (RevisionNotFoundError, (REPO, "config.json", "absent")),
        (RepositoryNotFoundError, ("me/absent", "config.json")),
    ]:
        repo, path, revision = (*arguments, None)[:3]
        try:
            hf_hub_download(repo, path, revision=revision)
            raise AssertionError(f"{arguments} was found")
        except error:
            pass
    files = HfFileSystem()
    assert files.glob(f"{REPO}/sub/*.txt") == [f"{REPO}/sub/long.txt", f"{REPO}/sub/odd näme+%41.txt"]
    with files.open(f"{REPO}/sub/long.txt", "rb") as file:
        file.seek(500_000)
        assert file.read(9) == (b"text that is longer than what a commit takes\n" * 30_000)[500_000:500_009]


def change(directory, auth, head):
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
    from huggingface_hub.utils import HfHubHTTPError

    api = HfApi()
    api.create_branch(REPO, branch="feature/x", revision=head)
    api.create_tag(REPO, tag="v1", revision="main")
    api.upload_file(repo_id=REPO, path_or_fileobj=b"one\n", path_in_repo="on-branch.txt", revision="feature/x")
    assert api.file_exists(REPO, "on-branch.txt", revision="feature/x") and not api.file_exists(REPO, "on-branch.txt")
    operations = [
        CommitOperationDelete("config.json"),
        CommitOperationDelete("many/", is_folder=True),
        CommitOperationCopy("sub/deep/weights.bin", "renamed.bin"),
        CommitOperationAdd("README.md", b"# Another model\n"),
    ]
    done = api.create_commit(REPO, operations, commit_message="changes", parent_commit=head)
    assert done.oid != head
    try:
        api.create_commit(
            REPO, [CommitOperationAdd("late.txt", b"late")], commit_message="late", parent_commit=head
        )
        raise AssertionError("a commit on an old parent was taken")
    except HfHubHTTPError as error:
        assert error.response.status_code == 412, error
    refs = api.list_repo_refs(REPO)
    assert {branch.name for branch in refs.branches} == {"main", "feature/x"}
    assert {(tag.name, tag.target_commit) for tag in refs.tags} == {("v1", head)}
    api.delete_tag(REPO, tag="v1")
    api.delete_branch(REPO, branch="feature/x")
    assert len(api.list_repo_refs(REPO).branches) == 1


def end(directory, auth):
    from huggingface_hub import HfApi, hf_hub_download

    api = HfApi()
    files = set(api.list_repo_files(REPO))
    api.super_squash_history(REPO, commit_message="squashed")
    assert [commit.title for commit in api.list_repo_commits(REPO)] == ["squashed"]
    assert set(api.list_repo_files(REPO)) == files
    for visibility in "private", "public":
        # Version 2 has `visibility`, those before it `private`.
        try:
            api.update_repo_settings(REPO, visibility=visibility)
        except TypeError:
            api.update_repo_settings(REPO, private=visibility == "private")
        assert api.model_info(REPO).private == (visibility == "private")
    # Also a commit goes to the renamed repository under its former name.
    api.move_repo(from_id=REPO, to_id="me/later")
    assert {api.model_info(name).id for name in (REPO, "me/later")} == {"me/later"}
    head = api.upload_file(repo_id=REPO, path_or_fileobj=b"late\n", path_in_repo="late.txt").oid
    assert api.model_info("me/later").sha == head
    assert open(hf_hub_download(REPO, "late.txt"), "rb").read() == b"late\n"
    api.move_repo(from_id="me/later", to_id=REPO)
    api.delete_repo(REPO)
    assert not api.repo_exists(REPO) and not api.repo_exists("me/later")
    api.delete_repo(REPO, missing_ok=True)
    # The name is free, and nothing of the old repository is in the new one.
    api.create_repo(REPO)
    assert (api.list_repo_files(REPO), len(api.list_repo_commits(REPO))) == ([".gitattributes"], 1)


def refused(directory, auth, foreign):
    from huggingface_hub import HfApi
    from huggingface_hub.utils import HfHubHTTPError, RepositoryNotFoundError

    for token, error in (None, HfHubHTTPError), (foreign, RepositoryNotFoundError):
        try:
            HfApi(token=token).upload_file(repo_id=REPO, path_or_fileobj=b"x", path_in_repo="x.txt")
            raise AssertionError("a token without the right was taken")
        except error:
            pass


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        verbs = {"push": push, "pull": pull, "push_whole": push_whole, "inspect": inspect, "change": change, "end": end, "refused": refused}
        print(json.dumps(verbs[sys.argv[2]](**json.loads(sys.argv[3]))))
    else:
        main(*sys.argv[1:])
