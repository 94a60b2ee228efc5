# The coordinator, and the `shoal` command. It holds no torch.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS compiled
# pycosat, which reasoning-gym needs, exists as C source only. python3-dev serves base images that have Debian's Python.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev
WORKDIR /wheels
COPY requirements/build.txt requirements/tasks.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation "$(grep '^pycosat==' requirements/tasks.txt)"

FROM ${BASE}
# Further packages, of s3 (checkpoint.mirror and shoal export --to at s3://...) and trackio (tracking.trackio).
ARG EXTRAS=
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --create-home shoal \
    && install --directory --owner=shoal --group=shoal /data /home/shoal/.cache

WORKDIR /opt/shoal
# Packages are installed before the code is copied, so that a change of the code does not install them again.
COPY requirements/build.txt requirements/base.txt requirements/data.txt requirements/tasks.txt requirements/tracking.txt \
    requirements/quickstart.txt requirements/s3.txt requirements/trackio.txt requirements/
COPY --from=compiled /wheels/*.whl /wheels/
RUN pip install --no-deps -r requirements/build.txt \
    && pip install --no-deps --no-build-isolation --find-links /wheels -r requirements/tasks.txt -r requirements/data.txt \
        -r requirements/tracking.txt -r requirements/quickstart.txt \
    && for extra in $EXTRAS; do pip install --no-deps -r "requirements/$extra.txt" || exit 1; done
COPY pyproject.toml README.md ./
COPY shoal shoal
COPY services/__init__.py services/
COPY services/coordinator services/coordinator
RUN pip install --no-deps --no-build-isolation .

# /data has the run folders, ~/.cache the converted and downloaded models.
WORKDIR /data
USER 10001:10001
ENV SHOAL_LISTEN=0.0.0.0:50050 SHOAL_DATA_DIR=/data
EXPOSE 50050
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "shoal.rpc.healthcheck", "127.0.0.1:50050", "shoal.v1.CoordinatorService", "--timeout-s=8"]
ENTRYPOINT ["python", "-m", "services.coordinator"]
