"""A directory of many small files and one large one: pushed, interrupted, continued, and brought back by its manifest.

    python tests/clients/directory.py target/release/zorb [FILES [MIB]]

FILES is 5000 and MIB 2048 if not given. Every byte that comes back is compared. It prints the times of `zorb push` and `zorb
pull --manifest` beside those of the hf_xet of this Python, the speed of `GET /v1/files/{hash}` as a share of that of `GET
/xorbs/{hash}?format=raw`, and the server's peak memory of each; the times are not judged here.
"""

import filecmp
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from stock_client import CLIENTS

MIB = 1 << 20

# Rounds of what is timed; hf_xet and zorb take turns.
ROUND_COUNT = 3


def main(binary, count=5000, mib=2048):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        tree = make_tree(scratch / "tree", random.Random(seed), count, mib)
        with Server(binary, scratch / "data") as server:
            manifest = check_interrupted_push(server, scratch, tree)
            check_interrupted_pull(server, scratch, tree, manifest)
            check_curl(server, scratch, tree, manifest)
            measure_reads(server, manifest)
        measure_transfers(binary, scratch, tree)


def say(text):
    print(f"directory: {text}", flush=True)


def make_tree(tree, rng, count, mib):
    for number in range(count):
        path = tree / f"part-{number % 50:02}" / f"{number:05}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d " % number * rng.randrange(200, 2000))
    with open(tree / "model.bin", "wb") as file:
        for number in range(mib):
            file.write(rng.randbytes(MIB) if number % 4 else b"%08d layer " % number * (MIB // 16))
    return tree


def files_of(tree):
    return {str(path.relative_to(tree)): path for path in sorted(tree.rglob("*")) if path.is_file()}


def check_same(tree, copy):
    """Both have the same files, byte for byte, and neither has another one."""
    files, copies = files_of(tree), files_of(copy)
    if files.keys() != copies.keys():
        sys.exit(f"other files came back: {sorted(files.keys() ^ copies.keys())[:10]}")
    for name, path in files.items():
        if not filecmp.cmp(path, copies[name], shallow=False):
            sys.exit(f"{name} came back changed")
    return len(files)


def interrupt(command, server, sent):
    """Starts a command and sends it what Ctrl-C sends as soon as the server has moved so many bytes more."""
    before = server.moved()
    process = subprocess.Popen(command, env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while server.moved() - before < sent and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    if process.returncode != 130 or "again" not in said:
        sys.exit(f"{command} ended with {process.returncode}: {said}")


def check_interrupted_push(server, scratch, tree):
    manifest = scratch / "tree.jsonl"
    command = [server.binary, "push", str(tree), "--manifest", str(manifest), "--quiet"]
    length = sum(path.stat().st_size for path in files_of(tree).values())
    interrupt(command, server, length // 3)
    if manifest.exists():
        sys.exit("an interrupted push has written a manifest")
    before = server.moved()
    subprocess.run(command, env=server.environment, check=True)
    sent = server.moved() - before
    say(f"a push of {length / MIB:.0f} MiB, interrupted after a third, sent {sent / MIB:.0f} MiB when it was run again")
    if sent > 0.85 * length:
        sys.exit("it has begun anew")
    return manifest


def check_interrupted_pull(server, scratch, tree, manifest):
    copy = scratch / "copy"
    command = [server.binary, "pull", "--manifest", str(manifest), "-o", str(copy), "--quiet"]
    length = sum(path.stat().st_size for path in files_of(tree).values())
    interrupt(command, server, length // 3)
    before = server.moved()
    subprocess.run(command, env=server.environment, check=True)
    sent = server.moved() - before
    count = check_same(tree, copy)
    say(f"a pull, interrupted after a third, fetched {sent / MIB:.0f} MiB when it was run again; {count} files are the same")
    if sent > 0.85 * length:
        sys.exit("it has begun anew")


def check_curl(server, scratch, tree, manifest):
    """A download of curl that is cut off goes on with `-C -`."""
    url, target = f"{server.url}/v1/files/{hash_of(manifest, 'model.bin')}", scratch / "by-curl"
    length = (tree / "model.bin").stat().st_size
    command = ["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "-C", "-", "-o", str(target), url]
    process = subprocess.Popen(command)
    while process.poll() is None and not (target.exists() and target.stat().st_size > length // 3):
        time.sleep(0.01)
    process.kill()
    process.wait()
    had = target.stat().st_size
    if not 0 < had < length:
        sys.exit(f"curl was to be cut off within {length} bytes and has {had}")
    subprocess.run(command, check=True)
    if not filecmp.cmp(tree / "model.bin", target, shallow=False):
        sys.exit("model.bin came back changed by curl -C -")
    target.unlink()
    say(f"curl -C - went on after {had / MIB:.0f} of {length / MIB:.0f} MiB")


def measure_reads(server, manifest):
    """The large file as a file, and the xorbs of the store one by one, decoded."""
    file = [f"{server.url}/v1/files/{hash_of(manifest, 'model.bin')}"]
    xorbs = [f"{server.url}/xorbs/{xorb}?format=raw" for xorb in server.xorbs()]
    speeds, peaks = {"file": [], "xorbs": []}, {"file": [], "xorbs": []}
    for number in range(ROUND_COUNT):
        for what, urls in [("file", file), ("xorbs", xorbs)][:: 1 if number % 2 == 0 else -1]:
            server.peak_rss()
            speeds[what].append(fetch(urls))
            peaks[what].append(server.peak_rss())
    shares = [one / other for one, other in zip(speeds["file"], speeds["xorbs"])]
    told = {what: statistics.median(of) / MIB for what, of in peaks.items()}
    say(f"GET /v1/files at {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) of the speed of raw xorbs,"
        f" with {told['file']:.0f} and {told['xorbs']:.0f} MiB of the server's memory at most")


def fetch(urls):
    """Bytes per second of curl for all of these, one after the other over one connection."""
    command = ["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--write-out", "%{size_download}\n"]
    begin = time.monotonic()
    out = subprocess.check_output(command + [part for url in urls for part in ("-o", "/dev/null", url)], text=True)
    return sum(map(int, out.split())) / (time.monotonic() - begin)


def measure_transfers(binary, scratch, tree):
    """Pushes to fresh stores and pulls from them, by zorb and by hf_xet in turn."""
    seconds = {(who, verb): [] for who in ("zorb", "hf_xet") for verb in ("push", "push again", "pull")}
    for number in range(ROUND_COUNT):
        for who in ("zorb", "hf_xet")[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(dir=scratch) as home:
                home = pathlib.Path(home)
                with Server(binary, home / "data") as server:
                    steps = by_zorb(server, home, tree) if who == "zorb" else by_hf_xet(server, home, tree)
                    for verb, took in steps:
                        seconds[who, verb].append(took)
    for verb in ("push", "push again", "pull"):
        ours, theirs = seconds["zorb", verb], seconds["hf_xet", verb]
        say(f"{verb}: zorb {statistics.median(ours):.1f} s, hf_xet {statistics.median(theirs):.1f} s,"
            f" zorb / hf_xet {statistics.median(ours) / statistics.median(theirs):.2f}")


def by_zorb(server, home, tree):
    manifest, copy = home / "manifest", home / "copy"
    push = [server.binary, "push", str(tree), "--manifest", str(manifest), "--quiet"]
    for verb in ("push", "push again"):
        # What is remembered of the first push is not to help the second one.
        environment = dict(server.environment, XDG_CACHE_HOME=str(home / f"cache of {verb}"))
        yield verb, timed(push, environment)
        os.sync()
    yield "pull", timed([server.binary, "pull", "--manifest", str(manifest), "-o", str(copy), "--quiet"], server.environment)
    check_same(tree, copy)


def by_hf_xet(server, home, tree):
    arguments = {"endpoint": server.url, "token": None}
    files = files_of(tree)
    (home / "copy").mkdir()
    for verb in ("push", "push again"):
        pushed, took = hf_xet(home, "push", dict(arguments, paths=[str(path) for path in files.values()]))
        yield verb, took
        os.sync()
    _, took = hf_xet(home, "pull", dict(arguments, pushed=pushed, target=str(home / "copy")))
    yield "pull", took
    for path in files.values():
        if not filecmp.cmp(path, home / "copy" / path.name, shallow=False):
            sys.exit(f"{path} came back changed by hf_xet")


def hf_xet(home, verb, arguments):
    """What a process of its own did, with an empty cache, and the seconds that it took with its start."""
    with tempfile.TemporaryDirectory(dir=home) as cache:
        said = pathlib.Path(cache) / "arguments.json"
        said.write_text(json.dumps(arguments))
        environment = dict(os.environ, HF_XET_CACHE=cache, HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
        begin = time.monotonic()
        out = subprocess.check_output([sys.executable, __file__, verb, str(said)], env=environment, text=True)
        return json.loads(out), time.monotonic() - begin


def timed(command, environment):
    begin = time.monotonic()
    subprocess.run(command, env=environment, check=True)
    return time.monotonic() - begin


def hash_of(manifest, name):
    lines = map(json.loads, manifest.read_text().splitlines())
    return next(line["hash"] for line in lines if line["path"] == name)


class Server:
    """A server process without tokens, until the end of a `with`."""

    def __init__(self, binary, directory):
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(directory)]
        self.binary = binary
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, ZORB_LOG="error"))
        line = self.process.stdout.readline().strip()
        self.url = line.removeprefix("zorb listening on ")
        if self.url == line:
            sys.exit(f"zorb says {line!r}")
        self.environment = dict(os.environ, ZORB_SERVER=self.url, NO_PROXY="127.0.0.1",
                                XDG_CACHE_HOME=str(directory.parent / "cache"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def get(self, path):
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url + path) as response:
            return response.read().decode()

    def moved(self):
        """Bytes of bodies that came and went since the start."""
        lines = self.get("/metrics").splitlines()
        counts = [line.split()[1] for line in lines if line.startswith(("zorb_received_bytes_total", "zorb_sent_bytes_total"))]
        if len(counts) != 2:
            sys.exit(f"the metrics have {len(counts)} of the two counts of bytes")
        return sum(map(int, counts))

    def xorbs(self):
        page, hashes = {"next": None}, []
        while True:
            page = json.loads(self.get(f"/v1/xorbs?after={page['next']}" if page["next"] else "/v1/xorbs"))
            hashes += [xorb["hash"] for xorb in page["xorbs"]]
            if not page.get("next"):
                return hashes

    def peak_rss(self):
        """The most memory since the start or since this was asked last."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return peak


if __name__ == "__main__":
    if sys.argv[1] in CLIENTS:
        import hf_xet as client

        with open(sys.argv[2]) as file:
            print(json.dumps(CLIENTS[sys.argv[1]](client, json.load(file))))
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
