# One image per service, each with only its own packages: torch is in the worker's alone.
#   docker build --target worker -t tetrad-worker .
# docker-compose.yml builds and runs all four.
FROM python:3.11-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TETRAD_CACHE_DIR=/var/cache/tetrad \
    HF_HOME=/var/cache/tetrad/huggingface
# The cache is a volume: it must belong to the user that fetches models into it.
RUN useradd --create-home --uid 10001 tetrad && install -d -o tetrad -g tetrad /var/cache/tetrad
COPY --from=wheel /dist /dist
COPY requirements.lock /dist/
WORKDIR /home/tetrad

FROM base AS frontend
RUN pip install --no-cache-dir -c /dist/requirements.lock "$(ls /dist/*.whl)[frontend]"
USER tetrad
EXPOSE 8000 50050
ENTRYPOINT ["tetrad", "frontend"]

FROM base AS tokenizer
RUN pip install --no-cache-dir -c /dist/requirements.lock "$(ls /dist/*.whl)[tokenizer]"
USER tetrad
EXPOSE 50051
ENTRYPOINT ["tetrad", "tokenizer"]

FROM base AS engine-core
RUN pip install --no-cache-dir -c /dist/requirements.lock "$(ls /dist/*.whl)[engine-core]"
USER tetrad
EXPOSE 50052 50054
ENTRYPOINT ["tetrad", "engine-core"]

# The worker's kernels for every kind of x86-64, so that its own image needs no compiler.
FROM base AS kernels
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir -c /dist/requirements.lock /dist/*.whl \
    && python -m tetrad.worker_svc.native.build \
    && cp -r "$(python -c 'from tetrad.worker_svc.native.library import prebuilt_dir; print(prebuilt_dir())')" /kernels

FROM base AS worker
# Where CPU builds of torch are; empty: only pip's own index, whose torch brings CUDA with it.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c /dist/requirements.lock "$(ls /dist/*.whl)[worker]"
COPY --from=kernels /kernels /usr/local/lib/python3.11/site-packages/tetrad/worker_svc/native/lib
USER tetrad
EXPOSE 50053
ENTRYPOINT ["tetrad", "worker"]
