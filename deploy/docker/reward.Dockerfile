# A reward service, without torch. --build-arg REWARD_MODEL=cpu (or cuda) adds torch, for a reward model beside it.
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
ARG REWARD_MODEL=no
# Index with the CPU build of torch, used if pip's configured index has none.
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
# The sandbox of the verifiers code and code_stdio. It needs neither root nor capabilities, but the container must allow
# user namespaces (docs/sandbox.md). Without them these two verifiers refuse to work; the others work.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home shoal \
    && install --directory --owner=shoal --group=shoal /data /home/shoal/.cache

WORKDIR /opt/shoal
# Packages are installed before the code is copied, so that a change of the code does not install them again.
COPY requirements/build.txt requirements/base.txt requirements/reward*.txt requirements/tasks.txt requirements/
COPY --from=compiled /wheels/*.whl /wheels/
RUN pip install --no-deps -r requirements/build.txt \
    && pip install --no-deps --no-build-isolation --find-links /wheels -r requirements/tasks.txt -r requirements/reward.txt
# The torch on PyPI is the CUDA build.
RUN case "$REWARD_MODEL" in \
    no) ;; \
    cpu) sed -n 's/^torch==.*/&+cpu/p' requirements/reward-model.txt > requirements/torch-cpu.txt \
        && { pip install --no-deps -r requirements/torch-cpu.txt \
            || pip install --no-deps -r requirements/torch-cpu.txt --index-url "$TORCH_CPU_INDEX"; } \
        && pip install --no-deps -r requirements/reward-model.txt ;; \
    cuda) pip install --no-deps -r requirements/reward-model-cuda.txt ;; \
    *) echo "REWARD_MODEL must be no, cpu or cuda, not $REWARD_MODEL" >&2; exit 1 ;; \
    esac
COPY pyproject.toml README.md ./
COPY shoal shoal
COPY services/__init__.py services/
COPY services/reward services/reward
RUN pip install --no-deps --no-build-isolation .

WORKDIR /data
USER 10001:10001
ENV SHOAL_LISTEN=0.0.0.0:50051 SHOAL_DATA_DIR=/data
EXPOSE 50051
# Checks the process alone: a service serves only after a run has configured it.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "shoal.rpc.healthcheck", "127.0.0.1:50051", "--timeout-s=8"]
ENTRYPOINT ["python", "-m", "services.reward"]
