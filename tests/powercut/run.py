"""Power cuts: what `zorb serve` has acknowledged survives the loss of all that was not synced.

    python3 tests/powercut/run.py target/release/zorb [STATES]

records what a real server does to its files while real clients upload and register (`strace`, see syscalls.py), and when it
responses. Then it makes the states in which a power cut at any moment could have left the disk (see disk.py), starts a server
on each, and compares: what was acknowledged before the cut reads back equal (xorbs, files, commits of Hub repositories with
all that they have), everything else is whole or not there, nothing stray is left, and all of it can be sent again. Some of the
states are recorded from in turn: a power cut after a power cut.

Then the same with syncs that are taken for nothing, each kind in turn. That must be found, or these checks are worth nothing.

ZORB_TEST_SEED makes the same requests and, from the same recording, the same states; threads make another recording each time.
"""

import copy
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations

# This is no place for compiled files.
sys.dont_write_bytecode = True

import syscalls
from disk import START, Disk
from traffic import ERRORS, Client, Failure, Request, Server, collect

# Clients that send at once.
CLIENT_COUNT = 3

# States, if none are given.
STATE_COUNT = 300

# Power cuts after the first one: states that are recorded from, fewer with fewer states, and states of each recording.
AGAIN_COUNT, AGAIN_STATE_COUNT = 6, 20

# Recordings of a server that is killed, of which one is to be right: now and then one is not.
RECORDING_COUNT = 10

# States in which a sync that is missing must show.
TEETH_STATE_COUNT = 150

# Which syncs are taken for nothing, by what they are of.
TEETH = {
    "the bytes of xorbs": lambda node: not node.is_directory and node.path.startswith("data/xorbs/"),
    "the names of xorbs": lambda node: node.is_directory and node.path.startswith("data/xorbs/"),
    "the log of the index": lambda node: node.path == "data/index.sqlite-wal",
    "the file of the index": lambda node: node.path == "data/index.sqlite",
    "the bytes of the keys": lambda node: node.path == "data/keys",
    "the names in the data directory": lambda node: node.is_directory and node.path == "data",
    "the name of the data directory": lambda node: node.is_directory and node.path == "",
}


def main(binary, state_count):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    rng = random.Random(seed)
    # In memory where that is possible: what the states are written to need not last.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        directory = pathlib.Path(directory)
        lines = collect(binary, directory / "requests", rng)
        trial = Trial(binary, directory, seed, lines)
        say(f"{sum(map(len, lines))} requests in {len(lines)} lines")
        first = recorded(directory / "first", lambda root: record_first(binary, root, lines))
        say(f"recorded {first}")
        trial.many("a power cut", first, state_count)
        for number in range(max(1, AGAIN_COUNT * state_count // STATE_COUNT)):
            rng = random.Random(f"{seed} again {number}")
            again = recorded(directory / f"again-{number}", lambda root: record_again(binary, root, first, lines, rng))
            trial.many(f"a power cut after another one ({number})", again, AGAIN_STATE_COUNT)
        for what, ignores in TEETH.items():
            trial.one_fails(what, first, ignores)
    say("passed")


@dataclass
class Sent:
    """A request that was sent by one of the clients, at `begin` or later, under a name of its own."""

    request: Request
    name: str
    begin: int


@dataclass
class Recording:
    """What a server did, and what it was told."""

    disk: Disk
    # In the order in which each client sent them.
    sent: list
    # Hash → what may be true of it before the recording begins: whether it is there.
    before: dict
    end: int

    def may_be(self, point):
        """Hash → what may be true of it after a power cut at this point: whether it is there."""
        may_be = dict(self.before)
        for sent in self.sent:
            begin, _ = self.disk.responses.get(sent.name, (point, 0))
            if begin < point:
                may_be[sent.request.hash] = {sent.request.is_there}
            elif sent.begin < point:
                may_be[sent.request.hash] = may_be.get(sent.request.hash, {False}) | {sent.request.is_there}
        return may_be

    def acknowledged_count(self, point):
        return sum(1 for sent in self.sent if self.disk.responses.get(sent.name, (point, 0))[0] < point)

    def point(self, rng):
        """A moment for a power cut: right behind a response, beside a change or a sync, or any."""
        kind = rng.random()
        if kind < 0.5 and self.disk.responses:
            return rng.choice(sorted(begin for begin, _ in self.disk.responses.values())) + 1
        if kind < 0.9:
            return rng.choice(self.disk.moments) + rng.randrange(2)
        return rng.randrange(START, self.end + 1)

    def __str__(self):
        syncs = sum(len(node.syncs) for node in self.disk.nodes)
        written = sum(len(data) for node in self.disk.nodes for _, _, _, data in node.changes if data)
        index = sum(1 for node in self.disk.nodes if node.path == "data/index.sqlite" for change in node.changes)
        return (
            f"{self.end} calls: {syncs} syncs, {written} bytes written, {index} times to the index behind its log, "
            f"{len(self.disk.responses)} responses"
        )


class Unrecorded(Exception):
    """The trace does not lead to what is there. A kill may cut off several calls, and a write of them in its middle, which
    no trace tells: then there is nothing to begin with, and nothing was found either."""


def recorded(root, record):
    """A recording that leads to what is there."""
    for number in range(RECORDING_COUNT):
        try:
            return record(root.with_name(f"{root.name}-{number}"))
        except Unrecorded as error:
            say(f"recorded once more: {error}")
            last = error
    raise Failure(f"no recording of {RECORDING_COUNT} is right: {last}")


def record_first(binary, root, lines):
    """Three servers on one directory: one is stopped, one is killed, and one stopped again."""
    root.mkdir()
    disk, begin = Disk(root), START
    third = len(lines) // 3
    sent = []
    runs = [(lines[:third], None, signal.SIGTERM), (lines[third:], 0.5, signal.SIGKILL), (lines[third:], None, signal.SIGTERM)]
    for part, until, number in runs:
        disk, part_sent, begin = record(binary, root, disk, begin, part, until, number)
        sent += part_sent
        missing = [it.name for it in part_sent if until is None and it.name not in disk.responses]
        if missing:
            raise Failure(f"the responses to these are not in the trace: {missing}")
    return Recording(disk, sent, {}, begin)


def record_again(binary, root, first, lines, rng):
    """A server that starts from a state after a power cut, is sent what it was sent before, and is killed in the midst."""
    point = first.point(rng)
    image, how = first.disk.cut(point, rng)
    root.mkdir()
    write(root, image)
    before = first.may_be(point)
    # First what is new to it.
    lines = sorted(lines, key=lambda line: all(before.get(request.hash) == {request.is_there} for request in line))
    until = rng.uniform(0.02, 0.2)
    disk, sent, end = record(binary, root, Disk(root, image), START, lines, until, signal.SIGKILL)
    again = Recording(disk, sent, before, end)
    say(f"after a power cut at {point} ({how}), recorded {again}")
    return again


def record(binary, root, disk, begin, lines, until, number):
    """What becomes of `disk` when a server gets these requests, or a share of them, and then this signal; what was sent;
    and where the recording ends."""
    trace = root.parent / f"{root.name}.trace"
    server = Server(binary, root / "data", before=syscalls.command(trace), log=root.parent / f"{root.name}.log")
    total, done = sum(map(len, lines)), threading.Semaphore(0)
    names = [[] for _ in range(CLIENT_COUNT)]

    def send(index):
        for line in lines[index::CLIENT_COUNT]:
            client = Client(server)
            for request in line:
                name = f"powercut-{begin}-{index}-{len(names[index])}"
                names[index].append((name, request))
                if not client.make(request, name):
                    return
                done.release()

    with ThreadPoolExecutor(CLIENT_COUNT) as clients:
        results = [clients.submit(send, index) for index in range(CLIENT_COUNT)]
        if until is not None:
            for _ in range(int(total * until)):
                done.acquire(timeout=60)
            server.end(number)
        for result in results:
            result.result()
    if until is None:
        server.end(number)
    calls, cut_off, end = syscalls.read(trace, begin)
    trace.unlink()
    wrong = None
    for count in range(len(cut_off) + 1):
        for carried_out in combinations(cut_off, count):
            after = copy.deepcopy(disk)
            after.run([*calls, *carried_out])
            wrong = wrong or difference(after.whole(), root)
            if not difference(after.whole(), root):
                return after, [sent for part in names for sent in when_sent(part, after, begin)], end
    if number == signal.SIGKILL:
        raise Unrecorded(wrong)
    raise Failure(f"the recording is wrong: {wrong}")


def when_sent(names, disk, begin):
    """What one client sent: each request when the one before had its response."""
    for name, request in names:
        yield Sent(request, name, begin)
        begin, _ = disk.responses.get(name, (begin, 0))


def difference(expected, root):
    """What is not in this directory as a recording has it: it understood everything where there is no such thing."""
    there = {}
    for path in sorted(root.rglob("*")):
        if not path.name.endswith("-shm"):
            there[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    for name in sorted(there.keys() | expected.keys()):
        if name not in there or name not in expected or there[name] != expected[name]:
            lens = [len(files.get(name) or b"") for files in (expected, there)]
            return f"{name}, {lens[0]} bytes instead of {lens[1]}"
    return None


def write(root, image):
    for path, data in image.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
            # The disk of the model has no modes; a file is made with its own before it has a name.
            (root / path).chmod(0o600)


class Trial:
    """Servers on states."""

    def __init__(self, binary, directory, seed, lines):
        self.binary, self.directory, self.seed, self.lines = binary, directory, seed, lines

    def many(self, what, recording, count):
        begin = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            results = [workers.submit(self.state, f"{what} {number}", recording) for number in range(count)]
            seen = [result.result() for result in results]
        unheard = sum(extra for _, extra in seen)
        say(
            f"{what}: {count} states in {time.monotonic() - begin:.0f} s; from {min(seen)[0]} to {max(seen)[0]} requests "
            f"acknowledged, all of them true; {unheard} things of which nobody had been told yet"
        )

    def one_fails(self, what, recording, ignores):
        for number in range(TEETH_STATE_COUNT):
            try:
                self.state(f"no sync of {what} {number}", recording, ignores)
            except Failure as failure:
                say(f"without the sync of {what}: found in state {number + 1}: {str(failure).splitlines()[0][:150]}")
                return
        raise Failure(f"the sync of {what} was taken for nothing, and nobody saw it in {TEETH_STATE_COUNT} states")

    def state(self, name, recording, ignores=None):
        """Checks one state; returns how many requests had been acknowledged, and how much more there was."""
        rng = random.Random(f"{self.seed} {name}")
        point = recording.point(rng)
        image, how = recording.disk.cut(point, rng, ignores or (lambda node: False))
        root = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        write(root, image)
        try:
            extra = check(self.binary, root, self.lines, recording.may_be(point), rng)
        except Failure as failure:
            if ignores is None:
                kept = pathlib.Path(tempfile.mkdtemp(prefix="zorb-powercut-"))
                write(kept, image)
                raise Failure(f"{name}: cut at {point} of {recording.end}, {how}; the state is in {kept}: {failure}") from failure
            raise
        finally:
            shutil.rmtree(root)
        return recording.acknowledged_count(point), extra


def check(binary, root, lines, may_be, rng):
    server = Server(binary, root / "data", log=root / "log")
    requests = [request for line in lines for request in line]
    try:
        extra = compare_with_promises(server, root, requests, may_be, rng)
        if rng.random() < 0.2:
            client = Client(server)
            for request in requests:
                if not client.make(request):
                    raise Failure(f"the server has gone: {server.said()}")
            may_be = {request.hash: {request.is_there} for request in requests}
            compare_with_promises(server, root, requests, may_be, rng)
        said = server.said()
        if "ERROR" in said or "panicked" in said:
            raise Failure(f"the server says:\n{said}")
    except ERRORS as error:
        raise Failure(f"a response ends early: {error!r}\n{server.said()}") from error
    finally:
        server.end(signal.SIGKILL)
    return extra


def compare_with_promises(server, root, requests, may_be, rng):
    """Everything acknowledged is so, everything there is whole, and nothing else is there."""
    client, extra, there, repos = Client(server), 0, set(), {}
    for request in {request.hash: request for request in requests}.values():
        promise = may_be.get(request.hash, {False})
        if request.repo:
            repos.setdefault(request.repo, []).append((request, promise))
            extra += len(promise) == 2
            continue
        if not request.is_xorb and promise == {True} and rng.random() < 0.5:
            # A plan costs as much as the data; half of the files tell as much as all.
            continue
        read = client.read_xorb(request.hash) if request.is_xorb else client.read_file(request.hash)
        what = f"{'xorb' if request.is_xorb else 'file'} {request.hash}"
        if (read is not None) not in promise:
            raise Failure(f"{what} is {'not ' if read is None else ''}there, against what was acknowledged")
        if read not in (None, request.data):
            raise Failure(f"{what} is there and is not what was sent")
        if read is not None and request.is_xorb:
            there.add(request.hash)
        extra += len(promise) == 2
    for repo, promises in repos.items():
        compare_repo(client, repo, promises)
    listed = {xorb["hash"] for xorb in client.read_json("/v1/xorbs?limit=1000")["xorbs"]}
    # The server makes a xorb of each commit, with the files that are new, and publishes it before the commit.
    made_count = sum(promise != {False} for promises in repos.values() for _, promise in promises)
    if not there <= listed or len(listed - there) > made_count:
        raise Failure(f"of the list of xorbs {len(there - listed)} are missing, and {len(listed - there)} are unexpected")
    stray = [str(path) for path in (root / "data" / "tmp").iterdir()]
    # One blob of each xorb: its name is the hash and an incarnation.
    blobs = sorted(path.name.partition(".")[0] for path in (root / "data" / "xorbs").glob("*/*"))
    if stray or blobs != sorted(listed):
        raise Failure(f"strays: {stray}, {blobs} instead of {sorted(listed)}")
    return extra


def compare_repo(client, repo, promises):
    """Every acknowledged commit is in the history, any other one is there with all of its files or with none."""
    read = client.read_repo(repo)
    titles, files = read or ([], {})
    is_there = {"": read is not None} | dict.fromkeys(titles, True)
    for request, promise in promises:
        if is_there.get(request.title, False) not in promise:
            raise Failure(f"{request.title or 'the repository'} of {repo}, against what was acknowledged: {titles}")
    expected = {}
    for request, _ in promises:
        if request.title in titles:
            expected |= request.data
    if len(set(titles)) != len(titles) or files != expected:
        raise Failure(f"{repo} has {titles} and {sorted(files)}, or other bytes in them")


def say(text):
    print(f"[{time.monotonic() - BEGIN:4.0f}s] {text}", flush=True)


BEGIN = time.monotonic()

if __name__ == "__main__":
    try:
        main(str(pathlib.Path(sys.argv[1]).absolute()), int(sys.argv[2]) if len(sys.argv) > 2 else STATE_COUNT)
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
