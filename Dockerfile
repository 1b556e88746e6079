# docker build -t fedbench . && mkdir -p results
# docker run --rm --user "$(id -u)" --env HOME=/tmp --volume "$PWD/results:/results" fedbench attack --seeds 0
# A build of torch without CUDA, and a user without rights. The wheel is built apart, so the image has no sources twice.
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
      -c /tmp/constraints.txt /tmp/wheels/*.whl \
    && rm -r /tmp/wheels \
    && useradd --create-home fedbench \
    && install -d -o fedbench /results
USER fedbench
# Records go to /results, caches to the user's home.
WORKDIR /
ENTRYPOINT ["fedbench"]
CMD ["--help"]
