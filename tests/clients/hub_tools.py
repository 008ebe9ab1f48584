"""`transformers` and `datasets`, unmodified, against a server with the routes of the Hub.

    python3 tests/clients/hub_tools.py target/release/zorb [TRANSFORMERS:DATASETS...]

Run by hand: with PyTorch, the packages of each pair of versions are 5 GiB, in a virtual environment below target/hub/. Without
versions: the newest pair, and an older one with huggingface_hub 0.36. What is read is compared with what was pushed. All requests
to other hosts go to a proxy of this script, which refuses and records them.
"""

import json
import os
import pathlib
import re
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from hub import Server

# With huggingface_hub 2 and 0.36.
VERSIONS = ["5.24.0:5.2.0", "4.57.6:3.6.0"]
TORCH = "torch==2.15.0"


def main(binary, *versions):
    for version in versions or VERSIONS:
        begin = time.monotonic()
        check(binary, *version.split(":"))
        print(f"hub: transformers and datasets {version}: passed in {time.monotonic() - begin:.0f} s", flush=True)


def check(binary, transformers, datasets):
    directory = pathlib.Path("target/hub").absolute() / f"tools-{transformers}-{datasets}"
    python = directory / "bin/python"
    if not (directory / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        packages = [f"transformers=={transformers}", f"datasets=={datasets}", "hf_xet==1.8.0", TORCH]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (directory / "complete").touch()
    with (
        tempfile.TemporaryDirectory() as scratch,
        RecordingProxy() as proxy,
        Server(binary, pathlib.Path(scratch) / "data", "off") as server,
    ):
        tools = Tools(python, server, proxy, pathlib.Path(scratch))
        tools.check_proxy()
        for verb in check_transformers, check_torch, check_only_bin, check_datasets, check_csv:
            tools.run(verb)
            # `load_dataset` prepends this name to the host of HF_ENDPOINT. There is no such server.
            own = server.url.replace("://", "://datasets-server.")
            foreign = [line for line in proxy.taken() if not line.startswith(f"GET {own}/info?dataset=")]
            assert not foreign, f"{verb.__name__}: requests to other hosts: {foreign}"
        # Before 4.1, commits of `push_to_hub` have no parent. Then the later of two cards replaces the other one.
        has_parents = tuple(map(int, datasets.split("."))) >= (4, 1)
        tools.check_two_pushes(has_parents)


class RecordingProxy(socketserver.ThreadingTCPServer):
    """A proxy on loopback that records the first line of each connection, and closes it."""

    daemon_threads = True

    def __init__(self):
        lines = self.lines = []

        class Handler(socketserver.StreamRequestHandler):
            timeout = 10

            def handle(self):
                lines.append(self.rfile.readline(1000).decode(errors="replace").strip())

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def taken(self):
        """The lines since the last call."""
        taken = self.lines[:]
        del self.lines[: len(taken)]
        return taken


class Tools:
    """Runs checks, each in a process of its own with a cache of its own, in the environment of the tools."""

    def __init__(self, python, server, proxy, scratch):
        self.python, self.server, self.proxy, self.scratch = python, server, proxy, scratch

    def begin(self, verb, *arguments):
        home = tempfile.mkdtemp(dir=self.scratch)
        environment = dict(
            os.environ,
            HF_ENDPOINT=self.server.url,
            HF_HOME=home,
            HF_TOKEN=self.server.token("write"),
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            # Otherwise `load_dataset` sends the name of each dataset to s3.amazonaws.com.
            HF_UPDATE_DOWNLOAD_COUNTS="0",
        )
        for name in "http_proxy", "https_proxy", "all_proxy":
            environment |= dict.fromkeys([name, name.upper()], self.proxy.url)
        environment |= dict.fromkeys(["no_proxy", "NO_PROXY"], "127.0.0.1,localhost")
        command = [self.python, __file__, "--client", verb.__name__, json.dumps([home, *arguments])]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, verb, *arguments):
        return finish(self.begin(verb, *arguments))

    def check_proxy(self):
        """The check for requests to other hosts can fail."""
        self.run(escape)
        lines = self.proxy.taken()
        hosts = [re.split(r"[ /:]+", line.removeprefix("GET http:").removeprefix("CONNECT"))[1] for line in lines]
        assert hosts == ["example.invalid", "example.invalid", "safetensors-convert.hf.space"], lines

    def check_two_pushes(self, has_parents):
        """Two processes push to one dataset at the same time, each a configuration. No data is lost, and where commits have
        parents, no entry in the card of the dataset."""
        for number in range(5):
            repo = f"me/both-{number}"
            processes = {name: self.begin(push_one, repo, name) for name in ("left", "right")}
            for process in processes.values():
                assert process.stdout.readline() == "ready\n"
            for process in processes.values():
                process.stdin.write("go\n")
                process.stdin.flush()
            for name, process in processes.items():
                if not finish(process):
                    assert has_parents, "a commit without a parent had a conflict"
                    # The conflict of docs/hub.md: the branch has moved. datasets 5.2 means to repeat the commit by itself, but
                    # does not recognize the error of huggingface_hub 2.
                    again = self.begin(push_one, repo, name)
                    assert finish(again, "go\n"), f"the repeated push of {name} to {repo} failed"
                    print(f"hub: push_to_hub of {name} to {repo} had a conflict, and was repeated", flush=True)
            self.run(check_both, repo, has_parents)


def finish(process, line=None):
    """What the process says last."""
    output, _ = process.communicate(line, timeout=600)
    if process.returncode != 0:
        sys.exit(f"{process.args[-2]} failed: {output}")
    return json.loads(output.splitlines()[-1])


# From here on, in a process of the virtual environment.


def escape(home):
    """Requests to another host, as the libraries of the tools make them, and what transformers does if it gets too far."""
    import urllib.request

    from transformers.safetensors_conversion import spawn_conversion

    try:
        from huggingface_hub.utils import httpx as http_library

        errors = (OSError, http_library.HTTPError)
    except ImportError:
        # That of versions before 1.0. Its errors are an OSError, too.
        import requests as http_library

        errors = OSError

    for request in (
        lambda: urllib.request.urlopen("http://example.invalid/"),
        lambda: http_library.get("https://example.invalid/"),
        lambda: spawn_conversion("a token", False, "me/model"),
    ):
        try:
            request()
            raise AssertionError("another host responded")
        except errors:
            pass


def check_transformers(home):
    import numpy
    from huggingface_hub import HfApi, hf_hub_download
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoTokenizer, BertConfig, PreTrainedTokenizerFast

    directory = f"{home}/model"
    BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=5).save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(directory)
    weights = {
        "weights": numpy.arange(300_000, dtype=numpy.float32),
        "bias": numpy.arange(12, dtype=numpy.int64).reshape(3, 4),
    }
    save_file(weights, f"{directory}/model.safetensors")
    api = HfApi()
    api.create_repo("me/bert", exist_ok=True)
    api.upload_folder(repo_id="me/bert", folder_path=directory)
    assert AutoConfig.from_pretrained("me/bert").hidden_size == 32
    assert AutoTokenizer.from_pretrained("me/bert")("hello world there")["input_ids"] == [1, 2, 0]
    path = hf_hub_download("me/bert", "model.safetensors")
    loaded = load_file(path)
    assert loaded.keys() == weights.keys() and all((loaded[name] == weights[name]).all() for name in weights)
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {"weights", "bias"}
        assert (file.get_tensor("bias") == weights["bias"]).all()
        assert (file.get_slice("weights")[1000:2000] == weights["weights"][1000:2000]).all()


def check_torch(home):
    """Models by `from_pretrained`: one with safetensors, one that was pushed from memory, and one with only
    `pytorch_model.bin`, for which transformers begins a thread that would ask another host to convert it."""
    import threading

    import torch
    from huggingface_hub import HfApi
    from transformers import AutoModel, BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=5))
    weights = model.state_dict()

    def check_loaded(repo):
        loaded = AutoModel.from_pretrained(repo).state_dict()
        assert loaded.keys() == weights.keys(), repo
        assert all(torch.equal(loaded[name], weights[name]) for name in weights), repo

    model.save_pretrained(f"{home}/safe")
    HfApi().create_repo("me/torch-safe", private=True)
    HfApi().upload_folder(repo_id="me/torch-safe", folder_path=f"{home}/safe")
    check_loaded("me/torch-safe")
    model.push_to_hub("me/torch-pushed")
    check_loaded("me/torch-pushed")

    model.config.save_pretrained(f"{home}/bin")
    torch.save(weights, f"{home}/bin/pytorch_model.bin")
    for private in False, True:
        repo = f"me/torch-bin-{private}".lower()
        HfApi().create_repo(repo, private=private)
        HfApi().upload_folder(repo_id=repo, folder_path=f"{home}/bin")
        check_loaded(repo)
    # Of the conversion, whose requests the caller looks for.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def check_only_bin(home):
    """For a model without safetensors, transformers would like to have them: it would look for a pull request of a bot, and
    ask another host, with the user's token, to make one. It must not get that far."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from transformers import AutoConfig, BertConfig
    from transformers.safetensors_conversion import auto_conversion, get_conversion_pr_reference
    from transformers.utils import cached_file, has_file

    directory, contents = pathlib.Path(home, "model"), os.urandom(200_000)
    BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=5).save_pretrained(directory)
    (directory / "pytorch_model.bin").write_bytes(contents)
    for private in False, True:
        repo = f"me/only-bin-{private}".lower()
        HfApi().create_repo(repo, private=private)
        HfApi().upload_folder(repo_id=repo, folder_path=directory)
        assert AutoConfig.from_pretrained(repo).hidden_size == 32
        # As `from_pretrained` of a model does, in this order.
        for name in "model.safetensors", "model.safetensors.index.json":
            assert cached_file(repo, name, _raise_exceptions_for_missing_entries=False) is None
            assert not has_file(repo, name)
        assert pathlib.Path(cached_file(repo, "pytorch_model.bin")).read_bytes() == contents
        for convert in get_conversion_pr_reference, lambda api, repo: auto_conversion(repo):
            try:
                convert(HfApi(), repo)
                raise AssertionError("there was a pull request")
            except HfHubHTTPError as error:
                refused = error.response
                assert refused.status_code == 404, refused
                # A text, or a URL of the library for HTTP.
                assert urllib.parse.urlsplit(str(refused.url)).path == f"/api/models/{repo}/discussions", refused.url
        assert auto_conversion(repo, ignore_errors_during_conversion=True) is None


def check_datasets(home):
    import datasets

    rows = {"number": list(range(1000)), "text": [str(number) for number in range(1000)]}
    pushed = datasets.Dataset.from_dict(rows)
    pushed.push_to_hub("me/data")
    loaded = datasets.load_dataset("me/data", split="train")
    assert loaded["number"][:] == rows["number"] and loaded["text"][:] == rows["text"]
    streamed = datasets.load_dataset("me/data", split="train", streaming=True)
    assert [row["text"] for row in streamed] == rows["text"]
    # The same again changes nothing.
    pushed.push_to_hub("me/data")


def check_csv(home):
    """One file is in the commit, the other one is large."""
    import datasets
    from huggingface_hub import HfApi

    counts = {"test": 100, "train": 100_000}
    rows = {name: [(number, f"text {number}") for number in range(count)] for name, count in counts.items()}
    api = HfApi()
    api.create_repo("me/csv", repo_type="dataset")
    for name, of_split in rows.items():
        lines = "number,text\n" + "".join(f"{number},{text}\n" for number, text in of_split)
        api.upload_file(repo_id="me/csv", repo_type="dataset", path_or_fileobj=lines.encode(), path_in_repo=f"{name}.csv")
    for name, of_split in rows.items():
        loaded = datasets.load_dataset("me/csv", split=name)
        assert list(zip(loaded["number"], loaded["text"])) == of_split
        streamed = datasets.load_dataset("me/csv", split=name, streaming=True)
        assert [(row["number"], row["text"]) for row in streamed] == of_split


def push_one(home, repo, name):
    """Whether the push had no conflict. It begins when the process is told."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    pushed = datasets.Dataset.from_dict(rows_of(name))
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        pushed.push_to_hub(repo, config_name=name)
        return True
    except HfHubHTTPError as error:
        assert error.response.status_code in (409, 412), error
        return False


def check_both(home, repo, has_both_names):
    import datasets

    names = datasets.get_dataset_config_names(repo)
    assert sorted(names) == ["left", "right"] if has_both_names else set(names) <= {"left", "right"}, names
    for name in names:
        assert datasets.load_dataset(repo, name, split="train").to_dict() == rows_of(name)
    for name in "left", "right":
        files = f"hf://datasets/{repo}/{name}/train-*.parquet"
        assert datasets.load_dataset("parquet", data_files=files, split="train").to_dict() == rows_of(name)


def rows_of(name):
    return {"number": list(range(1000)), "text": [f"{name} {number}" for number in range(1000)]}


VERBS = [escape, check_transformers, check_torch, check_only_bin, check_datasets, check_csv, push_one, check_both]


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        (verb,) = (verb for verb in VERBS if verb.__name__ == sys.argv[2])
        print(json.dumps(verb(*json.loads(sys.argv[3]))))
    else:
        main(*sys.argv[1:])
