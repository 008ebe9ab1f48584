"""The stock `huggingface_hub` and `hf`, unmodified, against a server with the routes of the Hub.

    python3 tests/clients/hub.py target/release/zorb [all | VERSION[:HF_XET]...]

Each version gets a virtual environment below target/hub/, and each of its runs a process and a cache of its own. It runs with
hf_xet and without, with users and without authentication. With users it also reads a public repository without a token.
Also curl and wget read a file. Every byte that comes back is compared. Without versions: half of that with 2.4.0 and hf_xet
1.8.0, the other half with 0.30.2 and hf_xet 1.1.10. `all` is each version of MATRIX. Needs curl and wget.
"""

import hashlib
import http.client
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

# Whether there are users, and whether there is hf_xet.
ROUNDS = [("token", True), ("token", False), ("off", True), ("off", False)]
# The newest versions, and the oldest that know Xet.
VERSIONS = {"2.4.0:1.8.0": [ROUNDS[0], ROUNDS[3]], "0.30.2:1.1.10": [ROUNDS[1], ROUNDS[2]]}
# The versions that docs/hub.md names, each with an hf_xet that it accepts.
MATRIX = ["2.4.0:1.8.0", "1.33.0:1.7.1", "1.1.7:1.5.2", "0.36.2:1.2.0", "0.30.2:1.1.10"]

REPO = "me/model"
LONG_REPO = "me/long"

# Clients write downloads in pieces of 10 MiB: a resumed download begins after one of them.
PIECE_LEN = 10 << 20


def main(binary, *versions):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    if versions == ("all",):
        versions = MATRIX
    chosen = {version: ROUNDS for version in versions} or VERSIONS
    for version, rounds in chosen.items():
        client = Client(*version.split(":"))
        rng = random.Random(seed)
        for auth, xet in rounds:
            begin = time.monotonic()
            with tempfile.TemporaryDirectory() as directory:
                check(binary, client, pathlib.Path(directory), auth, xet, rng)
            how = f"{'users' if auth == 'token' else 'no authentication'}, {'hf_xet' if xet else 'no hf_xet'}"
            print(f"hub: huggingface_hub {version}, {how}: passed in {time.monotonic() - begin:.0f} s", flush=True)


class Client:
    """A version of huggingface_hub in a virtual environment. A version of hf_xet is in a directory beside it, because 0.30 uses
    hf_xet whenever it finds it. Where it is a dependency, HF_HUB_DISABLE_XET disables it. The script has the verbs."""

    def __init__(self, version, hf_xet="1.8.0", script=__file__):
        self.script = script
        self.directory = pathlib.Path("target/hub").absolute() / f"hub-{version}-{hf_xet}"
        self.python = self.directory / "bin/python"
        if (self.directory / "complete").exists():
            return
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.directory], check=True)
        (self.directory / "constraints").write_text(f"hf_xet=={hf_xet}\n")
        pip = [self.python, "-m", "pip", "install", "--quiet"]
        # `hf` of 1.1 imports click, which releases of typer after it do not require.
        packages = [f"huggingface_hub=={version}", "click", "--constraint", self.directory / "constraints"]
        subprocess.run([*pip, *packages], check=True)
        subprocess.run([*pip, f"hf_xet=={hf_xet}", "--no-deps", "--target", self.directory / "hf_xet"], check=True)
        (self.directory / "complete").touch()

    def run(self, url, verb, token, xet=True, home=None, variables=None, **arguments):
        """What a process says; its cache is empty, or the one in this directory."""
        with tempfile.TemporaryDirectory() as scratch:
            environment = dict(
                os.environ,
                HF_ENDPOINT=url,
                HF_HOME=str(home or scratch),
                HF_TOKEN=token,
                HF_HUB_DISABLE_TELEMETRY="1",
                HF_HUB_DISABLE_PROGRESS_BARS="1",
                HF_HUB_DISABLE_XET="0" if xet else "1",
                PYTHONPATH=str(self.directory / "hf_xet") if xet else "",
                NO_COLOR="1",
                NO_PROXY="127.0.0.1",
                **(variables or {}),
            )
            command = [self.python, self.script, "--client", verb, json.dumps([xet, arguments])]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                sys.exit(f"{verb} failed:\n{done.stdout}\n{done.stderr}")
            return json.loads(done.stdout.splitlines()[-1])


class Server:
    """A server process with the routes of the Hub."""

    def __init__(self, binary, directory, auth):
        self.binary, self.directory, self.auth = binary, directory, auth

    def __enter__(self):
        command = [self.binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", self.directory, "--auth", self.auth]
        environment = dict(os.environ, ZORB_LOG="error", ZORB_ANONYMOUS_READ="true")
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
        token = zorb("user", "token", name, "--scope", "write")
        # A server that read the accounts between the two commands reads them again within a second.
        deadline = time.monotonic() + 30
        while not json.loads(self.get("/api/whoami-v2", token)[2])["orgs"]:
            assert time.monotonic() < deadline, f"{name} is no member of team"
            time.sleep(0.1)
        return token

    def publish(self, repo, token, is_public):
        body = json.dumps({"private": not is_public}).encode()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.url}/api/models/{repo}/settings"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")):
            pass

    def get(self, path, token, **headers):
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}", **headers})
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()


def check(binary, client, directory, auth, xet, rng):
    home = directory / "home"
    with Server(binary, directory / "data", auth) as server:
        reader, files = check_server(client, server, directory, home, xet, rng)
    # Of the server nothing is left, but the cache is.
    (cached,) = client.run(server.url, "pull", reader, xet, home, {"HF_HUB_OFFLINE": "1"}, places={"main": None})
    compare(pathlib.Path(cached), {**files, ".gitattributes": None})


def check_server(client, server, directory, home, xet, rng):
    """All checks with a server; the token of a reader, and the files that are in the cache of this home."""
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

    def run(verb, token, xet=xet, home=None, **arguments):
        return client.run(server.url, verb, token, xet, home, **arguments)

    def pull(xet, home=None, token=None, **expected):
        places = {revision: None if home else str(directory / f"out-{revision}-{xet}") for revision in expected}
        token = reader if token is None else token
        for place, files in zip(run("pull", token, xet, home, places=places), expected.values()):
            compare(pathlib.Path(place), {**files, ".gitattributes": None})
            if not home:
                shutil.rmtree(place)

    writer, reader = server.user_token("me"), server.token("read", f"models/{REPO}")
    if server.auth == "token":
        run("login", "", given=writer)
    head = run("push", writer, directory=str(directory / "in"), has_users=server.auth == "token")
    pull(xet, main=files)
    if server.auth == "token":
        server.publish(REPO, writer, True)
        pull(xet, token="", main=files)
        server.publish(REPO, writer, False)
    # What was uploaded with hf_xet can be read without it, and the other way round.
    pull(not xet, home, main=files)
    sizes = {path: len(contents) for path, contents in files.items()}
    run("inspect", reader, head=head, sizes=sizes, has_users=server.auth == "token")
    if not xet:
        whole = {"whole.bin": rng.randbytes(9 << 20), "sub/zeros.bin": bytes(2 << 20), "sub/small.bin": b"\0\1"}
        write(directory / "whole", whole)
        run("push_whole", writer, directory=str(directory / "whole"), to=str(directory / "out-whole"))
        compare(directory / "out-whole", {**files, **whole, ".gitattributes": None})
    run("change", writer, head=head)
    changed = {path: contents for path, contents in files.items() if path != "config.json" and "many/" not in path}
    changed["renamed.bin"] = files["sub/deep/weights.bin"]
    changed["README.md"] = b"# Another model\n"
    # History keeps its files.
    pull(xet, **{"main": changed, head: files})
    check_reads(server, reader, files["model.safetensors"])
    check_resumption(server, reader, directory, files["model.safetensors"])
    long = {"long.bin": rng.randbytes(2 * PIECE_LEN + (5 << 20))}
    write(directory / "long", long)
    check_kinds(client, server, directory, writer, xet, rng)
    if server.auth == "token" and xet:
        check_many(client, server, directory, writer, xet, rng)
    check_short(client, server, directory, writer, xet, rng)
    check_cut(client, server, directory, writer, xet, long["long.bin"])
    run("end", writer)
    if server.auth == "token":
        foreign = server.token("write", "models/me/other")
        for path in f"/api/models/{REPO}", f"/api/models/{REPO}/tree/main", f"/{REPO}/resolve/main/config.json":
            hidden, missing = (server.get(where, foreign) for where in (path, path.replace("me/model", "me/absent")))
            assert hidden[0] == missing[0] == 404 and hidden[2] == missing[2], (hidden, missing)
            assert hidden[1]["X-Error-Code"] == "RepoNotFound"
        run("refused", reader, foreign=foreign)
    return reader, files


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


def check_resumption(server, token, directory, contents):
    """curl and wget request the rest of a file whose beginning they have."""
    url = f"{server.url}/{REPO}/resolve/main/model.safetensors"
    header = ["--header", f"Authorization: Bearer {token}"] if server.auth == "token" else []
    place = directory / "resumed.bin"
    for length in 0, 1, 1_000_000, len(contents) - 1:
        status = "200" if length == 0 else "206"
        place.write_bytes(contents[:length])
        curl = ["curl", "--silent", "--show-error", "--fail", "--location", "--continue-at", "-", "--output", place]
        found = run_tool([*curl, "--write-out", "%{http_code}", *header, url])
        assert found.stdout == status and place.read_bytes() == contents, (length, found)
        place.write_bytes(contents[:length])
        # It prints the headers of responses.
        wget = ["wget", "--no-verbose", "--no-config", "--server-response", "--continue", "--output-document", place]
        found = run_tool([*wget, *header, url])
        assert re.findall(r"HTTP/1.1 (\d+)", found.stderr) == [status], (length, found)
        assert place.read_bytes() == contents, length
    # Of the whole file there is no rest.
    found = run_tool([*wget, *header, url])
    assert "HTTP/1.1 416" in found.stderr and place.read_bytes() == contents, found


def run_tool(command):
    environment = dict(os.environ, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done


def check_kinds(client, server, directory, token, xet, rng):
    """A dataset, a space, files by `upload_large_folder`, and the file of `check_cut`."""
    # More than one chunk.
    files = {"data/train.bin": rng.randbytes(300_000), "index.html": b"<h1>hello</h1>\n", "README.md": b"# Hello\n"}
    write(directory / "kind", files)
    places = {kind: str(directory / f"out-{kind}") for kind in ("dataset", "space", "large")}
    arguments = {"directory": str(directory / "kind"), "places": places, "long": str(directory / "long")}
    for kind in client.run(server.url, "kinds", token, xet, **arguments):
        compare(pathlib.Path(places[kind]), {**files, ".gitattributes": None})
    for kind in "dataset", "space":
        for path, contents in files.items():
            status, _, body = server.get(f"/{kind}s/me/{kind}/resolve/main/{path}", token)
            assert (status, body) == (200, contents), (kind, path, status)


def check_many(client, server, directory, token, xet, rng):
    """3000 small files in one upload, and some that are not text."""
    files = {f"{number % 7}/{number}.txt": b"%d of many\n" % number for number in range(3000)}
    files |= {f"{number % 7}/{number}.bin": rng.randbytes(100) for number in range(30)}
    write(directory / "many", files)
    sizes = {path: len(contents) for path, contents in files.items()}
    sample = rng.sample(sorted(files), 20)
    place = directory / "sample"
    client.run(server.url, "many", token, xet, directory=str(directory / "many"), sizes=sizes, sample=sample, to=str(place))
    compare(place, {path: files[path] for path in sample})


def check_short(client, server, directory, token, xet, rng):
    """A file of one chunk, from one cache to repositories of several owners: hf_xet remembers its xorb, and uploads it once."""
    contents = rng.randbytes(5000)
    write(directory / "short", {"short.bin": contents})
    repos = [["model", "me/short"], ["dataset", "me/short"]] + ([["model", "team/short"]] if server.auth == "token" else [])
    failed = client.run(server.url, "push_short", token, xet, directory=str(directory / "short"), repos=repos)
    assert not failed, f"a short file that was uploaded to {repos[0]} was refused for {failed}"
    for kind, repo in repos:
        status, _, body = server.get(f"{'/datasets' if kind == 'dataset' else ''}/{repo}/resolve/main/short.bin", token)
        assert (status, body) == (200, contents), (kind, repo, status)


def check_cut(client, server, directory, token, xet, contents):
    """A download whose connection is cut."""
    with CuttingProxy(server.url, cut_at=(PIECE_LEN if not xet else 0) + (2 << 20)) as proxy:
        client.run(proxy.url, "pull_long", token, xet, to=str(directory / "pulled.bin"))
    assert (directory / "pulled.bin").read_bytes() == contents
    # The first request has no range and is cut. The other one requests what is not there yet.
    if xet:
        assert proxy.is_cut and len(proxy.reads) > 1, proxy.reads
    else:
        assert proxy.reads == [(None, 200), (f"bytes={PIECE_LEN}-", 206)], proxy.reads


class Proxy:
    """A proxy on loopback, reached as if it were the server. It reads each request and each response whole."""

    def __init__(self, url):
        self.upstream = url.removeprefix("http://")
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                proxy.forward(self)

            do_HEAD = do_GET = do_POST = do_PUT = do_DELETE = forward

            def log_message(self, *_):
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.listener.serve_forever).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown()
        self.listener.server_close()

    def forward(self, asked):
        body = read_body(asked)
        headers = {name: value for name, value in asked.headers.items() if name.lower() != "transfer-encoding"}
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        # With its Host, so that URLs of the server lead here.
        upstream.request(asked.command, asked.path, body, headers)
        response = upstream.getresponse()
        contents = response.read()
        upstream.close()
        sent = self.record(asked, body, response, contents)
        length = response.getheader("Content-Length", "0") if asked.command == "HEAD" else str(len(contents))
        asked.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                asked.send_header(name, value)
        asked.send_header("Content-Length", length)
        asked.end_headers()
        asked.wfile.write(sent)
        asked.close_connection |= len(sent) < len(contents)

    def record(self, asked, body, response, contents):
        """The part of the contents that the client gets."""
        return contents


def read_body(asked):
    """The body of a request that an HTTP handler has got."""
    if asked.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return asked.rfile.read(int(asked.headers.get("Content-Length", 0)))
    pieces = []
    while length := int(asked.rfile.readline().split(b";")[0], 16):
        pieces.append(asked.rfile.read(length))
        asked.rfile.readline()
    while asked.rfile.readline().strip():
        pass
    return b"".join(pieces)


class CuttingProxy(Proxy):
    """It cuts the first response that is longer than `cut_at` there."""

    def __init__(self, url, cut_at):
        super().__init__(url)
        self.cut_at, self.is_cut, self.reads, self.lock = cut_at, False, [], threading.Lock()

    def record(self, asked, body, response, contents):
        if asked.command != "GET" or len(contents) <= self.cut_at:
            return contents
        with self.lock:
            self.reads.append((asked.headers.get("Range"), response.status))
            is_first, self.is_cut = not self.is_cut, True
        return contents[: self.cut_at] if is_first else contents


# From here on, in a process of one of the versions.


def login(given):
    import huggingface_hub

    try:
        huggingface_hub.login(token="hf_wrong", add_to_git_credential=False)
        raise AssertionError("any token was taken")
    except (ValueError, OSError) as error:
        assert "Invalid" in str(error), error
    huggingface_hub.login(token=given, add_to_git_credential=False)
    assert huggingface_hub.get_token() == given
    assert huggingface_hub.whoami()["name"] == "me"
    programs = pathlib.Path(sys.executable).parent
    command = [programs / "hf", "auth"] if (programs / "hf").exists() else [programs / "huggingface-cli"]
    assert "me" in subprocess.check_output([*command, "whoami"], text=True).replace(":", " ").split()
    huggingface_hub.logout()
    assert huggingface_hub.get_token() is None


def push(directory, has_users):
    from huggingface_hub import HfApi

    api = HfApi()
    who = api.whoami()
    organizations = [organization["name"] for organization in who["orgs"]]
    assert (who["name"], organizations) == (("me", ["team"]) if has_users else ("anonymous", [])), who
    if has_users:
        api.create_repo("team/model", private=True, exist_ok=True)
        api.upload_file(repo_id="team/model", path_or_fileobj=b"of the team\n", path_in_repo="a.txt")
        assert {model.id for model in api.list_models(author="team")} == {"team/model"}
    api.create_repo(REPO)
    head = api.upload_folder(repo_id=REPO, folder_path=directory, commit_message="all files").oid
    HfApi().create_repo(REPO, exist_ok=True)
    again = HfApi().upload_folder(repo_id=REPO, folder_path=directory, commit_message="all files").oid
    assert again == head, "the same again made a commit"
    return head


def pull(places):
    """Where the files of each revision are: in this directory, or in the cache."""
    from huggingface_hub import snapshot_download

    return [snapshot_download(REPO, revision=revision, local_dir=to, max_workers=4) for revision, to in places.items()]


def push_whole(directory, to):
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi()
    api.create_branch(REPO, branch="whole")

    def upload():
        return api.upload_folder(repo_id=REPO, folder_path=directory, revision="whole", commit_message="without hf_xet")

    head = upload().oid
    assert upload().oid == head, "the same again made a commit"
    snapshot_download(REPO, revision="whole", local_dir=to)
    api.delete_branch(REPO, branch="whole")


def kinds(directory, places, long):
    """What was uploaded of this, as not every version can do all of it."""
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi()
    files = {str(path.relative_to(directory)) for path in pathlib.Path(directory).rglob("*") if path.is_file()}
    for kind, options in [("dataset", {}), ("space", {"space_sdk": "static"})]:
        repo = f"me/{kind}"
        api.create_repo(repo, repo_type=kind, **options)
        assert api.repo_exists(repo, repo_type=kind) and not api.repo_exists(repo)
        head = api.upload_folder(repo_id=repo, repo_type=kind, folder_path=directory).oid
        assert set(api.list_repo_files(repo, repo_type=kind)) == {*files, ".gitattributes"}
        assert api.repo_info(repo, repo_type=kind).sha == head
        snapshot_download(repo, repo_type=kind, local_dir=places[kind])
    assert [found.id for found in api.list_datasets(author="me")] == ["me/dataset"]
    assert [found.id for found in api.list_spaces(author="me")] == ["me/space"]
    api.create_repo(LONG_REPO)
    api.upload_folder(repo_id=LONG_REPO, folder_path=long)
    # Version 2 does not have it.
    if not hasattr(api, "upload_large_folder"):
        return ["dataset", "space"]
    # With several workers it waits for ten seconds.
    api.upload_large_folder("me/large", directory, repo_type="model", num_workers=1, print_report=False)
    snapshot_download("me/large", local_dir=places["large"])
    return ["dataset", "space", "large"]


def many(directory, sizes, sample, to):
    from huggingface_hub import HfApi, hf_hub_download

    api = HfApi()
    api.create_repo("me/many")
    api.upload_folder(repo_id="me/many", folder_path=directory)
    tree = {item.path: getattr(item, "size", None) for item in api.list_repo_tree("me/many", recursive=True)}
    assert tree.pop(".gitattributes") > 0
    assert tree == {**sizes, **dict.fromkeys("0123456")}, "a file is missing, or has another size"
    assert sorted(api.list_repo_files("me/many")) == sorted([*sizes, ".gitattributes"])
    for path in sample:
        hf_hub_download("me/many", path, local_dir=to)


def push_short(directory, repos):
    """The repositories that did not get the file."""
    from huggingface_hub import HfApi

    failed = []
    for kind, repo in repos:
        HfApi().create_repo(repo, repo_type=kind)
        try:
            HfApi().upload_folder(repo_id=repo, repo_type=kind, folder_path=directory)
        except (OSError, RuntimeError) as error:
            failed.append([kind, repo, str(error)])
    return failed


def pull_long(to):
    import huggingface_hub

    try:
        path = huggingface_hub.hf_hub_download(LONG_REPO, "long.bin")
    except Exception:
        # Versions before 1 resume some downloads only when they are called again.
        path = huggingface_hub.hf_hub_download(LONG_REPO, "long.bin")
    shutil.copyfile(path, to)


def inspect(head, sizes, has_users):
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
        stored = list(api.list_user_repos(None if has_users else "me"))
        # Without authentication all is stored for `*`.
        assert [(repo.id, repo.storage > 3 << 20) for repo in stored] == [(REPO, has_users)], stored
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


def change(head):
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


def end():
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


def refused(foreign):
    from huggingface_hub import HfApi
    from huggingface_hub.utils import HfHubHTTPError, RepositoryNotFoundError

    for token, error in (None, HfHubHTTPError), (foreign, RepositoryNotFoundError):
        try:
            HfApi(token=token).upload_file(repo_id=REPO, path_or_fileobj=b"x", path_in_repo="x.txt")
            raise AssertionError("a token without the right was taken")
        except error:
            pass


VERBS = [login, push, pull, push_whole, inspect, change, kinds, many, push_short, pull_long, end, refused]


def run_verb(verbs, name, xet, arguments):
    from huggingface_hub.utils._runtime import is_xet_available

    assert is_xet_available() == xet
    (verb,) = (verb for verb in verbs if verb.__name__ == name)
    print(json.dumps(verb(**arguments)))


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        run_verb(VERBS, sys.argv[2], *json.loads(sys.argv[3]))
    else:
        main(*sys.argv[1:])
