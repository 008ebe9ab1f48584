# The lanes of a developer's day. `just --list` shows them.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Formatting, lints and documentation.
check:
    cargo fmt --check
    cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# The README's test command: all crates, without the long tests.
test *arguments:
    cargo test --locked {{ arguments }}

# The long tests as well; ZORB_REFERENCE_DIR names the public sample data.
test-full *arguments:
    cargo test --locked --features full-tests,reference-data {{ arguments }}

# hf_xet and zorb's own client, each with the other's files.
clients:
    cargo build --locked --release --bin zorb
    [[ -x target/ci-venv/bin/python ]] || python3 -m venv target/ci-venv
    target/ci-venv/bin/pip install --quiet "hf_xet==1.8.0"
    target/ci-venv/bin/python tests/clients/stock_client.py target/release/zorb
    target/ci-venv/bin/python tests/clients/interop.py target/release/zorb

# All versions of the clients of the Hub that docs/hub.md names.
hub-clients:
    cargo build --locked --release --bin zorb
    python3 tests/clients/hub.py target/release/zorb all
    python3 tests/clients/hub_tools.py target/release/zorb
    python3 tests/clients/hub_rust.py target/release/zorb

# The image and the Compose file.
container:
    tests/docker/run.sh

# What is too long for .ci/run, in its full length: hours.
long: container
    cargo build --locked --release --bin zorb
    cargo build --locked --all-features -p zorb-fake-s3
    [[ -x target/ci-venv/bin/python ]] || python3 -m venv target/ci-venv
    cargo test --locked --all-features --lib -- model:: hub_sweep::random
    ZORB_KILL_ROUNDS=200 cargo test --locked --all-features --test it -- kill crash statements::
    python3 tests/powercut/run.py target/release/zorb
    target/ci-venv/bin/pip install --quiet "schemathesis>=4.32"
    target/ci-venv/bin/python tests/openapi.py target/release/zorb
    for version in 1.8.0 1.7.1 1.6.0 1.5.2; do \
        target/ci-venv/bin/pip install --quiet "hf_xet==$version"; \
        target/ci-venv/bin/python tests/clients/stock_client.py target/release/zorb; \
    done
    target/ci-venv/bin/pip install --quiet "hf_xet==1.8.0"
    ZORB_IMAGE=zorb:test target/ci-venv/bin/python tests/docker/cluster.py target/release/zorb target/debug/zorb-fake-s3 500
