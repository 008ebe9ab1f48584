"""Many small files by the stock client, hf_xet, against zorb and against the official test server.

    python3 benches/small_files.py [ROUNDS [FILES [BYTES]]]

ROUNDS is 3, FILES 20000 and BYTES 4096 if not given. Prints the wall time of a push and of a second push of the same files, and
the server's CPU per file, as medians; the servers take turns on fresh directories. A pull is measured of zorb alone: the
official server takes minutes for it. The files are noise and
follow from a fixed seed. The binaries are those of benches/compare.sh.

    python3 benches/small_files.py --beside [FILES [BYTES]]

FILES is 100000 and BYTES 1024 if not given. While hf_xet pushes them to zorb, another client pushes one new small file after
the other with `zorb push`; prints how long each of those took. A push that is refused ends the run.

    python3 benches/small_files.py --directory [ROUNDS [FILES [BYTES]]]

ROUNDS is 3, FILES 5000 and BYTES 4096 if not given. The same files by `zorb push` and `zorb pull --manifest`, and by
hf_xet, to zorb: the clients take turns on fresh stores.

    python3 benches/small_files.py --growth [SHARDS [FILES]]

Ten pushes of 100000 files of 64 bytes to one store if not given: what the last one takes, as a share of the first, and the
bytes of the index per file.

The client runs in this Python, which needs hf_xet.
"""

import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from end_to_end import ROOT, SEED, SERVERS, Zorb, client

# What is aimed at: the most of the official server's wall time, and of server CPU per file in ms.
WALL_AIM, CPU_AIM = 1.3, 0.1


def main(rounds=3, count=20_000, length=4096):
    home = ROOT / "target" / "compare"
    home.mkdir(parents=True, exist_ok=True)
    paths = make_files(home / f"small-{count}-{length}", count, length)
    seconds = {name: {} for name in SERVERS}
    cpu = {name: {} for name in SERVERS}
    for number in range(rounds):
        for name in list(SERVERS)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                for verb, took, used in measure(name, paths, pathlib.Path(scratch)):
                    seconds[name].setdefault(verb, []).append(took)
                    cpu[name].setdefault(verb, []).append(used)
                    print(f"round {number + 1} of {rounds}: {verb} with {name}: {took:.2f} s, {used:.2f} s of server CPU",
                          flush=True)
            os.sync()
    print(f"\n{count} files of {length} bytes: medians of {rounds}")
    for verb in seconds["zorb"]:
        if verb not in seconds["official"]:
            each = statistics.median(cpu["zorb"][verb]) / count * 1000
            print(f"{verb:12} {statistics.median(seconds['zorb'][verb]):6.2f} s; CPU per file {each:.3f} ms")
            continue
        ours, theirs = (statistics.median(seconds[name][verb]) for name in ("zorb", "official"))
        ratios = [a / b for a, b in zip(seconds["zorb"][verb], seconds["official"][verb])]
        each = {name: statistics.median(cpu[name][verb]) / count * 1000 for name in SERVERS}
        told = f"{verb:12} {ours:6.2f} s vs {theirs:6.2f} s: {ours / theirs:5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        told += f"; CPU per file {each['zorb']:.3f} vs {each['official']:.3f} ms"
        if verb == "push":
            told += f"   aims: {WALL_AIM} {yes(ours / theirs <= WALL_AIM)}, {CPU_AIM} ms {yes(each['zorb'] <= CPU_AIM)}"
        print(told)


def yes(is_met):
    return "met" if is_met else "NOT MET"


def make_files(directory, count, length):
    paths = [directory / f"{number // 1000:04}" / f"{number:07}" for number in range(count)]
    if not paths[-1].exists():
        rng = random.Random(SEED)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.randbytes(length))
    return [str(path) for path in paths]


def measure(name, paths, scratch):
    server = SERVERS[name](scratch)
    try:
        server.note_idle()
        for verb in ("push", "push again"):
            before = server.cpu()
            pushed, took = client(scratch, "push", {"endpoint": server.url, "paths": paths})
            yield verb, took, server.cpu() - before
            server.wait_until_quiet()
        if name != "zorb":
            return
        target = scratch / "pulled"
        target.mkdir()
        before = server.cpu()
        _, took = client(scratch, "pull", {"endpoint": server.url, "pushed": pushed, "target": str(target)})
        yield "pull", took, server.cpu() - before
        for path in random.Random(SEED).sample(paths, 200):
            if (target / pathlib.Path(path).name).read_bytes() != pathlib.Path(path).read_bytes():
                sys.exit(f"{path} came back changed from {name}")
    finally:
        server.stop()


def beside(count=100_000, length=1024):
    """One small push after the other while a large one is under way."""
    home = ROOT / "target" / "compare"
    home.mkdir(parents=True, exist_ok=True)
    paths = make_files(home / f"small-{count}-{length}", count, length)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        scratch = pathlib.Path(scratch)
        server = Zorb(scratch)
        try:
            is_over, took = threading.Event(), []
            other = threading.Thread(target=push_small, args=(server, scratch, is_over, took))
            other.start()
            _, seconds = client(scratch, "push", {"endpoint": server.url, "paths": paths})
            is_over.set()
            other.join()
        finally:
            server.stop()
    if not took or took[-1] is None:
        sys.exit("a push beside it was refused")
    took.sort()
    print(f"{count} files of {length} bytes in {seconds:.2f} s; beside it {len(took)} pushes of one file:"
          f" median {took[len(took) // 2]:.3f} s, slowest {took[-1]:.3f} s   aim: 1 s {yes(took[-1] < 1)}")


def push_small(server, scratch, is_over, took):
    environment = dict(os.environ, ZORB_SERVER=server.url, NO_PROXY="127.0.0.1", XDG_CACHE_HOME=str(scratch / "cache"))
    number = 0
    while not is_over.is_set():
        path = scratch / "one"
        path.write_bytes(b"%d" % number * 100)
        begin = time.monotonic()
        pushed = subprocess.run([ROOT / "target/release/zorb", "push", path, "--quiet"], env=environment, capture_output=True)
        if pushed.returncode != 0:
            print(pushed.stderr.decode())
            took.append(None)
            return
        took.append(time.monotonic() - begin)
        number += 1


def directory(rounds=3, count=5000, length=4096):
    """zorb's own client beside hf_xet."""
    home = ROOT / "target" / "compare"
    home.mkdir(parents=True, exist_ok=True)
    paths = make_files(home / f"small-{count}-{length}", count, length)
    seconds = {"zorb": {}, "hf_xet": {}}
    for number in range(rounds):
        for name in list(seconds)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                for verb, took in transfer(name, paths, pathlib.Path(scratch)):
                    seconds[name].setdefault(verb, []).append(took)
                    print(f"round {number + 1} of {rounds}: {verb} by {name}: {took:.2f} s", flush=True)
            os.sync()
    print(f"\n{count} files of {length} bytes by zorb and by hf_xet, medians of {rounds}")
    for verb, ours in seconds["zorb"].items():
        theirs = seconds["hf_xet"][verb]
        ratios = [a / b for a, b in zip(ours, theirs)]
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"{verb:12} {statistics.median(ours):6.2f} s vs {statistics.median(theirs):6.2f} s: {ratio:5.2f}"
              f" ({min(ratios):.2f} to {max(ratios):.2f})   aim: 1 {yes(ratio <= 1)}")


def transfer(name, paths, scratch):
    server = Zorb(scratch)
    source, target, manifest = pathlib.Path(paths[0]).parent.parent, scratch / "pulled", scratch / "manifest"
    try:
        server.note_idle()
        for verb in ("push", "push again"):
            if name == "zorb":
                yield verb, zorb(server, scratch, "push", source, "--manifest", manifest)
            else:
                pushed, took = client(scratch, "push", {"endpoint": server.url, "paths": paths})
                yield verb, took
            server.wait_until_quiet()
        if name == "zorb":
            yield "pull", zorb(server, scratch, "pull", "--manifest", manifest, "-o", target)
        else:
            target.mkdir()
            yield "pull", client(scratch, "pull", {"endpoint": server.url, "pushed": pushed, "target": str(target)})[1]
        pulled = {path.name: path for path in target.rglob("*") if path.is_file()}
        for path in map(pathlib.Path, random.Random(SEED).sample(paths, 200)):
            if pulled[path.name].read_bytes() != path.read_bytes():
                sys.exit(f"{path} came back changed by {name}")
    finally:
        server.stop()


def zorb(server, scratch, *arguments):
    """Seconds that the command took, with its start."""
    cache = tempfile.mkdtemp(dir=scratch)
    environment = dict(os.environ, ZORB_SERVER=server.url, NO_PROXY="127.0.0.1", XDG_CACHE_HOME=cache)
    begin = time.monotonic()
    done = subprocess.run([ROOT / "target/release/zorb", *arguments, "--quiet"], env=environment, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"zorb {arguments[0]} failed: {done.stderr.decode()}")
    return time.monotonic() - begin


def growth(shard_count=10, count=100_000):
    home = ROOT / "target" / "compare"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        scratch = pathlib.Path(scratch)
        server = Zorb(scratch)
        seconds = []
        try:
            for number in range(shard_count):
                directory = scratch / "files"
                directory.mkdir()
                rng = random.Random(SEED + number)
                paths = []
                for index in range(count):
                    path = directory / f"{index:07}"
                    path.write_bytes(rng.randbytes(64))
                    paths.append(str(path))
                before = server.cpu()
                _, took = client(scratch, "push", {"endpoint": server.url, "paths": paths})
                seconds.append(took)
                print(f"{count} files, push {number + 1}: {took:.2f} s, {server.cpu() - before:.2f} s of server CPU", flush=True)
                subprocess.run(["rm", "-r", directory], check=True)
        finally:
            server.stop()
        index = sum(path.stat().st_size for path in (scratch / "data").glob("index.sqlite*"))
    ratio = seconds[-1] / seconds[0]
    print(f"the last push took {ratio:.2f} of the first   aim: 1.3 {yes(ratio <= 1.3)};"
          f" {index / count / shard_count:.0f} bytes of index per file")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--beside":
        beside(*map(int, sys.argv[2:]))
    elif len(sys.argv) > 1 and sys.argv[1] == "--directory":
        directory(*map(int, sys.argv[2:]))
    elif len(sys.argv) > 1 and sys.argv[1] == "--growth":
        growth(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
