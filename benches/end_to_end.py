"""The stock client, hf_xet, against zorb and against the official test server: wall time and server CPU, as ratios.

    python3 benches/end_to_end.py [ROUNDS] [MIB]

ROUNDS is 5 and MIB 2048 if not given. Runs with the hf_xet of this Python (1.8.0 is what docs/performance.md is about).
The binaries are what benches/compare.sh builds: target/release/zorb and target/official/release/official-server. The
files are a third each noise, words and floats and follow from a fixed seed. Each push goes to a server on an empty
directory and is a process of its own with an empty cache, and so is each pull; what was pulled is compared byte by byte.
The servers take turns, and every second round goes the other way round. What a server does after a push by itself (zorb
reads the files again and compares their sha256) is waited for, and counted apart and in the sum of everything. All of it is
in target/compare/end-to-end.json.
"""

import array
import filecmp
import json
import os
import pathlib
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
SEED = 2026

# What is aimed at: the least ratio of speeds, and the most of server CPU.
AIMS = {"push": (1.1, 0.5), "pull": (1.2, 0.5), "all": (None, 0.5)}

# A server that has used no more CPU for so long than twice what it uses after its start does nothing by itself any more.
# Seconds.
QUIET = 1


def main(rounds=5, mib=2048):
    home = ROOT / "target" / "compare"
    home.mkdir(parents=True, exist_ok=True)
    files = make_files(home / f"files-{mib}", mib)
    runs = {server: {"push": [], "after": [], "pull": [], "all": []} for server in SERVERS}
    for number in range(rounds):
        for server in list(SERVERS)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                for verb, run in measure(server, files, pathlib.Path(scratch)):
                    runs[server][verb].append(run)
                    told = [f"{run['cpu']:.2f} s of server CPU"]
                    if "seconds" in run:
                        told += [f"{run['seconds']:.2f} s", f"{run['rss'] / MIB:.0f} MiB"]
                    print(f"round {number + 1} of {rounds}: {verb} with {server}: {', '.join(told)}", flush=True)
            os.sync()
    report(runs, home / "end-to-end.json")


def make_files(directory, mib):
    """Files of 64 MiB; every third one of the same kind."""
    paths = []
    directory.mkdir(exist_ok=True)
    for number in range(max(mib // 64, 1)):
        path = directory / f"{number:04}-{('noise', 'words', 'floats')[number % 3]}"
        if not path.exists():
            kind = (noise, words, floats)[number % 3]
            path.write_bytes(kind(random.Random(SEED + number), min(64, mib) * MIB))
        paths.append(path)
    return paths


def noise(rng, length):
    return rng.randbytes(length)


def words(rng, length):
    """As often as in a language: the n-th with a probability of about 1/n."""
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(2, 10))) for _ in range(20_000)]
    by_share = rng.choices(vocabulary, [1 / (rank + 1) for rank in range(len(vocabulary))], k=1 << 16)
    text = ""
    while len(text) < length:
        text += " ".join([by_share[number] for number in array.array("H", rng.randbytes(8 * MIB))]) + " "
    return text[:length].encode()


def floats(rng, length):
    """As weights are: a mantissa of noise, a sign, and an exponent that hardly varies."""
    tops = rng.choices([0x3A, 0x3B, 0x3C, 0x3D], weights=(1, 3, 8, 4), k=256)
    top_of = bytes(top | (number & 1) << 7 for number, top in enumerate(tops))
    data = bytearray(rng.randbytes(length))
    data[3::4] = data[3::4].translate(top_of)
    return bytes(data)


def measure(name, files, scratch):
    server = SERVERS[name](scratch)
    try:
        server.note_idle()
        before = server.cpu()
        begin = time.monotonic()
        pushed, seconds = client(scratch, "push", {"endpoint": server.url, "paths": [str(path) for path in files]})
        push = {"seconds": seconds, "cpu": server.cpu() - before, "rss": server.peak_rss(),
                "wall": time.monotonic() - begin}
        yield "push", push
        # What the push has left to be done and to be written is not the pull's.
        since = server.cpu()
        after = server.wait_until_quiet() - since
        yield "after", {"cpu": after}
        os.sync()
        target = scratch / "pulled"
        target.mkdir()
        before = server.cpu()
        begin = time.monotonic()
        _, seconds = client(scratch, "pull", {"endpoint": server.url, "pushed": pushed, "target": str(target)})
        run = {"seconds": seconds, "cpu": server.cpu() - before, "rss": server.peak_rss(),
               "wall": time.monotonic() - begin}
        for path in files:
            if not filecmp.cmp(path, target / path.name, shallow=False):
                sys.exit(f"{path} came back changed from {name}")
        shutil.rmtree(target)
        yield "pull", run
        yield "all", {"cpu": push["cpu"] + after + run["cpu"]}
    finally:
        server.stop()


class Server:
    def __init__(self, command, log, **environment):
        with open(log, "w") as err:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=err, text=True, env=dict(os.environ, **environment))

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def note_idle(self):
        """To be called before the first request: notes what it uses by itself."""
        time.sleep(QUIET)
        used = self.cpu()
        time.sleep(QUIET)
        self.idle = self.cpu() - used

    def wait_until_quiet(self):
        """Seconds of CPU that it has used by the time at which it uses no more than when idle."""
        used, since = self.cpu(), time.monotonic()
        while time.monotonic() - since < QUIET:
            time.sleep(QUIET / 10)
            if self.cpu() - used > 0.02 + 2 * self.idle:
                used, since = self.cpu(), time.monotonic()
        return self.cpu()

    def peak_rss(self):
        """The most memory since the start or since this was asked last."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return peak

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class Zorb(Server):
    def __init__(self, scratch):
        command = [ROOT / "target/release/zorb", "serve", "--listen", "127.0.0.1:0", "--data-dir", scratch / "data"]
        super().__init__(command, scratch / "log", ZORB_LOG="error")
        line = self.process.stdout.readline()
        self.url = line.strip().removeprefix("zorb listening on ")
        if self.url == line.strip():
            sys.exit(f"zorb says {line!r}: {(scratch / 'log').read_text()}")


class Official(Server):
    def __init__(self, scratch):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        super().__init__([ROOT / "target/official/release/official-server", str(port), scratch / "data"], scratch / "log")
        self.url = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health").close()
                break
            except urllib.error.URLError:
                if self.process.poll() is not None:
                    sys.exit(f"the official server has ended: {(scratch / 'log').read_text()}")
                time.sleep(0.05)


SERVERS = {"zorb": Zorb, "official": Official}


def client(scratch, verb, arguments):
    """What a process of its own did, with an empty cache, and the seconds that it took without its start."""
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        manifest = pathlib.Path(cache) / "arguments.json"
        manifest.write_text(json.dumps(arguments))
        environment = dict(os.environ, HF_XET_CACHE=cache, HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
        command = [sys.executable, __file__, verb, str(manifest)]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode != 0:
            sys.exit(f"{verb} failed: {process.stderr}")
        return json.loads(process.stdout)


def client_push(hf_xet, arguments):
    commit = hf_xet.XetSession().new_upload_commit(endpoint=arguments["endpoint"])
    handles = {path: commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256) for path in arguments["paths"]}
    commit.wait_to_finish()
    infos = {path: handle.result().xet_info for path, handle in handles.items()}
    return {path: [info.hash, info.file_size] for path, info in infos.items()}


def client_pull(hf_xet, arguments):
    group = hf_xet.XetSession().new_file_download_group(endpoint=arguments["endpoint"])
    for path, (file_hash, size) in arguments["pushed"].items():
        target = os.path.join(arguments["target"], os.path.basename(path))
        group.start_download_file(hf_xet.XetFileInfo(file_hash, size), target)
    group.wait_to_finish()


CLIENTS = {"push": client_push, "pull": client_pull}


def report(runs, path):
    rows = []
    print(f"\n{'what':28} {'zorb':>8} {'official':>9} {'ratio':>7} {'spread':>15}   aim")
    for verb, (speed, cpu) in AIMS.items():
        pairs = list(zip(runs["zorb"][verb], runs["official"][verb]))
        for what, key, aim in ((f"{verb}: seconds", "seconds", speed), (f"{verb}: server CPU seconds", "cpu", cpu)):
            if aim is None:
                continue
            is_speed = key == "seconds"
            ratios = [theirs[key] / ours[key] if is_speed else ours[key] / theirs[key] for ours, theirs in pairs]
            ratio = statistics.median(ratios)
            is_met = ratio >= aim if is_speed else ratio <= aim
            ours, theirs = (statistics.median(run[key] for run in runs[name][verb]) for name in ("zorb", "official"))
            rows.append({"what": what, "zorb": ours, "official": theirs, "ratio": ratio, "least": min(ratios),
                         "most": max(ratios), "aim": aim, "is_met": is_met})
            print(f"{what:28} {ours:8.2f} {theirs:9.2f} {ratio:7.2f} {min(ratios):6.2f} to {max(ratios):4.2f}   "
                  f"{'>=' if is_speed else '<='} {aim:.1f} {'yes' if is_met else 'NO'}")
    after = {name: statistics.median(run["cpu"] for run in runs[name]["after"]) for name in SERVERS}
    print(f"{'after the push: server CPU':28} {after['zorb']:8.2f} {after['official']:9.2f}")
    path.write_text(json.dumps({"rows": rows, "runs": runs}, indent=1))
    print(f"(ratios: how many times as fast; of CPU, zorb's share of the official server's)\nall of it: {path}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in CLIENTS:
        import hf_xet

        with open(sys.argv[2]) as file:
            arguments = json.load(file)
        start = time.monotonic()
        outcome = CLIENTS[sys.argv[1]](hf_xet, arguments)
        print(json.dumps([outcome, time.monotonic() - start]))
    else:
        main(*map(int, sys.argv[1:]))
