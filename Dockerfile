# Builds the CPU server and its libraries, then copies them into a plain base image. Serves the demo model by default:
#   docker build -t firesteel . && docker run --rm -p 127.0.0.1:8000:8000 firesteel
# Another model: mount it and append `serve --host 0.0.0.0 --model /model`.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /src
COPY scripts/apt-packages.txt scripts/apt-packages.txt
RUN apt-get update \
    && grep -v '^#' scripts/apt-packages.txt \
       | xargs env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release -DFIRESTEEL_TESTS=OFF \
    && cmake --build --preset release --target firesteel \
    && scripts/bundle.sh build/release/bin/firesteel /opt/firesteel

FROM ${BASE}
COPY --from=build /opt/firesteel /opt/firesteel
COPY configs/demo-v4 /opt/firesteel/demo-v4
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# bash speaks TCP by itself, so the image needs no HTTP client.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["/opt/firesteel/firesteel"]
CMD ["serve", "--host", "0.0.0.0", "--model", "/opt/firesteel/demo-v4"]
