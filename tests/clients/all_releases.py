"""Every release of hf_xet from 1.0.0 to 1.8.0, unmodified: each pushes files and pulls them back.

    python tests/clients/all_releases.py target/release/zorb [RELEASE ...]

Without releases it runs all of them. Each is installed by pip into a directory of its own below target/clients, for the
Python that runs this script; pip needs a package index for the first run. A release that cannot be installed on this
Python is named at the end. It is a failure where that release was asked for by name.

The newest releases have longer tests in stock_client.py. This one tells whether a release works at all: the body of a
shard is not the same in all of them (docs/spec, 4.8).
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile

import stock_client
from stock_client import MIB, Server, client, write_files

RELEASES = """
    1.0.0 1.0.1 1.0.2 1.0.3 1.0.4 1.0.5
    1.1.0 1.1.1 1.1.2 1.1.3 1.1.4 1.1.5 1.1.6 1.1.7 1.1.8 1.1.9 1.1.10
    1.2.0 1.3.0 1.3.1 1.3.2 1.4.0 1.4.1 1.4.2 1.4.3
    1.5.0 1.5.1 1.5.2 1.6.0 1.7.0 1.7.1 1.8.0
""".split()

INSTALLED = pathlib.Path(__file__).resolve().parents[2] / "target" / "clients"


def main(binary, asked):
    unknown = sorted(set(asked) - set(RELEASES))
    if unknown:
        sys.exit(f"no such releases: {' '.join(unknown)}")
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}", flush=True)
    outcomes = {release: run(binary, release, random.Random(seed)) for release in asked or RELEASES}
    for outcome in ("works", "cannot be installed", "fails"):
        releases = [release for release, known in outcomes.items() if known == outcome]
        print(f"{outcome}: {len(releases)}: {' '.join(releases)}", flush=True)
    accepted = ["works"] if asked else ["works", "cannot be installed"]
    if "works" not in outcomes.values() or any(outcome not in accepted for outcome in outcomes.values()):
        sys.exit(1)


def run(binary, release, rng):
    target = INSTALLED / release
    reason = install(release, target)
    if reason:
        print(f"hf_xet {release} cannot be installed: {reason}", flush=True)
        return "cannot be installed"
    os.environ["PYTHONPATH"] = str(target)
    try:
        round_trip(binary, rng)
    except (SystemExit, OSError, subprocess.SubprocessError) as error:
        print(f"hf_xet {release} fails: {error}", flush=True)
        return "fails"
    print(f"hf_xet {release} works", flush=True)
    return "works"


def install(release, target):
    """Why it cannot be installed; None where it is."""
    if (target / "hf_xet").exists():
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # A build from source would need the Rust of its day.
    command += ["--only-binary", ":all:", "--target", str(target), f"hf_xet=={release}"]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]


def round_trip(binary, rng):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        server = Server(binary, directory / "data")
        try:
            text = b"".join(b"line %d of a text that compresses\n" % number for number in range(100_000))
            # Not the empty file: the oldest releases make none where one is pulled.
            contents = {
                "one-byte": b"x",
                "100-kib": rng.randbytes(100 << 10),
                # Two xorbs: one of them does not compress, the other one does.
                "mixed": rng.randbytes(64 * MIB) + text * 2,
            }
            check(server, write_files(directory / "files", contents))
            # What is known is named by its hashes: a file that is mostly deduplicated.
            data = contents["mixed"]
            near = data[: 20 * MIB] + rng.randbytes(1000) + data[20 * MIB :]
            check(server, write_files(directory / "near", {"near": near}))
        finally:
            server.stop()


def check(server, files):
    pushed = client(server, "push", "models/acme/one", "write", {"paths": list(files)})
    stock_client.check_pull(server, pushed)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
