"""A GiB through backup and restore, with the stock Python client on both sides and uploads while backups run.

    python tests/clients/backup_1gib.py target/release/zorb [MIB]

The store is filled by hf_xet, backed up while another client pushes, grown by 5 %, backed up again, restored elsewhere;
then every file is pulled from the restored store and compared byte for byte. Prints what each step took. Needs about six
times MIB (1024) of disk in TMPDIR.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20


def main(binary, mib):
    seed = int(os.environ.get("ZORB_TEST_SEED", random.randrange(1 << 32)))
    print(f"ZORB_TEST_SEED={seed}, {mib} MiB")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        (directory / "files").mkdir()
        server = Server(binary, directory / "data")
        try:
            pushed = push(directory, server.url, make_files(directory / "files", rng, "base", mib, 24))
            load = Load(directory, server.url, random.Random(rng.random()))
            first = backup(binary, directory, "first")
            load.stop()
            print(f"while it ran, {load.count} files were pushed")
            pushed.update(load.pushed)
            settle = backup(binary, directory, "settle")
            load = Load(directory, server.url, random.Random(rng.random()), pause=0.2)
            pushed.update(push(directory, server.url, make_files(directory / "files", rng, "more", mib // 20, 4)))
            load.stop()
            pushed.update(load.pushed)
            second = backup(binary, directory, "second")
            nothing = backup(binary, directory, "nothing")
        finally:
            server.stop()
        print(f"second / first: {second['seconds'] / first['seconds']:.3f} of the time, "
              f"{second['added_len'] / first['added_len']:.3f} of the bytes, "
              f"{second['serialized_len'] / first['serialized_len']:.3f} of the blobs; "
              f"{second['archive_read_len']} bytes of the archive read")
        if nothing["added_len"] != 0 or settle["problems"] != 0:
            sys.exit("a run with nothing new has added something, or there were problems")
        if second["added_len"] > 0.2 * first["added_len"]:
            sys.exit("the second run has added more than its share")
        run(binary, directory, "verify", "backup", "b.rca", "--verify", "--json")
        run(binary, directory, "restore", "restore", "b.rca", "--data-dir", "copy", "--json")
        server = Server(binary, directory / "copy")
        try:
            check_pull(directory, server.url, pushed)
        finally:
            server.stop()
    print(f"{len(pushed)} files pulled from the restored store, all equal")


def make_files(directory, rng, prefix, mib, count):
    """Half of it noise, a quarter text, a quarter numbers like those of models."""
    paths, left = [], mib * MIB
    for number in range(count):
        size = left if number == count - 1 else min(left, rng.randrange(1, 2 * mib * MIB // count))
        left -= size
        path = directory / f"{prefix}-{number}"
        with open(path, "wb") as file:
            while size > 0:
                part = piece(rng, number)[:size]
                file.write(part)
                size -= len(part)
        paths.append(str(path))
    return paths


def piece(rng, kind):
    if kind % 4 < 2:
        return rng.randbytes(MIB)
    if kind % 4 == 2:
        words = [rng.randbytes(4).hex() for _ in range(500)]
        return " ".join(rng.choice(words) for _ in range(MIB // 9)).encode()
    noise = bytearray(rng.randbytes(MIB))
    noise[3::4] = bytes(rng.choices((0x3C, 0x3D, 0xBC, 0xBD), k=len(noise[3::4])))
    return bytes(noise)


class Load:
    """Pushes small files until it is told to stop."""

    def __init__(self, directory, url, rng, pause=0.0):
        self.pushed, self.count, self.stopping = {}, 0, False
        self.thread = threading.Thread(target=self.work, args=(directory, url, rng, pause))
        self.thread.start()

    def work(self, directory, url, rng, pause):
        while not self.stopping:
            path = directory / "files" / f"load-{rng.getrandbits(64):x}"
            path.write_bytes(rng.randbytes(rng.randrange(1, MIB)))
            self.pushed.update(push(directory, url, [str(path)]))
            self.count += 1
            time.sleep(pause)

    def stop(self):
        self.stopping = True
        self.thread.join()


def backup(binary, directory, name):
    return run(binary, directory, name, "backup", "b.rca", "--data-dir", "data", "--json")


def run(binary, directory, name, *arguments):
    begin = time.monotonic()
    process = subprocess.Popen([binary, *arguments], cwd=directory, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    # Not wait(): it does not say what the process has used.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if status != 0:
        sys.exit(f"{name}: zorb {' '.join(arguments)} ended with status {status}")
    record = json.loads(output)
    record["seconds"] = seconds
    numbers = ", ".join(f"{key} {value}" for key, value in record.items() if isinstance(value, int))
    cpu = usage.ru_utime + usage.ru_stime
    print(f"{name}: {seconds:.2f} s, {cpu:.2f} s of processor, {usage.ru_maxrss // 1024} MiB of memory; {numbers}")
    return record


class Server:
    """A server process on a free port."""

    def __init__(self, binary, data):
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data)]
        environment = dict(os.environ, ZORB_LOG="warn")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        match = re.match(r"zorb listening on (http://\S+)", line)
        if not match:
            sys.exit(f"the server says {line!r}")
        self.url = match.group(1)

    def stop(self):
        self.process.terminate()
        if self.process.wait() != 0:
            sys.exit(f"the server ended with {self.process.returncode}")


def client(directory, verb, url, arguments):
    """Runs a push or a pull in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory(dir=directory) as cache:
        environment = dict(os.environ, HF_XET_CACHE=cache, HF_HUB_DISABLE_TELEMETRY="1", NO_PROXY="127.0.0.1")
        command = [sys.executable, __file__, verb, url]
        result = subprocess.run(
            command, input=json.dumps(arguments), env=environment, stdout=subprocess.PIPE, text=True, timeout=900
        )
    if result.returncode != 0:
        sys.exit(f"{verb} failed with {result.returncode}")
    return json.loads(result.stdout or "null")


def push(directory, url, paths):
    return client(directory, "push", url, paths)


def check_pull(directory, url, pushed):
    target = directory / "pulled"
    target.mkdir()
    client(directory, "pull", url, [str(target), pushed])
    for path in pushed:
        name = pathlib.Path(path).name
        if digest(target / name) != digest(path):
            sys.exit(f"{name} came back changed")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def do_push(url):
    import hf_xet

    paths = json.load(sys.stdin)
    commit = hf_xet.XetSession().new_upload_commit(endpoint=url)
    handles = {path: commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256) for path in paths}
    commit.wait_to_finish()
    infos = {path: handle.result().xet_info for path, handle in handles.items()}
    print(json.dumps({path: [info.hash, info.file_size] for path, info in infos.items()}))


def do_pull(url):
    import hf_xet

    target, pushed = json.load(sys.stdin)
    group = hf_xet.XetSession().new_file_download_group(endpoint=url)
    for path, (file_hash, size) in pushed.items():
        group.start_download_file(hf_xet.XetFileInfo(file_hash, size), os.path.join(target, os.path.basename(path)))
    group.wait_to_finish()


if sys.argv[1] in ("push", "pull"):
    {"push": do_push, "pull": do_pull}[sys.argv[1]](sys.argv[2])
else:
    main(os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1024)
