"""Runs the README: starts the server as it says, types the round trip, and compares what is printed.

`readme.py --write` puts what was printed into the README instead of comparing.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PORT = "127.0.0.1:8080"


def main():
    text = README.read_text()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # The commands name target/ as they would in the checkout; what they make is made here.
        (folder / "target").symlink_to(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        environment = dict(os.environ, ZORB_LISTEN="127.0.0.1:0", ZORB_DATA_DIR=str(folder / "data"))
        serve = command_of(text, "serve")
        server = subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            line = server.stdout.readline().strip()
            address = re.fullmatch(r"zorb listening on http://(127\.0\.0\.1:\d+)", line)
            if not address:
                sys.exit(f"the first line of {' '.join(serve)} is {line!r}")
            count = check_blocks(text, folder, address.group(1))
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait()
    if code != 0:
        sys.exit(f"{' '.join(serve)} ended with {code}")
    print(f"README: {count} commands print what it says")


def command_of(text, verb):
    """The command line for a verb, from the block of the two commands."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    return next(line for line in lines if line[:2] == ["cargo", "run"] and line[-1] == verb)


def check_blocks(text, folder, address):
    count = 0
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
        printed = run([command for command, _ in commands], folder, address)
        new = "".join(f"$ {command}\n{output}" for (command, _), output in zip(commands, printed))
        if "--write" in sys.argv:
            README.write_text(README.read_text().replace(block, new))
        elif new != block:
            sys.exit(f"the README shows\n{block}\nbut this is printed:\n{new}")
        count += len(commands)
    if count == 0:
        sys.exit("there is no command in the README")
    return count


def run(commands, folder, address):
    """What each command prints, all of them in one shell, so that variables live on."""
    for command in commands:
        # Whoever writes to it fails, or does not, by chance: nothing of the kind is shown.
        if re.search(r"\|\s*head\b", command):
            sys.exit(f"`head` leaves before the end, and fails what writes to it: {command}")
    mark = "--- next ---"
    script = "".join(f"{command.replace(PORT, address)}\necho '{mark}'\n" for command in commands)
    shell = ["bash", "-euo", "pipefail", "-c", script]
    # What commands note for later is not left in the cache of whoever runs this.
    environment = dict(os.environ, XDG_CACHE_HOME=str(folder / "cache"))
    result = subprocess.run(shell, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(f"a command of the README failed with {result.returncode}:\n{result.stdout}")
    return result.stdout.replace(address, PORT).split(f"{mark}\n")[:-1]


main()
