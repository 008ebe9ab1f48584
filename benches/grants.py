"""Pushes of a stock client with and without upload grants, in turn, as ratios.

    python benches/grants.py target/release/zorb [ROUNDS]

Needs hf_xet 1.8.0 or newer in this Python. Every push is a process of its own with a cache of its own, to a server on an
empty directory; what is timed is the push alone, from the first file to the last response.
"""

import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
SETS = ("512 MiB in 4 files", "3000 files of 1 to 40 KiB", "50 pushes of a 100 KiB file")


def main(binary, rounds):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
        print(f"ZORB_TEST_SEED={seed}")
        sets = dict(zip(SETS, make_files(directory, random.Random(seed))))
        seconds = {what: {"true": [], "false": []} for what in SETS}
        for number in range(rounds):
            # Who is first changes from round to round.
            order = ("true", "false") if number % 2 else ("false", "true")
            for what, paths in sets.items():
                for grants in order:
                    seconds[what][grants].append(push(binary, directory, grants, paths))
        print(f"{'what':30} {'grants':>10} {'directly':>10}  ratio of times")
        for what, times in seconds.items():
            ratios = [granted / direct for granted, direct in zip(times["true"], times["false"])]
            granted, direct = (statistics.median(times[grants]) for grants in ("true", "false"))
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{what:30} {granted:8.3f} s {direct:8.3f} s  {statistics.median(ratios):.2f} {spread}")


def make_files(directory, rng):
    large = [directory / f"large-{number}" for number in range(4)]
    for path in large:
        path.write_bytes(rng.randbytes(128 * MIB))
    small = [directory / f"small-{number}" for number in range(3000)]
    for path in small:
        path.write_bytes(rng.randbytes(rng.randrange(1 << 10, 40 << 10)))
    single = [directory / f"single-{number}" for number in range(50)]
    for path in single:
        path.write_bytes(rng.randbytes(100 << 10))
    return large, small, single


def push(binary, directory, grants, paths):
    """Seconds that a push takes to a server with or without grants."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", f"{scratch}/data"]
        environment = dict(os.environ, ZORB_LOG="warn", ZORB_GRANTS=grants)
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.DEVNULL)
        try:
            url = re.match(r"zorb listening on (\S+)", server.stdout.readline()).group(1)
            environment = dict(os.environ, HF_XET_CACHE=f"{scratch}/cache", NO_PROXY="127.0.0.1")
            environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
            client = [sys.executable, __file__, "push", url, *map(str, paths)]
            response = subprocess.run(client, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        finally:
            server.terminate()
            server.wait()
    return float(response.stdout)


def push_files(url, paths):
    import hf_xet

    session = hf_xet.XetSession()
    is_single = pathlib.Path(paths[0]).name.startswith("single")
    begin = time.monotonic()
    for together in [[path] for path in paths] if is_single else [paths]:
        commit = session.new_upload_commit(endpoint=url)
        handles = [commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256) for path in together]
        commit.wait_to_finish()
        for handle in handles:
            handle.result()
    print(time.monotonic() - begin)


if __name__ == "__main__":
    if sys.argv[1] == "push":
        push_files(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7)
