# Two stages: the first compiles, the second holds the binary. Works with the classic builder and
# with BuildKit. Without an image registry, tests/docker/base-images.sh builds both base images.
ARG BUILD_IMAGE=rust:1-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /build
# If given, they replace what Cargo.toml says of the release profile: the tests of the image need a
# binary soon, not a fast one.
ARG CARGO_PROFILE_RELEASE_LTO
ARG CARGO_PROFILE_RELEASE_CODEGEN_UNITS
ARG CARGO_PROFILE_RELEASE_OPT_LEVEL

# Compile the dependencies against empty sources, so that this layer is cached until a Cargo.toml or
# Cargo.lock change. Tests, benches and fuzz targets are not in the build context (.dockerignore), so
# remove them from the manifests.
COPY Cargo.toml Cargo.lock ./
COPY crates/client/Cargo.toml crates/client/
COPY crates/git/Cargo.toml crates/git/
COPY crates/rca/Cargo.toml crates/rca/
COPY crates/xet-format/Cargo.toml crates/xet-format/
COPY fuzz/Cargo.toml fuzz/
COPY tests/fake-s3/Cargo.toml tests/fake-s3/
RUN for crate in . crates/* fuzz tests/fake-s3; do \
        awk '/^\[/ { skip = /^\[\[(bench|bin|example|test)\]\]/ } !skip' $crate/Cargo.toml > Cargo.toml.new \
        && mv Cargo.toml.new $crate/Cargo.toml \
        && mkdir $crate/src \
        && printf '//! Empty.\n' > $crate/src/lib.rs \
        || exit 1; \
    done \
    && printf '//! Empty.\nfn main() {}\n' > src/main.rs \
    && cargo build --release --locked --features postgres,s3 \
    # cargo compares file times and could otherwise use the empty packages.
    && cargo clean --release --locked --package zorb --package zorb-client --package zorb-git --package rca --package xet-format \
    && rm -r src crates/*/src

# src/ includes the migrations at compile time.
COPY migrations migrations
COPY crates/client/src crates/client/src
COPY crates/git/src crates/git/src
COPY crates/rca/src crates/rca/src
COPY crates/xet-format/src crates/xet-format/src
COPY src src
RUN cargo build --release --locked --features postgres,s3 --bin zorb

FROM ${RUNTIME_IMAGE}

# A fixed, unusual uid: the files in the volume belong to it, in every version of the image.
RUN groupadd --gid 10001 zorb \
    && useradd --uid 10001 --gid zorb --no-create-home --home-dir /var/lib/zorb \
        --shell /usr/sbin/nologin zorb \
    && install -d -o zorb -g zorb -m 0750 /var/lib/zorb

# The slim base image has no CA certificates; clients need them for https.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE-APACHE LICENSE-MIT /usr/share/doc/zorb/
COPY --from=build /build/target/release/zorb /usr/local/bin/zorb

# Numeric, so that an orchestrator can verify that it is not root.
USER 10001:10001
WORKDIR /var/lib/zorb
VOLUME /var/lib/zorb
EXPOSE 8080

# Healthy: /readyz responds 200.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["zorb", "healthcheck"]
# Stop accepting, finish requests in flight, exit 0.
STOPSIGNAL SIGTERM

# The image has no configuration: mount one that says who may write (docker-compose.yml mounts
# config/docker.toml). Both paths are in the environment, so that commands run by `docker exec` use
# the same store. The environment wins over the file.
ENV ZORB_CONFIG=/etc/zorb/zorb.toml \
    ZORB_DATA_DIR=/var/lib/zorb
ENTRYPOINT ["zorb"]
CMD ["serve"]

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="zorb" \
    org.opencontainers.image.description="A self-hosted content-addressed store for the Xet protocol" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
