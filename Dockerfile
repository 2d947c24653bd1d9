# sglang's image with the patches in place. In a clone of this repository:
#     docker build --build-arg IMAGE=lmsysorg/sglang:v0.5.9 --tag sglang-patched .
ARG IMAGE=lmsysorg/sglang:v0.5.12.post1
FROM ${IMAGE}
# the clone and the cache are mounted, and no part of the image
RUN --mount=type=bind,target=/queue,rw --mount=type=cache,target=/root/.cache \
    /queue/scripts/nox install --site-packages /sgl-workspace/sglang/python
# behind your own steps: it fails if one of them has replaced a patched file
RUN python3 /sgl-workspace/sglang/python/sglang/srt/prefill_graph --verify
