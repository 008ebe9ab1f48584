"""The Rust crate `hf-hub`, 1.0.0 and 0.5.0, against a server with the routes of the Hub.

    python3 tests/clients/hub_rust.py target/release/zorb

Run by hand: the first run compiles both versions below target/hub/, which takes some minutes. A user pushes a directory with the
new version; what both versions get back is compared.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile

from hub import Server, compare, write

VERSIONS = {
    "push": 'hf-hub = { version = "=1.0.0", features = ["blocking"] }',
    "pull": 'hf-hub = { version = "=0.5.0", default-features = false, features = ["rustls-tls", "ureq"] }',
}


def main(binary):
    programs = {name: build(name, dependency) for name, dependency in VERSIONS.items()}
    rng = random.Random(7)
    files = {
        "config.json": b'{"model_type": "bert"}\n',
        "model.safetensors": rng.randbytes(5 << 20),
        "sub/long.txt": b"text that is longer than what a commit takes\n" * 30_000,
    }
    with tempfile.TemporaryDirectory() as scratch, Server(binary, pathlib.Path(scratch) / "data", "token") as server:
        scratch = pathlib.Path(scratch)
        write(scratch / "in", files)
        environment = dict(os.environ, HF_ENDPOINT=server.url, HF_TOKEN=server.user_token("me"), NO_PROXY="127.0.0.1")
        push = [programs["push"], "me", scratch / "in", scratch / "out"]
        subprocess.run(push, env=environment, check=True, timeout=300)
        compare(scratch / "out", {**files, ".gitattributes": None})
        pull = [programs["pull"], "me", scratch / "cache"]
        pulled = subprocess.run(pull, env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True)
        found = dict(line.split("\t") for line in pulled.stdout.splitlines())
        assert found.keys() == {*files, ".gitattributes"}, found
        for path, contents in files.items():
            assert pathlib.Path(found[path]).read_bytes() == contents, path
    print("hub: hf-hub 1.0.0 and 0.5.0: passed")


def build(name, dependency):
    """The program of this name, with this version of the crate."""
    directory = pathlib.Path("target/hub").absolute() / f"rust-{name}"
    source = pathlib.Path(__file__).with_name("hub_rust").absolute() / f"{name}.rs"
    directory.mkdir(parents=True, exist_ok=True)
    manifest = f"""[package]
name = "{name}"
version = "0.0.0"
edition = "2024"

[[bin]]
name = "{name}"
path = "{source}"

[dependencies]
{dependency}

[workspace]
"""
    (directory / "Cargo.toml").write_text(manifest)
    # Also if CARGO_TARGET_DIR names another one.
    place = ["--manifest-path", directory / "Cargo.toml", "--target-dir", directory / "target"]
    subprocess.run(["cargo", "build", "--quiet", *place], check=True)
    return directory / "target/debug" / name


if __name__ == "__main__":
    main(*sys.argv[1:])
