"""The stock Python client, unmodified, against a real server: push, pull, restart, near-duplicate.

    python tests/clients/stock_client.py target/release/zorb

(ZORB_GRANTS=true for a server with upload grants) runs with whichever version of hf_xet is installed in this Python (1.5 or newer). Every push and pull is a process of its
own with a cache of its own, so nothing is known from before unless the server says it.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import urllib.request

MIB = 1 << 20


def main(binary):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = make_files(folder / "files", rng)
        server = Server(binary, folder / "data")
        try:
            pushed = client(folder, "push", server.url, list(files))
            check_pull(folder, server, pushed)
            check_grants(server)
            server.stop()
            server = Server(binary, folder / "data")
            check_pull(folder, server, pushed)
            check_near_duplicate(folder, server, files, rng)
        finally:
            server.stop()
    print(f"hf_xet: {len(files)} files pushed, pulled, pulled again after a restart")


def make_files(folder, rng):
    folder.mkdir()
    text = b"".join(b"line %d of a text that compresses\n" % number for number in range(400_000))
    contents = {
        "empty": b"",
        "one-byte": b"x",
        "100-kib": rng.randbytes(100 << 10),
        "5-mib": rng.randbytes(5 * MIB),
        # More than one xorb, and one that is full to the brim: 64 MiB raw, longer than that when serialized.
        "mixed": rng.randbytes(80 * MIB) + (text * 6)[: 70 * MIB],
    }
    for number in range(300):
        contents[f"tiny-{number}"] = b"%d " % number * rng.randrange(1, 500)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {str(folder / name): data for name, data in contents.items()}


def check_pull(folder, server, pushed):
    target = folder / "pulled"
    target.mkdir(exist_ok=True)
    client(folder, "pull", server.url, [str(target), json.dumps(pushed)])
    for path, _ in pushed.items():
        name = pathlib.Path(path).name
        if (target / name).read_bytes() != pathlib.Path(path).read_bytes():
            sys.exit(f"{name} came back changed")
        (target / name).unlink()


def check_grants(server):
    """With grants every xorb came by one; without them none did."""
    counts = {route: server.answered(route) for route in ("/v1/xorb-commits/", "/v1/xorbs/")}
    print(f"uploads: {counts}")
    by_grant, directly = counts.values()
    has_grants = os.environ.get("ZORB_GRANTS") == "true"
    if (by_grant > 0) != has_grants or (directly > 0) == has_grants:
        sys.exit("that is not the way that they should have come")


def check_near_duplicate(folder, server, files, rng):
    """A file that differs a little must cost a little, also for a client that has never seen the first one."""
    path, data = max(files.items(), key=lambda item: len(item[1]))
    changed = bytearray(data)
    changed[30 * MIB : 30 * MIB] = rng.randbytes(1000)
    changed[90 * MIB : 90 * MIB + 65536] = rng.randbytes(65536)
    changed += rng.randbytes(100_000)
    near = folder / "near-duplicate"
    near.write_bytes(changed)
    before = server.received()
    pushed = client(folder, "push", server.url, [str(near)])
    sent = server.received() - before
    check_pull(folder, server, pushed)
    share = sent / len(changed)
    print(f"near-duplicate of {len(changed)} bytes: {sent} bytes sent, {share:.2%}")
    if share >= 0.02:
        sys.exit("that is 2 % or more")


class Server:
    """A server process on a free port."""

    def __init__(self, binary, data):
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data)]
        environment = dict(os.environ, ZORB_LOG="warn")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        match = re.match(r"zorb listening on (http://\S+)", line)
        if not match:
            sys.exit(f"the server says {line!r}")
        self.url = match.group(1)

    def received(self):
        return int(re.search(r"^zorb_received_bytes_total (\d+)", self.metrics(), re.MULTILINE).group(1))

    def answered(self, route):
        """Number of requests to routes that begin so."""
        name = rf'^zorb_http_requests_total{{route="{route}.*}} (\d+)'
        return sum(map(int, re.findall(name, self.metrics(), re.MULTILINE)))

    def metrics(self):
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            return answer.read().decode()

    def stop(self):
        self.process.terminate()
        if self.process.wait() != 0:
            sys.exit(f"the server ended with {self.process.returncode}")


def client(folder, verb, url, arguments):
    """Runs a push or a pull in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = dict(os.environ, HF_XET_CACHE=cache, HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
        command = [sys.executable, __file__, verb, url, *arguments]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
    if result.returncode != 0:
        sys.exit(f"{verb} failed with {result.returncode}")
    return json.loads(result.stdout or "null")


def push(url, *paths):
    import hf_xet

    commit = hf_xet.XetSession().new_upload_commit(endpoint=url)
    handles = {path: commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256) for path in paths}
    commit.wait_to_finish()
    infos = {path: handle.result().xet_info for path, handle in handles.items()}
    print(json.dumps({path: [info.hash, info.file_size] for path, info in infos.items()}))


def pull(url, target, pushed):
    import hf_xet

    group = hf_xet.XetSession().new_file_download_group(endpoint=url)
    for path, (file_hash, size) in json.loads(pushed).items():
        group.start_download_file(hf_xet.XetFileInfo(file_hash, size), os.path.join(target, os.path.basename(path)))
    group.wait_to_finish()


if sys.argv[1] in ("push", "pull"):
    globals()[sys.argv[1]](*sys.argv[2:])
else:
    main(sys.argv[1])
