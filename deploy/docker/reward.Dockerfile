# A reward service: without torch, or with --build-arg REWARD_MODEL=cpu or cuda with what a reward model beside it needs.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS compiled
# A package of reasoning-gym comes as C source alone. The headers are for a base image whose Python is Debian's.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev
WORKDIR /wheels
COPY requirements/build.txt requirements/tasks.txt requirements/
RUN pip install --no-cache-dir --no-deps -r requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation "$(grep '^pycosat==' requirements/tasks.txt)"

FROM ${BASE}
ARG REWARD_MODEL=no
# Where the CPU build of torch is found when pip, as it is configured, finds none.
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
# The sandbox of the verifiers code and code_stdio. It works as the user below and without capabilities, but the
# container has to be allowed user namespaces: docs/sandbox.md. Without it those two verifiers refuse, the others work.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home shoal \
    && install --directory --owner=shoal --group=shoal /data /home/shoal/.cache

WORKDIR /opt/shoal
# Packages come before the code, so that a change of the code does not install them again.
COPY requirements/build.txt requirements/base.txt requirements/reward*.txt requirements/tasks.txt requirements/
COPY --from=compiled /wheels/*.whl /wheels/
RUN pip install --no-deps -r requirements/build.txt \
    && pip install --no-deps --no-build-isolation --find-links /wheels -r requirements/tasks.txt -r requirements/reward.txt
# PyPI's torch is the CUDA build.
RUN case "$REWARD_MODEL" in \
    no) ;; \
    cpu) sed -n 's/^torch==.*/&+cpu/p' requirements/reward-model.txt > requirements/torch-cpu.txt \
        && { pip install --no-deps -r requirements/torch-cpu.txt \
            || pip install --no-deps -r requirements/torch-cpu.txt --index-url "$TORCH_CPU_INDEX"; } \
        && pip install --no-deps -r requirements/reward-model.txt ;; \
    cuda) pip install --no-deps -r requirements/reward-model-cuda.txt ;; \
    *) echo "REWARD_MODEL is no, cpu or cuda, not $REWARD_MODEL" >&2; exit 1 ;; \
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
# The process itself: the service serves only once a run has configured it.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "shoal.rpc.healthcheck", "127.0.0.1:50051", "--timeout-s=8"]
ENTRYPOINT ["python", "-m", "services.reward"]
