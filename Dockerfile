# One image for the grid side and for sites (the last stage), and one for PostgreSQL (target postgres), from one base.
#
#   docker build -t gridweave:0.1.0 .
#   docker build -t gridweave-postgres:15 --target postgres .
#
# What is in it is fixed by docker/constraints.txt (docker/lock.sh renews it) and by the tag of the base.
ARG BASE=debian:bookworm-20250520-slim

FROM ${BASE} AS base
ENV LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get upgrade --yes --no-install-recommends \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/cache/ldconfig


# PostgreSQL, as Debian has it.
FROM base AS postgres
RUN groupadd --system --gid 10002 postgres \
 && useradd --system --uid 10002 --gid postgres --home-dir /var/lib/postgresql --shell /usr/sbin/nologin postgres \
 && mkdir -p /etc/postgresql-common \
 && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
 && apt-get update \
 && apt-get install --yes --no-install-recommends postgresql-15 \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log \
 # Queries are not compiled here (jit=off), for which LLVM would be half of the image.
 && rm -rf /usr/lib/postgresql/15/lib/bitcode /usr/lib/postgresql/15/lib/llvmjit* /usr/lib/*/libLLVM* /usr/lib/*/libz3* \
 && install --directory --owner postgres --group postgres --mode 0700 /var/lib/postgresql
COPY docker/postgres.sh /usr/local/bin/run-postgres
USER postgres
VOLUME /var/lib/postgresql
EXPOSE 5432
# Its clients stay connected, so it must not wait for them (TERM), but end their sessions.
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 \
  CMD ["/usr/lib/postgresql/15/bin/pg_isready", "--quiet", "--host=127.0.0.1", "--dbname=gridweave", "--username=gridweave"]
ENTRYPOINT ["/usr/bin/tini", "--", "run-postgres"]


FROM base AS python
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
ENV PATH=/opt/gridweave/bin:$PATH


# What gridweave needs, in an environment of its own. Nothing is compiled here: all of it comes as wheels.
FROM python AS needed
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv binutils
COPY docker/constraints.txt docker/slim.sh /build/
RUN python3 -m venv /opt/gridweave \
 && pip install --no-cache-dir --disable-pip-version-check --no-compile --only-binary :all: \
      --require-hashes --requirement /build/constraints.txt
RUN sh /build/slim.sh /opt/gridweave


# The wheel, and where its files will be.
FROM needed AS wheel
COPY docker/build-constraints.txt /build/
RUN python3 -m venv /build/tools \
 && /build/tools/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
      --requirement /build/build-constraints.txt
COPY pyproject.toml README.md LICENSE /build/source/
COPY src /build/source/src
COPY netmodel /build/source/netmodel
COPY site /build/source/site
COPY slurm /build/source/slurm
COPY grid /build/source/grid
COPY scenarios /build/source/scenarios
# 1980 is the first year that a zip file knows.
RUN SOURCE_DATE_EPOCH=315532800 /build/tools/bin/pip wheel --no-deps --no-build-isolation --no-cache-dir \
      --wheel-dir /build/dist /build/source \
 && /build/tools/bin/pip --python /opt/gridweave/bin/python install --no-deps --no-cache-dir --no-compile --no-index \
      --prefix /build/installed /build/dist/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /build/installed -s /build/installed -p /opt/gridweave \
 && find /build/installed -exec touch --no-dereference --date=@315532800 {} +


FROM python AS gridweave
# tc, for docker/wan.sh.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends iproute2 \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
RUN groupadd --gid 10001 gridweave \
 && useradd --uid 10001 --gid gridweave --create-home --shell /bin/sh gridweave \
 && install --directory --owner gridweave --group gridweave --mode 0750 /var/lib/gridweave /var/cache/gridweave
COPY --from=needed /opt/gridweave /opt/gridweave
COPY --from=wheel /build/installed /opt/gridweave
COPY docker/healthcheck.py docker/warm.py /usr/local/lib/gridweave/
# Machine code for any x86-64 (or ARM) processor, so that it need not be made again on another machine.
ENV NUMBA_CACHE_DIR=/var/cache/gridweave NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES="" \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RAY_USAGE_STATS_ENABLED=0
USER gridweave
RUN python /usr/local/lib/gridweave/warm.py
WORKDIR /var/lib/gridweave
VOLUME /var/lib/gridweave
EXPOSE 8765
# For sites that run jobs as other users; they are started as root, with docker/site.sh as their entry point.
COPY docker/site.sh /usr/local/bin/run-site
COPY docker/wan.sh /usr/local/bin/run-wan
COPY docker/users /etc/gridweave/
HEALTHCHECK --interval=10s --timeout=8s --start-period=240s --retries=3 \
  CMD ["python", "-I", "/usr/local/lib/gridweave/healthcheck.py"]
ENTRYPOINT ["/usr/bin/tini", "--", "gridweave"]
CMD ["serve", "/etc/gridweave/serve.toml"]
