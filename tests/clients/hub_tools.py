"""`transformers` and `datasets`, unmodified, against a server with the routes of the Hub.

    python3 tests/clients/hub_tools.py target/release/zorb [TRANSFORMERS [DATASETS]]

Run by hand: the two packages and what they need are 500 MiB, in a virtual environment below target/hub/. Versions are 5.24.0 and
5.2.0 if not given. What is read is compared with what was pushed. Without PyTorch, so weights are read by `safetensors`.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from hub import Server


def main(binary, transformers="5.24.0", datasets="5.2.0"):
    directory = pathlib.Path("target/hub").absolute() / f"tools-{transformers}-{datasets}"
    python = directory / "bin/python"
    if not (directory / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        packages = [f"transformers=={transformers}", f"datasets=={datasets}", "hf_xet==1.8.0"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (directory / "complete").touch()
    with tempfile.TemporaryDirectory() as scratch, Server(binary, pathlib.Path(scratch) / "data", "off") as server:
        environment = dict(
            os.environ,
            HF_ENDPOINT=server.url,
            HF_HOME=f"{scratch}/home",
            HF_TOKEN=server.token("write"),
            HF_HUB_DISABLE_PROGRESS_BARS="1",
            HF_HUB_DISABLE_TELEMETRY="1",
            NO_PROXY="127.0.0.1",
            # No request may leave for another host.
            HTTPS_PROXY="http://127.0.0.1:9",
        )
        subprocess.run([python, __file__, "--client", scratch], env=environment, check=True, timeout=600)
    print(f"hub: transformers {transformers}, datasets {datasets}: passed")


def check_transformers(directory):
    import numpy
    from huggingface_hub import HfApi, hf_hub_download
    from safetensors.numpy import load_file, save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoTokenizer, BertConfig, PreTrainedTokenizerFast

    BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=5).save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(directory)
    weights = numpy.arange(300_000, dtype=numpy.float32)
    save_file({"weights": weights}, f"{directory}/model.safetensors")
    api = HfApi()
    api.create_repo("me/bert", exist_ok=True)
    api.upload_folder(repo_id="me/bert", folder_path=directory)
    assert AutoConfig.from_pretrained("me/bert").hidden_size == 32
    assert AutoTokenizer.from_pretrained("me/bert")("hello world there")["input_ids"] == [1, 2, 0]
    loaded = load_file(hf_hub_download("me/bert", "model.safetensors"))["weights"]
    assert (loaded == weights).all()


def check_datasets():
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


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        check_transformers(f"{sys.argv[2]}/model")
        check_datasets()
    else:
        main(*sys.argv[1:])
