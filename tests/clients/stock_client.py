"""The stock Python client, unmodified, against a real server that asks for tokens.

    python tests/clients/stock_client.py target/release/zorb

(ZORB_GRANTS=true for a server with upload grants) runs with whichever version of hf_xet is installed in this Python (1.5 or newer). Every push and pull is a process of its
own with a cache of its own, so nothing is known from before unless the server says it.
"""

import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

MIB = 1 << 20

# Raw bytes of a full xorb, and how many chunks of the smallest size that is.
XORB_LEN = 64 * MIB
CHUNK_LEN = 8 << 10


def main(binary):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        server = Server(binary, directory / "data")
        try:
            files = make_files(directory / "files", rng)
            pushed = push(server, list(files))
            check_pull(server, pushed)
            check_grants(server)
            server.restart()
            check_pull(server, pushed)
            check_parts(server, pushed, rng)
            check_near_duplicate(directory, server, files, rng)
            check_walls(server, pushed)
            check_refresh(directory, server, rng)
            check_many(directory, server, rng)
            check_full_xorb(directory, server, rng)
            check_parallel(directory, server, rng)
        finally:
            server.stop()
        check_addresses(binary, directory, rng)
        check_quota(binary, directory, rng)


def say(text):
    print(f"hf_xet: {text}", flush=True)


def make_files(directory, rng):
    directory.mkdir()
    text = b"".join(b"line %d of a text that compresses\n" % number for number in range(400_000))
    contents = {
        "empty": b"",
        "one-byte": b"x",
        "100-kib": rng.randbytes(100 << 10),
        "5-mib": rng.randbytes(5 * MIB),
        # More than one xorb.
        "mixed": rng.randbytes(80 * MIB) + (text * 6)[: 70 * MIB],
    }
    return write_files(directory, contents)


def write_files(directory, contents):
    directory.mkdir(exist_ok=True)
    for name, data in contents.items():
        (directory / name).write_bytes(data)
    return {str(directory / name): data for name, data in contents.items()}


def push(server, paths, repo="models/acme/one"):
    return client(server, "push", repo, "write", {"paths": paths})


def pull(server, pushed, target, repo="models/acme/one", **environment):
    return client(server, "pull", repo, "read", {"pushed": pushed, "target": str(target)}, **environment)


def check_pull(server, pushed, **environment):
    with tempfile.TemporaryDirectory(dir=server.directory) as target:
        pull(server, pushed, target, **environment)
        for path in pushed:
            if (pathlib.Path(target) / pathlib.Path(path).name).read_bytes() != pathlib.Path(path).read_bytes():
                sys.exit(f"{path} came back changed")
    say(f"{len(pushed)} files pulled, {' '.join(environment) or 'as they were pushed'}")


def check_parts(server, pushed, rng):
    """Reads of parts, one descriptor at a time, several at once, and out of order."""
    ranges = []
    for path, (_, size) in pushed.items():
        for _ in range(8 if size > 1 else 0):
            start = rng.randrange(size)
            ranges.append((path, start, rng.randrange(start, min(size, start + 3 * MIB)) + 1))
    for multirange in ("false", "true"):
        setting = {"HF_XET_CLIENT_ENABLE_MULTIRANGE_FETCHING": multirange}
        client(server, "parts", "models/acme/one", "read", {"pushed": pushed, "ranges": ranges}, **setting)
    check_pull(server, pushed, HF_XET_CLIENT_ENABLE_MULTIRANGE_FETCHING="true")
    say(f"{len(ranges)} parts read, in order and out of it")


def check_grants(server):
    """With grants every xorb came by one; without them none did."""
    counts = {route: server.responded(route) for route in ("/v1/xorb-commits/", "/v1/xorbs/")}
    say(f"uploads: {counts}")
    by_grant, directly = counts.values()
    has_grants = os.environ.get("ZORB_GRANTS") == "true"
    if (by_grant > 0) != has_grants or (directly > 0) == has_grants:
        sys.exit("that is not the way that they should have come")


def check_near_duplicate(directory, server, files, rng):
    """A file that differs a little must cost a little, also for a client that has never seen the first one."""
    data = max(files.values(), key=len)
    changed = bytearray(data)
    changed[30 * MIB : 30 * MIB] = rng.randbytes(1000)
    changed[90 * MIB : 90 * MIB + 65536] = rng.randbytes(65536)
    changed += rng.randbytes(100_000)
    near = write_files(directory / "near", {"near-duplicate": bytes(changed)})
    before = server.received()
    pushed = push(server, list(near))
    sent = server.received() - before
    check_pull(server, pushed)
    share = sent / len(changed)
    say(f"near-duplicate of {len(changed)} bytes: {sent} bytes sent, {share:.2%}")
    if share >= 0.02:
        sys.exit("that is 2 % or more")


def check_walls(server, pushed):
    """What one repository has registered, another does not see; and reading is not writing."""
    some = dict(list(pushed.items())[-1:])
    with tempfile.TemporaryDirectory(dir=server.directory) as target:
        for repo, scope, verb in [
            ("models/other/one", "read", "pull"),
            ("models/acme/two", "read", "pull"),
            ("models/acme/one", "read", "push"),
            ("models/acme/one", None, "pull"),
            ("models/acme/one", None, "push"),
        ]:
            arguments = {"pushed": some, "target": target, "paths": list(some)}
            if client(server, verb, repo, scope, arguments, may_fail=True) is not None:
                sys.exit(f"{verb} with the scope {scope} for {repo} went well")
            # The client makes the file before it asks for what is to be in it.
            if any(path.read_bytes().strip(b"\0") for path in pathlib.Path(target).iterdir()):
                sys.exit(f"{repo} has got something of models/acme/one")
    say("other repositories, other scopes and no token see nothing and store nothing")


def check_refresh(directory, server, rng):
    """A client whose token ends gets another one by its refresh token; one that has no token, its first."""
    command = [server.binary, "token", "issue", "--data-dir", str(server.directory), "--scope", "write"]
    command += ["--repo", "models/acme/one", "--refresh", "--token-ttl", "60s"]
    refresh = subprocess.check_output(command, text=True).strip()
    for name, has_token in [("refreshed", True), ("begun-by-refresh", False)]:
        files = write_files(directory / name, {name: rng.randbytes(300_000)})
        before = server.responded("/v1/token")
        arguments = {"paths": list(files), "refresh": refresh, "has_token": has_token}
        pushed = client(server, "push", "models/acme/one", "write", arguments)
        if server.responded("/v1/token") == before:
            sys.exit("the client did not ask for another token")
        check_pull(server, pushed)
    subprocess.check_call([server.binary, "token", "revoke", refresh, "--data-dir", str(server.directory), "--quiet"])
    time.sleep(1)
    files = write_files(directory / "revoked", {"revoked": rng.randbytes(300_000)})
    arguments = {"paths": list(files), "refresh": refresh, "has_token": True}
    if client(server, "push", "models/acme/one", "write", arguments, may_fail=True) is not None:
        sys.exit("a revoked refresh token makes tokens")
    say("an upload outlives its token, by a refresh token that can be revoked")


def check_many(directory, server, rng):
    contents = {f"tiny-{number}": b"%d " % number * rng.randrange(1, 500) for number in range(3000)}
    begin = time.monotonic()
    pushed = push(server, list(write_files(directory / "many", contents)))
    say(f"{len(pushed)} tiny files pushed in {time.monotonic() - begin:.1f} s")
    check_pull(server, pushed)


def check_full_xorb(directory, server, rng):
    """Files of one chunk each, as many as fill a xorb to the brim: 64 MiB raw, more than that when serialized."""
    contents = {f"brim-{number}": rng.randbytes(CHUNK_LEN) for number in range(XORB_LEN // CHUNK_LEN)}
    pushed = push(server, list(write_files(directory / "brim", contents)))
    longest = server.longest_xorb()
    if longest <= XORB_LEN:
        sys.exit(f"the longest xorb has {longest} bytes; this test is about longer ones than {XORB_LEN}")
    check_pull(server, dict(rng.sample(sorted(pushed.items()), 300)))
    say(f"a xorb of {longest} bytes is stored")


def check_parallel(directory, server, rng):
    """Several clients at once, that have some of their files in common."""
    shared = {f"shared-{number}": rng.randbytes(3 * MIB) for number in range(4)}
    sets = []
    for name in range(4):
        own = {f"own-{name}-{number}": rng.randbytes(2 * MIB) for number in range(4)}
        sets.append(list(write_files(directory / f"client-{name}", shared | own)))
    running = [start(server, "push", "models/acme/one", "write", {"paths": paths}) for paths in sets]
    pushed = [finish(process) for process in running]
    targets = [tempfile.TemporaryDirectory(dir=server.directory) for _ in pushed]
    arguments = [{"pushed": files, "target": target.name} for files, target in zip(pushed, targets)]
    for process in [start(server, "pull", "models/acme/one", "read", each) for each in arguments]:
        finish(process)
    for files, target in zip(pushed, targets):
        for path in files:
            if (pathlib.Path(target.name) / pathlib.Path(path).name).read_bytes() != pathlib.Path(path).read_bytes():
                sys.exit(f"{path} came back changed")
        target.cleanup()
    say(f"{len(pushed)} clients at once pushed and pulled {sum(map(len, pushed))} files")


def check_addresses(binary, directory, rng):
    """An endpoint with a slash at its end, and one behind a prefix."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = Server(binary, directory / "prefixed", f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/some/prefix")
    try:
        for number, end in enumerate(["/", "/some/prefix", "/some/prefix/"]):
            server.url = f"http://127.0.0.1:{port}{end}"
            files = write_files(directory / "addresses", {f"file-{number}": rng.randbytes(300_000)})
            check_pull(server, push(server, list(files)))
    finally:
        server.stop()
    say("a trailing slash and a prefix change nothing")


def check_quota(binary, directory, rng):
    """Whoever is refused is told why, in words and without further tries."""
    server = Server(binary, directory / "limited", ZORB_QUOTA_FILES="1")
    try:
        files = list(write_files(directory / "limited-files", {name: rng.randbytes(300_000) for name in ("one", "two")}))
        push(server, files[:1])
        before = server.responded("/v[12]/shards")
        process = start(server, "push", "models/acme/one", "write", {"paths": files[1:]})
        _, err = process.communicate(timeout=600)
        process.cache.cleanup()
        tries = server.responded("/v[12]/shards") - before
        say(f"beyond a quota, after {tries} tries: {err.strip().splitlines()[-1]}")
        # Versions before 1.6 know no events, and show the status.
        if process.returncode == 0 or tries != 1 or not re.search("models/acme/one uses 1 of 1 files|413", err):
            sys.exit("that is not what a quota should look like")
    finally:
        server.stop()


class Server:
    """A server process that asks for tokens."""

    def __init__(self, binary, directory, listen="127.0.0.1:0", public_url=None, **settings):
        self.binary, self.directory, self.listen, self.public_url = binary, directory, listen, public_url
        self.settings = settings
        self.tokens = {}
        self.begin()

    def begin(self):
        command = [self.binary, "serve", "--listen", self.listen, "--data-dir", str(self.directory), "--auth", "token"]
        if self.public_url:
            command += ["--public-url", self.public_url]
        environment = dict(os.environ, ZORB_LOG="error", **self.settings)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        match = re.match(r"zorb listening on (https?://\S+)", line)
        if not match:
            sys.exit(f"the server says {line!r}")
        self.url = match.group(1)

    def token(self, scope, repo):
        if (scope, repo) not in self.tokens:
            command = [self.binary, "token", "issue", "--data-dir", str(self.directory), "--scope", scope, "--repo", repo]
            self.tokens[scope, repo] = subprocess.check_output(command, text=True).strip()
        return self.tokens[scope, repo]

    def received(self):
        return int(re.search(r"^zorb_received_bytes_total (\d+)", self.metrics(), re.MULTILINE).group(1))

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)", self.metrics(), re.MULTILINE).group(1))

    def responded(self, route):
        """Number of requests to routes that begin so."""
        name = rf'^zorb_http_requests_total{{route="{route}.*}} (\d+)'
        return sum(map(int, re.findall(name, self.metrics(), re.MULTILINE)))

    def metrics(self):
        return self.get("/metrics", "admin")

    def longest_xorb(self):
        """The serialized length of the longest stored xorb."""
        longest, after = 0, ""
        while after is not None:
            page = json.loads(self.get(f"/v1/xorbs?limit=1000{after and f'&after={after}'}", "read"))
            longest, after = max([longest, *(xorb["serialized_len"] for xorb in page["xorbs"])]), page["next"]
        return longest

    def get(self, path, scope):
        request = urllib.request.Request(f"{self.url}{path}")
        request.add_header("Authorization", f"Bearer {self.token(scope, '*')}")
        with urllib.request.urlopen(request) as response:
            return response.read().decode()

    def restart(self):
        self.stop()
        self.begin()

    def stop(self):
        self.process.terminate()
        if self.process.wait() != 0:
            sys.exit(f"the server ended with {self.process.returncode}")


def client(server, verb, repo, scope, arguments, may_fail=False, **environment):
    """What a process of its own did, with an empty cache."""
    return finish(start(server, verb, repo, scope, arguments, **environment), may_fail)


def start(server, verb, repo, scope, arguments, **environment):
    cache = tempfile.TemporaryDirectory(dir=server.directory.parent)
    manifest = pathlib.Path(cache.name) / "arguments.json"
    token = server.token(scope, repo) if scope else None
    manifest.write_text(json.dumps({**arguments, "endpoint": server.url, "token": token}))
    environment = {
        **os.environ,
        "HF_XET_CACHE": cache.name,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        # What has to fail should fail soon.
        "HF_XET_CLIENT_RETRY_BASE_DELAY": "100ms",
        **environment,
    }
    command = [sys.executable, __file__, verb, str(manifest)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.verb, process.cache = verb, cache
    return process


def finish(process, may_fail=False):
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.cache.cleanup()
    if process.returncode == 0:
        return json.loads(out)
    if may_fail:
        return None
    sys.exit(f"{process.verb} failed with {process.returncode}: {err}")


def connection(arguments):
    if "refresh" in arguments:
        return refreshed(arguments)
    settings = {"endpoint": arguments["endpoint"]}
    if arguments["token"]:
        settings |= {"token": arguments["token"], "token_expiry_unix_secs": int(time.time()) + 3600}
    return settings


def refreshed(arguments):
    endpoint = arguments["endpoint"]
    settings = {
        "token_refresh_url": f"{endpoint}/v1/token",
        "token_refresh_headers": {"Authorization": f"Bearer {arguments['refresh']}"},
    }
    if arguments["has_token"]:
        # It ends while the client works: less than 30 seconds are left.
        settings |= {"endpoint": endpoint, "token": arguments["token"], "token_expiry_unix_secs": int(time.time()) + 5}
    return settings


def client_push(hf_xet, arguments):
    if not hasattr(hf_xet, "XetSession"):
        return old_push(hf_xet, arguments)
    commit = hf_xet.XetSession().new_upload_commit(**connection(arguments))
    handles = {path: commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256) for path in arguments["paths"]}
    commit.wait_to_finish()
    infos = {path: handle.result().xet_info for path, handle in handles.items()}
    return {path: [info.hash, info.file_size] for path, info in infos.items()}


def client_pull(hf_xet, arguments):
    if not hasattr(hf_xet, "XetSession"):
        return old_pull(hf_xet, arguments)
    group = hf_xet.XetSession().new_file_download_group(**connection(arguments))
    for path, (file_hash, size) in arguments["pushed"].items():
        target = os.path.join(arguments["target"], os.path.basename(path))
        group.start_download_file(hf_xet.XetFileInfo(file_hash, size), target)
    group.wait_to_finish()


def old_connection(arguments):
    """Endpoint, token, refresher and progress, as releases before 1.5 take them."""
    return arguments["endpoint"], (arguments["token"], int(time.time()) + 3600), None, None


def old_push(hf_xet, arguments):
    paths, connection = arguments["paths"], old_connection(arguments)
    infos = hf_xet.upload_files(paths, *connection, "model")
    # The name of the length changed with 1.1.0.
    return {
        path: [info.hash, info.file_size if hasattr(info, "file_size") else info.filesize]
        for path, info in zip(paths, infos)
    }


def old_pull(hf_xet, arguments):
    made = getattr(hf_xet, "PyXetDownloadInfo", hf_xet.PyPointerFile)
    target = lambda path: os.path.join(arguments["target"], os.path.basename(path))
    files = [made(target(path), file_hash, size) for path, (file_hash, size) in arguments["pushed"].items()]
    hf_xet.download_files(files, *old_connection(arguments))


def client_parts(hf_xet, arguments):
    group = hf_xet.XetSession().new_download_stream_group(**connection(arguments))
    for path, start, end in arguments["ranges"]:
        info = hf_xet.XetFileInfo(*arguments["pushed"][path])
        with open(path, "rb") as file:
            file.seek(start)
            expected = file.read(end - start)
        if b"".join(group.download_stream(info, start, end)) != expected:
            sys.exit(f"bytes {start} to {end} of {path} came back changed")
        pieces = sorted(group.download_unordered_stream(info, start, end))
        if b"".join(piece for _, piece in pieces) != expected:
            sys.exit(f"bytes {start} to {end} of {path} came back changed, out of order")


CLIENTS = {"push": client_push, "pull": client_pull, "parts": client_parts}

if __name__ == "__main__":
    if sys.argv[1] in CLIENTS:
        import hf_xet

        with open(sys.argv[2]) as file:
            print(json.dumps(CLIENTS[sys.argv[1]](hf_xet, json.load(file))))
    else:
        main(sys.argv[1])
