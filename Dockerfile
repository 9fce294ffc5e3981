# SPDX-License-Identifier: Apache-2.0
# The sidecar alone: no PySpark, no matplotlib, no Java, no compiler, no pip. Two images:
#
#   docker build --tag weir .                            for listeners; nothing of it needs root
#   docker build --tag weir-capture --target capture .   with what [capture] needs (docs/capture.md)
#
# The base is the newest Python that every package of requirements.lock has wheels for. Its digest is that of the list of
# all architectures; `docker buildx imagetools inspect python:3.14-slim-trixie` tells a newer one.
#
#   docker build --build-arg BASE=python:3.14-slim-trixie@sha256:... .
ARG BASE=python:3.14.7-slim-trixie@sha256:51dafde81dbdb6ebde285137a295cf18a47ca95234fe388a343719cb97305b3d

FROM ${BASE} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/weir
COPY requirements.lock requirements-build.lock ./
RUN pip --python /opt/weir/bin/python install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock \
 && pip install --no-cache-dir --root-user-action ignore --require-hashes --only-binary :all: -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
# each room, and the links that put it into the package
COPY weir weir
COPY lab lab
COPY protocol protocol
COPY lag lag
COPY quota quota
COPY limits limits
COPY samples samples
COPY planning planning
COPY access access
COPY proxy proxy
COPY control control
COPY pipeline pipeline
COPY cli cli
# Nothing is fetched from here on: what builds it has come by its hash.
RUN pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheel . \
 && pip --python /opt/weir/bin/python install --no-cache-dir --no-index --no-deps /wheel/*.whl

FROM ${BASE} AS sidecar
# What a build knows: --build-arg SOURCE=https://... REVISION=$(git rev-parse HEAD) CREATED=$(date --iso-8601=seconds)
ARG SOURCE="" REVISION="" CREATED=""
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A sidecar for every Kafka broker that bounds replication traffic on the wire" \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
RUN pip uninstall --yes --quiet --root-user-action ignore pip setuptools wheel \
 && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin weir
# Same path, same base: the environment's links to Python stay true.
COPY --from=build /opt/weir /opt/weir
ENV PATH=/opt/weir/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
# SIGTERM drains: no new connections, fetches in flight are finished.
STOPSIGNAL SIGTERM
ENTRYPOINT ["weir"]
CMD ["run", "--config", "/etc/weir/weir.toml"]

# libnftables and ss, from Debian's archive, whose signature apt checks. A container's user other than root holds no
# capability, so it runs as root, and weir gives up all but CAP_NET_ADMIN before it listens.
FROM sidecar AS capture
USER 0:0
RUN apt-get update \
 && apt-get install --yes --no-install-recommends iproute2 libnftables1 \
 && rm -rf /var/lib/apt/lists/*

# The last stage is what is built where no target is named.
FROM sidecar
