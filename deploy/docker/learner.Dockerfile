# The learner, all its ranks on one machine, with torch's CPU build, or with --build-arg DEVICE=cuda its CUDA build.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG DEVICE=cpu
# Index with the CPU build of torch, used if pip's configured index has none.
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --create-home shoal \
    && install --directory --owner=shoal --group=shoal /data /home/shoal/.cache
# On GPUs Triton compiles C for the kernels that it launches.
# hadolint ignore=DL3008
RUN if [ "$DEVICE" = cuda ]; then apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi

WORKDIR /opt/shoal
# Packages are installed before the code is copied, so that a change of the code does not install them again.
COPY requirements/build.txt requirements/base.txt requirements/learner*.txt requirements/quickstart.txt requirements/
# The torch on PyPI is the CUDA build.
RUN pip install --no-deps -r requirements/build.txt \
    && if [ "$DEVICE" = cpu ]; then \
        sed -n 's/^torch==.*/&+cpu/p' requirements/learner.txt > requirements/torch-cpu.txt \
        && { pip install --no-deps -r requirements/torch-cpu.txt \
            || pip install --no-deps -r requirements/torch-cpu.txt --index-url "$TORCH_CPU_INDEX"; }; \
    else \
        pip install --no-deps -r "requirements/learner-$DEVICE.txt"; \
    fi \
    && pip install --no-deps --no-build-isolation -r requirements/learner.txt -r requirements/quickstart.txt
COPY pyproject.toml README.md ./
COPY shoal shoal
COPY services/__init__.py services/
COPY services/learner services/learner
RUN pip install --no-deps --no-build-isolation .

# /data has the checkpoints and trained models, ~/.cache the converted and downloaded models.
WORKDIR /data
USER 10001:10001
ENV SHOAL_LISTEN=0.0.0.0:50051 SHOAL_DATA_DIR=/data
EXPOSE 50051
# Checks the process alone: a service serves only after a run has configured it.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "shoal.rpc.healthcheck", "127.0.0.1:50051", "--timeout-s=8"]
ENTRYPOINT ["python", "-m", "services.learner"]
