"""zorb's own client and the stock one against one server: what either has pushed, the other pulls and need not send again.

    python tests/clients/interop.py target/release/zorb

runs with whichever version of hf_xet is installed in this Python (1.5 or newer). Every push and pull is a process of its
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
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        server, url = start(binary, directory / "data")
        try:
            for name, one, other in [("zorb", Zorb, Stock), ("hf_xet", Stock, Zorb)]:
                here = directory / f"by-{name}"
                here.mkdir()
                check(here, url, one(binary, url, here), other(binary, url, here), rng)
        finally:
            server.terminate()
            server.wait()


def check(directory, url, one, other, rng):
    files = {
        "empty": b"",
        "one-byte": rng.randbytes(1),
        "text": b"".join(b"line %d of %s\n" % (number, rng.randbytes(2).hex().encode()) for number in range(300_000)),
        # More than one xorb.
        "mixed": rng.randbytes(60 * MIB) + bytes(3 * MIB) + rng.randbytes(20 * MIB),
    }
    for name, data in files.items():
        (directory / name).write_bytes(data)
    pushed = one.push([directory / name for name in files])
    for (name, data), (file_hash, size) in zip(files.items(), pushed, strict=True):
        if size != len(data) or other.pull(file_hash, size) != data:
            sys.exit(f"{name} came back changed")
    # Both cut and hash alike, so the same file is the same file, and nothing of it is sent.
    before = received(url)
    if other.push([directory / name for name in files]) != pushed:
        sys.exit("the other client names the same files otherwise")
    again = received(url) - before
    changed = bytearray(files["mixed"])
    changed[10 * MIB : 10 * MIB] = rng.randbytes(1000)
    changed[70 * MIB : 70 * MIB + 65536] = rng.randbytes(65536)
    (directory / "near").write_bytes(changed)
    before = received(url)
    [(file_hash, size)] = other.push([directory / "near"])
    near = received(url) - before
    if one.pull(file_hash, size) != changed:
        sys.exit("the near-duplicate came back changed")
    total = sum(map(len, files.values()))
    print(f"{one.name} pushes {total} bytes, {other.name} pulls them, sends {again} to push them again, "
          f"and {near} ({near / len(changed):.2%}) for a near-duplicate")
    if again >= 0.02 * total or near >= 0.02 * len(changed):
        sys.exit("that is 2 % or more")


class Zorb:
    name = "zorb"

    def __init__(self, binary, url, directory):
        self.binary, self.url, self.directory = binary, url, directory

    def run(self, *arguments):
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, XDG_CACHE_HOME=cache, ZORB_SERVER=self.url)
            result = subprocess.run([self.binary, *arguments], env=environment, stdout=subprocess.PIPE, timeout=300)
        if result.returncode != 0:
            sys.exit(f"zorb {' '.join(map(str, arguments))} ended with {result.returncode}")
        return result.stdout

    def push(self, paths):
        records = [json.loads(line) for line in self.run("push", "--json", *paths).splitlines()]
        return [[record["hash"], record["len"]] for record in records if record["type"] == "file"]

    def pull(self, file_hash, size):
        if size > 1000:
            record = json.loads(self.run("pull", file_hash, "--range", "-1000", "-o", self.directory / "tail", "--json"))
            if not record["proven"]:
                sys.exit("a part of the file is not proven")
        self.run("pull", file_hash, "-o", self.directory / "pulled")
        return (self.directory / "pulled").read_bytes()


class Stock:
    name = "hf_xet"

    def __init__(self, binary, url, directory):
        self.url, self.directory = url, directory

    def run(self, verb, *arguments):
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, HF_XET_CACHE=cache, HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
            command = [sys.executable, __file__, verb, self.url, *map(str, arguments)]
            result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
        if result.returncode != 0:
            sys.exit(f"hf_xet: {verb} ended with {result.returncode}")
        return json.loads(result.stdout or "null")

    def push(self, paths):
        return self.run("stock-push", *paths)

    def pull(self, file_hash, size):
        self.run("stock-pull", self.directory / "pulled", file_hash, size)
        return (self.directory / "pulled").read_bytes()


def stock_push(url, *paths):
    import hf_xet

    commit = hf_xet.XetSession().new_upload_commit(endpoint=url)
    handles = [commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256) for path in paths]
    commit.wait_to_finish()
    infos = [handle.result().xet_info for handle in handles]
    print(json.dumps([[info.hash, info.file_size] for info in infos]))


def stock_pull(url, target, file_hash, size):
    import hf_xet

    group = hf_xet.XetSession().new_file_download_group(endpoint=url)
    group.start_download_file(hf_xet.XetFileInfo(file_hash, int(size)), target)
    group.wait_to_finish()


def start(binary, data):
    """A server process on a free port, and where it is."""
    command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, ZORB_LOG="warn"))
    line = process.stdout.readline()
    match = re.match(r"zorb listening on (http://\S+)", line)
    if not match:
        sys.exit(f"the server says {line!r}")
    return process, match.group(1)


def received(url):
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    return int(re.search(r"^zorb_received_bytes_total (\d+)", text, re.MULTILINE).group(1))


if sys.argv[1] in ("stock-push", "stock-pull"):
    globals()[sys.argv[1].replace("-", "_")](*sys.argv[2:])
else:
    main(sys.argv[1])
