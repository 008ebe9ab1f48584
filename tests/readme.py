"""Runs the commands of the README and of docs/, and compares what they print with what the pages show.

    python3 tests/readme.py [--write] [--binary PATH] [PAGE...]

Without a PAGE it runs all of PAGES. `--write` puts what was printed into the pages instead of comparing. `--binary` names
a zorb to use in place of `cargo run --release --`. Takes curl, openssl and a Python with hf_xet (ZORB_PYTHON, or the one
in target/ci-venv). What a page may contain:

* ```console blocks: `$ command`, then what it prints. All of a page are typed into one shell, in a new directory. `…`
  stands for any text within a line, and a line `…` for any lines. A command ends in a backslash to use the next line too.
  A command that fails has its message on the page (`zorb: …`), or is followed by `$ echo $?`.
* A command that serves stays in the background; its first line is what it prints. A page without one has a server with
  the defaults on 127.0.0.1:8080. Ports of 127.0.0.1 and localhost are replaced by free ones.
* A block whose first line is a comment with a file name (`# push.py`) is written to this file first.
* ```sh blocks are not run here: each command must begin as one of ELSEWHERE, which says what runs it.
"""

import argparse
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The pages whose commands are run.
PAGES = [
    "README.md",
    "docs/access.md",
    "docs/alerts.md",
    "docs/backup.md",
    "docs/capacity.md",
    "docs/clients.md",
    "docs/cli.md",
    "docs/cli-files.md",
    "docs/cli-xorb.md",
    "docs/cli-archive.md",
    "docs/cli-store.md",
    "docs/concepts.md",
    "docs/configuration.md",
    "docs/gc.md",
    "docs/http-api.md",
    "docs/http-files.md",
    "docs/http-xorbs.md",
    "docs/hub.md",
    "docs/install.md",
    "docs/integrity.md",
    "docs/monitoring.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/rca.md",
    "docs/security.md",
    "docs/troubleshooting.md",
]

# Beginnings of commands in ```sh blocks, and what runs them.
ELSEWHERE = {
    "cargo test": ".ci/run",
    "cargo install": "installs into the home directory; the same build as `cargo run`",
    "cargo build": "the same build as `cargo run`",
    "docker compose": "tests/docker/run.sh",
    "packaging/deb.sh": "tests/package.sh",
    "dpkg -i": "tests/package.sh",
    "systemctl": "tests/package.sh: these take systemd",
    "journalctl": "by hand: takes systemd",
    "runuser -u zorb": "tests/package.sh: takes root",
    "useradd": "packaging/postinst, in tests/package.sh: takes root",
    "install -": "tests/package.sh, where the package has the same files: takes root",
    "chown root:": "by hand: takes root",
    "zorb backup /var/backups": "tests/package.sh",
    "certbot": "by hand: takes a public name",
    "RENEWED_LINEAGE=": "by hand: takes root",
    "apt-get install prometheus": ".ci/run installs the one that is checked",
    "promtool check": "tests/alerts.sh",
    "promtool query": "by hand: takes a running Prometheus",
    "amtool": "by hand: takes an Alertmanager",
    "export ZORB_SERVER": "tests/package.sh, with a token of its own",
    "zorb push FILE": "tests/package.sh, with a file of its own",
    "zorb healthcheck": "docs/troubleshooting.md, where it runs",
    "benches/": "by hand: these take minutes of an idle machine",
    "python3 benches/": "by hand, as above",
    "cargo bench": "by hand, as above",
    "cargo run --release --example": "by hand, as above",
}

MARK = "--- next, after status"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORT = re.compile(r"\b(127\.0\.0\.1|localhost):(\d{4,5})\b")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--binary", type=pathlib.Path)
    parser.add_argument("pages", nargs="*", default=PAGES)
    arguments = parser.parse_args()
    wrong = []
    for name in arguments.pages:
        page = Page(name, arguments.binary and arguments.binary.resolve())
        count, differences = page.check(arguments.write)
        wrong += differences
        print(f"{name}: {count} commands, {len(differences)} {'updated' if arguments.write else 'differ'}", flush=True)
    if wrong and not arguments.write:
        sys.exit("\n".join(wrong))


class Page:
    def __init__(self, name, binary):
        self.name, self.binary = name, binary
        self.path = ROOT / name
        self.text = self.path.read_text()
        self.ports = {}

    def check(self, is_written):
        """Number of commands, and what is printed otherwise than the page says."""
        blocks = BLOCK.findall(self.text)
        self.check_elsewhere(body for language, body in blocks if language in ("sh", "bash"))
        shown = [step for language, body in blocks if language == "console" for step in steps(body)]
        if not shown:
            return 0, []
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            for _, body in blocks:
                self.write_file(scratch / "work", body)
            printed = self.run([command for command, _ in shown], scratch)
        wrong = []
        for index, ((command, expected), (output, status)) in enumerate(zip(shown, printed)):
            after = shown[index + 1][0] if index + 1 < len(shown) else ""
            if status != 0 and "zorb: " not in output and after != "echo $?":
                sys.exit(f"{self.name}: `{command}` failed with {status}:\n{output}")
            if not matches(expected, output):
                wrong.append(f"{self.name} shows\n$ {command}\n{expected}but this is printed:\n{output}")
                self.text = self.text.replace(f"$ {command}\n{expected}", f"$ {command}\n{output}", 1)
        if is_written:
            self.path.write_text(self.text)
        return len(shown), wrong

    def check_elsewhere(self, bodies):
        for line in "".join(bodies).replace("\\\n", "").splitlines():
            if line.strip() and not line.startswith(("#", *ELSEWHERE)):
                sys.exit(f"{self.name}: nothing runs `{line}`; use a console block, or add it to ELSEWHERE")

    def write_file(self, directory, body):
        directory.mkdir(exist_ok=True)
        name = re.match(r"(?:#|//) ([\w.-]+\.\w+)\n", body)
        if name:
            (directory / name.group(1)).write_text(self.with_free_ports(body))

    def with_free_ports(self, text):
        return PORT.sub(lambda match: f"{match.group(1)}:{self.free_port(match.group(2))}", text)

    def free_port(self, port):
        if port not in self.ports:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                self.ports[port] = str(listener.getsockname()[1])
        return self.ports[port]

    def run(self, commands, scratch):
        """What each command prints, with a line feed at the end, and its exit status."""
        is_served = any(is_server(command) for command in commands)
        typed = commands if is_served else ["zorb serve", *commands]
        script = "servers=()\n" + "".join(self.typed(command, scratch, index) for index, command in enumerate(typed))
        # A server that a page has stopped itself is not there any more.
        script += 'for pid in "${servers[@]}"; do ! kill "$pid" 2>&- || wait "$pid" || echo "a server ended with $?"; done\n'
        pairs = self.printed(shell(script, scratch / "work", self.environment(scratch)), len(typed), scratch)
        if not is_served and not pairs.pop(0)[0].startswith("zorb listening"):
            sys.exit(f"{self.name}: zorb serve does not start:\n{read_errors(scratch)}")
        return pairs

    def printed(self, text, count, scratch):
        """The parts of what the shell has printed, of `count` commands."""
        for port, free in self.ports.items():
            text = re.sub(rf"\b(127\.0\.0\.1|localhost):{free}\b", rf"\1:{port}", text)
        *printed, rest = re.split(rf"{MARK} (\d+)\n", text)
        ended = [output if output.endswith("\n") or not output else f"{output}\n" for output in printed[::2]]
        pairs = list(zip(ended, map(int, printed[1::2])))
        if rest or len(pairs) != count:
            sys.exit(f"{self.name}: the shell or a server ended otherwise than it should:\n{text}{read_errors(scratch)}")
        return pairs

    def typed(self, command, scratch, index):
        """What is typed for a command: a server is waited for until it listens or has ended."""
        if re.search(r"\|\s*head\b", command):
            sys.exit(f"{self.name}: `head` leaves before the end, and what writes to it may fail: {command}")
        text = self.with_free_ports(command)
        if not is_server(command):
            return f"{text}\nstatus=$?; echo '{MARK}' $status; (exit $status)\n"
        text = text.split("#")[0].strip().removesuffix("&")
        start = f"{self.binary}" if self.binary else f"cargo run --manifest-path {ROOT}/Cargo.toml --release --"
        text = text.replace("cargo run --release --", start)
        if "--listen" not in text and "--config" not in text:
            text = f"ZORB_LISTEN=127.0.0.1:{self.free_port('8080')} {text}"
        out, err = scratch / f"serve-{index}.out", scratch / f"serve-{index}.err"
        wait = f'until grep -q . {out} || ! kill -0 "$!" 2>&-; do sleep 0.05; done'
        return f": >{out}; {text} >{out} 2>{err} &\nservers+=($!); {wait}; cat {out}; echo '{MARK}' 0\n"

    def environment(self, scratch):
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        programs = scratch / "bin"
        programs.mkdir()
        binary = self.binary or target / "release" / "zorb"
        (programs / "zorb").symlink_to(binary)
        (scratch / "work" / "target" / "release").mkdir(parents=True)
        (scratch / "work" / "target" / "release" / "zorb").symlink_to(binary)
        python = pathlib.Path(os.environ.get("ZORB_PYTHON", target / "ci-venv" / "bin" / "python"))
        return {name: value for name, value in os.environ.items() if not name.startswith("ZORB_")} | {
            "PATH": f"{programs}:{python.parent}:{os.environ['PATH']}",
            "ZORB_SERVER": f"http://127.0.0.1:{self.free_port('8080')}",
            "NO_PROXY": "127.0.0.1,localhost",
            # What clients remember stays in the directory of this page.
            "XDG_CACHE_HOME": str(scratch / "cache"),
            "HF_HOME": str(scratch / "cache" / "huggingface"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }


def shell(script, directory, environment, timeout=None):
    """What a shell prints within so many seconds. Nothing that it has started lives longer than this."""
    process = subprocess.Popen(
        ["bash", "-uc", script], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=timeout)[0]
    finally:
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass


def read_errors(scratch):
    return "".join(path.read_text() for path in sorted(scratch.glob("serve-*.err")))


def is_server(command):
    return re.search(r"(zorb|--) serve\b", command) and "--help" not in command


def steps(block):
    """Commands of a console block, each with what is shown of its output."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def matches(expected, output):
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else "(?:.*)".join(map(re.escape, line.split("…"))) + "\n"
        for line in expected.splitlines()
    )
    return re.fullmatch(pattern, output) is not None


if __name__ == "__main__":
    main()
