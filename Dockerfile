# The sidecar alone: no PySpark, no matplotlib, no Java, no compiler, no pip.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/weir
COPY requirements.lock ./
RUN pip --python /opt/weir/bin/python install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY quota quota
COPY limits limits
COPY samples samples
COPY planning planning
COPY access access
COPY proxy proxy
COPY control control
COPY pipeline pipeline
COPY cli cli
RUN pip --python /opt/weir/bin/python install --no-cache-dir --no-deps .

FROM python:3.11-slim-bookworm
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
