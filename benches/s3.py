#!/usr/bin/env python3
"""One server over PostgreSQL and a bucket, beside one with everything in its data directory, as ratios.

    tests/garage.sh GARAGE benches/s3.py [ROUNDS]

Uploads of 16 xorbs of about 51 MiB over four connections, single chunks, runs of 16 chunks, and whole xorbs. All parts run on
this machine, so the times of the bucket include the CPU time of PostgreSQL and of the S3 store. Every byte is
compared. Needs PostgreSQL 15 in /usr/lib/postgresql, and some 6 GB below target/.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shared_store import Postgres, settings  # noqa: E402

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LOAD, ZORB = TARGET / "release/examples/load", TARGET / "release/zorb"
SET = ROOT / "target/compare/set"
LINES = {
    "upload": ["upload", "--connections", "4", "--xorbs", "16"],
    "single": ["ranges", "--threads", "2", "--chunks", "1", "--seconds", "3", "--verify", "16", "--xorbs", "16"],
    "ranges": ["ranges", "--threads", "2", "--chunks", "16", "--seconds", "3", "--verify", "16", "--xorbs", "16"],
    "whole": ["whole", "--threads", "2", "--connections", "4", "--seconds", "3", "--verify", "16", "--xorbs", "16"],
}


class Zorb:
    def __init__(self, directory, variables, load_set=SET):
        self.set = load_set
        environment = {**os.environ, **variables}
        if variables:
            subprocess.run([ZORB, "db", "migrate"], check=True, stdout=subprocess.DEVNULL, env=environment)
        serve = [ZORB, "serve", "--listen", "127.0.0.1:0", "--data-dir", directory]
        self.process = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
        self.address = self.process.stdout.readline().split("//")[1].strip()
        self.directory = directory

    def load(self, verb, *arguments):
        command = [LOAD, verb, self.set, self.address, *arguments, "--pid", str(self.process.pid), "--json"]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        if result["errors"]:
            sys.exit(f"{verb}: {result['first_error']}")
        return result

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.directory)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    if not (SET / "index.json").exists():
        subprocess.run([LOAD, "make", SET, "--count", "24"], check=True)
    results = {line: {"directory": [], "bucket": []} for line in LINES}
    with tempfile.TemporaryDirectory(dir=TARGET) as scratch:
        scratch = pathlib.Path(scratch)
        with tempfile.TemporaryDirectory() as short:
            postgres = Postgres(pathlib.Path(short) / "pg")
            try:
                for turn in range(rounds):
                    for kind in ("directory", "bucket") if turn % 2 else ("bucket", "directory"):
                        variables = settings(postgres, f"round{turn}") if kind == "bucket" else {}
                        server = Zorb(scratch / f"{kind}{turn}", variables)
                        for line, (verb, *arguments) in LINES.items():
                            results[line][kind].append(server.load(verb, *arguments))
                        server.stop()
            finally:
                postgres.stop()
    report(results)


def report(results):
    for line, kinds in results.items():
        rates, cpus = ([[one[key] for one in kinds[kind]] for kind in ("directory", "bucket")] for key in KEYS)
        ratios = sorted(a / b for a, b in zip(*rates))
        print(f"{line}: directory {statistics.median(rates[0]) / 2**20:.0f} MiB/s, bucket "
              f"{statistics.median(rates[1]) / 2**20:.0f} MiB/s; "
              f"time of the bucket {statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
              f"CPU of the server {statistics.median(b / a for a, b in zip(*cpus)):.2f} times")


KEYS = ("bytes_per_sec", "server_cpu_secs_per_gib")

if __name__ == "__main__":
    main()
