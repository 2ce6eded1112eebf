# One image for server and clients. `docker compose up` builds and uses it.

FROM python:3.11-slim AS build
RUN python -m venv /opt/pri-rfed
WORKDIR /source
# What the project needs changes less often than the project: installed first, it is kept from build to build.
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir pri_rfed server clients \
    && /opt/pri-rfed/bin/pip install --no-cache-dir --constraint constraints.txt . \
    && /opt/pri-rfed/bin/pip uninstall --quiet --yes pri-rfed
COPY pri_rfed pri_rfed
COPY server server
COPY clients clients
RUN /opt/pri-rfed/bin/pip install --no-cache-dir --no-deps . \
    && /opt/pri-rfed/bin/pip uninstall --quiet --yes pip setuptools \
    && find /opt/pri-rfed -type d -name tests -path '*site-packages*' -prune -exec rm -rf {} +

FROM python:3.11-slim
ENV PATH=/opt/pri-rfed/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    FLWR_HOME=/tmp/flwr \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
COPY --from=build /opt/pri-rfed /opt/pri-rfed
COPY configs /srv/pri-rfed/configs
WORKDIR /srv/pri-rfed
RUN useradd --system --uid 10001 --no-create-home --home-dir /tmp pri-rfed
USER 10001
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=6 CMD ["pri-rfed", "health", "127.0.0.1:8081"]
ENTRYPOINT ["pri-rfed"]
CMD ["--help"]
