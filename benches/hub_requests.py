"""Requests of Hub clients to large repositories: commits, lists, `resolve`, many writers, and a sweep of the history.

    python3 benches/hub_requests.py [PATHS [COMMITS [FILES]]]

PATHS is 1000000 and COMMITS 1000 if not given: paths of the large repository, and commits of one file to the small one. All
paths of the large repository have the same contents. FILES paths of another one, by default a tenth as many, have contents of
their own, so that a sweep finds as many files that nothing needs; with 0 only the large one is swept. Needs
target/release/zorb, `ab` (apache2-utils), an idle machine and 2 GB of disk. Prints a table with what was aimed at, and exits
with 1 if an aim was missed. The sweep begins a minute after a start of the server; for its second part the times in the
stopped database are set back by eight days.
"""

import base64
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/clients"))

from hub import Server  # noqa: E402

# Paths in each directory of the large repository, and changes in each commit that fills it.
DIRECTORY_COUNT = 1000
CHANGE_COUNT = 25_000

# Requests of one run of `ab`.
LOAD_COUNT = 30_000

SMALL, LARGE, DISTINCT, WRITERS, BATCHES = "me/small", "me/large", "me/distinct", "me/writers", "me/batches"

rows = []


def main(path_count=1_000_000, commit_count=1000, file_count=None):
    file_count = path_count // 10 if file_count is None else file_count
    print("seed 1", flush=True)
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch) / "data"
        with Server(ROOT / "target/release/zorb", directory, "off") as server:
            client = Client(server.url)
            for repo in SMALL, LARGE, DISTINCT, WRITERS, BATCHES:
                client.post_json("/api/repos/create", {"type": "model", "name": repo.split("/")[1], "organization": "me"})
            measure_batches(client, rng)
            fill(client, SMALL, 1000, 100)
            known = measure_commits(client, SMALL, "10^3 paths", rng, 30)
            for number in range(commit_count):
                client.commit(SMALL, [regular(f"d{number % 10:04}/more-{number}", b"%d" % number)])
            later = measure_commits(client, SMALL, f"10^3 paths, {commit_count} commits", rng, 30)
            row(f"the same after {commit_count} commits, as a share", later / known, 1.3)
            fill(client, LARGE, path_count, DIRECTORY_COUNT)
            measure_commits(client, LARGE, f"{path_count} paths", rng, 60)
            measure_lists(client, commit_count)
            measure_resolve(server, client, rng, path_count)
            measure_writers(server)
            if file_count:
                fill_and_empty(client, file_count)
        measure_sweep(directory, rng, (LARGE, DISTINCT) if file_count else (LARGE,))
    width = max(len(what) for what, *_ in rows)
    missed = False
    for what, value, aim, is_least in rows:
        is_met = value >= aim if is_least else value <= aim
        missed |= not is_met
        limit = "at least" if is_least else "at most"
        print(f"{what:{width}} {value:10.2f}, aim {limit} {aim:g}{'' if is_met else ': MISSED'}")
    sys.exit(missed)


def row(what, value, aim, is_least=False):
    rows.append((what, value, aim, is_least))
    print(f"  {what}: {value:.2f}", flush=True)


class Client:
    """One connection that stays open."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=600)

    def request(self, method, path, body=None, expect=200, **headers):
        self.connection.request(method, path, body, {"Authorization": "Bearer any", **headers})
        response = self.connection.getresponse()
        content = response.read()
        assert response.status == expect, (method, path, response.status, content[:1000])
        return response.headers, content

    def post_json(self, path, value, **headers):
        body = json.dumps(value)
        return json.loads(self.request("POST", path, body, **{"Content-Type": "application/json", **headers})[1])

    def commit(self, repo, lines):
        """Returns the seconds that the commit took."""
        header = {"key": "header", "value": {"summary": "a change", "description": ""}}
        body = "\n".join(json.dumps(line) for line in [header, *lines])
        began = time.monotonic()
        self.request("POST", f"/api/models/{repo}/commit/main", body, **{"Content-Type": "application/x-ndjson"})
        return time.monotonic() - began

    def upload(self, repo, contents):
        """Uploads these large files, as clients without hf_xet do."""
        for some in (contents[at : at + 100] for at in range(0, len(contents), 100)):
            by_oid = {hashlib.sha256(content).hexdigest(): content for content in some}
            objects = [{"oid": oid, "size": len(content)} for oid, content in by_oid.items()]
            request = {"operation": "upload", "transfers": ["basic"], "objects": objects}
            batch = self.post_json(f"/{repo}.git/info/lfs/objects/batch", request)
            for item in batch["objects"]:
                if "actions" in item:
                    url = urllib.parse.urlsplit(item["actions"]["upload"]["href"])
                    self.request("PUT", f"{url.path}?{url.query}", by_oid[item["oid"]])


def regular(path, content):
    value = {"path": path, "encoding": "base64", "content": base64.b64encode(content).decode()}
    return {"key": "file", "value": value}


def large(path, oid, length):
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, "size": length}}


def path_of(number, directory_count):
    return f"d{number % directory_count:04}/f{number:07}.bin"


def fill(client, repo, path_count, directory_count):
    """Commits so many paths, all with the same contents."""
    content = random.Random(repo).randbytes(1 << 20)
    client.upload(repo, [content])
    oid = hashlib.sha256(content).hexdigest()
    # Directory by directory, so that each commit writes few of them.
    numbers = sorted(range(path_count), key=lambda number: number % directory_count)
    began = time.monotonic()
    for at in range(0, path_count, CHANGE_COUNT):
        some = numbers[at : at + CHANGE_COUNT]
        client.commit(repo, [large(path_of(number, directory_count), oid, len(content)) for number in some])
    print(f"{repo}: {path_count} paths in {time.monotonic() - began:.1f} s", flush=True)


def fill_and_empty(client, path_count):
    """Commits so many paths, each with contents of its own, and then deletes them."""
    began = time.monotonic()
    for at in range(0, path_count, CHANGE_COUNT):
        some = range(at, min(at + CHANGE_COUNT, path_count))
        client.commit(DISTINCT, [regular(f"d{number // DIRECTORY_COUNT:04}/{number}", b"%d" % number) for number in some])
    print(f"{DISTINCT}: {path_count} files in {time.monotonic() - began:.1f} s", flush=True)
    paths = sorted({f"d{number // DIRECTORY_COUNT:04}/" for number in range(path_count)})
    client.commit(DISTINCT, [{"key": "deletedFolder", "value": {"path": path}} for path in paths])


def measure_commits(client, repo, what, rng, aim):
    """Commits of one file with contents that the repository has, and with new contents. Returns the median of the former."""
    known, new = [], []
    for _ in range(50):
        name = f"d0000/{rng.randbytes(8).hex()}"
        known.append(client.commit(repo, [regular(f"{name}.known", b"the same")]) * 1000)
        new.append(client.commit(repo, [regular(f"{name}.new", rng.randbytes(1000))]) * 1000)
    median = statistics.median(known)
    row(f"commit of a file to {what}, ms", median, aim)
    print(f"    at most {max(known):.1f}; with new contents of 1 KB: {statistics.median(new):.1f}, at most {max(new):.1f}")
    return median


def measure_batches(client, rng):
    contents = [rng.randbytes(4096) for _ in range(1000)]
    client.upload(BATCHES, contents)
    lines = [
        large(f"large/{number}.bin", hashlib.sha256(content).hexdigest(), len(content))
        for number, content in enumerate(contents)
    ]
    row("commit of 1000 large files, s", client.commit(BATCHES, lines), 1)
    lines = [regular(f"regular/{number}.txt", rng.randbytes(4096)) for number in range(1000)]
    before = xorb_count(client)
    row("commit of 1000 regular files of 4 KiB, s", client.commit(BATCHES, lines), 2)
    row("new xorbs of it", xorb_count(client) - before, 2)


def xorb_count(client):
    text = client.request("GET", "/metrics")[1].decode()
    return int(float(re.search(r"^zorb_store_xorbs(?:\{[^}]*\})? (\S+)", text, re.M).group(1)))


def measure_lists(client, commit_count):
    def times(path, count):
        taken = []
        for _ in range(count):
            began = time.monotonic()
            client.request("GET", path)
            taken.append((time.monotonic() - began) * 1000)
        return sorted(taken)[int(0.99 * count) - 1]

    row("list of 1000 paths, p99 of 200, ms", times(f"/api/models/{LARGE}/tree/main/d0001?limit=1000", 200), 20)
    path = f"/api/models/{SMALL}/tree/main/d0001?expand=true&limit=50"
    row(f"list of 50 paths with their last of {commit_count} commits, p99 of 200, ms", times(path, 200), 150)


def measure_resolve(server, client, rng, path_count):
    headers, _ = client.request("HEAD", f"/{LARGE}/resolve/main/{path_of(7, DIRECTORY_COUNT)}")
    plan = json.loads(client.request("GET", f"/v1/reconstructions/{headers['X-Xet-Hash']}")[1])
    chunk = f"/xorbs/{plan['terms'][0]['hash']}?range=0-1"
    ratios, longest = [], []
    for _ in range(5):
        path = f"/{LARGE}/resolve/main/{path_of(rng.randrange(path_count), DIRECTORY_COUNT)}"
        resolved, p99 = load(server.url + path, ["-i"])
        ranges, _ = load(server.url + chunk, [])
        ratios.append(resolved / ranges)
        longest.append(p99)
        print(f"    {resolved:.0f} HEAD resolve and {ranges:.0f} ranges of one chunk per second")
    row("HEAD resolve per second, as a share of ranges of one chunk", statistics.median(ratios), 0.4, is_least=True)
    row("HEAD resolve, p99, ms", statistics.median(longest), 5)


def load(url, options):
    """Requests per second on eight connections, and the p99 of their times in ms."""
    with tempfile.NamedTemporaryFile() as file:
        command = ["ab", "-q", "-k", "-c8", f"-n{LOAD_COUNT}", *options, "-e", file.name, url]
        out = subprocess.check_output(command, text=True)
        percentiles = dict(line.split(",") for line in pathlib.Path(file.name).read_text().splitlines())
    assert re.search(r"^Failed requests: +0$", out, re.M) and "Non-2xx" not in out, out
    return float(re.search(r"^Requests per second: +(\S+)", out, re.M).group(1)), float(percentiles["99"])


def measure_writers(server):
    """16 clients that each commit to one branch as fast as they can."""
    count, failures = 20, []

    def write(writer):
        client = Client(server.url)
        for number in range(count):
            try:
                client.commit(WRITERS, [regular(f"w{writer}/{number}", b"%d %d" % (writer, number))])
            except Exception as error:  # noqa: BLE001
                failures.append(error)

    began = time.monotonic()
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.monotonic() - began
    assert not failures, failures[:3]
    row("commits per second of 16 writers on one branch", 16 * count / taken, 20, is_least=True)
    client = Client(server.url)
    listed = json.loads(client.request("GET", f"/api/models/{WRITERS}/tree/main?recursive=true&limit=1000")[1])
    paths = {entry["path"] for entry in listed if entry["type"] == "file"} - {".gitattributes"}
    assert paths == {f"w{writer}/{number}" for writer in range(16) for number in range(count)}, len(paths)


def measure_sweep(directory, rng, swept):
    """A squash leaves the commits of a repository without a branch. One sweep lists them, a later one deletes them."""
    index = directory / "index.sqlite"
    with Server(ROOT / "target/release/zorb", directory, "off") as server:
        client = Client(server.url)
        for repo in swept:
            history = row_count(index, "commits", repo), row_count(index, "blobs", repo)
            print(f"{repo} has had {history[0]} commits and {history[1]} files", flush=True)
            client.post_json(f"/api/models/{repo}/super-squash/main", {"message": "one commit"})
    forget_sweeps(index)
    for part in "lists", "deletes":
        with Server(ROOT / "target/release/zorb", directory, "off") as server:
            idle = memory(server)
            seconds, longest = watch_sweep(server, index, rng, swept)
            for repo in swept:
                row(f"sweep of {repo} that {part}, s", seconds[repo], 60)
            row(f"sweep that {part}, longest request of others, ms", longest, 50)
            row(f"sweep that {part}, peak of memory above the idle server, MiB", memory(server) - idle, 128)
        forget_sweeps(index)
    for repo in swept:
        left = row_count(index, "commits", repo)
        assert left == 1, f"{left} commits of {repo} are left"
    # It has .gitattributes, also if nothing else was in it.
    left = row_count(index, "blobs", DISTINCT), row_count(index, "unneeded_files", DISTINCT)
    assert left == (1, 0), f"{left} files of {DISTINCT} are left, and listed"


def row_count(index, what, repo):
    with sqlite3.connect(f"file:{index}?mode=ro", uri=True) as db:
        (found,) = db.execute(
            f"SELECT count(*) FROM hub_{what} JOIN hub_repos ON id = repo_id WHERE lower_name = ?", (repo,)
        ).fetchone()
    return found


def forget_sweeps(index):
    """What was found unneeded was found eight days ago, and every repository is due."""
    past = 8 * 24 * 3600 * 1000
    with sqlite3.connect(index) as db:
        for table in "hub_unneeded_commits", "hub_unneeded_files":
            db.execute(f"UPDATE {table} SET since = since - ?", (past,))
        db.execute("UPDATE hub_repos SET swept_at = 0")


def watch_sweep(server, index, rng, swept):
    """Waits until the repositories were swept. Returns the seconds of each, and the longest time in ms of `HEAD resolve` and of
    a commit to another repository meanwhile."""
    client, longest, deadline = Client(server.url), {}, time.monotonic() + 600
    seconds = {}
    path = f"/{LARGE}/resolve/main/{path_of(7, DIRECTORY_COUNT)}"
    while time.monotonic() < deadline:
        for what, request in [
            ("HEAD resolve", lambda: client.request("HEAD", path)),
            ("commit", lambda: client.commit(SMALL, [regular(f"beside/{rng.randbytes(8).hex()}", b"the same")])),
        ]:
            began = time.monotonic()
            request()
            longest.setdefault(what, []).append((began, (time.monotonic() - began) * 1000))
        with sqlite3.connect(f"file:{index}?mode=ro", uri=True) as db:
            swept_at = dict(db.execute("SELECT lower_name, swept_at FROM hub_repos WHERE swept_at > 0"))
        for repo in swept:
            if repo in swept_at and repo not in seconds:
                seconds[repo] = time.time() - swept_at[repo] / 1000
        if len(seconds) == len(swept):
            since = time.monotonic() - (time.time() - min(swept_at[repo] for repo in swept) / 1000)
            # Those before the sweep say what the machine does without it.
            for what, times in longest.items():
                before, during = ([ms for began, ms in times if (began >= since) is is_during] for is_during in (False, True))
                longest_before, longest_during = max(before, default=0), max(during, default=0)
                print(f"    {what}: at most {longest_before:.1f} ms before the sweep, {longest_during:.1f} during it")
            return seconds, max((ms for times in longest.values() for began, ms in times if began >= since), default=0)
        time.sleep(0.02)
    raise TimeoutError("no sweep in ten minutes")


def memory(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
