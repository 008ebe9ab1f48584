"""`hf upload` and `hf download`, with hf_xet and without, beside hf_xet alone, against the same server.

    python3 benches/hub.py [ROUNDS [MIB]]

ROUNDS is 3 and MIB 1024 if not given: random bytes in four files. Needs target/release/zorb, and installs huggingface_hub 2.4.0
and hf_xet 1.8.0 into a virtual environment below target/hub/. Each upload is to a new store. Both clients hash the files, as
the Hub needs their sha256. A download begins when the server has verified them. Prints the medians, and the ratio of each
round with its spread: of the time, of the CPU time of the server, and of its memory at most, in MiB.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/clients"))

from hub import Client, Server  # noqa: E402

HF = {
    "upload": """
import sys
from huggingface_hub import HfApi
api = HfApi()
api.create_repo("me/model", exist_ok=True)
api.upload_folder(repo_id="me/model", folder_path=sys.argv[1])
""",
    "download": """
import sys
from huggingface_hub import snapshot_download
snapshot_download("me/model", local_dir=sys.argv[2])
""",
}

XET = {
    "upload": """
import os, pathlib, sys, hf_xet
commit = hf_xet.XetSession().new_upload_commit(endpoint=os.environ["HF_ENDPOINT"])
files = sorted(pathlib.Path(sys.argv[1]).iterdir())
handles = [commit.start_upload_file(str(path), sha256=hf_xet.COMPUTE_SHA256) for path in files]
commit.wait_to_finish()
for handle, path in zip(handles, files):
    print(path.name, handle.result().xet_info.hash, path.stat().st_size)
""",
    "download": """
import os, sys, hf_xet
session = hf_xet.XetSession()
group = session.new_file_download_group(endpoint=os.environ["HF_ENDPOINT"])
for line in sys.argv[3].splitlines():
    name, hash, size = line.split()
    group.start_download_file(hf_xet.XetFileInfo(hash, int(size)), f"{sys.argv[2]}/{name}")
group.wait_to_finish()
""",
}


# Each with its scripts and further environment variables.
RUNS = {
    "hf": (HF, {}),
    "hf without hf_xet": (HF, {"HF_HUB_DISABLE_XET": "1"}),
    "hf_xet": (XET, {}),
}


def main(rounds=3, mib=1024):
    python = Client("2.4.0", "1.8.0").python
    measured = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        files = scratch / "files"
        files.mkdir()
        for number in range(4):
            with open(files / f"{number}.safetensors", "wb") as file:
                for _ in range(mib // 4):
                    file.write(os.urandom(1 << 20))
        for number in range(rounds):
            for name, (scripts, more) in RUNS.items():
                with Server(ROOT / "target/release/zorb", scratch / f"{name}-{number}", "off") as server:
                    printed = ""
                    for verb in "upload", "download":
                        back = scratch / f"back-{name}-{number}"
                        back.mkdir(exist_ok=True)
                        before = cpu_time(server)
                        seconds, out = run(python, scripts[verb], server, scratch, more, files, back, printed)
                        printed = printed or out
                        # First: a client that takes longer would be charged for more of the verification of its files.
                        wait_for_verification(server, 4)
                        sample = (seconds, cpu_time(server) - before, peak_memory(server))
                        measured.setdefault((verb, name), []).append(sample)
                    for path in files.iterdir():
                        subprocess.run(["cmp", path, back / path.name], check=True)
                    subprocess.run(["rm", "-rf", back, scratch / f"{name}-{number}"], check=True)
    for verb in "upload", "download":
        for index, what in enumerate(["time, s", "CPU of the server, s", "memory, MiB"]):
            for name in "hf", "hf without hf_xet":
                hf, xet = ([sample[index] for sample in measured[verb, one]] for one in (name, "hf_xet"))
                # With a few MiB the server may have taken no time that the system counts: such a round has no ratio.
                ratios = [a / b for a, b in zip(hf, xet) if b] or [float("nan")]
                print(
                    f"{verb:8} {what:20} {name} {statistics.median(hf):6.2f}, hf_xet {statistics.median(xet):6.2f}, "
                    f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                )


def wait_for_verification(server, count):
    """Waits until the server has verified so many sha256: it does that in the background, and reads the files for it."""
    deadline = time.monotonic() + 60
    while f"zorb_sha256_verified_total {count}\n" not in server.get("/metrics", "any")[2].decode():
        assert time.monotonic() < deadline, "the files are not verified"
        time.sleep(0.05)


def run(python, script, server, scratch, more, *arguments):
    with tempfile.TemporaryDirectory(dir=scratch) as home:
        variables = dict(
            os.environ,
            HF_ENDPOINT=server.url,
            HF_HOME=home,
            HF_XET_CACHE=f"{home}/xet",
            HF_TOKEN="any",
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            NO_PROXY="127.0.0.1",
            **more,
        )
        begin = time.monotonic()
        done = subprocess.run(
            [python, "-c", script, *map(str, arguments)], env=variables, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begin
        if done.returncode != 0:
            sys.exit(done.stderr)
        return seconds, done.stdout


def cpu_time(server):
    """Seconds of user and system time of the server process."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(server):
    """MiB of memory that the server process has had at most."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
