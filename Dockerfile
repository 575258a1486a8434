# One image per service, each with only its own packages, and one that runs all services together, the default target.
#   docker build --target worker -t tetrad-worker .
#   docker build -t tetrad . && docker run -p 8000:8000 tetrad
# docker-compose.yml builds and runs those of the services. Packages are pinned by requirements.lock and come before the source, so that a
# change of code rebuilds in seconds; what every service needs is one layer, which all images share.

FROM python:3.11-slim AS packages
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
RUN python -m venv /opt/tetrad \
    && useradd --create-home --uid 10001 tetrad \
    # Volumes are made with the owner of the directory that they cover.
    && install -d -o tetrad -g tetrad /var/cache/tetrad /var/lib/tetrad /certificates
ENV PATH=/opt/tetrad/bin:$PATH TETRAD_CACHE_DIR=/var/cache/tetrad HF_HOME=/var/cache/tetrad/huggingface \
    # As `tetrad serve` has it: services/rpc/grpc_pollers.py says why.
    GRPC_EXPERIMENTS=-event_engine_client,-event_engine_listener
WORKDIR /opt/tetrad
COPY requirements.lock requirements/common.txt ./
RUN pip install -c requirements.lock -r common.txt

# Tetrad itself.
FROM packages AS wheel
RUN pip install -c requirements.lock setuptools
WORKDIR /src
COPY . .
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /dist .

# The worker's kernels for every kind of x86-64, so that its own image needs no compiler. They change with few files.
FROM packages AS kernels
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY tetrad/__init__.py tetrad/
COPY services tetrad/services/
COPY worker_svc/__init__.py tetrad/worker_svc/
COPY worker_svc/native tetrad/worker_svc/native/
RUN python -m tetrad.worker_svc.native.build

FROM packages AS frontend
COPY requirements/frontend.txt requirements/gateways.txt ./
RUN pip install -c requirements.lock -r frontend.txt -r gateways.txt
COPY --from=wheel /dist dist/
RUN pip install --no-deps dist/*.whl
USER tetrad
EXPOSE 8000 50050
ENTRYPOINT ["tetrad", "frontend"]

FROM packages AS tokenizer
COPY requirements/tokenizer.txt ./
RUN pip install -c requirements.lock -r tokenizer.txt
COPY --from=wheel /dist dist/
RUN pip install --no-deps dist/*.whl
USER tetrad
EXPOSE 50051
ENTRYPOINT ["tetrad", "tokenizer"]

FROM packages AS engine-core
COPY requirements/engine-core.txt ./
RUN pip install -c requirements.lock -r engine-core.txt
COPY --from=wheel /dist dist/
RUN pip install --no-deps dist/*.whl
USER tetrad
EXPOSE 50052 50054
ENTRYPOINT ["tetrad", "engine-core"]

FROM packages AS worker
# Where CPU builds of torch are; empty: only pip's own index, whose torch brings CUDA with it.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY requirements/worker.txt ./
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c requirements.lock -r worker.txt
COPY --from=kernels /src/tetrad/worker_svc/native/lib lib/python3.11/site-packages/tetrad/worker_svc/native/lib/
COPY --from=wheel /dist dist/
RUN pip install --no-deps dist/*.whl
USER tetrad
EXPOSE 50053
ENTRYPOINT ["tetrad", "worker"]

# The same for a GPU; built with TORCH_INDEX empty. Triton compiles what launches a kernel when it is first used, and keeps it.
FROM worker AS worker-gpu
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV TRITON_CACHE_DIR=/var/cache/tetrad/triton
USER tetrad

# One address for many frontends: docker-compose.yml's profile `scale`.
FROM python:3.11-slim AS balancer
RUN apt-get update && apt-get install -y --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
COPY deploy/compose/haproxy.cfg /etc/haproxy/haproxy.cfg
USER haproxy
EXPOSE 8000 50050
ENTRYPOINT ["haproxy", "-db", "-f", "/etc/haproxy/haproxy.cfg"]

# Makes certificates for profile `tls`, once.
FROM python:3.11-slim AS certificates
RUN apt-get update && apt-get install -y --no-install-recommends openssl && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 tetrad \
    && for name in frontend tokenizer engine-core worker client; do install -d -o tetrad -g tetrad "/certificates/$name"; done
COPY deploy/compose/certificates.sh /usr/local/bin/certificates
USER tetrad
ENTRYPOINT ["certificates"]

# Everything in one container: `tetrad serve` with all four services. Arguments of `docker run` are arguments of `tetrad serve`.
FROM worker AS all
USER root
COPY requirements/frontend.txt requirements/gateways.txt requirements/tokenizer.txt requirements/engine-core.txt requirements/cli.txt ./
RUN pip install -c requirements.lock -r frontend.txt -r gateways.txt -r tokenizer.txt -r engine-core.txt -r cli.txt
USER tetrad
# Downloaded models.
VOLUME /var/cache/tetrad
EXPOSE 8000 50050
# The first start downloads the model.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m --retries=3 \
    CMD ["python", "-m", "tetrad.readiness", "127.0.0.1:50050", "tetrad.v1.InferenceService"]
ENTRYPOINT ["tetrad", "serve", "--host", "0.0.0.0", "--grpc-port", "50050"]

# The same for a GPU, as worker-gpu is.
FROM all AS all-gpu
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV TRITON_CACHE_DIR=/var/cache/tetrad/triton
USER tetrad

# What a build without a target makes.
FROM all
