#!/usr/bin/env python3
"""One, two and three servers of one store, each with a part of a CPU: throughput as ratios.

    cargo build --release --features postgres,s3 --bin zorb --example load
    cargo build --release -p zorb-fake-s3
    benches/replicas.py [ROUNDS] [SHARE]

Each server may use SHARE of a CPU (0.2 by default), by the controller `cpu` of cgroups, which takes root. PostgreSQL, the
S3 store of the tests and the clients have the rest of this machine, so the shares of three servers must leave enough. Uploads
of xorbs of about 51 MiB over two connections per server, and runs of 16 chunks, all compared.
"""

import concurrent.futures
import pathlib
import statistics
import subprocess
import sys
import tempfile

from s3 import LOAD, ROOT, TARGET, Zorb
from shared_store import FakeS3, Postgres, settings

SETS = ROOT / "target/compare"
CGROUP = pathlib.Path("/sys/fs/cgroup/cpu")
COUNT = 6
LINES = {
    "upload": ["upload", "--connections", "2", "--xorbs", str(COUNT)],
    "ranges": ["ranges", "--threads", "1", "--chunks", "16", "--seconds", "6", "--verify", "16", "--xorbs", str(COUNT)],
}


class Limited(Zorb):
    """A server in a control group of its own."""

    def __init__(self, directory, variables, share, load_set):
        super().__init__(directory, variables, load_set)
        self.group = CGROUP / f"zorb-{self.process.pid}"
        self.group.mkdir()
        (self.group / "cpu.cfs_quota_us").write_text(str(int(100_000 * share)))
        (self.group / "cgroup.procs").write_text(str(self.process.pid))

    def stop(self):
        super().stop()
        self.group.rmdir()


def set_of(number):
    """A set of xorbs that no other server gets."""
    path = SETS / f"replica{number}"
    if not (path / "index.json").exists():
        subprocess.run([LOAD, "make", path, "--count", str(COUNT), "--seed", str(900 + number)], check=True)
    return path


def rate(result):
    return result["bytes"] / result["seconds"]


def run(postgres, scratch, name, server_count, share):
    """The throughput of all servers together, by line, in bytes per second."""
    variables = settings(postgres, name)
    servers = [Limited(scratch / f"{name}-{n}", variables, share, set_of(n)) for n in range(server_count)]
    totals = {}
    with concurrent.futures.ThreadPoolExecutor(server_count) as threads:
        for line, (verb, *arguments) in LINES.items():
            results = list(threads.map(lambda server: server.load(verb, *arguments), servers))
            totals[line] = sum(rate(result) for result in results)
    for server in servers:
        server.stop()
    return totals


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    share = float(sys.argv[2]) if len(sys.argv) > 2 else 0.2
    found = {line: {count: [] for count in (1, 2, 3)} for line in LINES}
    with tempfile.TemporaryDirectory(dir=TARGET) as scratch, tempfile.TemporaryDirectory() as short:
        store, postgres = FakeS3(TARGET / "release/zorb-fake-s3"), Postgres(pathlib.Path(short) / "pg")
        try:
            for turn in range(rounds):
                for count in (1, 2, 3) if turn % 2 else (3, 2, 1):
                    totals = run(postgres, pathlib.Path(scratch), f"r{turn}n{count}", count, share)
                    for line, total in totals.items():
                        found[line][count].append(total)
        finally:
            postgres.stop()
            store.stop()
    print(f"{share} CPUs per server; MiB/s, median of {rounds}, and the ratio to one server")
    for line, by_count in found.items():
        medians = {count: statistics.median(rates) for count, rates in by_count.items()}
        shown = ", ".join(f"{n}: {rate / 2**20:.0f} ({rate / medians[1]:.2f})" for n, rate in medians.items())
        print(f"{line:8}{shown}")


if __name__ == "__main__":
    main()
