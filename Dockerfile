# Two stages: one compiles, the other holds the one binary. Works with the classic builder as with
# BuildKit. Where no image registry is reachable, tests/docker/base-images.sh makes both bases.
ARG BUILD_IMAGE=rust:1-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /build

# The dependencies are compiled on their own, against empty sources, so that this layer stays
# cached until Cargo.toml or Cargo.lock change. Tests and benches are not in the build context
# (.dockerignore), so the manifest here must not name them.
COPY Cargo.toml Cargo.lock ./
RUN awk '/^\[/ { skip = /^\[\[(bench|example|test)\]\]/ } !skip' Cargo.toml > Cargo.toml.new \
    && mv Cargo.toml.new Cargo.toml \
    && mkdir src \
    && printf '//! Empty.\n' > src/lib.rs \
    && printf '//! Empty.\nfn main() {}\n' > src/main.rs \
    && cargo build --release --locked \
    # Else cargo, going by file times, could take the empty package for the real one.
    && cargo clean --release --locked --package zorb \
    && rm -r src

# What src/ takes in at compile time stands beside it.
COPY migrations migrations
COPY src src
RUN cargo build --release --locked --bin zorb

FROM ${RUNTIME_IMAGE}

# A number nobody else has, the same in every image: files in the volume belong to it.
RUN groupadd --gid 10001 zorb \
    && useradd --uid 10001 --gid zorb --no-create-home --home-dir /var/lib/zorb \
        --shell /usr/sbin/nologin zorb \
    && install -d -o zorb -g zorb -m 0750 /var/lib/zorb

# The slim base has no CA certificates; for https to other servers.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE-APACHE LICENSE-MIT /usr/share/doc/zorb/
COPY --from=build /build/target/release/zorb /usr/local/bin/zorb

# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /var/lib/zorb
VOLUME /var/lib/zorb
EXPOSE 8080

# Asks /readyz: healthy means that the store can be written.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["zorb", "healthcheck"]
# Stop accepting, finish what is in flight, exit 0.
STOPSIGNAL SIGTERM

# The image holds no configuration: whoever runs it says who may write to the store, by mounting
# one there (docker-compose.yml mounts config/docker.toml). In the environment, so that commands
# which `docker exec` runs find the same store as the server. The environment wins over the file.
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
